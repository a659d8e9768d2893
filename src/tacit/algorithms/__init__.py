"""One file per algorithm, silo half and server half side by side. Nothing here sees a record.

The functions themselves are `tacit.mb_sgd` and so on; `tacit.algorithms.catalogue` is the table of all.
"""

from tacit.algorithm import Recipe, preset, recipe
from tacit.algorithms.catalogue import ALGORITHMS, Entry, find, paper_noise

__all__ = ["ALGORITHMS", "Entry", "Recipe", "find", "paper_noise", "preset", "recipe"]
