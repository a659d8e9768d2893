"""Tacit: private federated learning without a trusted server."""

__version__ = "0.1.0"
