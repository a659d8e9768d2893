"""Only a pinned proposer is heard, about what it has signed, once."""

from tacit.deploy.silo.service import SiloService
from tests.deploy.silo.consortium import make_home, plan_of, records_of
from tests.deploy.silo.forging import CODES, forge


def test_forgeries_are_refused_and_move_nothing(tmp_path):
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, budget={"epsilon": 20.0})
    service = SiloService(policy, records, home)
    try:
        plans = [plan_of({"name": "mb-sgd"}, nonce=f"{i:02x}") for i in range(2)]
        found = forge(service, plans, 2000, seed=0)
    finally:
        service.close()
    assert set(found) == CODES
    assert min(found.values()) > 50
