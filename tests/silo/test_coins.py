"""Heads among fair coins: exactly binomial, whatever decides a sample."""

import math
from bisect import bisect_right
from itertools import product

import numpy as np
import pytest
from scipy import stats

from tacit.silo import coins
from tacit.silo.coins import COINS, count_heads

REST = COINS - 16


def test_the_table_has_the_masses_of_the_binomial():
    cumulative, short = coins._table()
    assert len(cumulative) == COINS
    for k in (0, 1, 5, COINS // 2, COINS - 1):
        assert cumulative[k] == sum(math.comb(COINS, j) for j in range(k + 1))
    # Sixteen bits decide a sample just where all numbers that begin with them give the same one.
    for first in {*range(0, 1 << 16, 37), *range(40), *range((1 << 16) - 40, 1 << 16)}:
        lowest, highest = (bisect_right(cumulative, number) for number in (first << REST, ((first + 1) << REST) - 1))
        inside = any(total >> REST == first for total in cumulative[max(lowest - 1, 0) : highest])
        assert short[first] == (-1 if inside else lowest)
        assert inside or lowest == highest
    assert 0.001 < np.mean(short == -1) < 0.006


@pytest.mark.parametrize(
    ("k", "past"), [*product((0, 1, 2000, COINS // 2), (-1, 0, 1)), (COINS - 1, -1), (COINS - 1, 0)]
)
def test_numbers_at_a_cumulative_mass_are_on_the_right_side_of_it(monkeypatch, k, past):
    number = coins._table().cumulative[k] + past
    first, rest = number >> REST, number & ((1 << REST) - 1)
    told = iter([int(first).to_bytes(2, "little"), rest.to_bytes(REST // 8, "big")])
    monkeypatch.setattr(coins, "random_bytes", lambda count: next(told) if count else b"")
    expected = bisect_right(coins._table().cumulative, number)
    assert expected == (k if past < 0 else k + 1)
    assert coins._draw(1).tolist() == [expected]


@pytest.mark.parametrize("flips", [3, 8, 13, COINS])
def test_heads_are_binomial(flips):
    heads = count_heads(flips, 20_000)
    expected = stats.binom(flips, 0.5).pmf(np.arange(flips + 1)) * 20_000
    kept = expected > 5
    found = np.bincount(heads, minlength=flips + 1)
    statistic = ((found - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < stats.chi2(kept.sum()).ppf(1 - 1e-6)


@pytest.mark.parametrize("bits", [b"\xff", b"\0"])
@pytest.mark.parametrize("flips", [0, 1, 63, 64, 65, 1000, COINS, COINS + 1, (coins._AT_ONCE + 3) * COINS + 77])
def test_no_coin_counts_that_was_not_flipped(monkeypatch, flips, bits):
    monkeypatch.setattr(coins, "random_bytes", lambda count: bits * count)
    assert count_heads(flips, 2).tolist() == [flips if bits == b"\xff" else 0] * 2


def test_many_coordinates_and_many_coins_have_the_right_mean_and_spread():
    for flips, dimension in ((8 * (1 << 22) + 5, 60), (3 * COINS + 70, 100_000)):
        z = (count_heads(flips, dimension) - flips / 2) / np.sqrt(flips / 4)
        assert abs(z.mean()) < 6 / np.sqrt(dimension)
        assert abs(z.std() - 1) < 5 / np.sqrt(2 * dimension)
        assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 6 / np.sqrt(dimension)
