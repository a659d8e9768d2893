"""SteFFLe: the algorithm in `factory`, and one file for each of its designs."""

from tacit.algorithms.steffle.factory import steffle as steffle
