"""Only a pinned proposer is heard, about what it has signed, once."""

from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Hello, parse_response, parse_signed_reply, unframed
from tests.deploy.silo.consortium import PROPOSER, make_home, plan_of, records_of
from tests.deploy.silo.forging import CODES, forge, requests, spoken


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


def test_a_tape_of_requests_to_one_ledger_is_worth_nothing_at_the_next(tmp_path):
    """New patients in a new folder, or a ledger that was written off: the silo's name and key are the old ones."""
    plan, silos = plan_of({"name": "mb-sgd"}), []
    for year, size in (("2025", 40), ("2026", 55)):
        records = records_of(size, size)
        home, policy = make_home(tmp_path / year / "clinic", records)
        silos.append(SiloService(policy, records, home))
    old, new = silos
    try:
        to = {"silo": "clinic", "ledger": old._ledger.identity}
        tape = [PROPOSER.request(*pair, **to) for pair in requests(plan)]
        assert [spoken(old, raw)[0] for raw in tape] == ["welcome", "consent", "standing", "message", "receipt"]
        head = new._ledger.head
        assert [spoken(new, raw)[0] for raw in tape] == ["addressed"] * 5
        assert new._ledger.head == head
        assert not new._ledger.accounts
        # Who greets it is told which ledger to ask.
        raw = PROPOSER.request(Hello(), silo="")
        header = parse_signed_reply(unframed(spoken(new, raw)[1])[0]).reply.encode()
        assert parse_response(header).ledger == new._ledger.identity != old._ledger.identity
    finally:
        old.close()
        new.close()
