"""From plan to price: differential-privacy events, accountants, calibration and conversions.

Adjacency is replace-one-record with public sizes. Nothing here imports jax, and dp_accounting is imported
only by the looser `rdp` accountant.
"""

import lazy_loader

# Names load when they are used, so that a daemon or a shuffler loads what it needs and no more.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
