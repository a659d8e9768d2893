"""Data sets, their partition into silos, and preprocessing that says what it touches.

>>> from tacit import data
>>> federation = data.load("heart-disease", seed=1)
>>> federation.feature_shape, federation.feature_norm
((13,), 1.0)
"""

from tacit.data.catalogue import load, names
from tacit.data.describe import plot_partition, summary
from tacit.data.federation import DataError, Federation, Records, SiloData, Step

__all__ = [
    "DataError",
    "Federation",
    "Records",
    "SiloData",
    "Step",
    "load",
    "names",
    "plot_partition",
    "summary",
]
