"""The trusted layer: the only code that touches a record. It never imports an algorithm."""

import lazy_loader

# Names load when they are used, so that a daemon or a shuffler loads what it needs and no more.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
