"""Who speaks for whom: a silo for itself alone, whatever it says and wherever it says it."""

import io
import json

import pytest
from rich.console import Console

from tacit.deploy.flower import watch
from tacit.deploy.server.coordinator import Patience, meet, newcomers
from tacit.deploy.server.ending import journal
from tacit.deploy.server.transport import SignedTransport, response_in
from tacit.deploy.signing import Signer, digest_of, signed_reply
from tacit.deploy.wire import (
    MOST_PART,
    Answer,
    Error,
    Finish,
    Hello,
    Long,
    Receipt,
    Welcome,
    Whole,
    frame,
    parse_request,
    parse_response,
    parse_signed_request,
    unframed,
)
from tests.deploy.silo.consortium import PROPOSER, pins, silo_key

STUDY = "0" * 64
FORGED = Receipt(study=STUDY, answers=99, epsilon=0.0, delta=1e-6, entry=1, hash="forged")
STEERING = "\x1b]0;owned\x07\x1b[2J\u202eall agreed [/x]"


def welcome(name, tacit="1"):
    facts = {"version": 3, "records": 40, "features": (5,), "task": "binary", "classes": 2, "noise": "on"}
    return Welcome(tacit=tacit, silo=name, schema_digest=STUDY, **facts)


def speaker(signer, said, body=b""):
    """A node at which somebody signs, as this silo, what ``said`` makes of a request."""

    def one(raw):
        header, payload = unframed(raw)
        request = parse_request(parse_signed_request(header).request.encode())
        reply = said(request).model_dump_json().encode()
        key, digest = Signer(silo_key(signer)), digest_of(header, payload)
        return unframed(signed_reply(reply, body, request=digest, silo=signer, signer=key))

    return one


def honest(name):
    return speaker(name, lambda request: welcome(name) if isinstance(request, Hello) else FORGED)


class Nodes:
    """Nodes by address; None is silent for as long as is waited. ``waited`` says for how long that was."""

    def __init__(self, **nodes):
        self.nodes, self.waited = nodes, []

    def present(self):
        return list(self.nodes)

    def ask(self, requests, seconds, enough=None):
        found = {at: [self.nodes[at](raw) for raw in raws] for at, raws in requests.items() if self.nodes[at]}
        is_all = len(found) == len(requests) or (enough is not None and enough(found))
        self.waited.append(0.0 if is_all else seconds)
        return found


def signed(nodes):
    return SignedTransport(nodes, PROPOSER, pins("clinic", "bank"))


def names_met(nodes, silos=2, only=(), patience=None):
    found = meet(signed(nodes), silos, patience or Patience(1.0, 0.3), lambda *_: None, only)
    return {name: at for name, (at, _) in found.items()}


def test_a_silo_cannot_say_that_it_is_another():
    false = speaker("bank", lambda _: welcome("clinic"))
    assert newcomers(signed(Nodes(n1=false)), set(), 1.0) == {}
    # Nor does it keep the other from a study, whoever answers first.
    for nodes in (Nodes(n1=false, n2=honest("clinic")), Nodes(n2=honest("clinic"), n1=false)):
        assert names_met(nodes, 1, ["clinic"]) == {"clinic": "n2"}


def test_what_another_silo_signs_is_not_taken_at_a_silos_address():
    nodes = Nodes(n2=honest("clinic"))
    transport = signed(nodes)
    assert newcomers(transport, set(), 1.0)["clinic"][0] == "n2"
    finish = {"n2": [frame(Finish(study=STUDY))]}
    assert list(transport.ask(finish, 1.0)) == ["n2"]
    nodes.nodes["n2"] = speaker("bank", lambda _: FORGED)
    assert transport.ask(finish, 1.0) == {}
    nodes.nodes["n2"] = honest("clinic")
    assert list(transport.ask(finish, 1.0)) == ["n2"]


def test_a_silo_that_moves_is_met_at_its_new_address():
    nodes = Nodes(n2=honest("clinic"))
    transport = signed(nodes)
    assert newcomers(transport, set(), 1.0)["clinic"][0] == "n2"
    nodes.nodes = {"n3": honest("clinic")}
    assert newcomers(transport, {"n2"}, 1.0)["clinic"][0] == "n3"
    assert list(transport.ask({"n3": [frame(Finish(study=STUDY))]}, 1.0)) == ["n3"]


def test_two_nodes_of_a_silo_in_the_middle_of_a_study_stop_nothing():
    nodes = Nodes(n1=honest("bank"), n2=honest("bank"), n3=honest("clinic"))
    found = newcomers(signed(nodes), {"n3"}, 1.0)
    assert {name: at for name, (at, _) in found.items()} == {"bank": "n1"}


def test_a_start_waits_for_nobody_who_is_not_needed():
    nodes = Nodes(n0=None, n1=honest("bank"), n2=honest("clinic"))
    assert names_met(nodes, 2, ["bank", "clinic"], Patience(60.0, 60.0)) == {"bank": "n1", "clinic": "n2"}
    assert nodes.waited == [0.0]
    # Without names, others have a few seconds to come.
    assert names_met(nodes, 2, (), Patience(60.0, 60.0)).keys() == {"bank", "clinic"}
    assert nodes.waited[-1] <= 10.0


def test_what_nobody_has_signed_is_not_enough():
    came = []
    nodes = Nodes(n0=None, n1=lambda raw: (b"{}", b""), n2=honest("clinic"))
    asked = {at: [frame(Hello())] for at in nodes.nodes}
    assert list(signed(nodes).ask(asked, 1.0, lambda replies: came.append(set(replies)))) == ["n2"]
    assert came == [{"n2"}]


@pytest.mark.parametrize(
    "changes",
    [
        {"study": "x"},
        {"study": "1" * 64},
        {"round": -1},
        {"round": 10**30},
        {"round": 1},
        {"whole": Whole(size=1 << 29, digest=STUDY)},
    ],
    ids=str,
)
@pytest.mark.parametrize("asked", [Hello(), Answer(study=STUDY, round=0, arrays=())], ids=["hello", "answer"])
def test_who_announces_a_long_reply_that_cannot_be_has_not_replied(changes, asked):
    """It is asked for nothing more, and keeps nobody else from being heard."""
    whole = Whole(size=MOST_PART + 1, digest=STUDY)
    long = Long(**{"study": STUDY, "round": 0, "whole": whole, "reply": "{}"} | changes)
    nodes = Nodes(
        n1=speaker("bank", lambda _: long, bytes(MOST_PART)), n2=speaker("clinic", lambda _: welcome("clinic"))
    )
    assert list(signed(nodes).ask({at: [frame(asked)] for at in nodes.nodes}, 1.0)) == ["n2"]
    assert len(nodes.waited) == 1


def test_who_announces_a_long_reply_and_is_silent_keeps_nobody_waiting():
    said = [Long(study=STUDY, round=0, whole=Whole(size=MOST_PART + 1, digest=STUDY), reply="{}")]

    def once(raw):
        if not said:
            raise AssertionError("asked after the rest")
        return speaker("bank", lambda _: said.pop(), bytes(MOST_PART))(raw)

    nodes = Nodes(n1=once, n2=speaker("clinic", lambda _: welcome("clinic")))
    ask = nodes.ask

    def silent_at_last(requests, seconds, enough=None):
        if not said:
            nodes.nodes["n1"] = None
        return ask(requests, seconds, enough)

    nodes.ask = silent_at_last
    asked = {at: [frame(Answer(study=STUDY, round=0, arrays=()))] for at in nodes.nodes}
    assert list(signed(nodes).ask(asked, 60.0, lambda replies: "n2" in replies)) == ["n2"]
    assert nodes.waited == [0.0, 0.0]


@pytest.fixture
def refusal():
    said = Error(code="pending", text=STEERING)
    [reply] = signed(Nodes(n1=speaker("bank", lambda _: said))).ask({"n1": [frame(Hello())]}, 1.0)["n1"]
    assert parse_response(reply[0]) == said
    return response_in(reply)


def test_what_a_silo_says_steers_no_terminal(refusal, tmp_path):
    assert refusal.text == "?]0;owned??[2J?all agreed [/x]"
    assert response_in((welcome("bank", STEERING).model_dump_json().encode(), b"")).tacit.isprintable()
    # Also where a journal has it as it was sent.
    for text in (refusal.text, STEERING):
        journal(tmp_path, "refusal", {"silo": "bank", "code": "pending", "text": text})
    view, out = watch.View(tmp_path / "progress.jsonl"), io.StringIO()
    assert json.loads((tmp_path / "progress.jsonl").read_text().splitlines()[1])["text"] == STEERING
    console = Console(file=out, force_terminal=True, color_system=None, width=200)
    for row in view.read():
        console.print(watch._line(row), markup=False)
        console.print(view.table())
    shown = out.getvalue()
    assert shown.count("all agreed [/x]") == 4
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
