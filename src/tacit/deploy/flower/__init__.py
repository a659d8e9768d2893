"""Tacit over Flower: a SuperLink behind a front, a node at every silo, and a leader of studies."""
