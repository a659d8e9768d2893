"""Secure noise: the distribution that was promised, on the grid that was priced, and nothing in the lowest bits."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.privacy import Event, gauss_delta
from tacit.privacy.discrete import effective_multiplier
from tacit.silo import view_of, pass_order
from tacit.silo.simulated import exact_statistic
from tacit.silo.secure_answer import Responder
from tacit.silo.secure_noise import (
    ROUNDING,
    add_discrete_gaussian,
    discrete_gaussian,
    grid_width,
    least_grid_sigma,
)


def pmf(support, scale):
    weights = np.exp(-0.5 * (np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1) / scale) ** 2)
    return np.exp(-0.5 * (support / scale) ** 2) / weights.sum()


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_the_sampler_is_the_discrete_gaussian(scale):
    """A chi-squared test at one in a million: it fails for a wrong scale, shift or shape."""
    size = 20_000
    drawn = discrete_gaussian(size, scale)
    cut = math.ceil(3 * scale)
    support = np.arange(-cut, cut + 1)
    expected = pmf(support, scale)
    observed = np.array([(drawn == k).sum() for k in support])
    observed = np.append(observed, size - observed.sum())
    expected = size * np.append(expected, 1 - expected.sum())
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_the_test_of_the_sampler_has_power():
    drawn = np.rint(np.random.default_rng(0).normal(0, 3.15, 20_000)).astype(int)
    support = np.arange(-9, 10)
    observed = np.array([(drawn == k).sum() for k in support])
    expected = pmf(support, 3.0)
    observed, expected = np.append(observed, 20_000 - observed.sum()), 20_000 * np.append(expected, 1 - expected.sum())
    assert stats.chisquare(observed, expected).pvalue < 1e-6


def test_large_scales_do_not_saturate_and_are_normal():
    drawn = discrete_gaussian(8_000, 1e12) / 1e12
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 5 / math.sqrt(8_000)


def test_two_draws_never_repeat():
    assert not np.array_equal(discrete_gaussian(50, 1e6), discrete_gaussian(50, 1e6))


def test_what_leaves_has_the_deviation_that_was_asked_for():
    released = add_discrete_gaussian({"w": jnp.full((60, 100), 0.3)}, 2.5, grid_sigma=1e5).statistic["w"]
    assert released.shape == (60, 100)
    noise = (np.asarray(released, np.float64) - 0.3).ravel() / 2.5
    assert stats.kstest(noise, "norm").pvalue > 1e-6


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=6),
    sigma=st.floats(1e-6, 1e6),
    z=st.floats(0.05, 500),
)
def test_what_leaves_is_a_multiple_of_the_grid_near_the_statistic(values, sigma, z):
    """Without noise: an exact multiple of a power of two, at most half a width away, on a grid as fine as priced."""
    grid_sigma = least_grid_sigma(z, len(values))
    scales = []

    def none(size, scale):
        scales.append(scale)
        return np.zeros(size, np.int64)

    statistic = jnp.asarray(values, jnp.float32)
    released = add_discrete_gaussian(statistic, sigma, grid_sigma=grid_sigma, sampler=none)
    width = grid_width(sigma, grid_sigma)
    assert math.frexp(width)[0] == 0.5
    assert grid_sigma <= scales[0] < 2.01 * grid_sigma
    distance = np.abs(np.asarray(released.statistic, np.float64) - np.asarray(statistic, np.float64))
    assert np.all(distance <= 0.5 * width * (1 + 1e-9) + 1e-7 * np.abs(values))
    # Rounding of all coordinates adds at most the promised share of the sensitivity sigma / z.
    assert width * math.sqrt(len(values)) <= ROUNDING * sigma / z * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.0, math.nan, math.inf, 1e-30, 1e30, -1.0])
def test_a_hostile_scale_makes_zeros_whatever_the_records(sigma):
    for statistic in (jnp.ones(3), jnp.full(3, jnp.nan), jnp.full(3, jnp.inf)):
        released = add_discrete_gaussian(statistic, sigma, grid_sigma=1e4)
        assert np.array_equal(released.statistic, np.zeros(3))


def test_what_is_not_finite_counts_as_zero():
    released = add_discrete_gaussian(
        jnp.asarray([jnp.nan, 1.0]), 1.0, grid_sigma=1e6, sampler=lambda size, scale: np.zeros(size, np.int64)
    )
    np.testing.assert_allclose(released.statistic, [0.0, 1.0], atol=1e-6)


def test_a_running_sum_has_the_noise_of_its_last_increment():
    """Increments leave with fresh noise less the one before; their sum keeps only the last."""
    increments = [jnp.asarray([0.5, -1.0]) * k for k in range(1, 5)]
    before, total = None, np.zeros(2)
    for increment in increments:
        released = add_discrete_gaussian(increment, 3.0, grid_sigma=1e5, before=before)
        before, total = released.noise, total + np.asarray(released.statistic, np.float64)
    last = before[""] * grid_width(3.0, 1e5)
    np.testing.assert_allclose(total - last, np.sum(np.asarray(increments), axis=0), atol=1e-4)


def test_blocks_have_their_own_noise():
    statistic = {"a": jnp.zeros(3000), "b": {"c": jnp.zeros((1500, 2))}}
    released = add_discrete_gaussian(statistic, {"a": 1.0, "b": 100.0}, grid_sigma=1e5)
    assert 0.9 < float(jnp.std(released.statistic["a"])) < 1.1
    assert 90 < float(jnp.std(released.statistic["b"]["c"])) < 110
    assert set(released.noise) == {"a", "b"}


def test_the_grid_costs_what_the_price_says():
    """One hundredth of a per cent of the noise, for any dimension."""
    for dimension in (1, 50, 10_000):
        z = 3.0
        event = Event(
            kind="g",
            noise_multiplier=z,
            count=1,
            records=9,
            batch=9,
            sampling="full",
            mechanism="discrete-gaussian",
            grid_sigma=least_grid_sigma(z, dimension),
            dimension=dimension,
        )
        assert z * (1 - 1.1 * ROUNDING) < effective_multiplier(event) < z


def test_audit_of_one_release():
    """Attack the release itself: the best threshold test between neighbours gains no more than the price allows."""
    z, repeats = 1.0, 20_000
    sensitivity = 1.0
    grid_sigma = least_grid_sigma(z, 1)
    near = np.asarray(add_discrete_gaussian(jnp.zeros(repeats), z, grid_sigma=grid_sigma).statistic)
    far = np.asarray(add_discrete_gaussian(jnp.full(repeats, sensitivity), z, grid_sigma=grid_sigma).statistic)
    epsilon = 1.0
    allowed = float(gauss_delta(epsilon, 1 / z))
    found = max((far > c).mean() - math.exp(epsilon) * (near > c).mean() for c in np.linspace(0.5, 3, 26))
    error = 5 * math.sqrt((1 + math.exp(2 * epsilon)) / repeats) / 2
    assert found <= allowed + error
    # The attack is not blind: it finds most of what there is to find.
    assert found >= 0.7 * allowed


@pytest.mark.parametrize("sampling", ["full", "cumulative"])
def test_audit_at_the_door(sampling):
    """Attack whole answers with a canary: the measured separation is the price's, and no more."""
    z, size, clip, repeats = 0.5, 4, 1.0, 200
    release = Release(
        clip=lambda work: clip,
        noise_multiplier=z,
        batch_size=None,
        sampling="full",
        mechanism="cumulative" if sampling == "cumulative" else "gaussian",
    )
    silo = Silo(lambda work, record: record["x"] * 1e3, release)
    key = jax.random.key(0)
    seen = []
    for sign in (1.0, -1.0):
        records = {"x": jnp.zeros((size, 3)).at[0, 1].set(sign), "y": jnp.zeros(size)}
        responder = Responder(silo, records, place=0, grid_sigma=least_grid_sigma(z, 3))
        found = [
            responder.answer(jnp.zeros(3), (), keys=[key], position=0, order=None, before=None).message[1]
            for _ in range(repeats)
        ]
        seen.append(np.asarray(found, np.float64))
    sigma = z * 2 * clip / size
    separation = (seen[0].mean() - seen[1].mean()) / sigma
    error = 5 * math.sqrt(2 / repeats)
    assert separation <= 1 / z + error
    assert separation >= 1 / z - error
    assert 0.75 < seen[0].std() / sigma < 1.25


@pytest.mark.parametrize("sampling", ["full", "wor", "wr", "poisson", "one-pass"])
def test_double_precision_changes_neither_the_batch_nor_the_clip(sampling):
    batch = None if sampling == "full" else 5
    release = Release(
        clip=lambda work: 0.8,
        noise_multiplier=1.0,
        batch_size=batch,
        sampling=sampling,
        capacity=7 if sampling == "poisson" else None,
    )
    silo = Silo(lambda work, record: record["x"] - work, release)
    x = jax.random.normal(jax.random.key(1), (12, 3))
    records = {"x": x, "y": jnp.zeros(12)}
    key, order = jax.random.key(2), pass_order(jax.random.key(3), 12, 12)
    work = jnp.full(3, 0.1)
    double, _ = Responder(silo, records, place=0, grid_sigma=None).statistic(work, order=order, key=key, position=5)
    single, _ = exact_statistic(silo, work, view_of(records, 12, order, 0), key=key, position=5)
    assert double.dtype == np.float64
    assert np.linalg.norm(double) > 0.01
    np.testing.assert_allclose(double, single, rtol=1e-4, atol=1e-6)
