"""Public mathematics of what is learnt: models with taps, losses for each record, fairness, structured queries."""

import lazy_loader

# Names load when they are used, so that a daemon or a shuffler loads what it needs and no more.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
