"""Payloads that no frame holds: in parts, at the socket of a real daemon, whatever a proposer makes of them."""

import hashlib

import numpy as np
import pytest

from tacit.channel.sealing import new_secret
from tacit.deploy import parts
from tacit.deploy.parts import Arrivals, in_parts
from tacit.deploy.server.transport import SignedTransport
from tacit.deploy.silo import consent
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import (
    MOST_FRAMED,
    MOST_PART,
    MOST_WHOLE,
    Answer,
    Finish,
    Part,
    Propose,
    RefusalError,
    Rest,
    Shuffle,
    Whole,
    frame,
    parse_response,
    read_arrays,
    unframed,
)
from tests.deploy.silo.consortium import (
    PROPOSER,
    LocalClient,
    broadcast_of,
    bundle_of,
    make_home,
    pins,
    plan_of,
    records_of,
    said,
)


def whole_of(payload):
    return Whole(size=len(payload), digest=hashlib.sha256(payload).hexdigest())


@pytest.fixture
def study(daemon, request):
    """A client, a plan that the daemon has consented to, and a broadcast for it."""
    client = daemon.client(patience=20.0)
    plan = plan_of({"name": "mb-sgd"}, epsilon=0.3, nonce=hashlib.md5(request.node.name.encode()).hexdigest())
    client.ask(Propose(plan=plan))
    yield client, plan, *broadcast_of(plan, 0.25)
    said(client, Finish(study=plan.study))
    client.close()


def told(client, request, payload=b""):
    """The kind of a reply, or the code of a refusal, and the reply."""
    reply = parse_response(said(client, request, payload)[0])
    return (reply.code if reply.type == "error" else reply.type), reply


def test_a_broadcast_in_parts_is_answered_once_like_any_other(study):
    client, plan, specs, payload = study
    whole = whole_of(payload)
    for first in range(0, len(payload), 10):
        part = Part(study=plan.study, whole=whole, first=first)
        held = min(first + 10, len(payload))
        assert told(client, part, payload[first : first + 10])[1].size == held
    # The last part may come again, as any last request.
    assert told(client, part, payload[first:])[1].size == len(payload)
    request = Answer(study=plan.study, round=0, arrays=specs, whole=whole)
    header, body = said(client, request)
    message = parse_response(header)
    assert message.type == "message"
    assert [a.shape for a in read_arrays(message.arrays, body)] == [spec.shape for spec in specs]
    # Again: the stored message, without parts. With another broadcast: none.
    assert said(client, request) == (header, body)
    assert told(client, Answer(study=plan.study, round=0, arrays=specs), payload)[0] == "answered"
    pieces = [said(client, Rest(study=plan.study, round=0, first=first)) for first in (0, 4, len(body) - 1)]
    assert [piece for _, piece in pieces] == [body, body[4:], body[-1:]]
    assert told(client, Rest(study=plan.study, round=0, first=len(body)))[0] == "parts"
    assert told(client, Rest(study=plan.study, round=1, first=0))[0] == "round"


def parts_of(plan, payload, *spans, whole=None):
    """Parts of a payload, by first and last byte."""
    whole = whole or whole_of(payload)
    return [(Part(study=plan.study, whole=whole, first=a), payload[a:b]) for a, b in spans]


def hostile(plan, specs, payload):
    """What is wrong with a series of parts, the series, and the code of its last reply."""
    size, digest = len(payload), whole_of(payload).digest
    ask = (Answer(study=plan.study, round=0, arrays=specs, whole=whole_of(payload)), b"")
    longer, shorter = Whole(size=size + 1, digest=digest), Whole(size=size - 4, digest=digest)
    other = bytes(size)
    yield "no parts", [ask], "parts"
    yield "a part is missing", [*parts_of(plan, payload, (0, 8)), ask], "parts"
    yield "a gap", [*parts_of(plan, payload, (0, 8), (12, size)), ask], "parts"
    yield "an overlap", [*parts_of(plan, payload, (0, 8), (4, size)), ask], "parts"
    yield "not from the first on", [*parts_of(plan, payload, (8, size)), ask], "parts"
    yield "a part twice", [*parts_of(plan, payload, (0, 8), (8, 16), (0, 8)), ask], "parts"
    yield (
        "too many",
        [*parts_of(plan, payload, (0, size)), *parts_of(plan, payload + b"more", (size, size + 4))],
        "parts",
    )
    yield "more than was said", [(Part(study=plan.study, whole=whole_of(payload), first=0), payload + b"more")], "parts"
    yield "an empty part", [(Part(study=plan.study, whole=whole_of(payload), first=0), b"")], "parts"
    yield "a wrong total", [*parts_of(plan, payload, (0, size), whole=shorter)], "parts"
    yield "longer than the plan", [*parts_of(plan, payload, (0, 4), whole=longer)], "parts"
    yield "a huge total", [*parts_of(plan, payload, (0, 4), whole=Whole(size=MOST_WHOLE, digest=digest))], "parts"
    yield (
        "interleaved",
        [
            *parts_of(plan, payload, (0, 8)),
            *parts_of(plan, other, (0, 8)),
            *parts_of(plan, payload, (8, size)),
            ask,
        ],
        "parts",
    )
    yield "another content", [*parts_of(plan, other, (0, size), whole=whole_of(payload)), ask], "parts"
    yield "a payload besides", [*parts_of(plan, payload, (0, size)), (ask[0], payload)], "bad-message"
    unknown = Part(study="0" * 64, whole=whole_of(payload), first=0)
    yield "of no study", [(unknown, payload)], "unknown-study"
    cut = Answer(study=plan.study, round=0, arrays=specs[:1], whole=whole_of(payload))
    yield "other arrays", [*parts_of(plan, payload, (0, size)), (cut, b"")], "bad-message"


def test_hostile_parts_are_refused_and_nothing_of_the_round_is_spent(study):
    client, plan, specs, payload = study
    for what, series, code in hostile(plan, specs, bytes(payload)):
        codes = [told(client, *sent)[0] for sent in series]
        assert codes[-1] == code, (what, codes)
    # The daemon goes on, and the round was not answered by any of it.
    assert told(client, Answer(study=plan.study, round=0, arrays=specs), payload)[0] == "message"


def test_what_nobody_has_signed_for_the_daemon_is_not_kept(study, daemon):
    client, plan, specs, payload = study
    (first, body), (last, rest) = parts_of(plan, bytes(payload), (0, 8), (8, len(payload)))
    assert told(client, first, body)[0] == "held"
    forged = PROPOSER.request(last, rest, silo=daemon.folder.name, ledger=client._ledger)
    reply = client.exchange(frame(*unframed(forged.replace(rest, bytes(len(rest))))))
    assert b'\\"signature\\"' in reply[0]
    stale = client.signed(frame(last, rest))
    assert told(client, last, rest)[0] == "held"
    assert b'\\"replayed\\"' in client.exchange(stale)[0]
    assert told(client, Answer(study=plan.study, round=0, arrays=specs, whole=whole_of(payload)))[0] == "message"


def test_a_model_in_parts_is_kept_once(study, daemon):
    client, plan, specs, payload = study
    assert told(client, Answer(study=plan.study, round=0, arrays=specs), payload)[0] == "message"
    request, content = bundle_of(plan.study)
    early = parts_of(plan, content, (0, 9))[0]
    assert told(client, *early)[0] == "parts", "the study is open, and a bundle is longer than its broadcasts"
    said(client, Finish(study=plan.study))
    most = 4 * 1_000_000 + 3 * (1 << 20)
    assert told(client, *parts_of(plan, content, (0, 9), whole=Whole(size=most + 1, digest="0" * 64))[0])[0] == "parts"
    for part in parts_of(plan, content, (0, 9), (9, len(content))):
        assert told(client, *part)[0] == "held"
    whole = request.model_copy(update={"whole": whole_of(content)})
    assert told(client, whole)[0] == "kept"
    assert told(client, whole)[0] == "kept"
    assert list((daemon.folder / "models").glob(f"*-{plan.study[:16]}/model.safetensors"))


def test_of_a_proposer_one_payload_is_kept_and_none_that_does_not_come_on(monkeypatch):
    arrivals, payload = Arrivals(), b"0123456789"
    for number in range(50):
        part = Part(study=f"{number:064x}", whole=whole_of(payload), first=0)
        assert arrivals.add("tester", part, payload[:6]) == 6
    assert [len(own.content) for own in arrivals._own.values()] == [6]
    with pytest.raises(RefusalError):
        arrivals.take("other", part.study, part.whole)
    # A part of another payload that somebody repeats leaves this one alone.
    with pytest.raises(RefusalError):
        arrivals.add("tester", Part(study="f" * 64, whole=whole_of(payload), first=6), payload[6:])
    assert arrivals.add("tester", part.model_copy(update={"first": 6}), payload[6:]) == 10
    monkeypatch.setattr(parts, "_PATIENCE", 0.0)
    arrivals.tidy()
    assert not arrivals._own


class Direct:
    """A transport to a service in this process."""

    def __init__(self, service):
        self.client, self.frames, self.bent = LocalClient(service), 0, lambda reply: reply

    def present(self):
        return ["silo"]

    def ask(self, requests, seconds, enough=None):
        self.frames += sum(map(len, requests.values()))
        return {at: [self.bent(self.client.exchange(raw)) for raw in own] for at, own in requests.items()}


def test_the_server_sends_and_puts_together_what_no_frame_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "MOST_FRAMED", 16)
    monkeypatch.setattr(parts, "MOST_PART", 10)
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "silo", records)
    service = SiloService(policy, records, home)
    direct = Direct(service)
    transport = SignedTransport(direct, PROPOSER, pins("silo"))
    plan = plan_of({"name": "mb-sgd"})
    specs, payload = broadcast_of(plan, 0.25)
    assert len(payload) == 24
    direct.client.ask(Propose(plan=plan))
    transport._names["silo"], transport._ledgers["silo"] = "silo", direct.client._ledger
    ask = {"silo": [frame(Answer(study=plan.study, round=0, arrays=specs), payload)]}
    [(header, body)] = transport.ask(ask, 5.0)["silo"]
    # Three parts and the request; the reply in three.
    assert (direct.frames, len(body), parse_response(header).type) == (6, 24, "message")
    assert all(np.isfinite(a).all() for a in read_arrays(parse_response(header).arrays, body))
    assert transport.ask(ask, 5.0)["silo"] == [(header, body)]
    # What does not come whole counts as none.
    direct.bent = lambda reply: (reply[0], reply[1][:-1])
    assert transport.ask(ask, 5.0) == {}
    direct.bent = lambda reply: reply
    # A refusal of a part is the reply.
    other = {"silo": [frame(Answer(study="1" * 64, round=0, arrays=specs), payload)]}
    assert parse_response(transport.ask(other, 5.0)["silo"][0][0]).code == "unknown-study"
    service.close()


def test_what_fits_a_frame_goes_in_one():
    whole = frame(Answer(study="0" * 64, round=0, arrays=()), bytes(1000))
    assert in_parts(whole) == [whole]
    assert b"whole" not in whole
    assert MOST_FRAMED >= 3 * MOST_PART


def test_what_a_shuffler_could_not_take_in_one_frame_is_refused_before_anything_is_said(tmp_path, monkeypatch):
    """Direct messages of the same size have parts."""
    seals = {name: str(new_secret().public) for name in ("anna", "bert")}
    records, allow = records_of(0, 40), {"channels": ["direct", "shuffled-sum"]}
    home, policy = make_home(tmp_path / "silo", records, shuffle={"shufflers": seals, "colluding": 1}, allow=allow)
    service = SiloService(policy, records, home)
    client, shuffle = LocalClient(service), Shuffle(records=(40,) * 4, min_silos=4, honest=0.75, shufflers=seals)
    sums = {"name": "mb-sgd", "sampling": "full", "channel": "shuffled-sum"}
    # Six numbers of 64 bits.
    monkeypatch.setattr(consent, "MOST_FRAMED", 47)
    with pytest.raises(RefusalError, match="messages of at most 47 bytes"):
        client.ask(Propose(plan=plan_of(sums, shuffle=shuffle, epsilon=3.0)))
    client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, epsilon=0.1)))
    monkeypatch.setattr(consent, "MOST_FRAMED", 48)
    client.ask(Propose(plan=plan_of(sums, shuffle=shuffle, epsilon=3.0)))
    service.close()
