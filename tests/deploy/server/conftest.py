"""Four daemons without noise, and two shufflers, for a module of tests."""

import numpy as np
import pytest

from tests.deploy.server.world import NAMES, SIZES
from tests.deploy.shuffler.parties import two_parties
from tests.deploy.silo.consortium import make_home, records_of, running


@pytest.fixture(scope="module")
def tables():
    """Records of which something can be learnt: a model goes further than random rounding moves it."""
    made = [records_of(i, size) for i, size in enumerate(SIZES)]
    return [{**table, "y": (table["x"][:, 0] > 0).astype(np.int32)} for table in made]


@pytest.fixture(scope="module")
def world(tmp_path_factory, tables):
    """Four daemons without noise, and two shufflers."""
    root = tmp_path_factory.mktemp("w")
    allow = {"channels": ["direct", "shuffled-sum", "shuffled-reports"]}
    with two_parties(root, NAMES) as (parties, seals):
        shuffle = {"shufflers": seals, "colluding": 0, "max_local_epsilon": 8.0}
        for name, table in zip(NAMES, tables, strict=True):
            make_home(root / name, table, test=True, allow=allow, shuffle=shuffle)
        with running([root / name for name in NAMES], noise_off=True) as daemons:
            yield daemons, parties, seals
