"""A real silo's share: exact coins, integers that add up, and the mean that they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.errors import TacitError
from tacit.privacy.binomial import VectorSum, sum_multiplier
from tacit.silo.secure_share import ShareResponder, ShareTerms, count_heads, mean_of_total, share_terms
from tacit.silo.shuffled import flips_each, grid_steps


def silo_with(clip=1.0):
    return Silo(
        lambda work, record: record["x"] + work, Release(lambda w: clip, 1.0, None, "full", channel="shuffled-sum")
    )


@pytest.mark.parametrize("coins", [3, 8, 13])
def test_heads_are_binomial(coins):
    heads = count_heads(coins, 4000)
    expected = stats.binom(coins, 0.5).pmf(np.arange(coins + 1)) * 4000
    kept = expected > 5
    found = np.bincount(heads, minlength=coins + 1)
    statistic = ((found - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < stats.chi2(kept.sum()).ppf(1 - 1e-6)
    assert count_heads(0, 3).tolist() == [0, 0, 0]


def test_many_coins_have_the_right_mean_and_spread():
    coins = 8 * (1 << 22) + 5  # more than one chunk, and not whole bytes
    heads = count_heads(coins, 30)
    z = (heads - coins / 2) / np.sqrt(coins / 4)
    assert abs(z.mean()) < 6 / np.sqrt(30)
    assert 0.35 < z.std() < 1.9


def test_terms_are_those_of_the_simulation_and_are_as_private_as_they_claim():
    sizes, dimension, multiplier = [100, 200, 300], 10, 20.0
    terms = share_terms(multiplier, sizes, least=2, honest=1.0, dimension=dimension)
    grid = grid_steps(600.0, dimension)
    assert terms.grid == int(grid)
    assert terms.coins == pytest.approx(float(flips_each(multiplier, grid, dimension, 300.0)), rel=2e-5)  # in float32
    protocol = VectorSum(contributors=600, honest=300, dimension=dimension, grid=terms.grid, bits=terms.coins)
    assert sum_multiplier(protocol) >= multiplier


def test_fewer_honest_silos_mean_more_coins():
    most = share_terms(20.0, [100, 200, 300], least=3, honest=1.0, dimension=4)
    half = share_terms(20.0, [100, 200, 300], least=3, honest=0.5, dimension=4)
    assert half.coins == pytest.approx(6 * most.coins, rel=1e-3)  # one silo of 100 records instead of 600


def test_models_too_large_for_exact_coins_are_refused():
    with pytest.raises(TacitError, match="too large"):
        share_terms(20.0, [100, 200], least=2, honest=1.0, dimension=10**6)
    with pytest.raises(TacitError, match="crowd of one"):
        share_terms(20.0, [100, 200], least=1, honest=1.0, dimension=2)


def test_shares_of_two_silos_add_up_to_the_mean_with_the_noise_that_was_priced():
    rng = np.random.default_rng(0)
    tables = [{"x": jnp.asarray(rng.uniform(-0.3, 0.3, (n, 3)), jnp.float32)} for n in (40, 60)]
    terms = ShareTerms(grid=40, coins=500, dimension=3)
    silo, work = silo_with(), jnp.zeros(3)
    responders = [ShareResponder(silo, t, place=i, terms=terms, coins=True) for i, t in enumerate(tables)]
    truth = np.concatenate([t["x"] for t in tables]).mean(axis=0)
    found = []
    for trial in range(400):
        keys = jax.random.split(jax.random.key(trial), (2, 2))
        shares = [r.answer(work, (), keys=k, position=0, order=None) for r, k in zip(responders, keys, strict=True)]
        found.append(np.asarray(mean_of_total(sum(shares), silo, work, jnp.zeros(3), terms, 100)))
    error = np.asarray(found) - truth
    protocol = VectorSum(contributors=100, honest=100, dimension=3, grid=40, bits=500)
    deviation = protocol.deviation_of_mean
    assert np.all(np.abs(error.mean(axis=0)) < 5 * deviation / 20)
    # The deviation counts a quarter for rounding, its most.
    assert np.all(np.abs(error.std(axis=0) / deviation - 1) < 0.2)


def test_a_hostile_clip_says_nothing():
    table = {"x": jnp.ones((5, 2))}
    terms = ShareTerms(grid=20, coins=0, dimension=2)
    for clip in (float("nan"), float("inf"), -1.0, 0.0):
        responder = ShareResponder(silo_with(clip), table, place=0, terms=terms, coins=False)
        share = responder.answer(jnp.zeros(2), (), keys=jax.random.split(jax.random.key(0)), position=0, order=None)
        assert share.tolist() == [0, 0]
