"""Records on disk: the numbers of records in memory, and only batches are read."""

import jax
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.silo import RecordsError, StoredSilos, enrol, open_silos
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation
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


@pytest.mark.parametrize(
    ("name", "terms", "some"),
    [
        ("mb-sgd", {"sampling": "wor", "batch_size": 5}, False),
        ("prox-spider", {"sampling": "poisson", "batch_size": 5, "capacity": 9}, True),
        ("local-sgd", {"sampling": "one-pass", "batch_size": 2, "num_rounds": 3}, False),
    ],
)
def test_a_stored_run_equals_the_one_in_memory(stored, name, terms, some):
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
    silos = StoredSilos([table])
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
        StoredSilos([good, other])
    with pytest.raises(RecordsError, match="as many rows"):
        StoredSilos([{**good, "y": good["y"][:3]}])
    with pytest.raises(RecordsError, match="finite"):
        StoredSilos([{**good, "x": np.full_like(good["x"], np.nan)}])
    with pytest.raises(RecordsError, match="none"):
        StoredSilos([])
