"""Secret batches: every outcome as likely as it is priced, by exact counting; and what is refused."""

import itertools
import math
import struct
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tacit.silo import batches
from tacit.silo.batches import SEED_BYTES, allotted, pass_order, permutation, secret_batch

DRAWS = 12_000


def drawn(sampling, *, count=4, size=2, capacity=4, order=None, position=0):
    return secret_batch(sampling, count=count, size=size, capacity=capacity, order=order, position=position)


def as_likely(found: Counter, expected: dict) -> None:
    """Chi-square at one in a million; nothing else may come."""
    assert set(found) <= set(expected)
    observed = [found[key] for key in expected]
    chances = np.array(list(expected.values()), float)
    assert chances.sum() == pytest.approx(1.0)
    assert stats.chisquare(observed, sum(observed) * chances).pvalue > 1e-6


def counted(sampling, draws=DRAWS, **terms) -> Counter:
    """How often each placement of rows into slots came; -1 is a slot without a record."""
    found = Counter()
    for _ in range(draws):
        rows, present = drawn(sampling, **terms)
        found[tuple(np.where(present, rows, -1).tolist())] += 1
    return found


@pytest.mark.parametrize(("count", "size"), [(4, 2), (3, 3), (5, 1)])
def test_without_replacement_every_sequence_is_as_likely(count, size):
    sequences = list(itertools.permutations(range(count), size))
    as_likely(counted("wor", count=count, size=size), dict.fromkeys(sequences, 1 / len(sequences)))


@pytest.mark.parametrize(("count", "size"), [(3, 2), (4, 2), (5, 1)])
def test_with_replacement_rows_are_independent_and_uniform(count, size):
    sequences = list(itertools.product(range(count), repeat=size))
    as_likely(counted("wr", count=count, size=size), dict.fromkeys(sequences, 1 / len(sequences)))


def poisson_law(count: int, rate: float, slots: int) -> dict:
    """Each row by itself; of too many a uniform subset; placed uniformly."""
    found = Counter()
    for size in range(count + 1):
        for chosen in itertools.combinations(range(count), size):
            chance = rate**size * (1 - rate) ** (count - size)
            kept = min(size, slots)
            placements = list(itertools.permutations(range(slots), kept))
            subsets = list(itertools.combinations(chosen, kept))
            for subset, places in itertools.product(subsets, placements):
                slot = dict(zip(places, subset, strict=True))
                found[tuple(slot.get(i, -1) for i in range(slots))] += chance / len(subsets) / len(placements)
    return found


@pytest.mark.parametrize(("count", "size", "capacity"), [(3, 1, 3), (4, 2, 2), (3, 2, 1), (3, 1, 99), (2, 2, 2)])
def test_poisson_batches_have_the_law_that_is_priced(count, size, capacity):
    slots = min(capacity, count)
    law = poisson_law(count, size / count, slots)
    law = {key: chance for key, chance in law.items() if chance > 0}
    as_likely(counted("poisson", count=count, size=size, capacity=capacity), law)


def test_the_rate_of_a_poisson_batch_is_rounded_down():
    """A row is in exactly where its word is below the threshold, so the chance is no more than size / count."""
    threshold = (1 << 64) // 3
    words = [threshold - 1, threshold, threshold + 1]
    assert threshold / 2**64 <= 1 / 3
    with Scripted([words, [1], [1, 2, 3]]):
        rows, present = drawn("poisson", count=3, size=1, capacity=3)
    assert rows[present].tolist() == [0]


def test_a_full_batch_has_every_record_in_its_own_slot():
    rows, present = drawn("full", count=5, size=5)
    assert rows.tolist() == list(range(5))
    assert present.all()


class Scripted:
    """The system's entropy, as 64-bit words that are said here."""

    def __init__(self, calls):
        self._calls = [list(call) for call in calls]

    def __enter__(self):
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(batches, "random_bytes", self._next)
        return self

    def _next(self, size):
        words = self._calls.pop(0)
        assert size == 8 * len(words)
        return struct.pack(f"={len(words)}Q", *words)

    def __exit__(self, *error):
        self._patch.undo()
        assert error[0] is not None or not self._calls


def test_ties_are_drawn_anew_as_a_whole():
    with Scripted([[7, 5, 7], [1, 1, 1], [9, 4, 6]]):
        assert permutation(3).tolist() == [1, 2, 0]


def test_a_remainder_has_no_bias():
    """The last numbers of 64 bits, which would make small rows more likely, are drawn anew, one by one."""
    below = (2**64 // 3) * 3
    assert below == 2**64 - 1
    with Scripted([[below, 4, below], [below, 5], [7]]):
        rows, _ = drawn("wr", count=3, size=3)
    assert rows.tolist() == [7 % 3, 4 % 3, 5 % 3]
    with Scripted([[2**64 - 1, 0]]):
        assert drawn("wr", count=4, size=2).rows.tolist() == [3, 0]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_permutations_are_uniform(count):
    found = Counter(tuple(permutation(count).tolist()) for _ in range(4000 if count < 5 else DRAWS))
    as_likely(found, dict.fromkeys(itertools.permutations(range(count)), 1 / math.factorial(count)))


def test_one_pass_goes_through_the_order_once():
    order = pass_order(bytes(range(SEED_BYTES)), 11)
    assert sorted(order.tolist()) == list(range(11))
    found = [drawn("one-pass", count=11, size=3, order=order, position=p) for p in range(0, 15, 3)]
    said = [rows[present] for rows, present in found]
    assert np.concatenate(said).tolist() == order.tolist()
    assert [len(rows) for rows in said] == [3, 3, 3, 2, 0]
    # Slots past the end hold some row that is not there; all batches have one shape.
    assert {len(rows) for rows, _ in found} == {3}


def test_an_order_belongs_to_its_seed_and_is_uniform_over_seeds():
    seeds = [i.to_bytes(SEED_BYTES, "big") for i in range(6000)]
    assert (pass_order(seeds[0], 50) == pass_order(seeds[0], 50)).all()
    found = Counter(tuple(pass_order(seed, 4).tolist()) for seed in seeds)
    as_likely(found, dict.fromkeys(itertools.permutations(range(4)), 1 / 24))


@pytest.mark.parametrize(
    ("sampling", "terms", "match"),
    [
        ("wor", {"size": 5}, "size=5"),
        ("wor", {"size": 0}, "size=0"),
        ("poisson", {"capacity": 0}, "capacity=0"),
        ("one-pass", {}, "pass_order"),
        ("one-pass", {"order": np.arange(4), "position": -1}, "position=-1"),
        ("one-pass", {"order": np.arange(3)}, "order of all records"),
        ("shuffled", {}, "'shuffled'"),
    ],
)
def test_what_is_not_a_scheme_is_refused(sampling, terms, match):
    with pytest.raises(ValueError, match=match):
        drawn(sampling, **terms)


def test_a_seed_of_another_length_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        pass_order(b"short", 3)


def test_an_epoch_has_every_record_once_in_a_batch_of_its_own_choice():
    seed = bytes(range(SEED_BYTES))
    epochs = [allotted(seed, epoch, 5000, 4) for epoch in range(3)]
    for bins in epochs:
        found = [drawn("allocation", count=5000, size=1250, capacity=5000, order=bins, position=t) for t in range(4)]
        rows = np.concatenate([batch.rows[batch.present] for batch in found])
        assert sorted(rows.tolist()) == list(range(5000))
        assert stats.chisquare(np.bincount(bins)).pvalue > 1e-6
    pairs = Counter(zip(epochs[0].tolist(), epochs[1].tolist(), strict=True))
    as_likely(pairs, dict.fromkeys(itertools.product(range(4), repeat=2), 1 / 16))
    assert (allotted(bytes(SEED_BYTES), 0, 5000, 4) != epochs[0]).mean() > 0.7


def test_rows_of_an_epoch_are_placed_at_random_and_cut_to_the_capacity():
    bins = np.array([0, 1, 1, 1])
    placements = list(itertools.permutations((1, 2, 3), 2))
    as_likely(counted("allocation", capacity=2, order=bins, position=1), dict.fromkeys(placements, 1 / 6))
    alone = counted("allocation", capacity=2, order=bins, position=0)
    as_likely(alone, {(0, -1): 0.5, (-1, 0): 0.5})


def test_an_epoch_needs_a_secret_and_its_batches():
    with pytest.raises(ValueError, match="batch of every record"):
        drawn("allocation", order=np.array([0, 1]))
    for seed, epoch, batches_ in ((b"short", 0, 4), (bytes(SEED_BYTES), -1, 4), (bytes(SEED_BYTES), 0, 0)):
        with pytest.raises(ValueError, match="Expected a seed"):
            allotted(seed, epoch, 10, batches_)
