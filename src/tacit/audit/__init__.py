"""Attacks on our own guarantees: an empirical lower bound on epsilon beside every claimed upper bound."""
