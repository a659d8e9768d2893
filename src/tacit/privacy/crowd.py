"""How many of the silos that come can be counted on."""

import math

from tacit.privacy.events import PricingError


def counted_silos(silos: int, least: int, honest: float) -> int:
    """How many silos are sure to come and not to collude, if at least ``least`` of them come.

    The untrusted server chooses who is waited for, so all that collude may be among those that come.

    Examples:
        >>> counted_silos(10, 10, 1.0), counted_silos(10, 8, 0.75), counted_silos(100, 40, 0.75)
        (10, 5, 15)
    """
    counted = least - (silos - math.floor(honest * silos + 1e-9))
    if counted < 1:
        raise PricingError(
            f"Expected more than {silos - math.floor(honest * silos + 1e-9)} of {silos} silos in a round, got {least}: "
            f"with honest={honest:g} as many may collude; let more silos come, or raise honest."
        )
    return counted
