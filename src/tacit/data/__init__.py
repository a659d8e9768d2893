"""Data sets, their partition into silos, and preprocessing that says what it touches.

>>> from tacit import data
>>> federation = data.load("heart-disease", seed=1)
>>> federation.feature_shape, federation.feature_norm
((13,), 1.0)
"""

import lazy_loader

# Names load when they are used, so that a daemon or a shuffler loads what it needs and no more.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
