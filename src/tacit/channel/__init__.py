"""How messages travel from silos to the server."""

from tacit.channel.mean import weighted_mean
from tacit.channel.shuffled_sum import SumShuffler, TooFewError, mean_of_shares

__all__ = ["SumShuffler", "TooFewError", "mean_of_shares", "weighted_mean"]
