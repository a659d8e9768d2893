"""The split: random, disjoint, complete, and blind to what the records say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit import data
from tacit.data.build import split_indices, split_sizes

SHARES = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.25, 0.3])


@given(records=st.integers(0, 3000), validation=SHARES, test=SHARES, seed=st.integers(0, 5))
def test_parts_are_disjoint_and_complete(records, validation, test, seed):
    parts = split_indices(records, validation, test, np.random.default_rng(seed))
    assert [len(part) for part in parts] == list(split_sizes(records, validation, test))
    assert sorted(np.concatenate(parts)) == list(range(records))
    assert abs(len(parts[0]) - records * (1 - validation - test)) < 1
    assert abs(len(parts[2]) - records * test) <= 1.5


def test_sizes_of_the_papers():
    assert split_sizes(1543, 0.1, 0.1)[0] == 1234
    assert split_sizes(2064, 0.1, 0.1)[0] == 1651
    assert split_sizes(134, 0.1, 0.1)[0] == 107


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.1), (0.1, 1.0), (0.5, 0.5), (float("nan"), 0.1)])
def test_impossible_shares(validation, test):
    with pytest.raises(data.DataError, match="Expected"):
        split_sizes(100, validation, test)


def rows(federation):
    return [part["x"].tobytes() for silo in federation.silos for part in (silo.train, silo.validation, silo.test)]


def test_a_seed_fixes_the_federation():
    assert rows(data.load("heart-disease", seed=3)) == rows(data.load("heart-disease", seed=3))
    assert rows(data.load("heart-disease", seed=3)) != rows(data.load("heart-disease", seed=4))


def test_the_split_does_not_look_at_labels():
    """A stratified split would keep the share of each class; a blind one lets it vary from seed to seed."""
    shares = {data.load("heart-disease", seed=seed).silos[0].test["y"].mean() for seed in range(5)}
    assert len(shares) > 1
