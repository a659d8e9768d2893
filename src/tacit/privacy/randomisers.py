"""Local randomisers of vectors of norm at most C: what each is made of, and how much it adds.

All three first replace x by a unit vector u = +-x/||x||, + with probability 1/2 + ||x||/2C, which is right on average.
Then they say a random vector that leans towards u: it lies in the cap <V, u> >= gamma with probability ``chance``,
where a vector that leans nowhere would lie with probability ``share``, and outside otherwise. Every two inputs'
densities differ by at most the factor (chance/share)/((1 - chance)/(1 - share)), which is exp(epsilon_0) exactly.
``scale`` makes the result right on average, in units of C.

    duchi      V on the sphere, gamma = 0 (Duchi, Jordan, Wainwright 2018): a hemisphere, so that a seed for V and a
               sign say it all; CE-PSGM's Algorithm 2, with the sphere of R^d (its S^d is one dimension too many)
    privunit2  V on the sphere, the best cap (Bhowmick et al. 2018, arXiv:1812.00984; optimal: Asi et al. 2022,
               arXiv:2205.02466)
    privunitg  V Gaussian of variance 1/d, the best cap (arXiv:2205.02466): close to privunit2 in high dimension
"""

import dataclasses
import math
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import special

from tacit.privacy.events import Event, PricingError, positive

Name = Literal["duchi", "privunit2", "privunitg"]
NAMES: tuple[Name, ...] = ("duchi", "privunit2", "privunitg")
SEED_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Terms:
    """A randomiser with its numbers.

    ``error`` is the mean squared error per report at x = 0, in units of C^2; at x it is less by ||x||^2.
    """

    name: Name
    dimension: int
    local_epsilon: float
    chance: float
    share: float
    scale: float
    error: float

    @property
    def deviation(self) -> float:
        """Root of the mean squared error per coordinate, in units of C."""
        return math.sqrt(self.error / self.dimension)

    @property
    def report_bytes(self) -> int:
        """Bytes of one report: a seed and a sign where they say it all, else a float for each coordinate."""
        return SEED_BYTES + 1 if self.name == "duchi" else 4 * self.dimension


def duchi_scale(dimension: int, local_epsilon: float) -> float:
    """The norm of a report of Duchi et al., in units of C: coth(eps0/2) sqrt(pi) Gamma((d+1)/2)/Gamma(d/2).

    >>> round(duchi_scale(1, math.log(3)), 6)
    2.0
    """
    lean = math.exp(special.gammaln((dimension + 1) / 2) - special.gammaln(dimension / 2))
    return math.sqrt(math.pi) * lean / math.tanh(positive("local_epsilon", local_epsilon) / 2)


def terms_of(name: Name | Literal["auto"], dimension: int, local_epsilon: float) -> Terms:
    """The numbers of a randomiser; ``auto`` is the one of least variance, and the shortest report among equals.

    Formal guarantee: exactly epsilon_0-LDP, and unbiased.

    >>> terms_of("auto", 100, 2.0).name
    'privunit2'
    """
    positive("local_epsilon", local_epsilon)
    if name not in (*NAMES, "auto"):
        raise PricingError(f"Expected randomiser={name!r} to be one of auto, {', '.join(NAMES)}.")
    if dimension < 1 or (dimension == 1 and name in ("privunit2", "privunitg")):
        raise PricingError(
            f'Expected dimension={dimension} >= {1 if dimension < 1 else 2} for "{name}"; use "auto" or "duchi".'
        )
    return _terms(name, dimension, float(local_epsilon))


@lru_cache(maxsize=4096)
def _terms(name: Name | Literal["auto"], dimension: int, local_epsilon: float) -> Terms:
    if name == "auto":
        able = NAMES if dimension > 1 else NAMES[:1]
        known = [_terms(one, dimension, local_epsilon) for one in able]
        return min(known, key=lambda terms: (terms.error * (1 + 1e-9 * (terms.report_bytes > 9)), terms.report_bytes))
    likely = 1 / (1 + math.exp(-local_epsilon))
    if name == "duchi":
        scale = duchi_scale(dimension, local_epsilon)
        return Terms(name, dimension, local_epsilon, likely, 0.5, scale, scale**2)
    # The lean towards u is concave enough in the chance that a fine grid and one refinement find its top.
    low, high = 0.5, likely
    for _ in range(3):
        grid = np.linspace(low, high, 201)
        errors = [_error(name, dimension, local_epsilon, p)[0] for p in grid]
        best = int(np.argmin(errors))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    chance = float(grid[best])
    error, scale = _error(name, dimension, local_epsilon, chance)
    return Terms(name, dimension, local_epsilon, chance, _share(chance, local_epsilon), scale, error)


def _share(chance: float, local_epsilon: float) -> float:
    return chance / (chance + (1 - chance) * math.exp(local_epsilon))


def _error(name: Name, dimension: int, local_epsilon: float, chance: float) -> tuple[float, float]:
    """Mean squared error at zero, and scale, of a cap that is hit with this chance."""
    share = _share(chance, local_epsilon)
    lean = chance / share - (1 - chance) / (1 - share)
    if name == "privunitg":
        edge = -float(special.ndtri(share))
        density = math.exp(-edge * edge / 2) / math.sqrt(2 * math.pi)
        mean = density / math.sqrt(dimension) * lean
        # The component along u has another second moment than the rest.
        second = 1 + edge * density * lean
        return (dimension - 1 + second) / dimension / mean**2, 1 / mean
    half = (dimension - 1) / 2
    width = float(special.betaincinv(half, 0.5, min(1.0, 2 * share)))  # 1 - gamma^2
    log_mean = special.gammaln(half + 0.5) - special.gammaln(half) - 0.5 * math.log(math.pi) + half * math.log(width)
    mean = math.exp(log_mean) / (2 * half) * lean
    return 1 / mean**2, 1 / mean


def noise_over_clip(event: Event) -> float:
    """Standard deviation per coordinate of one silo's mean message, in units of the clip.

    For Gaussian releases it is the noise multiplier times 2/batch. For reports it is that of the hemisphere in high
    dimension, for the stream that is randomised least.

    >>> plan = Event(kind="g", noise_multiplier=1.0, count=1, records=100, batch=100, sampling="full",
    ...              mechanism="reports", reports=1000, streams=(1.0,))
    >>> round(noise_over_clip(plan), 3)
    0.271
    """
    if event.mechanism != "reports" or event.noise_multiplier == 0.0:
        return 2 * event.noise_multiplier / event.batch
    largest = max(event.local_epsilons)
    return math.sqrt(math.pi / 2 / event.batch) / math.tanh(largest / 2)


def leaning(dimension: int, step: float = 1 / 128, reach: float = 9.0) -> tuple[float, float, np.ndarray]:
    """A table from standard normal quantiles to those of one coordinate of a unit vector: start, step, values."""
    z = np.arange(-reach, reach + step / 2, step)
    half = (dimension - 1) / 2
    lower = 2 * special.betaincinv(half, half, special.ndtr(-np.abs(z))) - 1
    return float(z[0]), step, np.where(z < 0, lower, -lower)


def direction(seed: int, dimension: int) -> np.ndarray:
    """The unit vector that a seed stands for: uniform on the sphere, the same for everybody."""
    drawn = np.random.Generator(np.random.Philox(seed)).standard_normal(dimension)
    unit: np.ndarray = drawn / np.linalg.norm(drawn)
    return unit


def expand(seed: int, sign: int, terms: Terms, bound: float) -> np.ndarray:
    """The report that a seed and a sign stand for."""
    if terms.name != "duchi":
        raise PricingError(f'Expected randomiser "duchi" for a seed and a sign, got "{terms.name}".')
    report: np.ndarray = bound * terms.scale * (1 if sign > 0 else -1) * direction(seed, terms.dimension)
    return report
