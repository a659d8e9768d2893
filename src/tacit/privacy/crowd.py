"""How many of the silos that come can be counted on."""

import math

from tacit.privacy.events import PricingError


def colluding_silos(silos: int, honest: float) -> int:
    """How many of so many silos may collude where a share of them is honest.

    >>> colluding_silos(10, 0.75), colluding_silos(10, 1.0)
    (3, 0)
    """
    return silos - math.floor(honest * silos + 1e-9)


def counted_silos(silos: int, least: int, honest: float) -> int:
    """How many silos are sure to come and not to collude, if at least ``least`` of them come.

    The untrusted server chooses who is waited for, so all that collude may be among those that come.

    Examples:
        >>> counted_silos(10, 10, 1.0), counted_silos(10, 8, 0.75), counted_silos(100, 40, 0.75)
        (10, 5, 15)
    """
    colluding = colluding_silos(silos, honest)
    if least <= colluding:
        raise PricingError(
            f"Expected more than {colluding} of {silos} silos in a round, got {least}: with honest={honest:g} as many "
            "may collude; let more silos come, or raise honest."
        )
    return least - colluding
