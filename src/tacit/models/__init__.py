"""Models that people bring (torch, Flax, Equinox), and what comes out of training: bundles, predictions, export.

All of it is public.
"""

from typing import Any

import lazy_loader

from tacit.errors import TacitError

# Names load when they are used, so that prices and data need neither jax nor safetensors.
_attached, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_LIBRARIES = ("torch", "flax", "equinox")


def __getattr__(name: str) -> Any:
    try:
        return _attached(name)
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        if library not in _LIBRARIES:
            raise
        raise TacitError(
            f"Expected the package {library} for {name}; install it with: pip install 'tacit[{library}]'"
        ) from None
