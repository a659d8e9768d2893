"""Shuffled minibatch SGD, priced honestly.

Lowy and Razaviyayn (arXiv:2106.09779), Section 4, shuffle the silos' messages and amplify their privacy. Amplification
by shuffling hides a message among others that could have been sent in its place, so a message must hide *everything*
that sets one silo apart from another: all its n records, not one. Group privacy over the K records of a batch makes
a noise multiplier z into z/K, and a message that is hardly private for a whole silo gains nothing from a shuffle. The
other route to the theorem, sampling of silos (its factor M/N), amplifies nothing for records either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.privacy import Event, PricingError, gdp_epsilon, price
from tacit.privacy.events import positive, probability


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """What a shuffler buys: the price with and without it, and why.

    ``epsilon_direct`` trusts nobody; ``epsilon_shuffled`` also counts what the shuffler is known to add, and is never
    larger; ``hiding`` is the epsilon at which one message hides its whole silo and ``needed`` what that must not
    exceed.
    """

    epsilon_direct: float
    epsilon_shuffled: float
    hiding: float
    needed: float
    statement: str

    @property
    def helps(self) -> bool:
        """Whether the shuffler lowers the price."""
        return self.epsilon_shuffled < self.epsilon_direct


def shuffled_mb_sgd(event: Event, *, silos: int, delta: float) -> Shuffled:
    """Price ``event`` with the messages of each round shuffled among ``silos`` silos that send the like.

    >>> plan = Event(kind="g", noise_multiplier=30.5, count=50, records=1234, batch=1234, sampling="full")
    >>> found = shuffled_mb_sgd(plan, silos=25, delta=1e-6)
    >>> found.helps
    False
    >>> found.statement  # doctest: +ELLIPSIS
    'Shuffling buys nothing: a message hides its whole silo of 1234 records only at epsilon ...
    """
    if event.mechanism != "gaussian" or event.sampling == "wr":
        raise PricingError('Expected a Gaussian release without "wr" sampling; others have no whole-silo price here.')
    direct = price([event], delta=delta).epsilon
    # Half of delta for the tails of the R messages among N silos, half for shuffling and composing.
    tail = delta / (8 * event.count * silos)
    hiding = gdp_epsilon(_most_records(event) / event.noise_multiplier, tail) if event.noise_multiplier else math.inf
    share = delta / (4 * event.count)
    needed = math.log(max(silos / (16 * math.log(2 / share)), 1e-300))
    if hiding > needed:
        limit = f"{needed:.3g}" if needed > 0 else "none at all (too few silos)"
        reason = (
            f"Shuffling buys nothing: a message hides its whole silo of {event.records} records only at epsilon "
            f"{hiding:.3g}, and amplification over {silos} messages needs at most {limit}."
        )
        return Shuffled(epsilon_direct=direct, epsilon_shuffled=direct, hiding=hiding, needed=needed, statement=reason)
    amplified = _composed(closed_form_epsilon(hiding, silos, share), event.count, delta / 4)
    if amplified >= direct:
        reason = f"Shuffling buys nothing: amplified and composed, epsilon is {amplified:.3g}; without it {direct:.3g}."
    else:
        reason = f"Shuffling lowers epsilon from {direct:.3g} to {amplified:.3g} (shuffle DP: trusts the shuffler)."
    return Shuffled(
        epsilon_direct=direct,
        epsilon_shuffled=min(direct, amplified),
        hiding=hiding,
        needed=needed,
        statement=reason,
    )


def closed_form_epsilon(local_epsilon: float, reports: int, delta: float) -> float:
    """Epsilon of one shuffle by the closed form of Feldman, McMillan and Talwar 2021, Theorem 3.1.

    Looser than `shuffled_profile`; refuses where the theorem's condition fails.

    Examples:
        >>> round(closed_form_epsilon(1.0, 100_000, 1e-6), 4)
        0.0726
    """
    local_epsilon, delta = positive("local_epsilon", local_epsilon), probability("delta", delta)
    most = math.log(max(reports / (16 * math.log(2 / delta)), 1e-300))
    if local_epsilon > most:
        raise PricingError(
            f"Expected local_epsilon={local_epsilon:g} <= ln(reports/(16 ln(2/delta)))={most:.4g} for the closed form; "
            'lower it, gather more reports, or use accountant="tight".'
        )
    grown = math.exp(local_epsilon)
    clones = 8 * math.sqrt(grown * math.log(4 / delta) / reports) + 8 * grown / reports
    return min(local_epsilon, math.log1p((grown - 1) / (grown + 1) * clones))


def _most_records(event: Event) -> int:
    """How many records of a silo one message can hold: what separates two silos that share nothing."""
    return event.batch if event.sampling != "poisson" else (event.capacity or event.records)


def _composed(epsilon: float, count: int, delta: float) -> float:
    """Advanced composition of ``count`` rounds, or plain addition where that is less."""
    advanced = math.sqrt(2 * count * math.log(1 / delta)) * epsilon + count * epsilon * math.tanh(epsilon / 2)
    return min(count * epsilon, advanced)
