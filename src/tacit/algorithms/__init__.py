"""One file per algorithm, silo half and server half side by side. Nothing here sees a record."""

from tacit.algorithms.catalogue import ALGORITHMS, Entry, find
from tacit.algorithms.local_sgd import local_sgd
from tacit.algorithms.mb_sgd import mb_sgd

__all__ = ["ALGORITHMS", "Entry", "find", "local_sgd", "mb_sgd"]
