"""Records on disk: the numbers of records in memory, and only batches are read."""

import time

import jax
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.silo import RecordsError, enrol, open_ragged, open_silos, stored_silos
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation, roster
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables


@pytest.fixture
def stored(tmp_path):
    folders = []
    for i, table in enumerate(tables()):
        folder = tmp_path / f"silo-{i}"
        folder.mkdir()
        for field, column in table.items():
            np.save(folder / f"{field}.npy", column.astype(np.float64) if field == "x" else column)
        folders.append(folder)
    return open_silos(folders)


@pytest.fixture
def ragged(tmp_path):
    joined = {field: np.concatenate([table[field] for table in tables()]) for field in tables()[0]}
    joined["offsets"] = np.cumsum([0] + [len(table["y"]) for table in tables()])
    for field, column in joined.items():
        np.save(tmp_path / f"{field}.npy", column)
    return open_ragged(tmp_path)


@pytest.mark.parametrize("way", ["stored", "ragged"])
@pytest.mark.parametrize(
    ("name", "terms", "some"),
    [
        ("mb-sgd", {"sampling": "wor", "batch_size": 5}, False),
        ("prox-spider", {"sampling": "poisson", "batch_size": 5, "capacity": 9}, True),
        ("local-sgd", {"sampling": "one-pass", "batch_size": 2, "num_rounds": 3}, False),
        ("mb-sgd", {}, True),
    ],
)
def test_a_stored_run_equals_the_one_in_memory(request, way, name, terms, some):
    stored = request.getfixturevalue(way)
    algorithm, key = CASES[name].build(LOGISTIC, **terms), jax.random.key(7)
    who = participation(3, participants=2) if some else None
    there = simulate(algorithm, start(LOGISTIC), stored, key=key, who=who)
    here = simulate(algorithm, start(LOGISTIC), enrol(tables()), key=key, who=who)
    assert largest_difference(there.params, here.params) < 1e-6
    assert largest_difference(there.params, start(LOGISTIC)) > 1e-3


def test_only_the_rows_of_batches_are_read():
    class Watched:
        """A column that counts the rows that are asked of it."""

        def __init__(self, column):
            self.column, self.read = column, 0

        def __len__(self):
            return len(self.column)

        def __getitem__(self, index):
            found = self.column[index]
            self.read += len(found)
            return found

    table = {field: Watched(np.tile(column, (50,) + (1,) * (column.ndim - 1))) for field, column in tables()[0].items()}
    silos = stored_silos([table])
    looked = table["x"].read
    assert looked == len(table["x"]) == 1200
    algorithm = CASES["mb-sgd"].build(LOGISTIC, sampling="wor", batch_size=5, num_rounds=4)
    simulate(algorithm, start(LOGISTIC), silos, key=jax.random.key(0))
    assert table["x"].read - looked == 4 * 5


def test_what_cannot_be_streamed_is_refused(stored):
    with pytest.raises(TacitError, match='"full"'):
        simulate(CASES["mb-sgd"].build(LOGISTIC), start(LOGISTIC), stored, key=jax.random.key(0))
    good, other = tables()[0], tables(features=4)[0]
    with pytest.raises(RecordsError, match="silo 1"):
        stored_silos([good, other])
    with pytest.raises(RecordsError, match="as many rows"):
        stored_silos([{**good, "y": good["y"][:3]}])
    with pytest.raises(RecordsError, match="finite"):
        stored_silos([{**good, "x": np.full_like(good["x"], np.nan)}])
    with pytest.raises(RecordsError, match="none"):
        stored_silos([])


def test_offsets_that_cannot_be_are_refused(ragged, tmp_path):
    total = len(np.load(tmp_path / "y.npy"))
    for offsets, rule in (
        ([0, total - 1], "from 0 to"),
        ([0.0, float(total)], "whole numbers"),
        ([0, 5, 5, total], "silo 1 has none"),
        ([0, 7, 5, total], "silo 1 has none"),
    ):
        np.save(tmp_path / "offsets.npy", np.asarray(offsets))
        with pytest.raises(RecordsError, match=rule):
            open_ragged(tmp_path)
    (tmp_path / "offsets.npy").unlink()
    with pytest.raises(RecordsError, match=r"offsets\.npy"):
        open_ragged(tmp_path)


def test_of_very_many_silos_only_those_that_come_are_drawn():
    who, key = participation(1_000_000, participants=1000), jax.random.key(5)
    algorithm = CASES["mb-sgd"].build(LOGISTIC, num_rounds=20)
    began = time.process_time()
    chosen = roster(key, algorithm, who, 1_000_000).silo_indices
    assert time.process_time() - began < 0.2  # a permutation of all of them for each round would take 0.5 s
    assert all(len(np.unique(row)) == 1000 for row in chosen)
    assert abs(chosen.mean() / 500_000 - 1) < 0.02
