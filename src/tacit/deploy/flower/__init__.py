"""Tacit over Flower: a ServerApp that leads a study, and a courier between SuperNode and silo."""
