"""Statistics at the door and in simulation: what a record can move, and what comes out."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.patients import COLUMNS, STATISTICS, patients
from tacit.algorithm import Terms
from tacit.algorithms.statistics import statistics
from tacit.privacy.strategy import FRESH
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, Engine, no_noise
from tacit.silo.integers import BOUND

VALUES = [-1.0, 0.0, 0.2, 0.5, 1.0, 2.0, np.nan, np.inf, -np.inf, 1e30, 0.9999999]


def algorithm(noise=1.0, channel="direct", asked=STATISTICS):
    terms = Terms(clip_norm=None, noise_multiplier=noise, batch_size=None, sampling="full", channel=channel)
    return statistics(statistics=asked, columns=COLUMNS)(None, terms)


def extreme_records() -> np.ndarray:
    """Records at all ends: every value in every column, the others drawn from the same."""
    rng = np.random.default_rng(0)
    rows = rng.choice(VALUES, (400, len(COLUMNS)))
    for place, (column, value) in enumerate(itertools.product(range(len(COLUMNS)), VALUES)):
        rows[place, column] = value
    return rows.astype(np.float32)


def door_of(columns, *, engine=None):
    silo = algorithm().rounds["statistics"].silo
    records = {"x": np.zeros((len(columns), 1), np.float32), "y": np.zeros(len(columns)), "columns": columns}
    return Door(silo, records, silo_index=0, form=False, engine=engine)


def rows_at(door) -> dict[str, np.ndarray]:
    """Each record's integers as they are added: the sum over that record alone."""
    mechanism = DiscreteGaussian(door.engine, door.multiplier, no_noise, FRESH, NO_PAST, nonnegative=True)
    clips = dict.fromkeys(door.multiplier, 1.0)
    records = {"columns": door.records["columns"]}
    rows = []
    for place in range(door.count):
        present = np.arange(door.count) == place
        rows.append({name: own.formed for name, own in mechanism.sums((), records, present, clips).items()})
    return {name: np.stack([row[name] for row in rows]).astype(object) for name in rows[0]}


def test_no_two_records_are_further_apart_than_the_price_says():
    """Brute force over all pairs of extreme records, in exact integers; two of them are that far apart."""
    found = rows_at(door_of(extreme_records()[:80]))
    for name, rows in found.items():
        assert (rows >= 0).all()
        squares = (rows * rows).sum(axis=1)
        apart = squares[:, None] + squares[None, :] - 2 * (rows @ rows.T)
        assert apart.max() <= 2 * BOUND**2, name
        assert apart.max() >= 2 * BOUND**2 * 0.9999, name
        assert (rows.sum(axis=1) > 0.99999 * BOUND).all(), "every record is in some cell"


class _Liar(Engine):
    """An engine that says of the first record the opposite of what it is, and of the second far too much."""

    def stored(self, work, records, present):
        for vectors, there in super().stored(work, records, present):
            yield {n: v._replace(formed=_bent(v.formed)) for n, v in vectors.items()}, there


def _bent(formed):
    bent = np.array(formed)
    bent[0], bent[1] = -bent[0], 1e6
    return bent


def test_a_row_that_an_engine_makes_negative_is_left_out():
    columns = patients(np.random.default_rng(0), 40)
    silo = algorithm().rounds["statistics"].silo
    found = rows_at(door_of(columns, engine=_Liar(silo, form=False)))
    for rows in found.values():
        assert (rows[0] == 0).all()
        assert ((rows * rows).sum(axis=1) <= BOUND**2).all()


def test_what_is_not_a_number_is_missing_and_an_unknown_level_is_other():
    columns = np.array([[np.nan] * 5, [np.inf] * 5, [0.5, 0.5, 7.0, 0.5, 1.0]], np.float32)
    found = rows_at(door_of(columns))
    levels = found["s00"].astype(float) / BOUND
    np.testing.assert_allclose(levels, [[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 0]], atol=1e-6)


def test_a_door_says_the_exact_table_without_noise_and_draws_the_priced_noise():
    columns, scales = patients(np.random.default_rng(0), 500), []

    def sampler(size, sigma):
        scales.append(sigma)
        return np.zeros(size, np.int64)

    door = door_of(columns)
    said = door.answer((), (), batches=[door.batch(0, None)], sampler=sampler, past=NO_PAST).message
    sexes = np.bincount(columns[:, 2].astype(int), minlength=4) / 500
    np.testing.assert_allclose(said["s00"], sexes, atol=1e-6)
    expected = [float(door.multiplier[name]) * 2**0.5 * BOUND for name in sorted(said)]
    assert scales == pytest.approx(expected, rel=1e-12)
    assert min(s / (float(door.multiplier[n]) * BOUND) for s, n in zip(scales, sorted(said), strict=True)) >= 2**0.5


def test_edges_belong_to_the_bin_above_but_for_the_last():
    asked = [{"kind": "histogram", "columns": ["age"], "edges": [0, 50, 100]}]
    silo = algorithm(asked=asked).rounds["statistics"].silo
    values = [0.0, 0.49999, 0.5, 1.0]
    rows = [silo.query((), {"columns": jnp.asarray([v, 0, 0, 0, 0], jnp.float32)})["s00"].argmax() for v in values]
    assert [int(row) for row in rows] == [0, 0, 1, 1]
