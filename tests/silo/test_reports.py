"""Local randomisers: unbiased, of the variance that is stated, exactly as private as stated, and well drawn."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.privacy import PricingError
from tacit.privacy.randomisers import NAMES, direction, duchi_scale, expand, terms_of
from tacit.silo.local_reports import reports_of
from tacit.silo.reports import COIN_STEPS, drawn_terms, normals, randomised_sum, reports_sum, resolved, salts, uniforms

TRIALS = 30_000
CASES = [
    (d, name, e) for d, e in ((1, 0.5), (2, 3.0), (20, 0.7), (100, 1.5)) for name in NAMES if d > 1 or name == "duchi"
]


def reports(x, name, local_epsilon, trials=TRIALS, seed=0):
    """Independent reports about one vector of norm at most one."""
    drawn = drawn_terms(name, len(x), 1 / local_epsilon)

    def one(row):
        unit = jnp.asarray(x, jnp.float32)[None]
        return randomised_sum(jax.random.key(seed), unit, jnp.ones(1, bool), row[None], drawn, name)

    return np.asarray(jax.jit(jax.vmap(one))(jnp.arange(trials)), np.float64)


@pytest.mark.parametrize(("d", "name", "local_epsilon"), CASES)
def test_reports_are_unbiased_and_have_the_stated_second_moment(d, name, local_epsilon):
    x = np.random.default_rng(d).normal(size=d)
    x *= 0.6 / np.linalg.norm(x)
    found, terms = reports(x, name, local_epsilon), terms_of(name, d, local_epsilon)
    error = terms.error - 0.36
    squared = np.sum((found - x) ** 2, axis=1)
    assert squared.mean() == pytest.approx(error, rel=0.03, abs=0.01)
    assert np.linalg.norm(found.mean(axis=0) - x) < 4.5 * math.sqrt(error / TRIALS)
    if name != "privunitg" and d != 2:
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), terms.scale, rtol=1e-4)


@pytest.mark.parametrize("local_epsilon", [0.1, 1.0, 6.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_cap_is_exactly_as_likely_as_its_epsilon_allows(name, local_epsilon):
    terms = terms_of(name, 50, local_epsilon)
    ratio = terms.chance / terms.share / ((1 - terms.chance) / (1 - terms.share))
    assert math.log(ratio) == pytest.approx(local_epsilon, rel=1e-9)


@pytest.mark.parametrize(("name", "law"), [("privunit2", "sphere"), ("privunitg", "normal")])
def test_inside_and_outside_the_cap_reports_look_as_if_they_leant_nowhere(name, law):
    d, local_epsilon = 6, 1.5
    x = np.eye(d)[2]
    along = reports(x, name, local_epsilon)[:, 2] / terms_of(name, d, local_epsilon).scale
    terms = terms_of(name, d, local_epsilon)
    free = stats.beta((d - 1) / 2, (d - 1) / 2, loc=-1, scale=2) if law == "sphere" else stats.norm(scale=d**-0.5)
    edge = free.isf(terms.share)
    inside = along >= edge
    assert inside.mean() == pytest.approx(terms.chance, abs=5 * 0.5 / math.sqrt(TRIALS))
    assert stats.kstest(free.sf(along[inside]) / terms.share, "uniform").pvalue > 1e-4
    assert stats.kstest(free.cdf(along[~inside]) / (1 - terms.share), "uniform").pvalue > 1e-4


def test_the_best_randomiser_is_chosen_by_variance():
    for d in (2, 10, 101):
        for local_epsilon in (0.3, 1.0, 5.0):
            best = terms_of("auto", d, local_epsilon)
            assert best.error <= min(terms_of(name, d, local_epsilon).error for name in NAMES) * (1 + 1e-8)
            assert best.name in ("duchi", resolved("auto", d))
    assert resolved("auto", 1) == "duchi"
    gains = [terms_of("duchi", 100, e).error - 1 for e in (0.5, 1.0, 2.0, 4.0, 8.0)]
    gains = [
        g / (terms_of("privunit2", 100, e).error - 1) for g, e in zip(gains, (0.5, 1.0, 2.0, 4.0, 8.0), strict=True)
    ]
    np.testing.assert_allclose(gains, [1.04, 1.16, 1.67, 3.90, 12.2], rtol=0.01)


def test_scale_of_the_hemisphere_in_any_dimension():
    """Against the mean of |<v, u>| by quadrature: B (e-1)/(e+1) E|<v, u>| = 1."""
    for d in (2, 7, 100):
        v = np.linspace(0, 1, 200_001)[:-1]
        density = (1 - v**2) ** ((d - 3) / 2)
        mean = (v * density).sum() / density.sum() if d > 2 else 2 / math.pi
        assert duchi_scale(d, 1.3) * math.tanh(0.65) * mean == pytest.approx(1.0, rel=2e-3)


def test_privunit_has_no_meaning_in_one_dimension():
    with pytest.raises(PricingError, match="auto"):
        terms_of("privunit2", 1, 1.0)


def query(work, record):
    return {"a": record["x"] * work, "b": record["x"][:2]}


def test_blocks_padding_and_bad_records():
    """Blocks have their own clip; absent rows add nothing; a record that is not finite reports as zero does."""
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    terms = {
        "bound": {"a": 0.5, "b": 2.0},
        "key": jax.random.key(3),
        "noise_multiplier": {"a": 0.2, "b": 0.3},
        "randomiser": "duchi",
        "weight": 1.0,
    }

    @jax.jit
    def summed(x, present):
        return reports_sum(query, 1.0, {"x": x}, present, **terms)

    def total(x, present):
        return summed(jnp.asarray(x), jnp.asarray(present))

    plain = total(x, [True] * 6)
    padded = total(np.concatenate([x, np.full((3, 3), 7, np.float32)]), [True] * 6 + [False] * 3)
    for name in ("a", "b"):
        np.testing.assert_allclose(plain[name], padded[name], rtol=1e-5)
    one = total(x, [True] + [False] * 5)
    assert np.linalg.norm(one["a"]) == pytest.approx(0.5 * duchi_scale(3, 5.0), rel=1e-5)
    assert np.linalg.norm(one["b"]) == pytest.approx(2.0 * duchi_scale(2, 1 / 0.3), rel=1e-5)
    x[0] = np.inf
    bad = total(x, [True] + [False] * 5)
    assert np.linalg.norm(bad["a"]) == pytest.approx(0.5 * duchi_scale(3, 5.0), rel=1e-5)


def test_no_multiplier_is_no_randomiser_and_a_zero_clip_says_nothing():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)

    @jax.jit
    def total(bound, multiplier):
        return reports_sum(
            lambda work, record: record["x"],
            None,
            {"x": x},
            jnp.ones(5, bool),
            bound,
            key=jax.random.key(0),
            noise_multiplier=multiplier,
            randomiser="auto",
            weight=1.0,
        )

    np.testing.assert_allclose(total(100.0, 0.0), x.sum(axis=0), rtol=1e-4)
    np.testing.assert_array_equal(total(0.0, 1.0), 0.0)
    with pytest.raises(ValueError, match="one clip"):
        total(jnp.ones(3), 1.0)


def test_a_traced_multiplier_draws_the_same():
    x = jnp.eye(3)[:1] * 0.5

    def total(multiplier):
        drawn = drawn_terms("auto", 3, multiplier)
        return randomised_sum(jax.random.key(0), x, jnp.ones(1, bool), jnp.arange(1), drawn, "privunit2")

    multipliers = jnp.asarray([0.4, 2.0])
    found = jax.jit(jax.vmap(total))(multipliers)
    np.testing.assert_allclose(
        found, np.stack([jax.jit(lambda z=z: total(float(z)))() for z in multipliers]), rtol=1e-5
    )


def test_a_seed_and_a_sign_are_a_whole_report():
    terms = terms_of("duchi", 4, 2.0)
    x = np.array([0.3, -0.2, 0.1, 0.4])
    reports = reports_of(np.tile(x, (4_000, 1)), 2.0)
    said = [(int.from_bytes(report[:8], "big"), 2 * report[8] - 1) for report in reports]
    found = np.stack([expand(seed, sign, terms, 1.0) for seed, sign in said])
    assert np.linalg.norm(found.mean(axis=0) - x) < 4.5 * math.sqrt(terms.error / len(said))
    sides = np.array([sign * np.sign(direction(seed, 4) @ x) for seed, sign in said])
    norm = np.linalg.norm(x)
    expected = 0.5 + (2 * terms.chance - 1) * norm / 2
    assert (sides > 0).mean() == pytest.approx(expected, abs=0.035)
    assert terms.report_bytes == 9
    assert terms_of("privunit2", 4, 2.0).report_bytes == 16
    with pytest.raises(PricingError, match="seed and a sign"):
        expand(1, 1, terms_of("privunit2", 4, 2.0), 1.0)


def test_hashed_numbers_are_normal_and_uncorrelated():
    draw = jax.jit(lambda key: normals(salts(key, 1)[0], jnp.arange(2000), 100))
    a, b = (np.asarray(draw(jax.random.key(i)), np.float64) for i in (0, 1))
    assert stats.kstest(a.ravel(), "norm").pvalue > 1e-4
    assert (a**4).mean() == pytest.approx(3.0, abs=0.06)
    size = a.size**-0.5
    for one, two in ((a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a**2 - 1, b**2 - 1), (a[1:, 1:], a[:-1, :-1])):
        assert abs((one * two).mean()) < 5 * size * one.std() * two.std()
    columns = np.corrcoef(a.T) - np.eye(100)
    assert np.abs(columns).max() < 6 / math.sqrt(2000)
    u = np.asarray(jax.jit(lambda key: uniforms(salts(key, 1)[0], jnp.arange(50_000), 1))(jax.random.key(2)))
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-4
    assert u.min() > 0
    assert u.max() < 1
    part = np.asarray(jax.jit(lambda key: normals(salts(key, 1)[0], jnp.arange(7, 12), 30))(jax.random.key(0)))
    np.testing.assert_allclose(part, a[7:12, :30], rtol=1e-6)


@pytest.mark.parametrize("local_epsilon", [0.5, 4.0, 12.0, 20.0, 30.0])
def test_coins_are_never_surer_than_epsilon_0_allows(local_epsilon):
    """Coins come in steps; whoever lies less often than asked for promises more than was priced."""
    rest = float(drawn_terms("duchi", 5, 1 / local_epsilon).rest)
    assert (rest * COIN_STEPS).is_integer()
    assert math.log((1 - rest) / rest) <= local_epsilon
    assert rest <= 1 / (1 + math.exp(local_epsilon)) + 1 / COIN_STEPS
