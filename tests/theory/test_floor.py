"""Lower bounds with constants: brute force of the proof's steps, mechanisms that cannot beat them, and limits."""

import dataclasses
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tacit.theory import ConvexSetting, TheoryError, accelerated_mb_sgd_from_theory, floor, mb_sgd_from_theory
from tacit.theory.convex import lower_bound, lower_bound_conditions
from tacit.theory.floor import _chi_square, _norm

SETTING = ConvexSetting(
    lipschitz=1, radius=1, smoothness=1, records=200, silos=10, dimension=400, epsilon=0.3, delta=1e-6
)
PAIRS = list(itertools.product((-1, 1), repeat=2))
NEIGHBOURS = [(i, j) for i in range(4) for j in range(4) if (i ^ j) in (1, 2)]


def channel(rng, words=3):
    """A random message about two records: one row for each pair of signs."""
    logits = rng.normal(scale=rng.uniform(0.1, 2), size=(4, words))
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def information(silo, own, theta):
    """E s^2 of two silos of two records each, of whom the second chooses among channels by the word of the first."""
    chances = np.asarray([math.prod((1 + theta * v) / 2 for v in pair) for pair in PAIRS])
    sums = np.asarray([sum(v - theta for v in pair) for pair in PAIRS])
    first = chances @ silo
    score = (chances * sums) @ silo / first
    total = 0.0
    for word, later in enumerate(own):
        second = chances @ later
        total += first[word] * np.sum(second * (score[word] + (chances * sums) @ later / second) ** 2)
    return total


def hockey(channels, epsilon):
    """The delta that goes with an epsilon, the largest of these channels."""
    gaps = [np.maximum(c[i] - math.exp(epsilon) * c[j], 0).sum() for c in channels for i, j in NEIGHBOURS]
    return float(max(gaps))


@pytest.mark.parametrize("theta", [0.0, 0.4, -0.9])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_no_interactive_protocol_says_more_than_the_proof_allows(theta, share):
    """Steps 1 and 2 with random channels, at their own epsilon (share one) or below it at their own delta."""
    rng, tightest = np.random.default_rng(1), 0.0
    for _ in range(300):
        silo, own = channel(rng), [channel(rng) for _ in range(3)]
        log = [abs(np.log(c[i] / c[j])).max() for c in (silo, *own) for i, j in NEIGHBOURS]
        epsilon = share * max(log)
        delta = max(hockey((silo, *own), epsilon), 1e-12)
        s = dataclasses.replace(SETTING, epsilon=epsilon, delta=delta)
        limit = 2 * min(2 * (1 - theta**2), 4 * _chi_square(s, "(epsilon, delta)-DP", 1))
        tightest = max(tightest, information(silo, own, theta) / limit)
    assert 0.02 < tightest <= 1


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_gaussian_sum_says_no_more_than_the_proof_allows(mu):
    """One silo of three records, sum with noise 2/mu: E s^2 by integration."""
    theta, n, x = 0.3, 3, np.linspace(-4 - 20 / mu, 4 + 20 / mu, 40001)
    heads = np.arange(n + 1)
    chances = stats.binom.pmf(heads, n, (1 + theta) / 2)[:, None]
    seen = chances * stats.norm.pdf(x, (2 * heads - n)[:, None], 2 / mu)
    score = ((2 * heads - n - n * theta)[:, None] * seen).sum(axis=0)
    found = float(np.sum(score**2 / seen.sum(axis=0)) * (x[1] - x[0]))
    limit = min(n * (1 - theta**2), n**2 * math.expm1(mu**2) * (1 - theta**2))
    assert limit / 6 < found <= limit


def test_the_norm_of_the_prior_is_never_overstated():
    rng = np.random.default_rng(0)
    for d in (1, 2, 30):
        for index in (300, 350, 400):
            k = np.geomspace(1e-3, 1e13, 800)[index]
            drawn = np.linalg.norm(2 * rng.beta(k, k, (40_000, d)) - 1, axis=1) / math.sqrt(d)
            assert _norm(d)[index, 0] <= drawn.mean() + 4 * drawn.std() / 200
            assert _norm(d)[index, 0] >= 0.88 * drawn.mean()


def risk_in_one_dimension(silos, n, mu):
    """The largest excess risk over all means of the sign of all silos' noisy sums: L = D = 1."""
    heads, noise = np.arange(n * silos + 1), 2 * math.sqrt(silos) / mu
    sure = stats.norm.sf((2 * heads - n * silos) / noise)  # of saying -1
    theta = np.linspace(0.001, 1, 300)[:, None]
    return float(np.max(2 * theta[:, 0] * (stats.binom.pmf(heads, n * silos, (1 + theta) / 2) * sure).sum(axis=1)))


@pytest.mark.parametrize(("silos", "n", "epsilon"), [(1, 3, 0.5), (4, 20, 0.2), (5, 50, 1.0), (10, 5, 8.0)])
def test_signs_of_noisy_sums_do_not_beat_the_floor_and_come_near_it(silos, n, epsilon):
    s = dataclasses.replace(SETTING, silos=silos, records=n, epsilon=epsilon, dimension=1)
    theirs = risk_in_one_dimension(silos, n, s.mu)
    ours = floor(s, claim="Gaussian DP").value
    assert ours <= theirs <= 6 * ours
    assert floor(s).value <= theirs


def test_randomised_response_does_not_beat_the_floor_and_comes_near_it():
    epsilon, silos = 0.5, 60
    theta = np.linspace(0.001, 1, 300)[:, None]
    right = (1 + theta * math.tanh(epsilon / 2)) / 2
    heads = np.arange(silos + 1)
    wrong = np.where(2 * heads < silos, 1.0, np.where(2 * heads == silos, 0.5, 0.0))
    theirs = float(np.max(2 * theta[:, 0] * (stats.binom.pmf(heads, silos, right) * wrong).sum(axis=1)))
    s = dataclasses.replace(SETTING, silos=silos, records=1, epsilon=epsilon, delta=1e-12, dimension=1)
    ours = floor(s).value
    assert ours <= theirs <= 6 * ours


@pytest.mark.parametrize("risk", ["population", "empirical"])
def test_noisy_means_in_many_dimensions_come_near_the_floor(risk):
    """The direction of the noisy mean, at the worst length of the mean, is within five times the floor."""
    s, rng, worst = SETTING, np.random.default_rng(2), 0.0
    for length in np.geomspace(0.05, 1, 12):
        found = []
        for _ in range(20):
            theta = length * rng.choice([-1.0, 1.0], s.dimension)
            mean = 2 * rng.binomial(s.records * s.silos, (1 + theta) / 2) / (s.records * s.silos) - 1
            noisy = mean + 2 * math.sqrt(s.dimension / s.silos) / (s.records * s.mu) * rng.normal(size=s.dimension)
            aim = theta if risk == "population" else mean
            found.append((np.linalg.norm(aim) - aim @ noisy / np.linalg.norm(noisy)) / math.sqrt(s.dimension))
        worst = max(worst, float(np.mean(found)))
    ours = floor(s, risk, claim="Gaussian DP")
    assert ours.limited_by == "privacy"
    assert ours.value <= worst <= 5 * ours.value


@pytest.mark.parametrize("risk", ["population", "empirical"])
@pytest.mark.parametrize("mu", [0.0, 0.2])
@pytest.mark.parametrize("claim", ["(epsilon, delta)-DP", "Gaussian DP"])
def test_more_privacy_fewer_records_and_fewer_silos_raise_the_floor(risk, mu, claim):
    s = dataclasses.replace(SETTING, strong_convexity=mu)
    for name, values in {"epsilon": (0.1, 0.3, 1, 3), "records": (50, 200, 1000), "silos": (2, 10, 40)}.items():
        found = [floor(dataclasses.replace(s, **{name: value}), risk, claim=claim).value for value in values]
        assert sorted(found, reverse=True) == found
        assert found[0] > 1.2 * found[-1] > 0
    wider = [floor(dataclasses.replace(s, dimension=d), risk, claim=claim).value for d in (1, 10, 64, 100_000)]
    assert sorted(wider) == wider


def test_a_large_epsilon_leaves_the_statistical_floor():
    s = dataclasses.replace(SETTING, epsilon=200.0)
    found = floor(s)
    assert found.limited_by == "records"
    assert found.value * math.sqrt(s.records * s.silos) == pytest.approx(0.3, abs=0.02)
    assert floor(s, "empirical").value < 1e-3 * found.value
    assert floor(s, trusted=True).value == pytest.approx(found.value)


def test_trust_lowers_the_floor_and_one_silo_needs_none():
    assert 0 < floor(SETTING, trusted=True).value < 0.5 * floor(SETTING).value
    alone = dataclasses.replace(SETTING, silos=1)
    for risk in ("population", "empirical"):
        assert floor(alone, risk, trusted=True) == floor(alone, risk)


def test_sizes_of_silos_count():
    even, one = floor(SETTING).value, floor(SETTING, sizes=(200,) * 9 + (2000,)).value
    assert floor(dataclasses.replace(SETTING, records=2000)).value < one < even


@pytest.mark.parametrize("mu", [0.0, 0.3])
@pytest.mark.parametrize(("n", "silos", "d", "epsilon"), [(100, 3, 1, 0.5), (1000, 20, 50, 1), (5000, 4, 500, 8)])
def test_no_promise_is_below_the_floor(mu, n, silos, d, epsilon):
    sizes = {"records": n, "silos": silos, "dimension": d, "epsilon": epsilon}
    s = dataclasses.replace(SETTING, strong_convexity=mu, **sizes)
    for statement in (
        mb_sgd_from_theory(s),
        mb_sgd_from_theory(s, risk="empirical"),
        accelerated_mb_sgd_from_theory(s),
    ):
        for claim in ("(epsilon, delta)-DP", "Gaussian DP"):
            assert floor(s, statement.risk, claim=claim).value <= statement.bound


def test_a_gap_at_the_start_is_a_smaller_class():
    small = dataclasses.replace(SETTING, gap=0.01)
    assert floor(small).value == pytest.approx(0.01 * floor(SETTING).value)
    curved = dataclasses.replace(SETTING, strong_convexity=0.2)
    assert 0 < floor(dataclasses.replace(curved, gap=0.01)).value < floor(curved).value


def test_a_loss_cannot_be_so_curved_and_so_flat():
    with pytest.raises(TheoryError, match="so curved and so flat"):
        floor(dataclasses.replace(SETTING, strong_convexity=1.0))


def test_it_is_above_theorem_3_1_where_that_theorem_is_silent():
    """With few rounds at a large part of the budget, or few silos, the theorem's conditions fail; ours has none."""
    s = dataclasses.replace(SETTING, records=100, silos=15, epsilon=0.5, dimension=1000)
    assert not all(c.holds for c in lower_bound_conditions(s))
    assert floor(s, "empirical", claim="Gaussian DP").value > lower_bound(s, "empirical")


def test_the_table_of_the_page_is_computed_and_says_which_bound_is_higher():
    """For (epsilon, delta)-DP it is below Theorem 3.1 with constant one; only within Gaussian DP may it be above."""
    page = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
    shape = r"^\| (\d+) silos of ([\d,]+), d = ([\d,]+), epsilon = ([\d.]+) \| (.*) \| (.*) \| (.*) \|$"
    rows = re.findall(shape, page, re.MULTILINE)
    assert len(rows) == 4
    above = 0
    for silos, records, dimension, epsilon, *shown in rows:
        n, d = (int(value.replace(",", "")) for value in (records, dimension))
        s = ConvexSetting(
            lipschitz=1, radius=1, records=n, silos=int(silos), dimension=d, epsilon=float(epsilon), delta=1e-6
        )
        found = floor(s, "empirical").value, floor(s, "empirical", claim="Gaussian DP").value
        theorem = lower_bound(s, "empirical")
        assert [float(f"{value:.2g}") for value in (*found, theorem)] == [float(value) for value in shown]
        assert found[0] < theorem / 3
        above += found[1] > theorem
    assert above == 3
