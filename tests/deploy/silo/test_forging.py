"""Only a pinned proposer is heard, about what it has signed, once."""

import base64
import time

import pytest

from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Hello, SignedRequest, frame, parse_response, parse_signed_reply, unframed
from tests.deploy.silo.consortium import PROPOSER, make_home, plan_of, records_of
from tests.deploy.silo.forging import KINDS, forge, requests, silo_of, spoken


@pytest.fixture
def service(tmp_path):
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, budget={"epsilon": 20.0})
    found = SiloService(policy, records, home)
    yield found
    found.close()


def test_forgeries_are_refused_and_move_nothing(service):
    plans = [plan_of({"name": "mb-sgd"}, nonce=f"{i:02x}") for i in range(2)]
    found = forge(silo_of(service), plans, 2000, seed=0)
    assert found.total() == 2000
    assert {kind for kind, _ in found} == set(KINDS)
    assert {code for kind, code in found if kind == "one bit altered"} == {"unsigned", "proposer", "signature"}
    assert all(sum(count for (own, _), count in found.items() if own == kind) > 50 for kind in KINDS)


def test_every_single_bit_of_a_request_and_of_its_signature_counts(service):
    """Base64 has letters whose last bits mean nothing, and JSON many spellings; a signed frame has one."""
    silo = silo_of(service)
    header, _ = unframed(PROPOSER.request(Hello(), silo=silo.name, ledger=silo.ledger))
    for bit in range(8 * len(header)):
        altered = bytearray(header)
        altered[bit // 8] ^= 1 << bit % 8
        assert spoken(silo, frame(bytes(altered)))[0] in KINDS["one bit altered"], bit
    signed = SignedRequest.model_validate_json(header)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    twins = [signed.signature[:-3] + letter + "==" for letter in letters if letter != signed.signature[-3]]
    assert sum(base64.b64decode(twin) == base64.b64decode(signed.signature) for twin in twins) == 15
    spellings = [signed.model_copy(update={"signature": twin}).model_dump_json() for twin in twins]
    spellings += [
        signed.model_dump_json(indent=1),
        header.decode() + " ",
        header.decode().replace("tester", "\\u0074ester"),
    ]
    assert {spoken(silo, frame(text))[0] for text in spellings} == {"signature"}
    assert spoken(silo, frame(header))[0] == "welcome"


def test_a_counter_far_ahead_shuts_nobody_out(service):
    """Of a key that was stolen, or a clock that was wrong: the counter would hold under a new key too."""
    silo, day = silo_of(service), 86_400 * 10**9
    to = {"silo": silo.name, "ledger": silo.ledger}
    for counter in ((1 << 63) - 1, time.time_ns() + day + 60 * 10**9):
        raw = PROPOSER.request(Hello(), **to, counter=counter)
        assert spoken(silo, raw)[0] == "ahead"
        assert not service.knows(*unframed(raw))
    assert spoken(silo, PROPOSER.request(Hello(), **to))[0] == "welcome"
    assert spoken(silo, PROPOSER.request(Hello(), **to, counter=time.time_ns() + day - 60 * 10**9))[0] == "welcome"


def test_a_signed_request_makes_one_caller_of_one_stranger(tmp_path):
    """Whoever repeats what a proposer has sent takes no slot and no memory of callers, nor after a restart."""
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records)
    service = SiloService(policy, records, home)
    to = {"silo": "clinic", "ledger": service._ledger.identity}
    older, raw, newer, foreign = (
        unframed(PROPOSER.request(Hello(), silo=silo, ledger=to["ledger"], counter=counter))
        for silo, counter in (("clinic", 10), ("clinic", 20), ("clinic", 30), ("elsewhere", 40))
    )
    assert service.knows(*raw)
    assert [service.knows(*other) for other in (raw, older, foreign)] == [False] * 3
    assert spoken(silo_of(service), frame(*raw))[0] == "welcome"
    assert spoken(silo_of(service), frame(*raw))[0] == "welcome"
    service.close()
    service = SiloService(policy, records, home)
    assert [service.knows(*other) for other in (raw, older, newer, newer)] == [False, False, True, False]
    service.close()


def test_a_tape_of_requests_to_one_ledger_is_worth_nothing_at_the_next(tmp_path):
    """New patients in a new folder, or a ledger that was written off: the silo's name and key are the old ones."""
    plan, services = plan_of({"name": "mb-sgd"}), []
    for year, size in (("2025", 40), ("2026", 55)):
        records = records_of(size, size)
        home, policy = make_home(tmp_path / year / "clinic", records)
        services.append(SiloService(policy, records, home))
    old, new = map(silo_of, services)
    try:
        tape = [PROPOSER.request(*pair, silo=old.name, ledger=old.ledger) for pair in requests(plan)]
        assert [spoken(old, raw)[0] for raw in tape] == ["welcome", "consent", "standing", "message", "receipt", "kept"]
        head = new.head()
        assert [spoken(new, raw)[0] for raw in tape] == ["addressed"] * len(tape)
        assert new.head() == head
        assert not services[1]._ledger.accounts
        # Who greets it is told which ledger to ask.
        raw = PROPOSER.request(Hello(), silo="")
        header = parse_signed_reply(unframed(spoken(new, raw)[1])[0]).reply.encode()
        assert parse_response(header).ledger == new.ledger != old.ledger
    finally:
        for service in services:
            service.close()
