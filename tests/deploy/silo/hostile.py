"""A hostile server: everything it can send, and what must hold whatever it sends.

Two silos whose records differ hear the same messages. Every reply must be one well-formed frame; both silos must
say the same but for noise; nothing leaves that the ledger does not show; the budget is never exceeded.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

from tacit.deploy.signing import digest_of, opened_reply
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import (
    Answer,
    Error,
    Message,
    Plan,
    RefusalError,
    frame,
    parse_response,
    parse_signed_reply,
    read_frame,
    refuse,
    unframed,
)
from tacit.silo.spending import joint_price
from tests.deploy.silo.consortium import PROPOSER, broadcast_of, make_home, pins, plan_of, records_of

_CODES = (
    "answered bad-frame bad-message bad-plan busy changed closed exhausted expired finished not-allowed over-budget "
    "pending round schema shape study unknown-study unpriceable version "
    "unsigned proposer signature addressed replayed rejected revoked hours policy model full open parts"
)
CODES = set(re.findall(r"\S+", _CODES))
BUDGET = 30.0

ODD = [
    None,
    True,
    -1,
    0,
    1,
    2,
    10**5,
    10**30,
    -0.0,
    1e-30,
    1e-300,
    1e30,
    1e308,
    0.5,
    "",
    "x",
    "mb-sgd",
    "open",
    "trusted",
    "x" * 300,
    "\x00",
    "../../etc",
    [],
    [1],
    [0.1, 0.2],
    [[[[[1]]]]],
    {},
    {"a": 1},
    {"__class__": "x"},
]
VALUES = [0.0, 1.0, -1.0, float("nan"), float("inf"), -float("inf"), 3e38, 1e-40, 1e20]
TEXT = [b"NaN", b"Infinity", b"1e999", b"{", b"[" * 3000, b'"', b"\xff\xfe", b"\\u0000", b"9" * 5000, b"null", b""]
ALGORITHMS: list[dict[str, Any]] = [
    {"name": "mb-sgd"},
    {"name": "mb-sgd", "clip_norm": 1e6},
    {"name": "mb-sgd", "clip_norm": 1e-30},
    {"name": "mb-sgd", "step_size": 1e6},
    {"name": "local-sgd", "local_steps": 2},
    {"name": "mu2-sgd"},
    {"name": "mb-sgd", "batch_size": 2, "sampling": "one-pass"},
]
# Their joint price is a convolution: seconds, where the others take milliseconds.
SAMPLED: list[dict[str, Any]] = [
    {"name": "mb-sgd", "batch_size": 8, "sampling": "wor"},
    {"name": "mb-sgd", "batch_size": 8},
]


class Attacker:
    """Makes raw frames; it remembers what it has sent, and which plans it has proposed."""

    def __init__(self, rng: random.Random, algorithms: list[dict[str, Any]]) -> None:
        self.rng, self.algorithms = rng, algorithms
        self.sent: list[bytes] = []
        self.plans: list[Plan] = []
        self.live: set[str] = set()
        self._broadcasts: dict[str, Any] = {}
        self._makers = [
            (2, self.garbage),
            (5, self.mutated_text),
            (6, self.mutated_plan),
            (5, self.plan),
            (14, self.answer),
            (5, self.odd_answer),
            (4, self.replay),
            (5, self.small_talk),
            (2, self.bent_frame),
        ]

    def next(self) -> bytes:
        """The next raw bytes."""
        weights, makers = zip(*self._makers, strict=True)
        raw = self.rng.choices(makers, weights)[0]()
        self.sent.append(raw)
        if len(self.sent) > 500:
            del self.sent[: self.rng.randrange(1, 400)]
        return raw

    def garbage(self) -> bytes:
        """Random bytes, sometimes with a plausible length in front."""
        body = self.rng.randbytes(self.rng.randrange(0, 200))
        return body if self.rng.random() < 0.5 else frame(body, self.rng.randbytes(self.rng.randrange(0, 50)))

    def _new_plan(self) -> Plan:
        rng = self.rng
        everyone = rng.random() < 0.7
        changes = {
            "nonce": f"{rng.randrange(10**6):06x}",
            "epsilon": rng.choice([0.3] * 9 + [39.0]),
            "everyone": everyone,
            "max_participations": None if everyone else 2,
            "silos": rng.choice([4] * 9 + [1]),
        }
        return plan_of(rng.choice(self.algorithms), **changes)

    def plan(self) -> bytes:
        """A plan as a server would propose it."""
        plan = self._new_plan() if not self.plans or self.rng.random() < 0.6 else self.rng.choice(self.plans)
        if plan not in self.plans:
            old = self.plans[:-20]
            self.plans = [p for p in old if p.study in self.live] + [*self.plans[-20:], plan]
        return frame(json.dumps({"type": "propose", "plan": plan.model_dump(mode="json")}))

    def mutated_plan(self) -> bytes:
        """A plan with one or two values replaced by odd ones, or with a key added or removed."""
        tree = {"type": "propose", "plan": self._new_plan().model_dump(mode="json")}
        for _ in range(self.rng.choice([1, 1, 2])):
            self._bend(tree)
        return frame(json.dumps(tree))

    def _bend(self, tree: dict[str, Any]) -> None:
        node: Any = tree
        while True:
            key = self.rng.choice(sorted(node))
            if isinstance(node[key], dict) and node[key] and self.rng.random() < 0.8:
                node = node[key]
                continue
            break
        act = self.rng.random()
        if act < 0.1:
            del node[key]
        elif act < 0.2:
            node[self.rng.choice(["surprise", "noise_multiplier", "capacity", "silo_index", ""])] = self._odd()
        else:
            node[key] = self._odd()

    def _odd(self) -> Any:
        return copy.deepcopy(self.rng.choice(ODD))

    def mutated_text(self) -> bytes:
        """A good header with bytes flipped, cut, doubled or replaced."""
        good = self.rng.choice([self.plan, self.answer, self.small_talk])()
        header, payload = read_frame(io.BytesIO(good).read) or (b"", b"")
        at = self.rng.randrange(0, len(header) + 1)
        to = min(len(header), at + self.rng.randrange(0, 12))
        cut = [header[:at], header[:at] + header[to:], header[:at] + self.rng.choice(TEXT) + header[to:]]
        return frame(self.rng.choice(cut), payload)

    def _shape(self, plan: Plan, value: float) -> Any:
        name = f"{plan.algorithm['name']} {value}"
        if name not in self._broadcasts:
            self._broadcasts[name] = broadcast_of(plan, value)
        return self._broadcasts[name]

    def _known(self) -> Plan:
        """A plan that was proposed, more often than not one that was consented to."""
        live = [plan for plan in self.plans if plan.study in self.live]
        if live and self.rng.random() < 0.8:
            return self.rng.choice(live)
        return self.rng.choice(self.plans) if self.plans else self._new_plan()

    def answer(self) -> bytes:
        """A broadcast for a plan, in or out of order, finite or not."""
        plan = self._known()
        specs, payload = self._shape(plan, self.rng.choice(VALUES))
        number = self.rng.choice([0, 0, 1, 1, 2, 3, 4, 10**9])
        return frame(Answer(study=plan.study, round=number, arrays=specs).model_dump_json(), payload)

    def odd_answer(self) -> bytes:
        """A broadcast of a wrong shape, type or length, or for no study at all."""
        rng = self.rng
        plan = self._known()
        specs, payload = self._shape(plan, rng.choice(VALUES))
        arrays = [spec.model_dump(mode="json") for spec in specs]
        bent = {"type": "answer", "study": plan.study, "round": rng.choice([0, 1, 2]), "arrays": arrays}
        act = rng.randrange(7)
        if act == 0:
            arrays[0]["shape"] = rng.choice([[], [0], [7], [2**20, 2**20], [-1], [1] * 20, [2**28] * 8])
        elif act == 1:
            arrays[0]["dtype"] = rng.choice(["<i4", "<f8", "O", "", None])
        elif act == 2:
            payload = payload[: rng.randrange(len(payload))]
        elif act == 3:
            payload += rng.randbytes(rng.randrange(1, 9))
        elif act == 4:
            arrays[-1]["shape"].reverse()
        elif act == 5:
            bent["study"] = rng.choice(["0" * 64, "x", "", plan.study[:-1], plan.study.upper() + "A", 7])
        else:
            bent["round"] = rng.choice(ODD)
        return frame(json.dumps(bent), payload)

    def replay(self) -> bytes:
        """Something that was sent before."""
        return self.rng.choice(self.sent) if self.sent else self.garbage()

    def small_talk(self) -> bytes:
        """Hello, status and finish, for studies that exist and studies that do not."""
        study = self.rng.choice(sorted(self.live)) if self.live else self._known().study
        talk = [{"type": "hello"}, *({"type": "hello", "version": number} for number in (2, 3))]
        talk += [{"type": "status", "study": study}]
        talk += [{"type": "finish", "study": study}] * 4 + [{"type": "finish", "study": "f" * 64}, {"type": "goodbye"}]
        return frame(json.dumps(self.rng.choice(talk)))

    def heard(self, response: Any) -> None:
        """Take note of which studies are open."""
        if response.type == "consent":
            self.live.add(response.study)
        elif response.type == "receipt":
            self.live.discard(response.study)

    def bent_frame(self) -> bytes:
        """Lengths that lie."""
        good = self.small_talk()
        act = self.rng.randrange(4)
        if act == 0:
            return good[: self.rng.randrange(len(good))]
        if act == 1:
            return b"\xff\xff\xff\xff" + good[4:]
        if act == 2:
            return good[:4] + b"\x7f\xff\xff\xff" + good[8:]
        return self.rng.randbytes(4) + good[4:]


class Siege:
    """Two stewards with different records under the same attack."""

    def __init__(self, folder: Path, size: int = 40) -> None:
        self.stewards = []
        for number in range(2):
            records = records_of(number, size)
            if number:
                records["x"][0] = 3e38
            budget = {"epsilon": BUDGET}
            home, policy = make_home(folder / f"silo{number}" / "silo", records, budget=budget, allow={"max_open": 6})
            self.stewards.append(SiloService(policy, records, home, clock=lambda: 1e9))
        self.delivered: dict[str, set[int]] = {}
        self.replies: dict[tuple[str, int], list[bytes]] = {}
        self.codes: Counter[str] = Counter()

    def close(self) -> None:
        """Let go of both ledgers."""
        for service in self.stewards:
            service.close()

    def send(self, raw: bytes) -> Any:
        """Send the same bytes to both silos, check what comes back, and return it."""
        said = [_talk(service, raw) for service in self.stewards]
        # A ledger's identity is random, and its hashes hold it.
        headers = [re.sub(rb'"(hash|ledger)":"[0-9a-f]+"', b"", header) for header, _ in said]
        assert headers[0] == headers[1], "what the silos say depends on their records"
        assert len(said[0][1]) == len(said[1][1]), "the size of a reply depends on records"
        response = parse_response(said[0][0])
        code = response.code if isinstance(response, Error) else response.type
        assert not isinstance(response, Error) or code in CODES, response
        self.codes[code] += 1
        if isinstance(response, Message):
            self._paid(response, [body for _, body in said])
        return response

    def _paid(self, response: Message, bodies: list[bytes]) -> None:
        """Nothing leaves without a debit, and nothing leaves twice with different noise."""
        rounds = self.delivered.setdefault(response.study, set())
        rounds.add(response.round)
        first = self.replies.setdefault((response.study, response.round), bodies)
        assert first == bodies, "a round was answered twice with different noise"
        for service in self.stewards:
            assert service._ledger is not None
            assert service._ledger.accounts[response.study].answers == len(rounds), "a release without a debit"

    def check_books(self) -> float:
        """The larger joint price of what both ledgers have promised, which their filters keep below the budget."""
        found = []
        for service in self.stewards:
            assert service._ledger is not None
            answers = {s: a.answers for s, a in service._ledger.accounts.items() if a.answers}
            assert answers == {study: len(rounds) for study, rounds in self.delivered.items()}
            ledger = service._ledger
            assert ledger.charged <= 1.0
            charged = [account.charged(ledger.rule).events for account in ledger.accounts.values()]
            found.append(joint_price(charged, delta=1e-5).epsilon)
            assert found[-1] <= BUDGET
        return max(found)


def _talk(service: SiloService, raw: bytes) -> tuple[bytes, bytes]:
    """One exchange, as the door does it."""
    try:
        found = read_frame(io.BytesIO(raw).read)
    except RefusalError as refusal:
        reply = refuse(refusal.code, str(refusal))
    else:
        if found is None:
            reply = refuse("bad-frame", "nothing was said")
        else:
            _unsigned(service, *found)
            reply = _inside(service, *found)
    answer = read_frame(io.BytesIO(reply).read)
    assert answer is not None
    assert 8 + len(answer[0]) + len(answer[1]) == len(reply)
    return answer


def _unsigned(service: SiloService, header: bytes, payload: bytes) -> None:
    """Nobody but a pinned proposer is heard at all."""
    signed, body = unframed(service.handle(header, payload))
    assert parse_response(parse_signed_reply(signed).reply.encode()).code == "unsigned"
    assert body == b""


def _inside(service: SiloService, header: bytes, payload: bytes) -> bytes:
    """The reply inside the signed one, to the same request signed by the server that the owner pinned."""
    to = {"silo": service.policy.name, "ledger": service._opened().identity}
    asked = unframed(PROPOSER.request(header.decode(errors="replace"), payload, **to))
    signed, body = unframed(service.handle(*asked))
    own = pins(service.policy.name)
    _, inner = opened_reply(signed, body, request=digest_of(*asked), silos=own)
    return frame(inner, body)


def besiege(folder: Path, messages: int, *, seed: int, sampled: bool = False, report: Any = None) -> Siege:
    """Send this many messages; raises at the first thing that should not be."""
    attacker, siege = Attacker(random.Random(seed), ALGORITHMS + SAMPLED * sampled), Siege(folder)
    try:
        for number in range(messages):
            raw = attacker.next()
            try:
                attacker.heard(siege.send(raw))
            except AssertionError as error:
                raise AssertionError(f"message {number} of seed {seed}: {error}\n{raw[:2000]!r}") from error
            if number % 2000 == 1999 and report is not None:
                report(number + 1, siege, siege.check_books())
        siege.check_books()
    finally:
        siege.close()
    return siege
