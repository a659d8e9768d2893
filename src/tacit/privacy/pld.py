"""Composition of privacy profiles through privacy loss distributions (PLD), pessimistic throughout.

Each profile becomes a discrete, symmetric dominating pair by connecting its dots on a grid of privacy losses
(delta is linear in e^epsilon between grid points, so it is never understated); `tacit.privacy.lattice` convolves
the losses and bounds all rounding. Loss beyond the grid counts as certain disclosure.

A grid of step h adds about h^2/6 to the variance of each release's loss. What that costs is measured: epsilon is read
on a grid of twice the step, too, and steps are refined until both differ by a few ten-thousandths. Each kind of
release has a step of its own: one Gaussian beside a million small losses needs no grid as fine as theirs.

References:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi. Connect the dots: tighter discrete approximations of
    privacy loss distributions. PoPETs 2022.
"""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from tacit.privacy.events import PricingError
from tacit.privacy.gaussian import Floats
from tacit.privacy.lattice import LONGEST, LossSum, Part, Reading
from tacit.privacy.profiles import Profile

SMALLEST_DELTA = 1e-9
MOST_RELEASES = 10**11
"""Up to here the rounding of a composition, as it is bounded, is less than a hundredth of delta."""
PROFILE_ERROR = 1e-11
"""Largest relative error of a profile as computed; every profile is raised by it."""

# Loss that may fall beyond the grid, among all releases.
_LOST = 1e-15
_FARTHEST = 1e9
_UNIT = 2.0**-53
# What the grid may cost of epsilon: aimed at, and tolerated where no finer grid fits.
_COST = 5e-4
_MOST_COST = 1e-2
_FIRST_STEP = 0.025
_FIRST_POINTS = 1 << 13
_MOST_POINTS = 1 << 17
_ROUGH_POINTS = 1 << 8
# An epsilon below this share of the deviation of all losses need not be any tighter than that.
_LEAST_SHARE = 1e-2


class Composition:
    """The privacy loss of a sequence of adaptive releases, each given by its profile and count.

    Args:
        parts: Pairs of a profile (convex in e^epsilon, valid for both orders) and how often it is applied.
        delta: The delta that will be read, near which the grid is fine enough; any other is valid, too.
        refine: Divides the grid step, to measure what the grid costs.

    Formal guarantee: `delta_at` and `epsilon_at` are upper bounds for any adaptive composition of mechanisms
    whose profiles are bounded by the parts, up to a relative error of `PROFILE_ERROR` in the profiles as computed;
    rounding of the composition is included. Where the bound would be more than a hundredth above what a finer grid
    gives, `PricingError` is raised.
    """

    def __init__(self, parts: Sequence[tuple[Profile, int]], delta: float, refine: float = 1.0) -> None:
        _check_delta(delta)
        _check_releases(sum(count for _, count in parts))
        self._reading = _fine_enough(parts, delta, refine)

    def delta_at(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon) for epsilon >= 0."""
        return self._reading.delta_at(epsilon)

    def epsilon_at(self, delta: float) -> float:
        """Smallest epsilon, to a relative 1e-7 and from above, with `delta_at(epsilon)` <= delta."""
        _check_delta(delta)
        return self._reading.epsilon_at(delta)


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


def _fine_enough(parts: Sequence[tuple[Profile, int]], delta: float, refine: float) -> Reading:
    """The losses on a grid that costs no more than `_COST`, or on the finest one that fits."""
    ranges = np.array([profile_range(profile, _LOST / count / len(parts)) for profile, count in parts])
    _check_range(float(ranges.max()))
    steps, finest = _first_steps(parts, ranges), ranges / _MOST_POINTS
    while True:
        made = _on_grid(parts, ranges, steps)
        first, last = made.window(made.chernoff(delta)[0])
        fit = 1.1 * made.step * (last - first) / LONGEST
        if made.step < fit:
            steps = np.maximum(steps, fit)
            made = _on_grid(parts, ranges, steps)
        reading = Reading(made)
        cost = _grid_cost(reading, delta)
        finer = np.maximum(
            steps * min(max(0.8 * math.sqrt(_COST / max(cost, _COST)), 0.1), 0.6), np.maximum(finest, fit)
        )
        if cost <= _COST or not np.any(finer < 0.9 * steps):
            break
        steps = np.minimum(steps, finer)
    if cost > _MOST_COST:
        raise PricingError(
            f"Expected losses of {made.releases} releases that a grid of {LONGEST} points can tell apart, got a grid "
            f'that costs {cost:.0%} of epsilon; price fewer subsampled releases, or use sampling="full", whose '
            "composition is exact for any number."
        )
    return reading if refine == 1.0 else Reading(_on_grid(parts, ranges, steps / refine))


def _grid_cost(reading: Reading, delta: float) -> float:
    """How much less epsilon is than on a grid of twice the step: more than what a finer one would still gain."""
    fine = reading.epsilon_at(delta)
    coarse = Reading(reading.source.coarsened()).epsilon_at(delta)
    return (coarse - fine) / max(fine, _LEAST_SHARE * reading.source.spread)


def _check_delta(delta: float) -> None:
    if delta < SMALLEST_DELTA:
        raise PricingError(
            f"Expected delta={delta} >= {SMALLEST_DELTA} for subsampled releases; "
            'use sampling="full" (exact for any delta) or a larger delta.'
        )


def _check_releases(count: int) -> None:
    if count > MOST_RELEASES:
        raise PricingError(
            f"Expected at most {MOST_RELEASES} subsampled releases in a schedule, got {count}: rounding would show in "
            'delta; price fewer, or use sampling="full", whose composition is exact for any number.'
        )


def _check_range(farthest: float) -> None:
    if farthest > _FARTHEST:
        raise PricingError(
            f"Expected privacy losses below {_FARTHEST:g} for subsampled releases, got {farthest:g}; there is almost "
            'no noise: add some, or use sampling="full", whose price is exact for any noise.'
        )


def _first_steps(parts: Sequence[tuple[Profile, int]], ranges: Floats) -> Floats:
    """Small fractions of each part's fair share in the deviation of all losses, as a rough grid has it."""
    counts = np.array([float(count) for _, count in parts])
    rough = ranges / _ROUGH_POINTS
    spread = _on_grid(parts, ranges, rough).spread
    return np.maximum(_FIRST_STEP * spread / np.sqrt(counts * len(parts)), ranges / _FIRST_POINTS)


def _on_grid(parts: Sequence[tuple[Profile, int]], ranges: Floats, steps: Floats) -> LossSum:
    """Each profile as a dominating pair on a multiple of one common step."""
    step, made, beyond = float(steps.min()), [], 0.0
    for (profile, count), farthest, own in zip(parts, ranges, steps, strict=True):
        stride = math.floor(own / step * (1 + 1e-12))
        masses, lost = connect_dots(profile, float(farthest), stride * step)
        made.append(Part(masses, stride, count))
        beyond += count * lost
    return LossSum(step, made, beyond)


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
    probs[:-1] = (rise[:-1] - math.exp(-step) * rise[1:]) / math.expm1(-step)
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
