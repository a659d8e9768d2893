"""How many of the silos that come can be counted on, and what their records count."""

import math
from typing import Any

import numpy as np

from tacit.privacy.events import PricingError, integer


def check_anonymity(silos: int, min_silos: int, honest: float) -> None:
    """Raise unless ``min_silos`` of ``silos`` can come and ``honest`` is a share of them."""
    silos = integer("silos", silos, 1)
    if not 0 < honest <= 1:
        raise PricingError(f"Expected 0 < honest={honest} <= 1; it is the share of all silos that do not collude.")
    if integer("min_silos", min_silos, 1) > silos:
        raise PricingError(f"Expected at most {silos} silos in a round, got min_silos={min_silos}: there are no more.")


def colluding_silos(silos: int, honest: float) -> int:
    """How many of so many silos may collude where a share of them is honest.

    >>> colluding_silos(10, 0.75), colluding_silos(10, 1.0)
    (3, 0)
    """
    check_anonymity(silos, silos, honest)
    return silos - math.floor(honest * silos + 1e-9)


def counted_silos(silos: int, min_silos: int, honest: float) -> int:
    """How many silos are sure to come and not to collude, if at least ``min_silos`` of them come.

    The untrusted server chooses who is waited for, so all that collude may be among those that come.

    >>> counted_silos(10, 10, 1.0), counted_silos(10, 8, 0.75), counted_silos(100, 40, 0.75)
    (10, 5, 15)
    """
    check_anonymity(silos, min_silos, honest)
    colluding = colluding_silos(silos, honest)
    if min_silos <= colluding:
        raise PricingError(
            f"Expected more than {colluding} of {silos} silos in a round, got {min_silos}: with honest={honest:g} as "
            "many may collude; let more silos come, or raise honest."
        )
    return min_silos - colluding


def record_weights(weights: Any, sizes: Any) -> tuple[Any, Any]:
    """What a record of each silo counts in a sum over records, beside the one that counts most, and what that counts.

    For an objective sum_i p_i F_i, F_i a mean over ``sizes[i]`` records, a record of silo i counts p_i / sizes[i].
    ``weights`` are the p_i (``None``: equal); a sum adds each silo's records times the first, and is multiplied by the
    second. Sizes and weights are those of all silos of the plan, whoever comes.

    >>> relative, largest = record_weights((0.8, 0.1, 0.1), np.asarray([100, 100, 50]))
    >>> relative.round(3).tolist(), round(float(largest), 4)
    ([1.0, 0.125, 0.25], 0.008)
    """
    shares = np.full(sizes.shape, 1.0 / len(sizes)) if weights is None else np.asarray(weights, float)
    each = shares / sizes
    return each / each.max(), each.max()
