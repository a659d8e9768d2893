"""Four daemons without noise, and two shufflers, for a module of tests."""

import numpy as np
import pytest

from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.signing import Signer
from tests.deploy.server.world import NAMES, SIZES
from tests.deploy.shuffler.parties import Party
from tests.deploy.silo.consortium import make_home, records_of, running, silo_key


@pytest.fixture(scope="module")
def tables():
    """Records of which something can be learnt: a model goes further than random rounding moves it."""
    made = [records_of(i, size) for i, size in enumerate(SIZES)]
    return [{**table, "y": (table["x"][:, 0] > 0).astype(np.int32)} for table in made]


@pytest.fixture(scope="module")
def world(tmp_path_factory, tables):
    """Four daemons without noise, and two shufflers."""
    root = tmp_path_factory.mktemp("w")
    silos = {name: Signer(silo_key(name)) for name in NAMES}
    authority = Authority(root / "certificates")
    first = Party(root / "a", authority, silos)
    parties = [first, Party(root / "b", authority, silos, layer=1, before={"a": first.keys.sign.public})]
    seals = {party.terms.name: str(party.keys.seal.public) for party in parties}
    shuffle = {"shufflers": seals, "colluding": 0, "max_local_epsilon": 8.0}
    allow = {"channels": ["direct", "shuffled-sum", "shuffled-reports"]}
    for name, table in zip(NAMES, tables, strict=True):
        make_home(root / name, table, test=True, allow=allow, shuffle=shuffle)
    with running([root / name for name in NAMES], noise_off=True) as daemons:
        yield daemons, parties, seals
    for party in parties:
        party.stop()
