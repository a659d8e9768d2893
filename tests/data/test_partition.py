"""Partitions: disjoint, as heterogeneous as asked for, and clear about what they cannot do."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import DataError
from tacit.data.partition import DEFAULT_LEVELS, DIGIT_PAIRS, PARTITIONS, Request


def divide(kind, *, silos, level=None, label=None, values=None, records=None, natural=None, seed=0):
    target = values if values is not None else label if label is not None else natural
    request = Request(
        label=label,
        target=target,
        attribute=values,
        natural=natural,
        silos=silos,
        level=DEFAULT_LEVELS.get(kind) if level is None else level,
        records=records,
        generator=np.random.default_rng(seed),
    )
    return PARTITIONS[kind](request)


@settings(max_examples=40)
@given(
    kind=st.sampled_from(["attribute", "sorted-target", "iid", "dirichlet"]),
    records=st.integers(10, 300),
    silos=st.integers(1, 10),
    level=st.floats(0.01, 1),
    seed=st.integers(0, 9),
)
def test_no_record_is_lost_or_shared(kind, records, silos, level, seed):
    generator = np.random.default_rng(seed)
    label, values = generator.integers(0, 3, records), generator.integers(0, 20, records).astype(float)
    parts = divide(kind, silos=silos, level=level, label=label, values=values, seed=seed)
    assert len(parts) == silos
    assert sorted(np.concatenate(parts)) == list(range(records))
    if kind != "dirichlet":
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("level", [0.0, 0.3, 0.75, 1.0])
def test_level_is_the_share_kept_from_the_own_slice(level):
    """Algorithm 3: floor(n / K * h) records of a silo come from its slice, the rest from what all slices left."""
    values = np.random.default_rng(1).permutation(300).astype(float)
    parts = divide("attribute", silos=3, level=level, values=values)
    for silo, part in enumerate(parts):
        own = ((values[part] >= 100 * silo) & (values[part] < 100 * (silo + 1))).sum()
        expected = 100 * level + (100 - np.floor(100 * level)) / 3
        assert own >= np.floor(100 * level)
        assert abs(own - expected) < 20
        assert len(part) == 100


def test_sorted_target_gives_slices_in_order():
    values = np.random.default_rng(1).normal(size=1338)
    parts = divide("sorted-target", silos=10, values=values)
    tops = [values[part].max() for part in parts]
    bottoms = [values[part].min() for part in parts]
    assert all(top <= bottom for top, bottom in zip(tops[:-1], bottoms[1:], strict=True))
    assert {len(part) for part in parts} == {133, 134}


def test_ties_do_not_follow_the_order_of_the_file():
    values = np.zeros(1000)
    first = divide("attribute", silos=2, level=1.0, values=values)[0]
    assert 200 < (first < 500).sum() < 300


def test_dirichlet_concentration():
    label = np.repeat(np.arange(10), 500)

    def spread(level):
        parts = divide("dirichlet", silos=5, level=level, label=label)
        return np.mean([np.bincount(label[part], minlength=10).std() for part in parts])

    assert spread(0.1) > spread(1.0) > spread(100.0)


def test_labels():
    label = np.repeat(np.arange(4), 10)
    parts = divide("label", silos=2, label=label)
    assert [sorted(set(label[part])) for part in parts] == [[0, 1], [2, 3]]
    parts = divide("one-class", silos=8, label=label)
    assert [sorted(set(label[part])) for part in parts] == [[0], [1], [2], [3]] * 2
    assert [len(part) for part in parts] == [5] * 8


def test_natural():
    parts = divide("natural", silos=2, natural=np.array([1, 0, 1, 1]))
    assert [list(part) for part in parts] == [[1], [0, 2, 3]]


def test_digit_pairs():
    label = np.random.default_rng(0).integers(0, 10, 6000)
    parts = divide("digit-pairs", silos=25, label=label, records=201)
    assert len(np.unique(np.concatenate(parts))) == 25 * 201
    for part, (even, odd) in zip(parts, DIGIT_PAIRS, strict=True):
        assert set(label[part]) == {even, odd}
        assert (label[part] == even).sum() in (100, 101)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("attribute", {"level": 1.5, "values": np.arange(9.0)}, "level=1.5"),
        ("sorted-target", {"level": -0.1, "values": np.arange(9.0)}, "level=-0.1"),
        ("dirichlet", {"level": 0.0, "label": np.arange(9)}, "level=0.0"),
        ("dirichlet", {"level": float("nan"), "label": np.arange(9)}, "level=nan"),
        ("dirichlet", {"values": np.arange(9.0)}, "real-valued target"),
        ("label", {"label": np.array([0, 1, 1])}, "2 classes"),
        ("one-class", {"label": np.array([0, 1, 1])}, "try silos=2"),
        ("digit-pairs", {"label": np.arange(10)}, "to be 25"),
    ],
)
def test_mistakes_are_explained(kind, arguments, words):
    with pytest.raises(DataError) as error:
        divide(kind, silos=3, **arguments)
    assert words in str(error.value)


def test_too_few_digits():
    with pytest.raises(DataError, match="records_per_silo <= 40"):
        divide("digit-pairs", silos=25, label=np.repeat(np.arange(10), 100), records=41)
