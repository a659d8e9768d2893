"""How messages travel from silos to the server."""

from tacit.channel.mean import weighted_mean
from tacit.channel.shuffled_reports import MismatchError, ReportShuffler, digest, mean_of_reports
from tacit.channel.shuffled_sum import SumShuffler, TooFewError, mean_of_shares

__all__ = [
    "MismatchError",
    "ReportShuffler",
    "SumShuffler",
    "TooFewError",
    "digest",
    "mean_of_reports",
    "mean_of_shares",
    "weighted_mean",
]
