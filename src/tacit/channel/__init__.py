"""How messages travel from silos to the server."""

from tacit.channel.mean import weighted_mean

__all__ = ["weighted_mean"]
