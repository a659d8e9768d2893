"""Which records enter a batch: sizes, rates, uniformity, and independence of padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.silo import draw, pass_order
from tacit.silo.sampling import slots_needed


def batch(key, sampling, count, size, *, capacity=None, padded=None, position=0, order=None):
    padded = padded or count
    capacity = capacity or count
    slots = slots_needed(sampling, size, capacity, padded)
    order = pass_order(jax.random.key(7), count, padded) if sampling == "one-pass" else order
    return draw(
        key,
        sampling,
        count=count,
        batch_size=size,
        capacity=capacity,
        slots=slots,
        padded=padded,
        order=order,
        position=position,
    )


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([1, 2, 7, 39, 40]), st.sampled_from([1, 2, 7, 40]), st.integers(0, 2**31 - 1))
def test_without_replacement_draws_exactly_k_different_real_rows(count, most, seed):
    size = min(most, count)
    drawn = batch(jax.random.key(seed), "wor", count, size, padded=65)
    rows = np.asarray(drawn.rows)[np.asarray(drawn.present)]
    assert len(rows) == size == len(set(rows.tolist()))
    assert rows.max() < count


def test_rows_do_not_depend_on_padding():
    for sampling in ("wor", "wr", "poisson", "one-pass"):
        plain = batch(jax.random.key(3), sampling, 50, 10, capacity=20)
        padded = batch(jax.random.key(3), sampling, 50, 10, capacity=20, padded=90)
        kept = [np.asarray(b.rows)[np.asarray(b.present)] for b in (plain, padded)]
        np.testing.assert_array_equal(kept[0], kept[1])


def test_an_epoch_has_every_row_once_whatever_the_padding():
    found = []
    for padded in (50, 90):
        key = jax.random.key(9)
        epoch = [
            batch(key, "allocation", 50, 10, padded=padded, order=jax.random.key(4), position=p) for p in range(10)
        ]
        rows = [np.asarray(b.rows)[np.asarray(b.present)] for b in epoch]
        assert sorted(np.concatenate(rows[:5]).tolist()) == sorted(np.concatenate(rows[5:]).tolist()) == list(range(50))
        assert {tuple(own) for own in rows[:5]} != {tuple(own) for own in rows[5:]}
        found.append(np.concatenate(rows))
    np.testing.assert_array_equal(*found)


def test_a_batch_of_an_epoch_is_cut_to_the_capacity_of_its_silo():
    cut = batch(jax.random.key(1), "allocation", 60, 30, capacity=5, order=jax.random.key(2))
    assert int(np.sum(np.asarray(cut.present))) == 5


def test_without_replacement_is_uniform_over_subsets():
    keys = jax.random.split(jax.random.key(0), 6000)
    rows = jax.vmap(lambda k: batch(k, "wor", 5, 2).rows)(keys)
    codes = np.asarray(rows[:, 0] * 5 + rows[:, 1])
    counts = np.unique(codes, return_counts=True)[1]
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > 1e-4


def test_with_replacement_repeats_and_is_uniform():
    keys = jax.random.split(jax.random.key(1), 4000)
    rows = np.asarray(jax.vmap(lambda k: batch(k, "wr", 7, 3).rows)(keys))
    assert stats.chisquare(np.bincount(rows.ravel(), minlength=7)).pvalue > 1e-4
    repeated = np.mean([len(set(r)) < 3 for r in rows.tolist()])
    assert abs(repeated - (1 - 6 * 5 / 49)) < 0.03


def test_poisson_has_binomial_sizes_and_never_a_higher_rate():
    keys = jax.random.split(jax.random.key(2), 4000)
    present = np.asarray(jax.vmap(lambda k: batch(k, "poisson", 60, 12).present)(keys))
    sizes = present.sum(axis=1)
    assert abs(sizes.mean() - 12) < 0.2
    assert abs(sizes.var() - 12 * 0.8) < 0.8
    full = batch(jax.random.key(5), "poisson", 30, 30)
    assert int(full.present.sum()) == 30


def test_truncated_poisson_keeps_a_uniform_subset():
    keys = jax.random.split(jax.random.key(4), 6000)
    drawn = jax.vmap(lambda k: batch(k, "poisson", 6, 4, capacity=4))(keys)
    present = np.asarray(drawn.present)
    assert present.sum(axis=1).max() == 4
    full = np.asarray(drawn.rows)[present.all(axis=1)]
    counts = np.unique(full @ 6 ** np.arange(4), return_counts=True)[1]
    assert len(counts) == 15
    assert stats.chisquare(counts).pvalue > 1e-4


def test_one_pass_batches_are_disjoint_and_cover_the_records():
    seen = [np.asarray(batch(jax.random.key(0), "one-pass", 21, 5, padded=30, position=5 * r).rows) for r in range(4)]
    rows = np.concatenate(seen)
    assert len(rows) == len(set(rows.tolist())) == 20
    assert rows.max() < 21
    last = batch(jax.random.key(0), "one-pass", 21, 5, padded=30, position=20)
    assert int(last.present.sum()) == 1


def test_full_batch_marks_the_padding():
    drawn = batch(jax.random.key(0), "full", 4, None, padded=6)
    assert drawn.rows is None
    assert drawn.present.tolist() == [True] * 4 + [False] * 2


def test_one_pass_without_an_order_is_refused():
    with pytest.raises(ValueError, match="pass_order"):
        draw(
            jax.random.key(0),
            "one-pass",
            count=jnp.asarray(4),
            batch_size=2,
            capacity=4,
            slots=2,
            padded=4,
            order=None,
            position=0,
        )
