"""Requests that nobody entitled has made: unsigned, with another key, altered, for somebody else, or from the past.

`forge` sends them to a silo, between honest ones. It raises at the first that is not refused with the code that it
deserves, or that moves the ledger. The latest honest request, byte for byte, gets its stored reply and no debit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from typing import Any

from tacit.deploy.signing import Proposer, Signer, digest_of, opened_reply
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Finish, Hello, Plan, Propose, Status, frame, parse_response, unframed
from tests.deploy.silo.consortium import PROPOSER, broadcast_of, pins

STRANGER = Proposer("tester", Signer(hashlib.sha256(b"stranger").digest()))
UNKNOWN = Proposer("stranger", PROPOSER.signer)
CODES = {"unsigned", "proposer", "signature", "addressed", "replayed"}


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
    ]


def spoken(service: SiloService, raw: bytes) -> tuple[str, bytes]:
    """The kind of the reply, or the code of a refusal, and the whole reply; it must be signed by the silo."""
    asked = unframed(raw)
    reply = service.handle(*asked)
    own = pins(service.policy.name)
    _, header = opened_reply(*unframed(reply), request=digest_of(*asked), silos=own)
    response = parse_response(header)
    return getattr(response, "code", response.type), reply


def forged(
    rng: random.Random, request: Any, payload: bytes, to: dict[str, str], honest: bytes, old: bytes
) -> tuple[str, bytes]:
    """A forgery, and the code that it deserves."""
    kind = rng.choice(["unsigned", "key", "unknown", "bit", "elsewhere", "ledger", "nobody", "old", "twin"])
    if kind == "unsigned":
        head = request.model_dump_json().encode()
        return "unsigned", (4 + len(head) + len(payload)).to_bytes(4, "big") + len(head).to_bytes(
            4, "big"
        ) + head + payload
    if kind == "key":
        return "signature", STRANGER.request(request, payload, **to)
    if kind == "unknown":
        return "proposer", UNKNOWN.request(request, payload, **to)
    if kind == "bit":
        return "signature", _altered(rng, honest)
    if kind in ("elsewhere", "ledger") or (kind == "nobody" and not isinstance(request, Hello)):
        # To another silo, to another ledger of this one, or to nobody in one way or the other.
        part = {"elsewhere": "silo", "ledger": "ledger"}.get(kind) or rng.choice(["silo", "ledger"])
        return "addressed", PROPOSER.request(request, payload, **(to | {part: "" if kind == "nobody" else "other"}))
    # A request from before, or another one with the counter of the last.
    counter = json.loads(unframed(honest)[0])["counter"]
    twin = PROPOSER.request(request.model_dump_json() + " ", payload, **to, counter=counter)
    return "replayed", old if kind == "old" else twin


def _altered(rng: random.Random, honest: bytes) -> bytes:
    """One bit of the request, the payload, the counter or the signature."""
    header, payload = unframed(honest)
    fields = json.loads(header)
    part = rng.choice(
        ["request", "ledger", "counter", "signature", *(["payload"] if payload else [])],
    )
    if part == "payload":
        payload = _flipped(rng, payload)
    elif part == "counter":
        fields["counter"] += 1
    elif part == "ledger":
        fields["ledger"] = "0" * 32
    elif part == "signature":
        fields["signature"] = base64.b64encode(_flipped(rng, base64.b64decode(fields["signature"]))).decode()
    else:
        fields["request"] = fields["request"] + " "
    return frame(json.dumps(fields), payload)


def _flipped(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :]


def forge(service: SiloService, plans: list[Plan], forgeries: int, *, seed: int) -> dict[str, int]:
    """So many forgeries around the requests of these studies; how many of each code were refused."""
    rng, found = random.Random(seed), dict.fromkeys(sorted(CODES), 0)
    to = {"silo": service.policy.name, "ledger": service._ledger.identity}
    old = PROPOSER.request(Hello(), **to)
    assert spoken(service, old)[0] == "welcome"
    honest_requests = [pair for plan in plans for pair in requests(plan)]
    each = -(-forgeries // len(honest_requests))
    for request, payload in honest_requests:
        honest = PROPOSER.request(request, payload, **to)
        kind, reply = spoken(service, honest)
        assert kind not in CODES, kind
        head = service._ledger.head.hash
        for _ in range(each):
            code, raw = forged(rng, request, payload, to, honest, old)
            answer, _ = spoken(service, raw)
            assert answer == code, (answer, code, raw[:600])
            assert service._ledger.head.hash == head, "a forgery moved the ledger"
            found[code] += 1
        assert spoken(service, honest)[1] == reply, "the latest request was answered otherwise when it came again"
        assert service._ledger.head.hash == head
    return found
