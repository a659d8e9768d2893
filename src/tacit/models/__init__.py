"""Models that people bring (torch, Flax, Equinox), and what comes out of training: bundles, predictions, export.

All of it is public.
"""

import lazy_loader

# Names load when they are used, so that prices and data need neither jax nor safetensors.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
