"""The shuffler's office: hears requests, keeps contributions until enough have come, and releases them once.

It works on bytes and knows no socket. What is released and that it was released are one durable transaction, made
before a reply leaves: a shuffler that was killed never releases a round twice in two ways, which would tell single
silos apart. Contributions themselves are only ever in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.channel.sealing import SealError, open_layer, unpad
from tacit.deploy.shuffler.config import Keys, ShufflerError, Terms
from tacit.deploy.shuffler.messages import (
    Accepted,
    Collect,
    Deposit,
    Hello,
    Relay,
    Total,
    Welcome,
    parse_request,
    signed,
)
from tacit.deploy.wire import RefusalError, frame, refuse

_log = logging.getLogger("tacit.shuffler")
_TABLE = (
    "CREATE TABLE IF NOT EXISTS released(consortium TEXT PRIMARY KEY, round INTEGER NOT NULL, request TEXT NOT NULL, "
    "header TEXT NOT NULL, payload BLOB NOT NULL)"
)


_OVERHEAD = 4096
"""What a contribution takes in memory besides its bytes, so that many tiny ones count too."""


@dataclass
class _Pile:
    """What has come for one round of one study under one broadcast, silo by silo.

    Contributions are held against each other when they are collected, not before: one that does not fit the others, in
    size or place, must not keep theirs out.
    """

    begun: float
    deposits: dict[str, Deposit] = field(default_factory=dict)
    digests: dict[str, bytes] = field(default_factory=dict)
    opened: dict[str, list[bytes]] = field(default_factory=dict)

    def held_of(self, silo: str) -> int:
        """Bytes in memory that a silo has brought."""
        return sum(len(blob) for blob in self.opened[silo]) + _OVERHEAD if silo in self.opened else 0


class ShufflerService:
    """A shuffler without its door.

    Formal guarantee: for each round of a study at most one batch is ever released; it holds everything or nothing of
    each silo in it, all of them under the same study, round and broadcast, at least as many distinct registered silos
    as each of them asked for; in uniformly random order, or as a sum. A later shuffler of a cascade leaves out of it
    what does not open, which no honest silo's reports can be.
    """

    def __init__(self, terms: Terms, keys: Keys, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.terms, self._keys, self._clock = terms, keys, clock
        self._lock = threading.Lock()
        self._piles: dict[tuple[str, int, str], _Pile] = {}
        self._books = _opened(path)

    def close(self) -> None:
        """Let go of the books."""
        self._books.close()

    def handle(self, header: bytes, payload: bytes) -> bytes:
        """The frame that answers a request; whatever is sent, this returns one."""
        try:
            with self._lock:
                return self._dispatch(parse_request(header), payload)
        except RefusalError as refusal:
            return refuse(refusal.code, str(refusal), refusal.numbers)
        except SealError as error:
            return refuse("sealed", str(error))
        except Exception as error:
            _log.error("request failed: %s", type(error).__name__)
            return refuse("internal", "the request could not be served")

    def _dispatch(self, request: Any, payload: bytes) -> bytes:
        self._tidy()
        if isinstance(request, Hello):
            return self._greet()
        if isinstance(request, Deposit):
            return self._deposit(request, payload)
        if isinstance(request, Relay):
            return self._relay(request, payload)
        return self._collect(request)

    def _greet(self) -> bytes:
        terms = self.terms
        welcome = Welcome(
            name=terms.name,
            seal=str(self._keys.seal.public),
            sign=self._keys.sign.public,
            layer=terms.layer,
            min_silos=terms.min_silos,
            silos=tuple(sorted(terms.silos)),
        )
        return frame(welcome.model_dump_json())

    def _tidy(self) -> None:
        oldest = self._clock() - self.terms.keep_seconds
        for key in [key for key, pile in self._piles.items() if pile.begun < oldest]:
            del self._piles[key]

    def _deposit(self, request: Deposit, payload: bytes) -> bytes:
        terms = self.terms
        if request.shuffler != terms.name:
            raise RefusalError("unknown-shuffler", f"this is shuffler {terms.name}")
        if request.silo not in terms.silos:
            raise RefusalError("unknown-silo", "the silo is not registered at this shuffler")
        if terms.layer and request.mode == "reports":
            raise RefusalError("layer", "reports enter a cascade at its first shuffler")
        try:
            request.check(terms.silos[request.silo], payload)
        except SealError as error:
            raise RefusalError("signature", str(error)) from None
        self._check_open(request.consortium, request.round)
        key = (request.consortium, request.round, request.broadcast)
        pile = self._piles.get(key) or _Pile(self._clock())
        if len(payload) != request.count * request.size:
            raise RefusalError("size", "the payload is not as long as its reports")
        digest = hashlib.sha256(request.unsigned() + payload).digest()
        if pile.digests.get(request.silo, digest) != digest:
            raise RefusalError("replayed", "the silo has contributed something else to this round")
        if request.silo not in pile.digests:
            held, most = sum(p.held_of(request.silo) for p in self._piles.values()), terms.max_bytes // len(terms.silos)
            if held + len(payload) + _OVERHEAD > most:
                raise RefusalError("busy", f"expected at most {most} bytes of one silo, its part of max_bytes, to wait")
            opened = self._open(_cut(payload, request.size), request)
            pile.digests[request.silo], pile.deposits[request.silo] = digest, request
            pile.opened[request.silo] = opened
            self._piles[key] = pile
        return frame(Accepted(silos=len(pile.digests)).model_dump_json())

    def _open(self, blobs: list[bytes], request: Deposit) -> list[bytes]:
        """What a silo has brought. All of it opens and is what it should be, or nothing is taken."""
        opened = [open_layer(blob, self._keys.seal, request.binding, layer=0) for blob in blobs]
        if request.mode == "reports":
            if len(set(opened)) != len(opened):
                raise RefusalError("replayed", "a report is there twice")
            return opened
        shares = [unpad(blob) for blob in opened]
        # A share fills its padding: what has one size outside must have one size inside, or no sum could be made.
        if len(shares) != 1 or not shares[0] or len(shares[0]) % 8 or len(shares[0]) != len(opened[0]) - 4:
            raise RefusalError("size", "expected one share of 64-bit integers that is as long as its padding")
        return shares

    def _check_open(self, consortium: str, number: int) -> None:
        last = self._books.execute("SELECT round FROM released WHERE consortium = ?", (consortium,)).fetchone()
        if last is not None and number <= last[0]:
            raise RefusalError("round", f"round {number} is over; expected one after {last[0]}")

    def _collect(self, request: Collect) -> bytes:
        asked = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        stored = self._stored(request.consortium, request.round, asked)
        if stored is not None:
            return stored
        pile = self._piles.get((request.consortium, request.round, request.broadcast))
        wanted = set(request.silos)
        found = {} if pile is None else pile.deposits
        present = {name: deposit for name, deposit in found.items() if deposit.mode == request.mode}
        missing = sorted(wanted - set(present))
        if pile is None or missing:
            raise RefusalError("missing", f"nothing has come from {', '.join(missing)[:200] or 'anybody'}")
        min_silos = max([self.terms.min_silos, *(present[name].min_silos for name in wanted)])
        if len(wanted) < min_silos:
            raise RefusalError(
                "too-few",
                f"expected at least {min_silos} silos",
                {"silos": float(len(wanted)), "min_silos": float(min_silos)},
            )
        _check_alike({name: present[name] for name in sorted(wanted)})
        opened = {name: pile.opened[name] for name in sorted(wanted)}
        if request.mode == "sum":
            return self._keep(request, asked, *self._summed(request, opened))
        blobs = [blob for own in opened.values() for blob in own]
        return self._keep(request, asked, *self._mixed(request, blobs, len(opened), min_silos, 0))

    def _relay(self, request: Relay, payload: bytes) -> bytes:
        """The batch of the shuffler before, with one more layer off and in an order of our own."""
        terms = self.terms
        if request.by not in terms.before or request.layer != terms.layer - 1:
            raise RefusalError("layer", "expected a batch of the shuffler before this one")
        try:
            request.check(terms.before[request.by], payload)
        except SealError as error:
            raise RefusalError("signature", str(error)) from None
        if len(payload) != request.count * request.size:
            raise RefusalError("size", "the payload is not as long as its reports")
        min_silos = max(terms.min_silos, request.min_silos)
        if request.silos < min_silos:
            raise RefusalError("too-few", f"expected at least {min_silos} silos", {"silos": float(request.silos)})
        asked = hashlib.sha256(request.unsigned() + payload).hexdigest()
        stored = self._stored(request.consortium, request.round, asked)
        if stored is not None:
            return stored
        self._check_open(request.consortium, request.round)
        blobs = self._reopened(_cut(payload, request.size), request, min_silos)
        return self._keep(request, asked, *self._mixed(request, blobs, request.silos, min_silos, terms.layer))

    def _reopened(self, blobs: list[bytes], request: Relay, min_silos: int) -> list[bytes]:
        """A batch of the shuffler before with one more layer off; what does not open is left out.

        An honest silo seals for the keys that its owner pinned, so its reports open here: only those of silos that
        collude can be missing, and the price counts on no report of theirs (`privacy.crowd`). Nor does a dishonest
        shuffler before this one gain by it: what it may spoil it could as well have replaced by reports of its own.
        """
        if len(set(blobs)) != len(blobs):
            # No honest shuffler sends one twice; whoever does wants to find it again behind this one.
            raise RefusalError("replayed", "a report is there twice")
        opened = []
        for blob in blobs:
            with contextlib.suppress(SealError):
                opened.append(open_layer(blob, self._keys.seal, request.binding, layer=self.terms.layer))
        found = len(set(opened))
        if found < min_silos:
            numbers = {"reports": float(found), "min_silos": float(min_silos)}
            raise RefusalError("too-few", f"expected at least {min_silos} reports that open, one of each silo", numbers)
        if found < len(blobs):
            _log.warning("round %d: %d of %d reports left out", request.round, len(blobs) - found, len(blobs))
        return opened

    def _mixed(
        self, request: Collect | Relay, blobs: list[bytes], silos: int, min_silos: int, layer: int
    ) -> tuple[Any, bytes]:
        # Two silos that collude can bring one and the same report, sealed twice; what is inside an honest silo's nobody
        # else has. So one copy is kept: that stops nobody's round, links nothing, and takes no honest report away.
        blobs = list(dict.fromkeys(blobs))
        if len({len(blob) for blob in blobs}) != 1:
            raise RefusalError("size", "the reports inside are of different sizes")
        secrets.SystemRandom().shuffle(blobs)
        header = Relay(
            consortium=request.consortium,
            round=request.round,
            broadcast=request.broadcast,
            silos=silos,
            min_silos=min_silos,
            count=len(blobs),
            size=len(blobs[0]),
            layer=layer,
            by=self.terms.name,
        )
        return header, b"".join(blobs)

    def _summed(self, request: Collect, opened: dict[str, list[bytes]]) -> tuple[Any, bytes]:
        shares = [np.frombuffer(blob, "<u8") for own in opened.values() for blob in own]
        if len({share.size for share in shares}) != 1:
            raise RefusalError("size", "the shares inside are of different sizes")
        total = np.sum(shares, axis=0, dtype=np.uint64)
        header = Total(
            consortium=request.consortium,
            round=request.round,
            broadcast=request.broadcast,
            silos=tuple(opened),
            by=self.terms.name,
        )
        return header, total.astype("<u8").tobytes()

    def _stored(self, consortium: str, number: int, asked: str) -> bytes | None:
        row = self._books.execute(
            "SELECT round, request, header, payload FROM released WHERE consortium = ?", (consortium,)
        ).fetchone()
        if row is None or number > row[0]:
            return None
        if (number, asked) != (row[0], row[1]):
            raise RefusalError("round", f"round {number} is over; it is released once and in one way")
        return frame(row[2], row[3])

    def _keep(self, request: Collect | Relay, asked: str, header: Any, payload: bytes) -> bytes:
        """Write down what is released, forget what it was made of, and only then let it go."""
        text = signed(header, self._keys.sign, payload).model_dump_json()
        row = (request.consortium, request.round, asked, text, payload)
        written = self._books.execute(
            "INSERT INTO released VALUES(?, ?, ?, ?, ?) ON CONFLICT(consortium) DO UPDATE SET round = excluded.round, "
            "request = excluded.request, header = excluded.header, payload = excluded.payload "
            "WHERE excluded.round > released.round",
            row,
        )
        if written.rowcount != 1:
            raise RefusalError("round", f"round {request.round} is over; it is released once and in one way")
        over = [k for k in self._piles if k[0] == request.consortium and k[1] <= request.round]
        for key in over:
            del self._piles[key]
        _log.info("round %d of %s released", request.round, request.consortium[:12])
        return frame(text, payload)


def _check_alike(deposits: dict[str, Deposit]) -> None:
    """Refuse a release in which two silos have one place, or contributions of different sizes; it names who."""
    by_index: dict[int, list[str]] = {}
    for name, deposit in deposits.items():
        by_index.setdefault(deposit.silo_index, []).append(name)
    shared = next(((silo_index, names) for silo_index, names in by_index.items() if len(names) > 1), None)
    if shared is not None:
        raise RefusalError("silo-index", f"{', '.join(shared[1])[:200]} have all contributed for index {shared[0]}")
    sizes = Counter(deposit.size for deposit in deposits.values())
    usual = max(sizes, key=lambda size: sizes[size])
    odd = [name for name, deposit in deposits.items() if deposit.size != usual]
    if odd:
        raise RefusalError("size", f"{', '.join(odd)[:200]}: reports of another size than the {usual} bytes of most")


def _opened(path: Path) -> sqlite3.Connection:
    """The books of released rounds, held by this process alone until it ends."""
    books = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        for line in ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", _TABLE):
            books.execute(line)
        # A write takes the lock, which is then never given back.
        books.execute("BEGIN IMMEDIATE")
        books.execute("COMMIT")
    except sqlite3.OperationalError as error:
        books.close()
        if "locked" not in str(error):
            raise
        raise ShufflerError(f"{path} is held by another shuffler; stop that one first.") from None
    return books


def _cut(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]
