"""Simulation: silos, server and channels in one compiled program."""
