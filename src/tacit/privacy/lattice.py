"""Sums of independent privacy losses on a lattice: convolved by FFT, with a bound on every rounding error.

A transform has an absolute error, so that a tail of 1e-9 under a million convolutions would drown in it. Here losses
are *tilted* first: masses p(l) become p(l) e^(t l - K(t)), with K the logarithm of their sum, so that the rare large
losses which decide delta are the common ones. After convolution the tilt is undone,

    delta(eps) = e^(K - t eps) sum over l > eps of (1 - e^(eps - l)) e^(-t (l - eps)) w(l),

where w are the tilted and composed masses and K is summed over all releases. Any tilt gives the same delta; the one
near the saddle point makes all errors relative to delta.

What can go wrong, and how it is bounded (u = 2^-53, N the length of the transform, n releases):

- *Transform.* A mixed-radix FFT is a product of log2(N) sparse matrices of unimodular entries, each applied with a
  relative error of at most (4 sqrt(2) + 1) u (Higham, Theorem 24.2). Masses sum to one, so each frequency is off by at
  most eta = 8 u log2(N), and so is each of n equal factors f: the n-th power is off by at most n eta (|f| + eta)^(n-1).
  That is summed over all frequencies as computed, not estimated. Masses that are tilted with a rounding error, and
  the power itself (n multiples of a phase), add to eta. In the end the bound is about n eta of delta: 5e-8
  for a million releases, a hundred times what is measured against exact binomial sums.
- *Wrapping.* The transform is circular: what lies outside the window of N points is added to some point within. That
  only adds mass, about a millionth of delta. What lies above the window is added once more, by a moment bound; so is
  what lies below it, where epsilon does too.
- *Summing.* All terms are positive: at most 2 N u of the sum.

Every bound is added to delta: it is never understated.

References:
    Higham. Accuracy and stability of numerical algorithms. SIAM 2002, section 24.1.
    Keich. sFFT: a faster accurate computation of the p-value of the entropy score. J. Comput. Biol. 2005 (tilting).
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import fft
from scipy.optimize import brentq, minimize_scalar

from tacit.privacy.gaussian import Floats

LONGEST = 1 << 22

_UNIT = 2.0**-53
_PER_LEVEL = 8 * _UNIT
# Logarithms, powers, cosines and sines of one frequency, beside what grows with the number of releases.
_PER_FREQUENCY = 1000 * _UNIT
# Units of rounding in the masses that a part comes with: what is left at a loss of zero is one minus all others.
_PER_MASS = 64
# Tilted mass that may lie outside the window on either side: it costs about that share of delta.
_OUTSIDE = 1e-6
# Mass below the window that is left out of it, and added where epsilon lies there, too.
_SHOWS = 1e-8
_ORDERS = tuple(2.0**k for k in range(-5, 4))
_WIDEST_TILT = 1e4
_RUNGS = 45


@dataclasses.dataclass(frozen=True)
class Part:
    """The loss of one release: masses at -m, ..., m times `stride` lattice steps, and the number of such releases."""

    masses: Floats
    stride: int
    count: int


class LossSum:
    """The sum of all losses of some releases, under the world in which the record is the true one.

    Args:
        step: Distance of the lattice points.
        parts: What is released.
        beyond: Mass of a loss without limit among all releases; added to every delta.
    """

    def __init__(self, step: float, parts: Sequence[Part], beyond: float) -> None:
        self.step = step
        self.parts = tuple(parts)
        self.beyond = beyond
        self._points = [p.stride * np.arange(-(len(p.masses) // 2), len(p.masses) // 2 + 1) for p in self.parts]
        self._losses = [step * points for points in self._points]
        self._known: dict[float, list[float]] = {}
        with np.errstate(divide="ignore"):
            self._logs = [np.log(part.masses) for part in self.parts]

    @property
    def releases(self) -> int:
        """How many losses are added up."""
        return sum(part.count for part in self.parts)

    def cumulants(self, tilt: float) -> list[float]:
        """log sum_l p(l) e^(tilt l) of one release of each part."""
        if tilt in self._known:
            return self._known[tilt]
        values = self._known[tilt] = []
        for losses, logs in zip(self._losses, self._logs, strict=True):
            exponents = logs + tilt * losses
            top = float(exponents.max())
            values.append(top + math.log(float(np.exp(exponents - top).sum())))
        return values

    def cumulant(self, tilt: float) -> float:
        """log E e^(tilt L) of the sum L, where it is finite."""
        return math.fsum(p.count * k for p, k in zip(self.parts, self.cumulants(tilt), strict=True))

    def tilted_masses(self, tilt: float) -> list[Floats]:
        """The masses of one release of each part, tilted to sum to one."""
        rows = zip(self._losses, self._logs, self.cumulants(tilt), strict=True)
        return [np.exp(logs + tilt * losses - k) for losses, logs, k in rows]

    @cached_property
    def spread(self) -> float:
        """Root of the second moments of all losses, added up."""
        pairs = zip(self.parts, self._losses, strict=True)
        return max(math.sqrt(math.fsum(p.count * float(np.sum(p.masses * x**2)) for p, x in pairs)), self.step)

    def chernoff(self, delta: float) -> tuple[float, float]:
        """The tilt at which the moment bound on epsilon at this delta is least, and that bound.

        It is the Renyi bound on epsilon, at the order 1 + tilt.
        """
        goal = math.log(delta)

        def epsilon(log_tilt: float, cumulant: float | None = None) -> float:
            tilt = math.exp(log_tilt)
            return ((self.cumulant(tilt) if cumulant is None else cumulant) + _log_reach(log_tilt) - goal) / tilt

        values = [epsilon(x, k) for x, k in self.ladder]
        best = min(max(int(np.argmin(values)), 1), len(values) - 2)
        around = (self.ladder[best - 1][0], self.ladder[best + 1][0])
        least = minimize_scalar(epsilon, bounds=around, method="bounded", options={"xatol": 1e-2})
        return math.exp(float(least.x)), float(least.fun)

    def saddle(self, delta: float) -> tuple[float, float]:
        """The same tilt, and the epsilon that a normal law of the tilted sum would give: a guess, not a bound."""
        tilt, _ = self.chernoff(delta)
        shape = math.log(tilt * (1 + tilt) * self.tilted_spread(tilt) * math.sqrt(2 * math.pi))
        return tilt, (self.cumulant(tilt) - max(shape, 0.0) - math.log(delta)) / tilt

    @cached_property
    def ladder(self) -> list[tuple[float, float]]:
        """Logarithms of tilts around the reciprocal deviation of the sum, and its cumulants there."""
        reach = math.log(_WIDEST_TILT)
        rungs = np.linspace(-reach, reach, _RUNGS) - math.log(self.spread)
        return [(float(x), self.cumulant(math.exp(x))) for x in rungs]

    def window(self, tilt: float) -> tuple[int, int]:
        """First and last lattice point between which nearly all tilted mass lies."""
        here, scale = self.cumulant(tilt), self.tilted_spread(tilt)
        least = -math.log(_OUTSIDE)
        top = min((self.cumulant(tilt + s / scale) - here + least) * scale / s for s in _ORDERS)
        bottom = max((here - self.cumulant(tilt - s / scale) - least) * scale / s for s in _ORDERS)
        return math.floor(bottom / self.step), math.ceil(top / self.step)

    def tilted_spread(self, tilt: float) -> float:
        """Standard deviation of the tilted sum, at least a lattice step."""
        variance = 0.0
        for part, losses, w in zip(self.parts, self._losses, self.tilted_masses(tilt), strict=True):
            mean = float(np.sum(w * losses))
            variance += part.count * float(np.sum(w * (losses - mean) ** 2))
        return max(math.sqrt(variance), self.step)

    def coarsened(self) -> "LossSum":
        """The same losses on a lattice of twice the step; every other loss is split between its neighbours.

        The split keeps mass and the mean of e^-loss: between two points of the lattice delta is linear in e^epsilon.
        """
        parts = [Part(_halved(p.masses, p.stride * self.step), p.stride, p.count) for p in self.parts]
        return LossSum(2 * self.step, parts, self.beyond)

    def compose(self, tilt: float, lowest: float) -> "TiltedCurve":
        """The composed losses, read through this tilt at epsilons from `lowest` on.

        The window begins there, if losses below it have a mass that would show. One that is too long loses its top.
        """
        first, last = self.window(tilt)
        start = math.floor(lowest / self.step) - 1
        if self.mass_below(first, tilt) > _SHOWS:
            first = min(first, start)
        if last - first >= LONGEST:
            first = max(first, start)
            last = min(last, first + LONGEST - 1)
        length = int(fft.next_fast_len(last - first + 1, real=True))
        spectrum, error = self._spectrum(tilt, length)
        masses: Floats = np.roll(fft.irfft(spectrum, length), -first)
        return TiltedCurve(self, tilt, first, np.maximum(masses, 0.0) + error)

    def mass_below(self, point: int, tilt: float) -> float:
        """Bound on the mass of losses below a lattice point, from moments at the scale of a tilted sum."""
        scale = self.tilted_spread(tilt)
        orders = [s / scale for s in (0.0, *_ORDERS)]
        return _bound(min(self.cumulant(-s) + s * point * self.step for s in orders))

    def _spectrum(self, tilt: float, length: int) -> tuple[np.ndarray, float]:
        """The transform of the composed masses, and a bound on the error of each mass after the way back."""
        log_size, log_most = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1)
        turns, share = np.zeros(length // 2 + 1), np.zeros(length // 2 + 1)
        for part, points, w, slip in zip(
            self.parts, self._points, self.tilted_masses(tilt), self._slips(tilt), strict=True
        ):
            eta = _PER_LEVEL * (math.log2(length) + 4) + slip
            values = fft.rfft(np.bincount(points % length, weights=w, minlength=length))
            size = np.abs(values)
            with np.errstate(divide="ignore"):
                log_size += part.count * np.log(size)
            log_most += part.count * np.log(size + eta)
            share += part.count * eta / (size + eta)
            turns += part.count * (np.angle(values) / (2 * math.pi))
        size = np.exp(log_size)
        off = np.exp(log_most) * share + (_PER_FREQUENCY + _PER_LEVEL * math.log2(length)) * size
        phase = 2 * math.pi * (turns - np.rint(turns))
        return size * np.exp(1j * phase), 2 * float(np.sum(off)) / length

    def _slips(self, tilt: float) -> list[float]:
        """Bounds on the rounding of each part's tilted masses, added up."""
        slips = []
        rows = zip(self._losses, self._logs, self.tilted_masses(tilt), self.cumulants(tilt), strict=True)
        for losses, logs, w, k in rows:
            there = w > 0
            size = 2 * np.abs(tilt * losses[there]) + 2 * np.abs(logs[there]) + abs(k) + _PER_MASS
            slips.append(_UNIT * float(np.sum(w[there] * size)))
        return slips


class TiltedCurve:
    """epsilon -> an upper bound on delta, from composed masses under one tilt; tight near the tilt's own epsilon."""

    def __init__(self, source: LossSum, tilt: float, first: int, masses: Floats) -> None:
        self._tilt, self._masses = tilt, masses
        self._beyond = source.beyond
        self._log_scale = source.cumulant(tilt)
        self._losses: Floats = source.step * (first + np.arange(len(masses), dtype=np.float64))
        self._end = source.step * (first + len(masses))
        scale = source.tilted_spread(tilt)
        self._orders = [(s, source.cumulant(s)) for s in (tilt, *(tilt + order / scale for order in _ORDERS))]
        self._below = source.mass_below(first, tilt)

    def __call__(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon), all errors included."""
        start = int(np.searchsorted(self._losses, epsilon, side="right"))
        gaps = self._losses[start:] - epsilon
        total = -float(np.sum(np.expm1(-gaps) * np.exp(-self._tilt * gaps) * self._masses[start:]))
        sizes = abs(self._log_scale) + abs(self._tilt * epsilon)
        slack = 2 * len(self._masses) * _UNIT + 8 * _UNIT * sizes
        exponent = self._log_scale - self._tilt * epsilon + slack
        within = total * math.exp(exponent) if exponent < 700 else math.inf
        below = -math.expm1(min(epsilon - float(self._losses[0]), 0.0)) * self._below
        return min(1.0, within + self._above(epsilon) + below + self._beyond)

    def _above(self, epsilon: float) -> float:
        """What losses above the window add to delta: (1 - e^-v) e^(-s v) falls from v = log(1 + 1/s) on."""
        bounds = []
        for order, cumulant in self._orders:
            gap = max(self._end - epsilon, math.log1p(1 / order))
            bounds.append(cumulant - order * (epsilon + gap) + math.log(-math.expm1(-gap)))
        return _bound(min(bounds))


class Reading:
    """epsilon -> delta and back, each epsilon read through the tilt of a ladder at which its moment bound is least."""

    def __init__(self, source: LossSum) -> None:
        self.source = source
        # The bound on log delta is a line in epsilon for each tilt.
        self._slopes = np.exp([x for x, _ in source.ladder])
        self._heights = np.array([_log_reach(x) + k for x, k in source.ladder])
        self._curves: dict[int, TiltedCurve] = {}
        self._epsilons: dict[float, float] = {}

    def delta_at(self, epsilon: float) -> float:
        """Upper bound on delta(epsilon) for epsilon >= 0."""
        rung = int(np.argmin(self._heights - self._slopes * epsilon))
        if rung not in self._curves:
            self._curves[rung] = self.source.compose(float(self._slopes[rung]), self._lowest(rung))
        return self._curves[rung](float(epsilon))

    def _lowest(self, rung: int) -> float:
        """The least epsilon that is read on a rung: where its line crosses those of smaller tilts."""
        crossings = (self._heights[rung] - self._heights[:rung]) / (self._slopes[rung] - self._slopes[:rung])
        return max(0.0, float(np.max(crossings, initial=0.0)))

    def epsilon_at(self, delta: float) -> float:
        """Smallest epsilon, to a relative 1e-7 and from above, with `delta_at(epsilon)` <= delta."""
        if delta not in self._epsilons:
            self._epsilons[delta] = self._solve(delta)
        return self._epsilons[delta]

    def _solve(self, delta: float) -> float:
        tilt, guess = self.source.saddle(delta)
        low = high = max(guess, 0.0)
        stride = 0.1 / tilt
        while self.delta_at(high) > delta:
            low, high, stride = high, high + stride, 3 * stride
            if not math.isfinite(high):
                return math.inf
        while self.delta_at(low) <= delta:
            if low == 0.0:
                return 0.0
            high, low, stride = low, max(0.0, low - stride), 3 * stride
        epsilon = float(brentq(lambda e: math.log(delta / self.delta_at(e)), low, high, xtol=1e-12 * high, rtol=1e-8))
        nudge = 1e-8
        while self.delta_at(epsilon) > delta:
            epsilon, nudge = epsilon * (1 + nudge), 2 * nudge
        return epsilon


def _log_reach(log_tilt: float) -> float:
    """log sup over v > 0 of (1 - e^-v) e^(-t v), which is t^t / (1 + t)^(1 + t)."""
    tilt = math.exp(log_tilt)
    return tilt * log_tilt - (1 + tilt) * math.log1p(tilt)


def _halved(masses: Floats, step: float) -> Floats:
    """Masses at -m, ..., m steps as masses at every other of these points."""
    padded = np.pad(masses, (len(masses) // 2) % 2)
    even, odd = padded[::2].copy(), padded[1::2]
    up = 1 / (1 + math.exp(-step))
    even[1:] += up * odd
    even[:-1] += (1 - up) * odd
    return even


def _bound(log_bound: float) -> float:
    """A moment bound on a probability, raised by more than the rounding of its logarithm."""
    return math.exp(min(0.0, log_bound + 1e-5))
