"""A real silo's share of a shuffled sum: any integers checked, exact coins, and the mean that a sum stands for."""

import math
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.vector_sums import VectorSum, sum_multiplier
from tacit.algorithm import Release, Silo
from tacit.channel.shuffled_sum import ShareTerms, mean_of_total, share_terms
from tacit.errors import TacitError
from tacit.privacy.binomial import rounding_bound
from tacit.silo.coins import count_heads
from tacit.silo.door import Door, DoorError
from tacit.silo.release import usable_clips
from tacit.silo.shares import (
    BinomialShare,
    checked_share,
    no_coins,
    randomly_rounded,
)
from tacit.silo.shuffled import flips_each, grid_steps


def silo_with(clip=1.0, **changes):
    terms = {"batch_size": None, "sampling": "full", "channel": "shuffled-sum", "noise_multiplier": 1.0, **changes}
    return Silo(lambda work, record: record["x"], Release(clip=lambda work: clip, **terms))


def share_of(silo, records, terms, *, coins=no_coins, weight=1.0, batch=None):
    door = Door(silo, records, silo_index=0, form=True)
    batch = door.batch(0, None) if batch is None else batch
    return door.release(None, batch, BinomialShare(door.engine, terms, coins, weight))


# Any stored integers.


def violates(adder, rounded, other, present, terms: ShareTerms) -> bool:
    """Whether a sum breaks what `checked_share` promises about these stored integers, in exact arithmetic."""
    reach = Fraction(rounding_bound(terms.grid, terms.dimension)) ** 2

    def exact(some, there):
        return adder(some, there, terms).astype(object)

    total, added = exact(rounded, present), 0
    for row in range(len(present)):
        only = exact(rounded, present & (np.arange(len(present)) == row))
        if sum(x * x for x in only) > reach or any(abs(2 * x) > terms.grid for x in only):
            return True
        if any(only) and (only != rounded[row].astype(object)).any():
            return True
        added = added + only
        swapped = np.where((np.arange(len(present)) == row)[:, None], other, rounded)
        moved = exact(swapped, present) - total
        if sum(x * x for x in moved) > 4 * reach:
            return True
    return bool((total != added).any())


def at_the_reach(rng, terms: ShareTerms, records: int) -> np.ndarray:
    """Rows whose squared norm is as near to the reach as integers come, on either side, within the grid."""
    reach = math.floor(Fraction(rounding_bound(terms.grid, terms.dimension)) ** 2)
    rows = np.zeros((records, terms.dimension), np.int64)
    for row in range(records):
        left = reach + int(rng.integers(-2, 3))
        for j in range(terms.dimension):
            rows[row, j] = min(math.isqrt(max(left, 0)), terms.grid // 2)
            left -= int(rows[row, j]) ** 2
        rows[row] = rng.permutation(rows[row]) * rng.choice([-1, 1], terms.dimension)
    return rows


EXTREMES = [-(2**63), 2**63 - 1, 2**62, 2**32, -(2**32), 2**53 + 1]


def attacks():
    rng = np.random.default_rng(0)
    for grid, dimension in ((4, 1), (200, 5), (200, 12), (2**25, 9)):
        terms = ShareTerms(grid, 0, dimension)
        for _ in range(4):
            yield at_the_reach(rng, terms, 3), at_the_reach(rng, terms, 3), np.ones(3, bool), terms
        for value in [*EXTREMES, grid // 2 + 1, -(grid // 2) - 1]:
            yield np.full((2, dimension), value), np.zeros((2, dimension), np.int64), np.ones(2, bool), terms


@settings(deadline=None, max_examples=80)
@given(
    grid=st.sampled_from([2, 4, 200, 2**25]),
    rounded=arrays(
        np.int64,
        (3, 4),
        elements=st.one_of(st.sampled_from(EXTREMES), st.integers(-(2**24) - 1, 2**24 + 1), st.integers(-101, 101)),
    ),
    present=arrays(bool, 3),
)
def test_no_integers_break_the_bound(grid, rounded, present):
    terms = ShareTerms(grid, 0, 4)
    assert not violates(checked_share, rounded, np.zeros_like(rounded), present, terms)


def test_no_attack_breaks_the_bound():
    assert not any(violates(checked_share, *attack) for attack in attacks())


def every_row(rounded, present, terms):
    return np.where(present[:, None], rounded, 0).sum(axis=0)


def wrapped_norms(rounded, present, terms):
    """Squares in 64-bit integers."""
    kept = (rounded**2).sum(axis=1) <= rounding_bound(terms.grid, terms.dimension) ** 2
    return every_row(rounded, present & kept, terms)


def no_grid(rounded, present, terms):
    """The norm alone: one coordinate may leave the window that is priced."""
    real = rounded.astype(float)
    return every_row(
        rounded, present & ((real**2).sum(axis=1) <= rounding_bound(terms.grid, terms.dimension) ** 2), terms
    )


def no_norm(rounded, present, terms):
    return every_row(rounded, present & (np.abs(rounded.astype(float)) <= terms.grid / 2).all(axis=1), terms)


@pytest.mark.parametrize("planted", [every_row, wrapped_norms, no_grid, no_norm])
def test_the_guard_fails_on_planted_bugs(planted):
    assert any(violates(planted, *attack) for attack in attacks())


def test_honest_rows_are_kept_and_right_on_average():
    rng = np.random.default_rng(0)
    for dimension in (1, 5, 300):
        units = rng.normal(size=(2000, dimension))
        units /= np.linalg.norm(units, axis=1, keepdims=True)
        units[::7] = 0.0
        units[::5] = np.eye(dimension)[0]
        terms = ShareTerms(grid=200, coins=0, dimension=dimension)
        rounded = randomly_rounded(units, 200)
        assert np.abs(rounded - units * 100).max() < 1
        total = checked_share(rounded, np.ones(2000, bool), terms)
        assert (total == rounded.sum(axis=0)).all()
        # At most a quarter of variance for each entry.
        assert np.abs(total - 100 * units.sum(axis=0)).max() < 6 * math.sqrt(2000 / 4)


def test_rounding_is_right_on_average_and_never_more_than_a_step():
    units = np.full((40_000, 1), 0.3712)
    rounded = randomly_rounded(units, 10)
    assert set(rounded.ravel().tolist()) == {1, 2}
    assert abs(rounded.mean() - 1.856) < 6 * math.sqrt(0.856 * 0.144 / 40_000)
    edges = randomly_rounded(np.array([[1.0, -1.0, 2.0, -3.0, 0.0]]), 10)
    assert edges.tolist() == [[5, -5, 5, -5, 0]]


@pytest.mark.parametrize(
    ("rounded", "grid"),
    [
        (np.zeros((3, 2), np.int32), 4),
        (np.zeros((3, 2)), 4),
        (np.zeros((2, 2), np.int64), 4),
        (np.zeros((3, 3), np.int64), 4),
        (np.zeros((3, 2), np.int64), 2**25 + 2),
    ],
)
def test_shapes_and_types_that_the_proof_is_not_about_are_refused(rounded, grid):
    with pytest.raises(DoorError, match="64-bit integers"):
        checked_share(rounded, np.ones(3, bool), ShareTerms(grid, 0, 2))


# Coins.


def test_coins_are_flipped_for_the_fixed_size_whatever_the_batch():
    told = []

    def coins(number, dimension):
        told.append((number, dimension))
        return no_coins(number, dimension)

    records = {"x": np.zeros((6, 3), np.float32)}
    silo = silo_with(batch_size=4, sampling="one-pass")
    door = Door(silo, records, silo_index=0, form=True)
    for position in (0, 4, 8):
        batch = door.batch(position, np.arange(6))
        door.release(None, batch, BinomialShare(door.engine, ShareTerms(200, 11, 3), coins, 1.0))
    assert told == [(44, 3)] * 3


# Terms.


def test_terms_are_those_of_the_simulation_and_are_as_private_as_they_claim():
    sizes, dimension, multiplier = [100, 200, 300], 10, 20.0
    terms = share_terms(multiplier, sizes, min_silos=2, honest=1.0, dimension=dimension)
    grid = grid_steps(600.0, dimension)
    assert terms.grid == int(grid)
    assert terms.coins == pytest.approx(float(flips_each(multiplier, grid, dimension, 300.0)), rel=2e-5)  # in float32
    protocol = VectorSum(contributors=600, honest=300, dimension=dimension, grid=terms.grid, bits=terms.coins)
    assert sum_multiplier(protocol) >= multiplier


def test_fewer_honest_silos_mean_more_coins():
    most = share_terms(20.0, [100, 200, 300], min_silos=3, honest=1.0, dimension=4)
    half = share_terms(20.0, [100, 200, 300], min_silos=3, honest=0.5, dimension=4)
    assert half.coins == pytest.approx(6 * most.coins, rel=1e-3)  # one silo of 100 records instead of 600


def test_models_too_large_for_exact_coins_are_refused():
    with pytest.raises(TacitError, match="too large"):
        share_terms(20.0, [100, 200], min_silos=2, honest=1.0, dimension=10**6)
    with pytest.raises(TacitError, match="crowd of one"):
        share_terms(20.0, [100, 200], min_silos=1, honest=1.0, dimension=2)


# Shares.


def test_shares_of_two_silos_add_up_to_the_mean_with_the_noise_that_was_priced():
    rng = np.random.default_rng(0)
    tables = [{"x": rng.uniform(-0.3, 0.3, (n, 3)).astype(np.float32)} for n in (40, 60)]
    terms, silo = ShareTerms(grid=40, coins=500, dimension=3), silo_with()
    doors = [Door(silo, table, silo_index=i, form=True) for i, table in enumerate(tables)]
    truth = np.concatenate([table["x"] for table in tables]).mean(axis=0)
    found = []
    for _ in range(300):
        shares = [
            door.release(None, door.batch(0, None), BinomialShare(door.engine, terms, count_heads, 1.0))
            for door in doors
        ]
        found.append(
            mean_of_total(sum(shares), usable_clips(silo.release, None), jnp.zeros(3), terms, records=100, each=0.01)
        )
    error = np.asarray(found) - truth
    deviation = VectorSum(contributors=100, honest=100, dimension=3, grid=40, bits=500).deviation_of_mean
    assert np.all(np.abs(error.mean(axis=0)) < 6 * deviation / math.sqrt(300))
    # The deviation counts a quarter for rounding, its most.
    assert np.all(np.abs(error.std(axis=0) / deviation - 1) < 0.25)


def test_blocks_follow_one_another_in_the_order_of_their_names():
    silo = Silo(
        lambda work, record: {"b": record["x"], "a": 2 * record["x"][:1]},
        Release(lambda work: {"b": 1.0, "a": 4.0}, {"b": 1.0, "a": 1.0}, None, "full", channel="shuffled-sum"),
    )
    records = {"x": np.asarray([[0.5, 0.25], [-0.25, 0.5]], np.float32)}
    terms = {"b": ShareTerms(8, 2, 2), "a": ShareTerms(16, 4, 1)}
    share = share_of(silo, records, terms, coins=lambda number, dimension: np.full(dimension, number // 2))
    assert (share - [4, 2, 2]).tolist() == [1, 1, 3]
    mean = mean_of_total(
        share, usable_clips(silo.release, None), {"b": jnp.zeros(2), "a": jnp.zeros(1)}, terms, records=2, each=0.5
    )
    np.testing.assert_allclose(mean["a"], [0.25])
    np.testing.assert_allclose(mean["b"], [0.125, 0.375])
    with pytest.raises(DoorError, match="each block"):
        share_of(silo, records, {"b": terms["b"]})
    with pytest.raises(DoorError, match="each block"):
        share_of(silo, records, terms["b"])


@pytest.mark.parametrize("clip", [float("nan"), float("inf"), -1.0, 0.0, 1e30])
def test_a_hostile_clip_says_nothing(clip):
    terms = ShareTerms(grid=20, coins=0, dimension=2)
    silo = silo_with(clip)
    share = share_of(silo, {"x": np.ones((5, 2), np.float32)}, terms)
    assert share.tolist() == [0, 0]
    assert not np.any(
        mean_of_total(share + 3, usable_clips(silo.release, None), jnp.zeros(2), terms, records=5, each=0.2)
    )


def test_records_that_are_not_finite_or_not_there_add_nothing():
    records = {"x": np.asarray([[0.5, 0.5], [np.nan, 0.1], [np.inf, 0.0], [3.0, 4.0]], np.float32)}
    terms = ShareTerms(grid=20, coins=0, dimension=2)
    assert share_of(silo_with(), records, terms).tolist() == [5 + 6, 5 + 8]
    door = Door(silo_with(), records, silo_index=0, form=True)
    batch = door.batch(0, None)._replace(present=np.array([True, True, True, False]))
    assert share_of(silo_with(), records, terms, batch=batch).tolist() == [5, 5]


def test_a_silo_whose_records_count_less_says_less():
    records = {"x": np.tile(np.asarray([[0.6, -0.8]], np.float32), (1000, 1))}
    terms = ShareTerms(grid=200, coins=0, dimension=2)
    share = share_of(silo_with(), records, terms, weight=0.125)
    assert np.abs(share - 1000 * 100 * 0.125 * np.array([0.6, -0.8])).max() < 6 * math.sqrt(1000 / 4)


def test_only_a_release_through_the_shuffled_sum_makes_shares():
    with pytest.raises(DoorError, match="shuffled-sum"):
        share_of(silo_with(channel="direct"), {"x": np.ones((5, 2), np.float32)}, ShareTerms(20, 0, 2))
