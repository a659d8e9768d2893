"""Noise that remembers: what a silo adds in one round depends on what it added before.

A *strategy* is a lower-triangular matrix C with ones on its diagonal. In the t-th round of a kind the silo says

    m_t = s_t + r_t,      r = C^-1 z,      z_1, z_2, ... independent Gaussians of noise multiplier z,

so that all messages together tell as much as C s + z does. Replacing one record moves the statistics s of the rounds
that it is in by at most one sensitivity each, and C s by that times the norm of what C makes of these rounds
(`Strategy.square`): the price is that of one Gaussian release with noise multiplier z / norm. It holds whatever later
rounds ask, because row t of C s depends on nothing later (Denisov et al. 2022, Theorem 2.1). What is gained is in sums
over rounds, which is what steps of gradient descent add up: noise that one round adds, later rounds take off again.

Strategies are *buffered*, (C s)_t = s_t + sum_i weight_i h_i(t) with h_i(t+1) = decay_i h_i(t) + s_t, or *banded*,
where h_i(t) is s_{t-i} itself and there are no decays. So a silo remembers one vector for each buffer, or for each band
but the first, however many rounds there are.

    gaussian      no buffer: C is the identity, noise is fresh in every round
    cumulative    one buffer that forgets nothing: C adds up all rounds, and every running sum has fresh noise
    correlated    five buffers, near the square root of the matrix that adds up all rounds, damped; or, where a record
                  comes again after few rounds, as many bands as there are rounds between

*The square root.* The matrix of ones has a lower-triangular Toeplitz root with entries c_j = binom(2j, j) / 4^j, the
moments of the arcsine law on [0, 1]. A quadrature of that law with few nodes x_i in (0, 1), dense towards one, has
moments sum_i w_i x_i^j that are near all c_j up to j = rounds: that is a buffered strategy. Its nodes here are equally
spaced in log(-log x), from 0.2 / rounds to 0.7. `damping` multiplies the j-th diagonal by damping^j; at 0 it is the
identity. Of several dampings the one is taken that leaves the least noise in the sum over all rounds. In one pass that
is none. Where every record is in every round it is 0, for no strategy has less noise than fresh noise there: the sum
over all rounds is b C with some row b, and rounds = b C 1 <= |b| |C 1|, which is the noise of that sum over its price.

*Bands.* A record that comes again after k rounds pays for how its comings overlap in C; with k bands they do not. The
bands here are the first k coefficients of (1 - x)^-power: the square root cut off at power 1/2, all alike at 1. Of the
powers on a grid the best comes within 0.4% of the least noise that a search over all falling coefficients found, and
has up to 8% less than the best buffers. There are 32 bands at most, and they are used where they gain more than a
hundredth: in one pass buffers are as good, and beyond 32 rounds as many bands as that have far more noise.

*Why nothing can be negative.* Weights and decays are not negative, so that no entry of C is. Then what C makes of the
rounds that a record is in is longest where the record moves all of them in one direction: `Strategy.square` is attained
in any dimension, and no bound. Entries fall along each diagonal's distance, so rounds that lie farther apart, or later,
are never dearer.

References:
    Denisov, McMahan, Rush, Smith, Guha Thakurta. Improved differential privacy for SGD via optimal private linear
    operators on adaptive streams. NeurIPS 2022 (arXiv:2202.08312).
    Fichtenberger, Henzinger, Upadhyay. Constant matters: fine-grained complexity of differentially private continual
    observation. ICML 2023 (arXiv:2202.11205): the square root.
    Dvijotham, McMahan, Pillutla, Steinke, Thakurta. Efficient and near-optimal noise generation for streaming
    differential privacy. FOCS 2024 (arXiv:2404.16706): buffers. The quadrature and the dampings are ours.
    Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu. (Amplified) banded matrix factorization: a unified
    approach to private training. NeurIPS 2023 (arXiv:2306.08153): bands. That power of 1 - x is ours.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from functools import cached_property, lru_cache

import numpy as np

from tacit.algorithm import Release
from tacit.privacy.events import Event, PricingError

ONE = 2**20
"""Weights and decays are whole multiples of 1 / ONE, so that a door computes with them exactly."""

REMEMBERS = ("cumulative", "correlated")
"""Mechanisms whose noise depends on earlier rounds."""

_BUFFERS, _NEAREST, _FARTHEST = 5, 0.2, 0.7
_DAMPINGS = (0.0, *(1 - 2.0**-k for k in range(1, 13)), 1.0)
_BANDS, _POWERS, _WORTH = 32, tuple(k / 40 for k in range(20, 41)), 1.01
# Covers what float arithmetic leaves of the recursions below.
_ROUNDED = 1 + 1e-9


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Buffers of a strategy for so many rounds; weights and decays in units of 1 / ONE.

    Without decays it is banded: its buffers are the last rounds themselves, the nearest first.
    """

    rounds: int
    weights: tuple[int, ...] = ()
    decays: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what the price is no bound for: rising bands, and buffers that grow."""
        rising = not self.decays and any(b > a for a, b in itertools.pairwise((ONE, *self.weights)))
        if rising or any(decay > ONE for decay in self.decays) or any(weight < 0 for weight in self.weights):
            raise PricingError("Expected bands that fall from one, or buffers with decays of at most one.")

    def square(self, entered: Iterable[int]) -> float:
        """How far C moves, squared, if a record moves the statistics of these rounds (from zero) by one each.

        Formal guarantee: an upper bound, attained but for a factor 1 + 1e-9.
        """
        moved = np.zeros(self.rounds)
        moved[[t for t in entered if t < self.rounds]] = 1.0
        weights = np.asarray(self.weights, float) / ONE
        buffers, found = np.zeros(len(weights)), np.zeros(self.rounds)
        for t, own in enumerate(moved):
            found[t] = own + weights @ buffers
            buffers = self._after(buffers, own)
        return float(found @ found) * _ROUNDED

    @property
    def sums(self) -> np.ndarray:
        """The standard deviation of the noise in the sum over the first t rounds, t = 1, 2, ..., if z has one."""
        return np.sqrt(np.cumsum(self._left**2))

    @property
    def _left(self) -> np.ndarray:
        """C^-1 applied to ones: how much of the first z is left in the sum over the first t rounds, t = 1, 2, ..."""
        weights = np.asarray(self.weights, float) / ONE
        buffers, found = np.zeros(len(weights)), np.zeros(self.rounds)
        for t in range(self.rounds):
            found[t] = 1.0 - weights @ buffers
            buffers = self._after(buffers, found[t])
        return found

    def _after(self, buffers: np.ndarray, own: float) -> np.ndarray:
        if not self.decays:
            return np.append(own, buffers[:-1]) if len(buffers) else buffers
        return np.asarray(self.decays, float) / ONE * buffers + own

    @cached_property
    def growth(self) -> float:
        """How many times the largest draw a round's noise is at most: what the entries of a row of C^-1 add up to.

        Two for buffers (Kaluza, see `tacit.silo.noise`). For bands it is computed: with falling entries, all that is
        left of a draw lies in [0, 1], like the chance of a renewal, so that the noise is at most ``rounds`` draws.
        """
        return 2.0 if self.decays else float(np.abs(np.diff(self._left, prepend=0.0)).sum()) * _ROUNDED

    @property
    def rounding(self) -> float:
        """How far whole numbers in place of exact buffers move one coordinate of C s at most: see `tacit.silo.noise`.

        Buffers and their weighted values are rounded down. Between two worlds that is less than one apart each time,
        and an error in a buffer decays with it. Bands are exact, and what all of them take off is rounded down once.
        """
        if not self.decays:
            return float(any(w % ONE for w in self.weights))
        lasting = [0.0 if d == ONE else min(self.rounds, ONE / (ONE - d)) for d in self.decays]
        return math.fsum((w % ONE != 0) + w / ONE * kept for w, kept in zip(self.weights, lasting, strict=True))


FRESH = Strategy(1)
"""Noise that is fresh in every round."""


def strategy_of(terms: Release | Event) -> Strategy:
    """The strategy of a release, or of an event that was read from one.

    Every record is in every round unless batches are of a pass; then it comes again after ``rounds / passes`` at least.
    An event that says its strategy keeps it.
    """
    if terms.mechanism == "correlated":
        if terms.rounds is None:
            raise PricingError("Expected the number of rounds that correlated noise is made for.")
        if isinstance(terms, Event) and terms.strategy is not None:
            return Strategy(terms.rounds, *terms.strategy)
        apart = -(-terms.rounds // terms.passes) if terms.sampling == "one-pass" else 1
        return correlated(terms.rounds, apart)
    return Strategy(1, (ONE,), (ONE,)) if terms.mechanism == "cumulative" else FRESH


@lru_cache(maxsize=256)
def correlated(rounds: int, apart: int) -> Strategy:
    """The correlated strategy for records that come again after ``apart`` rounds: of buffers and bands the best.

    >>> correlated(100, 1).weights  # where a record is in every round, fresh noise is best
    ()
    >>> once = correlated(100, 100)
    >>> float(round(math.sqrt(once.square([0])) * once.sums[-1], 2))  # independent noise: 10
    2.53
    >>> len(correlated(100, 10).weights), correlated(100, 10).decays  # ten bands, one of which is the round's own
    (9, ())
    """
    if apart == 1 or rounds == 1:
        return Strategy(rounds)
    entered = range(0, rounds, apart)

    def noise(strategy: Strategy) -> float:
        return math.sqrt(strategy.square(entered)) * float(strategy.sums[-1])

    buffered = min((_damped(rounds, damping) for damping in _DAMPINGS), key=noise)
    if apart > _BANDS:
        return buffered
    banded = min((_banded(rounds, apart, power) for power in _POWERS), key=noise)
    return banded if _WORTH * noise(banded) < noise(buffered) else buffered


def _banded(rounds: int, bands: int, power: float) -> Strategy:
    """The first coefficients of (1 - x)^-power."""
    after = np.arange(1, bands)
    return Strategy(rounds, _whole(np.cumprod((after - 1 + power) / after)))


def _damped(rounds: int, damping: float) -> Strategy:
    if damping == 0.0:
        return Strategy(rounds)
    logs = np.linspace(math.log(_NEAREST / rounds), math.log(_FARTHEST), _BUFFERS)
    spacing, losses = logs[1] - logs[0], np.exp(logs)
    nodes = np.exp(-losses)
    # The arcsine law has density 1 / (pi sqrt(x (1 - x))); what lies beyond the nearest node is counted there.
    masses = spacing * losses * np.sqrt(nodes / -np.expm1(-losses)) / math.pi
    masses[0] += 2 / math.pi * math.sqrt(losses[0] * math.exp(-spacing / 2))
    decays = damping * nodes
    return Strategy(rounds, _whole(masses * decays), _whole(decays))


def _whole(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in np.floor(values * ONE))
