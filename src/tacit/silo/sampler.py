"""The discrete Gaussian at a real silo's door: integers, fast, from fresh entropy (`tacit.entropy`).

D(s) gives an integer x the probability exp(-x^2 / 2 s^2) / Z, where Z is the sum over all integers. Small widths are
looked up in a table. A sample of a wide D(sigma) is written in base K,

    x_0 + K x_1 + ... + K^(n-1) x_(n-1),    x_i independent of D(s),    s^2 = sigma^2 / (1 + K^2 + ... + K^(2n-2)),

so that one small table serves all n digits (sums of discrete Gaussians: Peikert, CRYPTO 2010; Micciancio and Walter,
CRYPTO 2017). ``sigma`` is taken as the exact rational that it is and s^2 is kept as a fraction: the width aimed at is
``sigma`` itself, never less. The total variation distance from D(sigma) is proved here, in units of 2^-128.

*Adding a digit costs at most 1 unit.* Let A ~ D(S) and X ~ D(s) be independent, k an integer, T^2 = S^2 + k^2 s^2,
t = S s / T and c = k s^2 z / T^2. The probability of A + k X = z is proportional to

    sum_x exp(-(z - k x)^2 / 2 S^2 - x^2 / 2 s^2) = exp(-z^2 / 2 T^2) sum_x exp(-(x - c)^2 / 2 t^2),

as completing the square shows, and Poisson summation says what the last sum is:

    sum_x exp(-(x - c)^2 / 2 t^2) = t sqrt(2 pi) (1 + e(z)),    |e(z)| <= E = 2 sum_(j >= 1) exp(-2 pi^2 t^2 j^2).

So A + k X has the law of D(T) times (1 + e) / (1 + m), where m is the mean of e under D(T). Its distance from D(T) is
half the mean of |e - m|, over 1 + m. A mean deviation is at most a standard deviation, which is at most E here. The
distance is therefore at most E / (2 - 2 E). For digit i, k = K^i and S^2 >= s^2 K^(2i-2), hence

    1 / t^2 = 1 / s^2 + k^2 / S^2 <= (1 + K^2) / s^2 <= 2 / 9,

because K is chosen such that s^2 >= (9/2) (1 + K^2). Then 2 pi^2 t^2 >= 9 pi^2 > 88.82, and E / (2 - 2 E) is less than
exp(-88.81) < 2^-128.

*A table costs at most 2 B + 2 units,* where B is its reach, B^2 > 178 s^2.
- Beyond B lies less than 1 unit of D(s). Poisson summation gives Z >= s sqrt(2 pi), so the mass there is at most
  2 (1 - Phi(B / s)) <= exp(-B^2 / 2 s^2) < exp(-89) < 2^-128.
- The masses of 1, ..., B are computed with 80 decimal digits. Fewer than 10^9 roundings of a relative 10^-79 go into
  each, which is less than 10^-21 units. Leaving what lies beyond B out of Z adds less than 1 unit times the mass. Then
  the masses are rounded down to whole units. So each is wrong by less than 1 + 10^-21 units.
- The masses of -1, ..., -B are the same integers, and zero has what is left of 2^128. The errors of all masses add up
  to nothing, so half their sizes add up to at most the sum over all but zero: 2 B (1 + 10^-21) + 1.

*Together.* Computing a sum never adds to a distance. So the n - 1 sums cost at most 1 unit each, digit after digit,
the n tables at most 2 B + 2 units each, and all of it n (2 B + 2) + (n - 1) < n (2 B + 3) units.
"""

from __future__ import annotations

import decimal
import math
import operator
from bisect import bisect_right
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.entropy import random_bytes
from tacit.errors import TacitError

LEAST_SIGMA = 1
"""Narrower noise, in steps of the grid, is refused: the grid is too coarse to hide anything."""

MOST_DISTANCE = 2.0**-110
"""How far a sample that a silo draws may be from the exact discrete Gaussian, in total variation."""

# A sample is at most 28 sigma in size (`_digits`), so that everything below fits in 64 bits.
_MOST_SIGMA = Fraction(1 << 63, 40)
_UNITS = 1 << 128
# About as fast as any; beyond 2,400 a table's samples would not fit in 16 bits.
_WIDEST = 512
_CHUNK = 1 << 15
# A table's value that no sample has: 16 bits do not decide yet.
_OPEN = np.int16(-(1 << 15))
_TRAPS = [decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow, decimal.Underflow]
_PRECISE = decimal.Context(80, decimal.ROUND_HALF_EVEN, Emin=-9999, Emax=9999, capitals=1, clamp=0, traps=_TRAPS)


class SamplerError(TacitError):
    """Noise of this kind cannot be drawn."""


class _Digits(NamedTuple):
    """How a width is written: so many digits in this base, each of this variance parameter s^2."""

    length: int
    base: int
    variance: Fraction


class _Table(NamedTuple):
    """Cumulative masses of D(s) from the lowest value to all but the highest, in units of 2^-128.

    ``high`` and ``low`` are their halves of 64 bits. ``short`` has the sample for each value of the first 16 bits of a
    uniform number, or ``_OPEN`` where a cumulative mass begins with these bits.
    """

    lowest: int
    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    short: NDArray[np.int16]


def discrete_gaussian(size: int, sigma: float) -> NDArray[np.int64]:
    """Independent samples of the discrete Gaussian of width ``sigma`` around zero, from fresh entropy.

    Formal guarantee: if the bytes of `random_bytes` are uniform, the samples are independent and each is within total
    variation distance ``distance(sigma)`` of D(sigma), of exactly this width. None is larger than 28 ``sigma``. So a
    mechanism that is (epsilon, delta)-private with N exact samples in all, however it adapts, is (epsilon, delta +
    (1 + e^epsilon) N distance(sigma))-private with these. Nothing is rejected and drawn again, but running time depends
    on the samples a little: a digit in the tails more often needs more than its first 16 bits.
    """
    count = operator.index(size)
    if count < 0:
        raise SamplerError(f"Expected size={size} >= 0; ask for no samples or more.")
    digits, table = _prepared(sigma)
    samples = np.empty(count, np.int64)
    for start in range(0, count, _CHUNK):
        part = samples[start : start + _CHUNK]
        drawn = _draw(table, digits.length * part.size).reshape(digits.length, part.size)
        part[:] = drawn[0]
        for digit in drawn[1:]:
            part *= digits.base
            part += digit
    return samples


def distance(sigma: float) -> float:
    """The most that one sample's distribution differs from D(sigma), in total variation; the module proves it."""
    digits = _digits(_checked(sigma))
    # A whole number far below 2^53 times a power of two: exact in floating point.
    return digits.length * (2 * _reach(digits.variance) + 3) / _UNITS


def sampler_delta(samples: int, epsilon: float) -> float:
    """The part of delta that is kept because noise is drawn from a table and not from the exact discrete Gaussian.

    Formal guarantee: releases that are (epsilon, delta)-DP with exact noise are (epsilon, delta + this)-DP with as many
    samples, each within `MOST_DISTANCE` of exact ones.
    """
    return samples * MOST_DISTANCE * (1.0 + math.exp(min(epsilon, 700.0)))


def _checked(sigma: float) -> Fraction:
    if isinstance(sigma, bool) or not isinstance(sigma, int | float):
        raise SamplerError(f"Expected sigma={sigma!r} to be a float; convert it first, rounding up.")
    if not LEAST_SIGMA <= sigma < _MOST_SIGMA:
        raise SamplerError(
            f"Expected {LEAST_SIGMA} <= sigma={sigma!r} < 2^63/40={float(_MOST_SIGMA):.4g}, in steps of the grid: "
            "samples must fit in 64 bits. Choose a finer grid for a larger sigma, a coarser one for a smaller."
        )
    return Fraction(sigma)


@lru_cache(maxsize=32, typed=True)
def _prepared(sigma: float) -> tuple[_Digits, _Table]:
    digits = _digits(_checked(sigma))
    return digits, _table(_masses(digits.variance))


def _digits(sigma: Fraction) -> _Digits:
    """The fewest digits of which none is wider than ``_WIDEST``, in the largest base with s^2 >= (9/2) (1 + K^2).

    No sample is larger than 28 sigma: one of several digits is at most B (1 + K + ... + K^(n-1)) <= 2 B K^(n-1), where
    B <= 13.35 s + 1, s > 4 and s K^(n-1) <= sigma.
    """
    square = sigma * sigma
    length, base = 1, 1
    while square > _WIDEST**2 * _weight(base, length):
        length += 1
        base = bisect_right(range(1 << 30), square, key=partial(_least_square, length=length)) - 1
    return _Digits(length, base, square / _weight(base, length))


def _weight(base: int, length: int) -> int:
    return sum(base ** (2 * place) for place in range(length))


def _least_square(base: int, length: int) -> Fraction:
    """The least sigma^2 that so many digits in this base make up; it grows with the base."""
    return Fraction(9, 2) * (1 + base * base) * _weight(base, length)


def _reach(variance: Fraction) -> int:
    """An integer B with B^2 > 178 s^2."""
    return math.isqrt(math.floor(178 * variance)) + 1


def _masses(variance: Fraction) -> list[int]:
    """The masses of 0, 1, ..., B in units of 2^-128; with both signs they add up to one exactly."""
    with decimal.localcontext(_PRECISE):
        ratio = (-decimal.Decimal(variance.denominator) / (2 * decimal.Decimal(variance.numerator))).exp()
        step = ratio * ratio
        weight = decimal.Decimal(1)
        weights = []
        for _ in range(_reach(variance)):
            weight *= ratio
            ratio *= step
            weights.append(weight)
        scale = _UNITS / (1 + 2 * sum(weights, decimal.Decimal(0)))
        rounded = [int(weight * scale) for weight in weights]
    return [_UNITS - 2 * sum(rounded), *rounded]


def _table(masses: list[int]) -> _Table:
    # A value without mass has no place in a table, and its cumulative mass might be one, which needs 129 bits.
    held = masses[: max(value for value, mass in enumerate(masses) if mass) + 1]
    both = [*reversed(held[1:]), *held]
    cumulative = list(accumulate(both[:-1]))
    high = np.array([mass >> 64 for mass in cumulative], np.uint64)
    low = np.array([mass & ((1 << 64) - 1) for mass in cumulative], np.uint64)
    lowest = 1 - len(held)
    begins, first = high >> 48, np.arange(1 << 16, dtype=np.uint64)
    below, up_to = (np.searchsorted(begins, first, side) for side in ("left", "right"))
    return _Table(lowest, high, low, np.where(below == up_to, below + lowest, _OPEN).astype(np.int16))


def _draw(table: _Table, size: int) -> NDArray[np.int16]:
    """Samples of a table: the number of cumulative masses that are at most a uniform number of 128 bits.

    Of that number only as many bits are drawn as decide the sample: 16, seldom 64, hardly ever 128.
    """
    first = np.frombuffer(random_bytes(2 * size), "<u2")
    samples = table.short[first]
    undecided = np.flatnonzero(samples == _OPEN)
    if undecided.size:
        samples[undecided] = _draw_on(table, first[undecided])
    return samples


def _draw_on(table: _Table, first: NDArray[np.uint16]) -> NDArray[np.int64]:
    more = np.frombuffer(random_bytes(8 * first.size), "<u8").astype(np.uint64)
    high = (first.astype(np.uint64) << 48) | (more >> 16)
    below, up_to = (np.searchsorted(table.high, high, side) for side in ("left", "right"))
    for place in np.flatnonzero(below != up_to):
        low = np.frombuffer(random_bytes(8), "<u8").astype(np.uint64)
        below[place] += np.searchsorted(table.low[below[place] : up_to[place]], low, "right")[0]
    return below + table.lowest
