"""Composed losses against exact sums: rounding is measured, and the bound on it is larger, up to a million releases."""

import math

import mpmath
import numpy as np
import pytest
from scipy import fft

from tacit.privacy import lattice
from tacit.privacy.lattice import LossSum, Part, Reading, TiltedCurve


def randomised_response(total, count):
    """Losses of +-total/sqrt(count): a sum of them is a binomial, and a lattice of that step holds them exactly."""
    loss = total / math.sqrt(count)
    true = 1 / (1 + math.exp(-loss))
    return LossSum(loss, [Part(np.array([1 - true, 0.0, true]), 1, count)], 0.0)


def exact_delta(made, epsilon):
    """sum over l > epsilon of (1 - e^(epsilon - l)) P(L = l), from the masses as they are, in forty digits."""
    [part] = made.parts
    n, (low, _, high) = part.count, (mpmath.mpf(float(p)) for p in part.masses)
    loss, total = mpmath.mpf(made.step), mpmath.mpf(0)
    k = max(0, math.floor((epsilon / made.step + n) / 2) + 1)
    mass = mpmath.exp(mpmath.loggamma(n + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(n - k + 1)) if k <= n else 0
    mass *= high**k * low ** (n - k)
    while k <= n:
        term = -mpmath.expm1(epsilon - loss * (2 * k - n)) * mass
        total += term
        if term < total * mpmath.mpf(10) ** -20 and k * made.step > epsilon:
            break
        mass *= high / low * mpmath.mpf(n - k) / (k + 1)
        k += 1
    return total


CASES = [(1.0, 2), (0.01, 100), (1.0, 100), (5.0, 1000), (1.0, 10**4), (0.001, 10**6), (1.0, 10**6), (20.0, 10**6)]


@pytest.mark.parametrize(("total", "count"), CASES)
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_delta_is_never_below_the_exact_one_and_rounding_is_a_small_part_of_its_bound(total, count, delta, monkeypatch):
    monkeypatch.setattr(lattice, "_OUTSIDE", 1e-15)  # So that nothing but rounding is left.
    made = randomised_response(total, count)
    tilt, epsilon = made.chernoff(delta)
    epsilon = min(0.999 * epsilon, 0.99 * total * math.sqrt(count))
    with mpmath.workdps(40):
        exact = exact_delta(made, epsilon)
        certified = made.compose(tilt, epsilon)(epsilon)
        assert certified >= exact
        margin = float(certified / exact - 1)
        # About count times 1e-13: a negligible part of delta.
        assert margin < 1e-9 + 2e-13 * count
        bare = float(_without_margins(made, tilt, epsilon) / exact - 1)
    assert abs(bare) < margin / 10


def _without_margins(made, tilt, epsilon):
    """delta as the transform gives it, with nothing added: what the bound is measured against."""
    first, last = made.window(tilt)
    length = fft.next_fast_len(last - first + 1, real=True)
    spectrum, _ = made._spectrum(tilt, length)
    masses = np.roll(fft.irfft(spectrum, length), -first)
    losses = made.step * (first + np.arange(length))
    gaps = losses[losses > epsilon] - epsilon
    total = math.fsum(-np.expm1(-gaps) * np.exp(-tilt * gaps) * masses[losses > epsilon])
    return mpmath.mpf(total) * mpmath.exp(mpmath.mpf(made.cumulant(tilt)) - tilt * epsilon)


def test_the_margin_grows_with_the_number_of_releases(monkeypatch):
    monkeypatch.setattr(lattice, "_OUTSIDE", 1e-15)
    margins = []
    for count in (100, 10_000, 1_000_000):
        made = randomised_response(1.0, count)
        tilt, epsilon = made.chernoff(1e-9)
        margins.append(made.compose(tilt, epsilon)(epsilon) / float(_without_margins(made, tilt, epsilon)) - 1)
    assert 30 < margins[1] / margins[0] < 300
    assert 30 < margins[2] / margins[1] < 300


def test_without_a_tilt_the_margin_swallows_a_small_delta():
    """The absolute error of a plain transform of a million releases is larger than 1e-9: the bound must say so."""
    made = randomised_response(1.0, 10**6)
    tilt, epsilon = made.chernoff(1e-9)
    plain = made.compose(1e-3, epsilon)
    assert plain(epsilon) > 10 * made.compose(tilt, epsilon)(epsilon)
    # Where delta is large it is as good.
    assert plain(0.5) == pytest.approx(made.compose(made.chernoff(1e-1)[0], 0.5)(0.5), rel=1e-4)


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.0])
def test_what_wraps_around_a_short_window_only_adds_to_delta(shift, monkeypatch):
    made = randomised_response(1.0, 10_000)
    tilt, epsilon = made.chernoff(1e-6)
    first, last = made.window(tilt)
    honest = made.compose(tilt, epsilon)(epsilon)
    centre, width = (first + last) / 2 + shift * (last - first) / 8, (last - first) / 8
    monkeypatch.setattr(LossSum, "window", lambda *_: (math.floor(centre - width), math.ceil(centre + width)))
    with mpmath.workdps(40):
        for at in (0.5 * epsilon, epsilon, 1.5 * epsilon):
            assert made.compose(tilt, at)(at) >= exact_delta(made, at)
    assert made.compose(tilt, epsilon)(epsilon) >= honest * (1 - 1e-5)


def test_parts_of_different_strides_are_one_sum():
    """Two kinds on one lattice are the direct convolution of both."""
    one, two = np.array([0.2, 0.5, 0.3]), np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    made = LossSum(0.25, [Part(one, 3, 2), Part(two, 1, 3)], 1e-7)
    wide = np.zeros(7)
    wide[::3] = one
    masses = np.ones(1)
    for part in (wide, wide, two, two, two):
        masses = np.convolve(masses, part)
    losses = 0.25 * (np.arange(len(masses)) - len(masses) // 2)
    curve = made.compose(0.7, 0.0)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        direct = float(np.maximum(-np.expm1(epsilon - losses), 0.0) @ masses) + 1e-7
        assert curve(epsilon) == pytest.approx(direct, rel=1e-5)
        assert curve(epsilon) >= direct * (1 - 1e-14)
    assert curve(100.0) >= 1e-7


def test_a_window_that_is_too_long_is_cut(monkeypatch):
    """Less is said of other epsilons; nothing is said that is too low."""
    made = randomised_response(1.0, 10_000)
    tilt, epsilon = made.chernoff(1e-6)
    whole = made.compose(tilt, 0.9 * epsilon)
    first, last = made.window(tilt)
    monkeypatch.setattr(lattice, "LONGEST", (last - first) // 2)
    cut = made.compose(tilt, 0.9 * epsilon)
    with mpmath.workdps(40):
        for at in (0.0, 0.5 * epsilon, epsilon, 1.5 * epsilon):
            assert cut(at) >= exact_delta(made, at)
    assert cut(epsilon) == pytest.approx(whole(epsilon), rel=1e-3)


def test_a_coarser_lattice_dominates_the_finer_one():
    """Every other loss is split between its neighbours: mass and the mean of e^-loss stay, and delta only grows."""
    masses = np.array([0.05, 0.1, 0.2, 0.25, 0.2, 0.12, 0.08])
    made = LossSum(0.3, [Part(masses, 1, 4)], 1e-8)
    coarse = made.coarsened()
    [part] = coarse.parts
    at = 0.6 * np.arange(-(len(part.masses) // 2), len(part.masses) // 2 + 1)
    assert part.masses.sum() == pytest.approx(1.0, rel=1e-14)
    assert part.masses @ np.exp(-at) == pytest.approx(masses @ np.exp(-0.3 * np.arange(-3, 4)), rel=1e-14)
    fine, rough = made.compose(0.5, 1.0), coarse.compose(0.5, 1.0)
    epsilons = np.linspace(0.0, 3.3, 12)
    assert all(rough(e) >= fine(e) * (1 - 1e-5) for e in epsilons)
    assert rough(1.0) > fine(1.0) * 1.001


def test_readings_are_inverse_and_hang_on_no_earlier_reading():
    made = randomised_response(2.0, 500)
    one, two = Reading(made), Reading(made)
    epsilons = [one.epsilon_at(d) for d in (1e-9, 1e-6, 1e-2)]
    assert epsilons == [two.epsilon_at(d) for d in (1e-2, 1e-6, 1e-9)][::-1]
    for epsilon, delta in zip(epsilons, (1e-9, 1e-6, 1e-2), strict=True):
        assert 0.99 * delta < one.delta_at(epsilon) <= delta
        assert one.delta_at(0.999 * epsilon) > delta
    assert one.epsilon_at(0.9) == 0.0


def test_a_window_above_epsilon_counts_what_lies_below_it():
    made = randomised_response(1.0, 400)
    tilt, _ = made.chernoff(1e-12)
    curve = made.compose(tilt, 1.0)
    assert isinstance(curve, TiltedCurve)
    with mpmath.workdps(40):
        for epsilon in (0.0, 0.1, 1.0):
            assert curve(epsilon) >= exact_delta(made, epsilon)
