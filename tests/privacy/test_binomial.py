"""The shuffled sum: exact privacy of tiny systems, the domination constant, dropouts, and the printed constants."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from experiments.vector_sums import TAIL, VectorSum, calibrate_sum, cheu_sum, shift_mu, sum_delta, sum_multiplier
from tacit.privacy import PricingError, gauss_delta, gdp_mu
from tacit.privacy.binomial import bits_for, grid_for, rounding_bound

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


def exact_delta(flips, chance, shift, epsilon):
    """The hockey-stick divergence of independent binomials and their shift by an integer vector, both orders."""
    size = max(abs(k) for k in shift) + 1
    support = np.arange(-size, flips + size + 1)
    deltas = []
    for sign in (1, -1):
        p = q = np.ones(1)
        for k in shift:
            p = np.outer(p, stats.binom.pmf(support, flips, chance)).ravel()
            q = np.outer(q, stats.binom.pmf(support - sign * k, flips, chance)).ravel()
        deltas.append(np.maximum(p - math.exp(epsilon) * q, 0).sum())
    return max(deltas)


@pytest.mark.parametrize(("flips", "chance"), [(400, 0.5), (700, 0.3), (900, 0.85)])
@pytest.mark.parametrize("shift", [(1,), (7,), (3, -4), (-1, 5)])
def test_a_shift_is_dominated_by_the_gaussian(flips, chance, shift):
    """Exact sums over the whole support in one and two dimensions."""
    mu, tau = shift_mu(flips, chance, 1e-8, max(map(abs, shift)))
    assert math.isfinite(mu)
    for epsilon in EPSILONS:
        bound = len(shift) * tau + float(gauss_delta(epsilon, mu * float(np.linalg.norm(shift))))
        assert exact_delta(flips, chance, shift, epsilon) <= bound + 1e-12


def test_the_domination_is_not_far_from_the_truth():
    mu, _ = shift_mu(900, 0.5, 1e-8, 8)
    assert exact_delta(900, 0.5, (8,), 0.5) > 0.9 * float(gauss_delta(0.5, 8 * mu))


def rounded_law(y):
    """The law of a vector rounded at random: (integer vector, probability)."""
    for up in itertools.product((0, 1), repeat=len(y)):
        chance = math.prod(f if u else 1 - f for u, f in zip(up, y - np.floor(y), strict=True))
        if chance:
            yield np.floor(y).astype(int) + up, chance


def test_the_whole_protocol_is_as_private_as_it_says():
    """Two contributors in two dimensions, rounding included: the exact law of what the shuffler opens."""
    protocol = VectorSum(contributors=2, honest=2, dimension=2, grid=4, bits=200)
    support = np.arange(0, 2 * 200 + 2 * 4 + 1)
    noise = stats.binom.pmf

    def law(vectors):
        total = np.zeros((len(support), len(support)))
        laws = [list(rounded_law((np.asarray(v) + 1) * 4 / 2)) for v in vectors]
        for parts in itertools.product(*laws):
            shift = sum(x for x, _ in parts)
            chance = math.prod(c for _, c in parts)
            total += chance * np.outer(noise(support - shift[0], 400, 0.5), noise(support - shift[1], 400, 0.5))
        return total

    other = (0.3, -0.2)
    for one, two in (((1.0, 0.0), (-1.0, 0.0)), ((0.6, 0.8), (-0.7, -0.7)), ((0.1, 0.33), (0.9, -0.4))):
        p, q = law([one, other]), law([two, other])
        for epsilon in EPSILONS:
            exact = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p)))
            assert exact <= sum_delta(protocol, epsilon, tail=1e-9) + 1e-12


def test_rounded_vectors_stay_within_the_bound():
    rng = np.random.default_rng(0)
    for grid, d in ((4, 3), (20, 30), (64, 200)):
        x = rng.normal(size=(4000, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = (x + 1) * grid / 2
        rounded = np.floor(y) + (rng.random(y.shape) < y - np.floor(y))
        distance = np.linalg.norm(rounded - grid / 2, axis=1)
        assert distance.max() <= rounding_bound(grid, d)
        assert np.quantile(distance, 0.999) > 0.6 * rounding_bound(grid, d)


TABLE = {
    (10, 1000, 1.0): (3.78, 0.00931, 0.00845, 64, 354),
    (10, 10**4, 0.5): (0.756, 0.00166, 0.00161, 200, 1106),
    (100, 10**4, 1.0): (0.402, 8.80e-4, 8.45e-4, 200, 309),
    (1000, 1000, 4.0): (1.06, 0.00246, 0.00239, 318, 612),
}


@pytest.mark.parametrize("case", TABLE)
def test_tight_noise_is_near_the_central_gaussian_and_far_below_the_printed_constants(case):
    d, contributors, epsilon = case
    printed, tight, central, grid, bits = TABLE[case]
    found = calibrate_sum(epsilon=epsilon, delta=1e-6, dimension=d, contributors=contributors, grid=grid)
    assert (found.grid, found.bits) == (grid, bits)
    assert found.deviation_of_mean == pytest.approx(tight, rel=5e-3)
    assert 2 / contributors / gdp_mu(epsilon, 1e-6) == pytest.approx(central, rel=5e-3)
    theirs = cheu_sum(epsilon=epsilon, delta=1e-6, dimension=d, contributors=contributors)
    assert theirs.deviation_of_mean == pytest.approx(printed, rel=5e-3)
    assert found.deviation_of_mean < 1.15 * central
    chosen = calibrate_sum(epsilon=epsilon, delta=1e-6, dimension=d, contributors=contributors)
    assert chosen.grid == max(grid, 200)
    assert chosen.deviation_of_mean < 1.06 * central
    assert sum_delta(found, epsilon) <= 1e-6 < sum_delta(dataclasses.replace(found, bits=bits - 2), epsilon)


def test_noise_that_colluders_know_does_not_count():
    """Calibrated as if all were honest, then a share is not."""
    found = calibrate_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10**4)
    for share, epsilon in ((0.9, 1.058), (0.5, 1.454), (0.1, 3.522)):
        real = dataclasses.replace(found, honest=int(share * 10**4))
        got = optimize.brentq(lambda e, real=real: sum_delta(real, e) - 1e-6, 0.5, 20)
        assert got == pytest.approx(epsilon, abs=2e-3)
    assert sum_delta(dataclasses.replace(found, honest=1), 20.0) == 1.0
    safe = calibrate_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10**4, honest_share=0.5)
    assert sum_delta(safe, 1.0) <= 1e-6
    assert safe.deviation_of_mean == pytest.approx(found.deviation_of_mean * 2**0.5, rel=0.01)


@pytest.mark.parametrize("grid", [2, 64, 200, 634])
def test_the_closed_form_gives_at_least_the_noise_that_was_asked_for(grid):
    for z in (0.01, 0.3, 1.0, 4.3, 30.0):
        for honest in (100, 10**4):
            bits = bits_for(z, grid, 50, honest)
            protocol = VectorSum(contributors=honest, honest=honest, dimension=50, grid=grid, bits=bits)
            assert sum_multiplier(protocol) >= z
            if honest * (bits - 1) > max(20_000, grid**2):
                assert sum_multiplier(protocol) < 1.01 * z * math.sqrt(1 + 1 / bits)


def test_many_rounds_compose_as_gaussians_do():
    one = calibrate_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10**4)
    many = calibrate_sum(epsilon=1.0, delta=1e-6, dimension=100, contributors=10**4, rounds=50)
    assert many.deviation_of_mean / one.deviation_of_mean == pytest.approx(50**0.5, rel=0.01)
    assert TAIL * 50 * 10**6 < 1e-10


def test_grids_are_even_and_mistakes_are_named():
    assert grid_for(1001, 10) % 2 == 0
    with pytest.raises(PricingError, match="even"):
        VectorSum(contributors=2, honest=2, dimension=1, grid=3, bits=4)
    with pytest.raises(PricingError, match="honest"):
        VectorSum(contributors=2, honest=3, dimension=1, grid=4, bits=4)
    with pytest.raises(PricingError, match="honest_share"):
        calibrate_sum(epsilon=1.0, delta=1e-6, dimension=1, contributors=9, honest_share=0.0)
    with pytest.raises(PricingError, match="15"):
        cheu_sum(epsilon=16.0, delta=1e-6, dimension=1, contributors=9)
