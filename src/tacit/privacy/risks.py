"""What a guarantee means to somebody who does not speak epsilon: how well the best attacker can do.

The attacker knows every record of the silo but one, sees all messages, and must tell which of two candidate
records was used. *Advantage* is the true-positive rate minus the false-positive rate at its best, which is
also how far a balanced guess can beat a coin: accuracy (1 + advantage)/2. The true-positive rate at a
false-positive rate of 1% says how many records an attacker can expose who is rarely wrong.
"""

import dataclasses
import math
from collections.abc import Iterable

from scipy import special

from tacit.privacy.accountant import Price
from tacit.privacy.curve import curve_of
from tacit.privacy.events import Event, PricingError, non_negative, probability
from tacit.privacy.gaussian import gdp_tpr
from tacit.privacy.schedule import payable, worst_allocation

FALSE_POSITIVE_RATE = 0.01
# The delta that a curve is made for where no price says one; readings hang on it by less than what they print.
_USUAL_DELTA = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Risk:
    """Upper bounds on the success of any attack that a guarantee allows.

    Args:
        advantage: Best true-positive rate minus false-positive rate; 0 is a coin toss, 1 is certainty.
        tpr_at_1pct_fpr: Best true-positive rate among attacks that are wrong about 1% of the others.
    """

    advantage: float
    tpr_at_1pct_fpr: float

    @property
    def sentence(self) -> str:
        """The reading in one plain sentence."""
        return (
            "An attacker who knows everything but one record guesses which of two it was with accuracy at "
            f"most {(1 + self.advantage) / 2:.1%} (a coin: 50.0%), and exposes at most "
            f"{self.tpr_at_1pct_fpr:.1%} of records at a false-positive rate of 1%."
        )


def risk(*, mu: float | None = None, epsilon: float | None = None, delta: float | None = None) -> Risk:
    """Attack risk of a guarantee, from mu (exact for Gaussians) or from (epsilon, delta) alone.

    Formal guarantee: no attack on a mechanism with this guarantee does better. The reading of one
    (epsilon, delta) pair is much more pessimistic than that of the whole schedule; prefer `risk_of`.

    >>> reading = risk(mu=0.232)
    >>> round(reading.advantage, 3), round(reading.tpr_at_1pct_fpr, 4)
    (0.092, 0.0181)
    """
    if mu is not None:
        if epsilon is not None or delta is not None:
            raise PricingError("Expected either mu or (epsilon, delta), not both.")
        mu = math.inf if mu == math.inf else non_negative("mu", mu)
        if mu == math.inf:
            return Risk(advantage=1.0, tpr_at_1pct_fpr=1.0)
        advantage = float(special.erf(mu / (2 * math.sqrt(2))))
        return Risk(advantage=advantage, tpr_at_1pct_fpr=gdp_tpr(mu, FALSE_POSITIVE_RATE))
    if epsilon is None or delta is None:
        raise PricingError("Expected mu, or epsilon and delta together.")
    delta = probability("delta", delta)
    if epsilon == math.inf:
        return Risk(advantage=1.0, tpr_at_1pct_fpr=1.0)
    epsilon = non_negative("epsilon", epsilon)
    shrink = math.exp(-epsilon)
    advantage = min(1.0, (-math.expm1(-epsilon) + 2 * delta * shrink) / (1 + shrink))
    by_growth = math.exp(min(epsilon, 700.0)) * FALSE_POSITIVE_RATE + delta
    by_complement = 1 - shrink * (1 - delta - FALSE_POSITIVE_RATE)
    return Risk(advantage=advantage, tpr_at_1pct_fpr=min(1.0, by_growth, max(by_complement, 0.0)))


def risk_of(events: Iterable[Event]) -> Risk:
    """Attack risk of a schedule of releases, from its whole privacy curve.

    Formal guarantee: as `risk`, for the events themselves; exact for un-subsampled Gaussians.

    >>> plan = Event(kind="g", noise_multiplier=30.48, count=50, records=99, batch=99, sampling="full")
    >>> round(risk_of([plan]).advantage, 3)
    0.092
    """
    return _reading(events, _USUAL_DELTA)


def risk_of_price(paid: Price) -> Risk:
    """Attack risk of what was priced, from the curve that the price was read from.

    The looser accountants (`rdp`, `zcdp`) have no curve: for them the reading is that of epsilon and delta alone.

    Formal guarantee: as `risk_of`, or as `risk` for the looser accountants.

    >>> from tacit.privacy.accountant import price
    >>> plan = Event(kind="g", noise_multiplier=30.48, count=50, records=99, batch=99, sampling="full")
    >>> tight, loose = (risk_of_price(price([plan], delta=1e-6, accountant=a)) for a in ("tight", "zcdp"))
    >>> round(tight.advantage, 3), round(loose.advantage, 3)
    (0.092, 0.483)
    """
    if paid.accountant in ("rdp", "zcdp"):
        return risk(epsilon=paid.epsilon, delta=paid.delta)
    return _reading(paid.events, paid.delta)


def _reading(events: Iterable[Event], delta: float) -> Risk:
    paid = worst_allocation(payable(events))
    if any(e.noise_multiplier == 0.0 for e in paid):
        return risk(mu=math.inf)
    curve = curve_of(paid, delta)
    return Risk(advantage=curve.advantage, tpr_at_1pct_fpr=curve.true_positive_rate(FALSE_POSITIVE_RATE))
