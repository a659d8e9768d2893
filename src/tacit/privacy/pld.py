"""Composition of privacy profiles through privacy loss distributions (PLD), pessimistic throughout.

Each profile becomes a discrete, symmetric dominating pair by connecting its dots on a grid of privacy losses
(delta is linear in e^epsilon between grid points, so it is never understated); dp_accounting convolves.
The grid is chosen from the losses themselves: connecting dots adds about step^2/6 to the variance of each
round's loss, so the step is a small fraction of the root-mean-square loss of a round. Loss beyond the grid
counts as certain disclosure. Convolution by FFT can understate delta by about 3e-14, so delta is read with
a margin of 1e-11, and deltas below 1e-9 are refused.

References:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the dots: tighter discrete approximations of
    privacy loss distributions. PoPETs 2022.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from tacit.privacy.events import PricingError
from tacit.privacy.gaussian import Floats
from tacit.privacy.profiles import Profile

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf

SMALLEST_DELTA = 1e-9
MARGIN = 1e-11

_STEP = 0.02
_MOST_POINTS = 1 << 15
_LOST_SHARE = 1e-4
_FARTHEST = 1e6
# A composed loss of more grid points than this is an epsilon of thousands: not worth the memory.
_LONGEST = 1 << 20


class Composition:
    """The privacy loss of a sequence of adaptive releases, each given by its profile and count.

    Args:
        parts: Pairs of a profile (convex in e^epsilon, valid for both orders) and how often it is applied.
        delta: The delta that will be read; sets how much loss may fall beyond the grid.
        refine: Divides the grid step, to measure what the grid costs.

    Formal guarantee: `delta_at` and `epsilon_at` are upper bounds for any adaptive composition of mechanisms
    whose profiles are bounded by the parts.
    """

    def __init__(self, parts: Sequence[tuple[Profile, int]], delta: float, refine: float = 1.0) -> None:
        if delta < SMALLEST_DELTA:
            raise PricingError(
                f"Expected delta={delta} >= {SMALLEST_DELTA} for subsampled releases, whose convolution has "
                'a floating-point floor; use sampling="full" (exact for any delta) or a larger delta.'
            )
        lost = delta * _LOST_SHARE / len(parts)
        ranges = [profile_range(profile, lost / count) for profile, count in parts]
        step = _step(parts, ranges) / refine
        pmfs = [_discretise(p, r, step) for (p, _), r in zip(parts, ranges, strict=True)]
        self._hopeless = sum(m * count for (_, m), (_, count) in zip(pmfs, parts, strict=True)) > _LONGEST
        if self._hopeless:
            return
        # dp_accounting bounds tails by Chernoff; where that overflows it falls back to the whole range.
        with np.errstate(all="ignore"):
            self._pmf = _compose([pmf for pmf, _ in pmfs], parts)
        # Reading at minus infinity adds up all probability; what rounding has lost is put back as a margin.
        self._margin = MARGIN + max(0.0, 1.0 - float(self._pmf.get_delta_for_epsilon(-math.inf)))
        self._farthest = sum(r * count for r, (_, count) in zip(ranges, parts, strict=True)) + 1.0

    def delta_at(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), margin included."""
        if self._hopeless:
            return 1.0
        return min(1.0, float(self._pmf.get_delta_for_epsilon(float(epsilon))) + self._margin)

    def epsilon_at(self, delta: float) -> float:
        """Smallest epsilon, to a relative 1e-7 and from above, with `delta_at(epsilon)` <= delta."""
        if self.delta_at(0.0) <= delta:
            return 0.0
        if self._hopeless or self.delta_at(self._farthest) > delta:
            return math.inf

        def excess(log_epsilon: float) -> float:
            return math.log(delta / self.delta_at(math.exp(log_epsilon)))

        high = math.log(self._farthest)
        while excess(high - 1.0) >= 0:
            high -= 1.0
        epsilon = math.exp(float(brentq(excess, high - 1.0, high, xtol=1e-8)))
        while self.delta_at(epsilon) > delta:
            epsilon *= 1 + 1e-8
        return epsilon


def loss_scale(profile: Profile) -> float:
    """Standard deviation of the Gaussian loss with the same total variation."""
    return math.sqrt(2 * math.pi) * float(profile(np.zeros(1))[0])


def profile_range(profile: Profile, lost: float) -> float:
    """An epsilon beyond which the profile leaves at most `lost`, found by doubling and bisection."""
    high = max(loss_scale(profile), 1e-12)
    while float(profile(np.array([high]))[0]) > lost and high < _FARTHEST:
        high *= 2.0
    low = high / 2
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if float(profile(np.array([middle]))[0]) > lost else (low, middle)
    return high


def _step(parts: Sequence[tuple[Profile, int]], ranges: Sequence[float]) -> float:
    rounds = sum(count for _, count in parts)
    mean_square = sum(count * loss_scale(profile) ** 2 for profile, count in parts) / rounds
    return max(_STEP * math.sqrt(mean_square), max(ranges) / _MOST_POINTS)


def connect_dots(profile: Profile, farthest: float, step: float) -> tuple[Floats, float]:
    """The connect-the-dots pair of a profile that is the same for both orders.

    Returns masses at the losses -m step, ..., m step, and the mass beyond. Only the losses >= 0 are read from the
    profile; a symmetric pair has p(-l) = e^-l p(l), which is free of the cancellation that second differences suffer
    at very negative losses.
    """
    points = max(2, math.ceil(farthest / step))
    loss: Floats = np.arange(points + 1, dtype=np.float64) * step
    d: Floats = np.minimum.accumulate(np.clip(profile(loss), 0.0, 1.0))
    rise = np.diff(d)
    probs = np.empty(points + 1)
    probs[0] = 1 + (2 * rise[0] - math.expm1(step) * d[0]) / math.expm1(step)
    probs[1:-1] = (rise[1:] - math.exp(step) * rise[:-1]) / math.expm1(step)
    probs[-1] = rise[-1] / math.expm1(-step)
    probs = np.maximum(probs, 0.0)
    mirrored: Floats = (probs[1:] * np.exp(-loss[1:]))[::-1]
    return np.concatenate([mirrored, probs]), float(d[-1])


def _discretise(profile: Profile, farthest: float, step: float) -> tuple["PLDPmf", float]:
    """The pair as dp_accounting has it, and its mean in grid steps."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    masses, beyond = connect_dots(profile, farthest, step)
    points = len(masses) // 2
    mean = float(masses @ np.arange(-points, points + 1))
    return DensePLDPmf(step, -points, masses, beyond, True), mean


def _compose(pmfs: Sequence["PLDPmf"], parts: Sequence[tuple[Profile, int]]) -> "PLDPmf":
    total = None
    for pmf, (_, count) in zip(pmfs, parts, strict=True):
        own = pmf.self_compose(count) if count > 1 else pmf
        total = own if total is None else total.compose(own, 1e-15)
    return total
