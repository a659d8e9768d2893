"""Composition of privacy profiles through privacy loss distributions (PLD), pessimistic throughout.

Each profile becomes a discrete, symmetric dominating pair by connecting its dots on a grid of privacy losses
(delta is linear in e^epsilon between grid points, so it is never understated); `tacit.privacy.lattice` convolves
the losses and bounds all rounding. Loss beyond the grid counts as certain disclosure.

A grid of step h adds about h^2/6 to the variance of each release's loss, which costs about n (1 + t) h^2 / 12 of
epsilon for n releases read at the tilt t. Steps are refined until that is a ten-thousandth of epsilon. Each kind of
release has its own: one Gaussian beside a million small losses needs no grid as fine as theirs.

References:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the dots: tighter discrete approximations of
    privacy loss distributions. PoPETs 2022.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from scipy.optimize import brentq

from tacit.privacy.events import PricingError
from tacit.privacy.gaussian import Floats
from tacit.privacy.lattice import LONGEST, LossSum, Part, TiltedCurve
from tacit.privacy.profiles import Profile

SMALLEST_DELTA = 1e-9
PROFILE_ERROR = 1e-11
"""Largest relative error of a profile as computed; every profile is raised by it."""

_LOST_SHARE = 1e-4
_FARTHEST = 1e9
_UNIT = 2.0**-53
# What the grid may cost of epsilon: aimed at, and tolerated where no finer grid fits.
_COST = 1e-4
_MOST_COST = 1e-2
_FIRST_STEP = 0.025
_FIRST_POINTS = 1 << 13
_MOST_POINTS = 1 << 17
_REFINEMENTS = 8
# The deltas near which a composition is tilted: every hundredth, so that each is read near its own tilt.
_LADDER = tuple(10.0 ** -(2 * k + 1) for k in range(9))


class Composition:
    """The privacy loss of a sequence of adaptive releases, each given by its profile and count.

    Args:
        parts: Pairs of a profile (convex in e^epsilon, valid for both orders) and how often it is applied.
        delta: The smallest delta that will be read; sets how much loss may fall beyond the grid.
        refine: Divides the grid step, to measure what the grid costs.

    Formal guarantee: `delta_at` and `epsilon_at` are upper bounds for any adaptive composition of mechanisms
    whose profiles are bounded by the parts, up to a relative error of `PROFILE_ERROR` in the profiles as computed;
    rounding of the composition is included. Where the bound would be more than a hundredth above what a finer grid
    gives, `PricingError` is raised.
    """

    def __init__(self, parts: Sequence[tuple[Profile, int]], delta: float, refine: float = 1.0) -> None:
        _check_delta(delta, SMALLEST_DELTA)
        self._smallest = delta
        self._sum = _fine_enough(parts, delta, refine)
        self._tilts: list[tuple[float, float]] = []
        self._curves: dict[int, TiltedCurve] = {}

    def delta_at(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon) for epsilon >= 0."""
        rung = 0
        while rung + 1 < len(_LADDER) and self._tilt(rung + 1)[1] <= epsilon:
            rung += 1
        if rung not in self._curves:
            self._curves[rung] = self._sum.compose(self._tilt(rung)[0])
        return self._curves[rung](float(epsilon))

    def epsilon_at(self, delta: float) -> float:
        """Smallest epsilon, to a relative 1e-7 and from above, with `delta_at(epsilon)` <= delta."""
        _check_delta(delta, self._smallest)
        tilt, high = self._sum.chernoff(delta)
        high, stride = max(high, 0.0), 1 / tilt
        while self.delta_at(high) > delta:
            high, stride = high + stride, 2 * stride
            if not math.isfinite(high):
                return math.inf
        low, stride = high, 1 / tilt
        while self.delta_at(low) <= delta:
            if low == 0.0:
                return 0.0
            high, low, stride = low, max(0.0, low - stride), 2 * stride
        epsilon = float(brentq(lambda e: math.log(delta / self.delta_at(e)), low, high, xtol=1e-12 * high, rtol=1e-8))
        nudge = 1e-8
        while self.delta_at(epsilon) > delta:
            epsilon, nudge = epsilon * (1 + nudge), 2 * nudge
        return epsilon

    def _tilt(self, rung: int) -> tuple[float, float]:
        while len(self._tilts) <= rung:
            self._tilts.append(self._sum.chernoff(_LADDER[len(self._tilts)]))
        return self._tilts[rung]


def loss_scale(profile: Profile) -> float:
    """Standard deviation of the Gaussian loss with the same total variation."""
    return math.sqrt(2 * math.pi) * float(profile(np.zeros(1))[0])


def profile_range(profile: Profile, lost: float) -> float:
    """An epsilon beyond which the profile leaves at most `lost`, found by doubling and bisection."""
    high = max(loss_scale(profile), 1e-300)
    while float(profile(np.array([high]))[0]) > lost and high < _FARTHEST:
        high *= 2.0
    low = high / 2
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if float(profile(np.array([middle]))[0]) > lost else (low, middle)
    return high


def _fine_enough(parts: Sequence[tuple[Profile, int]], delta: float, refine: float) -> LossSum:
    """The losses on the coarsest grid that costs no more than `_COST`, or on the finest one that fits."""
    lost = delta * _LOST_SHARE / len(parts)
    ranges = np.array([profile_range(profile, lost / count) for profile, count in parts])
    _check_range(float(ranges.max()))
    steps = np.maximum(_first_steps(parts), ranges / _FIRST_POINTS)
    for _ in range(_REFINEMENTS):
        made = _on_grid(parts, ranges, steps)
        tilt, epsilon = made.chernoff(delta)
        first, last = made.window(tilt)
        least = made.step * (last - first) / LONGEST
        costs = _grid_costs(made, tilt) / max(epsilon, 1 / tilt)
        shrink = np.sqrt(_COST / len(parts) / np.maximum(costs, 1e-300))
        wanted = steps * np.where(shrink < 1, np.maximum(0.9 * shrink, 0.1), 1.0)
        wanted = np.maximum(wanted, np.maximum(np.minimum(steps, ranges / _MOST_POINTS), 1.1 * least))
        if made.step >= least and np.all(wanted > 0.99 * steps):
            break
        steps = wanted
    cost = float(costs.sum())
    if cost > _MOST_COST or made.step < least:
        raise PricingError(
            f"Expected losses of {made.releases} releases that a grid of {LONGEST} points can tell apart, got a grid "
            f"that costs {cost:.0%} of epsilon; price fewer subsampled releases, or use sampling=\"full\", whose "
            "composition is exact for any number."
        )
    return made if refine == 1.0 else _on_grid(parts, ranges, steps / refine)


def _check_delta(delta: float, smallest: float) -> None:
    if delta < smallest:
        raise PricingError(
            f"Expected delta={delta} >= {smallest} for subsampled releases; "
            'use sampling="full" (exact for any delta) or a larger delta.'
        )


def _check_range(farthest: float) -> None:
    if farthest > _FARTHEST:
        raise PricingError(
            f"Expected privacy losses below {_FARTHEST:g} for subsampled releases, got {farthest:g}; there is almost "
            'no noise: add some, or use sampling="full", whose price is exact for any noise.'
        )


def _first_steps(parts: Sequence[tuple[Profile, int]]) -> Floats:
    """Small fractions of each part's fair share in the deviation of all losses."""
    counts = np.array([float(count) for _, count in parts])
    scales = np.array([loss_scale(profile) for profile, _ in parts])
    return _FIRST_STEP * math.sqrt(float(counts @ scales**2)) / np.sqrt(counts * len(parts))


def _on_grid(parts: Sequence[tuple[Profile, int]], ranges: Floats, steps: Floats) -> LossSum:
    """Each profile as a dominating pair on a multiple of one common step."""
    step, made, beyond = float(steps.min()), [], 0.0
    for (profile, count), farthest, own in zip(parts, ranges, steps, strict=True):
        stride = math.floor(own / step * (1 + 1e-12))
        masses, lost = connect_dots(profile, float(farthest), stride * step)
        made.append(Part(masses, stride, count))
        beyond += count * lost
    return LossSum(step, made, beyond)


def _grid_costs(made: LossSum, tilt: float) -> Floats:
    """About how much the grid of each part adds to epsilon, at this tilt.

    A loss between two grid points a distance h apart is split between both. That adds h^2/6 to its square on average,
    and next to zero, where most losses may lie much closer to zero than h, less than h^2 times the mass at h.
    """
    costs = []
    for part, w in zip(made.parts, made.tilted_masses(tilt), strict=True):
        middle = len(w) // 2
        near = float(w[middle - 1] + w[middle + 1])
        added = (part.stride * made.step) ** 2 * (near + (1 - near - float(w[middle])) / 6)
        costs.append(part.count * (1 + tilt) / 2 * added)
    return np.array(costs)


def connect_dots(profile: Profile, farthest: float, step: float) -> tuple[Floats, float]:
    """The connect-the-dots pair of a profile that is the same for both orders.

    Returns masses at the losses -m step, ..., m step, and the mass beyond. Only the losses >= 0 are read from the
    profile; a symmetric pair has p(-l) = e^-l p(l), which is free of the cancellation that second differences suffer
    at very negative losses.

    Formal guarantee: the pair's own profile, read from the masses as they are, is at least the one given, raised by
    `PROFILE_ERROR`, at every epsilon; masses and what is beyond add up to one, or more.
    """
    points = max(2, math.ceil(farthest / step))
    loss: Floats = np.arange(points + 1, dtype=np.float64) * step
    raised = np.clip(profile(loss) * (1 + PROFILE_ERROR), 0.0, 1.0)
    d: Floats = np.minimum.accumulate(raised)
    rise = np.diff(d)
    probs = np.empty(points)
    probs[:-1] = (rise[1:] - math.exp(step) * rise[:-1]) / math.expm1(step)
    probs[-1] = rise[-1] / math.expm1(-step)
    probs = np.maximum(probs, 0.0)
    growth = 1 + _shortfall(probs, d, step) + 8 * _UNIT * points
    probs, beyond = probs * growth, float(d[-1]) * growth
    mirrored: Floats = (probs * np.exp(-loss[1:]))[::-1]
    rest = 1 - float(probs.sum()) - float(mirrored.sum()) - beyond
    # More than all mass: the pair that is scaled down by it, and reveals everything as often, is no less informative.
    return np.concatenate([mirrored, [max(rest, 0.0)], probs]), beyond + max(-rest, 0.0)


def _shortfall(probs: Floats, d: Floats, step: float) -> float:
    """By how much, relatively, the profile read back from masses at step, 2 step, ... falls short of d, at most."""
    above = np.cumsum(probs[::-1]) + d[-1]
    shrink, grow = math.exp(-step), -math.expm1(-step)
    # delta_i = e^-h delta_(i+1) + (1 - e^-h) P(loss > i h): only positive terms.
    found = accumulate(above.tolist(), lambda last, mass: shrink * last + grow * mass, initial=float(d[-1]))
    read: Floats = np.fromiter(found, np.float64, len(d))[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(d > 0, d / read - 1, 0.0), initial=0.0))
