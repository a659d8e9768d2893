"""Requests that nobody entitled has made: unsigned, with another key, altered, for somebody else, or from the past.

`forge` sends them to a silo, in this process or behind a socket, between honest ones. It raises at the first that is
not refused with a code that it deserves, or that moves the ledger. The latest honest request, byte for byte, gets its
stored reply and no debit.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from tacit.deploy.signing import Proposer, Signer, digest_of, opened_reply
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Bundle, Finish, Hello, Plan, Propose, Status, frame, parse_response, unframed
from tests.deploy.silo.consortium import PROPOSER, broadcast_of, bundle_of, pins

STRANGER = Proposer("tester", Signer(hashlib.sha256(b"stranger").digest()))
UNKNOWN = Proposer("stranger", PROPOSER.signer)
AGAIN = "latest, once more"
KINDS: dict[str, frozenset[str]] = {
    "unsigned": frozenset({"unsigned"}),
    "another key": frozenset({"signature"}),
    "another proposer": frozenset({"proposer"}),
    "one bit altered": frozenset({"unsigned", "proposer", "signature"}),
    "another study": frozenset({"signature"}),
    "for another silo": frozenset({"addressed"}),
    "for another ledger": frozenset({"addressed"}),
    "for nobody": frozenset({"addressed"}),
    "from before": frozenset({"replayed"}),
    "with an older counter": frozenset({"replayed"}),
    "with the same counter": frozenset({"replayed"}),
    AGAIN: frozenset(),
}
"""Every kind of forgery, and the codes that it may be refused with."""


class Silo(NamedTuple):
    """A silo under attack: what it replies to a frame, and the newest hash of its ledger."""

    name: str
    ledger: str
    reply: Callable[[bytes], bytes]
    head: Callable[[], str]


def silo_of(service: SiloService) -> Silo:
    """A silo in this process."""
    ledger: Any = service._ledger
    return Silo(
        service.policy.name, ledger.identity, lambda raw: service.handle(*unframed(raw)), lambda: ledger.head.hash
    )


class Honest(NamedTuple):
    """A request that was answered, as it was sent, and the reply."""

    request: Any
    payload: bytes
    raw: bytes
    reply: bytes


def requests(plan: Plan) -> list[tuple[Any, bytes]]:
    """One of every kind, in an order in which all are answered."""
    specs, payload = broadcast_of(plan)
    own = plan.study
    return [
        (Hello(), b""),
        (Propose(plan=plan), b""),
        (Status(study=own), b""),
        (Answer(study=own, round=0, arrays=specs), payload),
        (Finish(study=own), b""),
        bundle_of(own),
    ]


def spoken(silo: Silo, raw: bytes) -> tuple[str, bytes]:
    """The kind of the reply, or the code of a refusal, and the whole reply; it must be signed by the silo."""
    reply = silo.reply(raw)
    _, header = opened_reply(*unframed(reply), request=digest_of(*unframed(raw)), silos=pins(silo.name))
    response = parse_response(header)
    return getattr(response, "code", response.type), reply


def forged(rng: random.Random, kind: str, latest: Honest, tape: list[bytes], to: dict[str, str]) -> bytes:
    """A forgery of this kind of the latest request; ``tape`` holds those before it."""
    request, payload, raw, _ = latest
    counter = json.loads(unframed(raw)[0])["counter"]
    if kind == "unsigned":
        return frame(request, payload)
    if kind in ("another key", "another proposer"):
        return (STRANGER if kind == "another key" else UNKNOWN).request(request, payload, **to)
    if kind == "one bit altered":
        return _altered(rng, raw)
    if kind == "another study":
        return _elsewhere(rng, raw)
    if kind.startswith("for "):
        part = {"for another silo": "silo", "for another ledger": "ledger"}.get(kind) or rng.choice(["silo", "ledger"])
        return PROPOSER.request(request, payload, **(to | {part: "" if kind == "for nobody" else "other"}))
    if kind == "from before":
        return rng.choice(tape)
    if kind == "with an older counter":
        return PROPOSER.request(request, payload, **to, counter=rng.randrange(counter))
    if kind == "with the same counter":
        return PROPOSER.request(request.model_dump_json() + " ", payload, **to, counter=counter)
    return raw


def _altered(rng: random.Random, raw: bytes) -> bytes:
    """One bit of the header or the payload is another one, wherever it lies."""
    header, payload = unframed(raw)
    if payload and rng.random() < 0.5:
        return frame(header, _flipped(rng, payload))
    return frame(_flipped(rng, header), payload)


def _flipped(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]


def _elsewhere(rng: random.Random, raw: bytes) -> bytes:
    """The same request with another study in the place of its own, under the old signature."""
    header, payload = unframed(raw)
    fields = json.loads(header)
    request = json.loads(fields["request"])
    if "plan" in request:
        request["plan"]["nonce"] = f"{rng.getrandbits(64):016x}"
    else:
        request["study"] = f"{rng.getrandbits(256):064x}"
    fields["request"] = json.dumps(request, separators=(",", ":"))
    return frame(json.dumps(fields, separators=(",", ":"), ensure_ascii=False), payload)


def _kinds(request: Any) -> list[str]:
    """The kinds of forgery that a request can have: a greeting is about no study, and may be for nobody."""
    return [kind for kind in KINDS if not (isinstance(request, Hello) and kind in ("another study", "for nobody"))]


def forge(silo: Silo, plans: list[Plan], forgeries: int, *, seed: int) -> Counter[tuple[str, str]]:
    """So many forgeries around the requests of these studies; how many of each kind were refused with which code."""
    rng, found, tape = random.Random(seed), Counter[tuple[str, str]](), list[bytes]()
    to = {"silo": silo.name, "ledger": silo.ledger}
    honest_requests = [(Hello(), b""), *(pair for plan in plans for pair in requests(plan))]
    for left, (request, payload) in zip(range(len(honest_requests), 0, -1), honest_requests, strict=True):
        raw = PROPOSER.request(request, payload, **to)
        answer, reply = spoken(silo, raw)
        assert answer in ("welcome", "consent", "standing", "message", "receipt", "kept"), answer
        latest, head = Honest(request, payload, raw, reply), silo.head()
        for _ in range((forgeries - found.total()) // left if tape else 0):
            kind = rng.choice(_kinds(request))
            forgery = forged(rng, kind, latest, tape, to)
            answer, reply = spoken(silo, forgery)
            if kind == AGAIN:
                assert reply == latest.reply, "the latest request was answered otherwise when it came again"
            else:
                assert answer in KINDS[kind], (kind, answer, forgery[:600])
            assert silo.head() == head, f"a forgery moved the ledger: {kind}"
            found[kind, "the stored reply" if kind == AGAIN else answer] += 1
        # The last request of a study that has ended may come again for ever, and gets its reply.
        tape += [] if isinstance(request, Bundle) else [raw]
    return found
