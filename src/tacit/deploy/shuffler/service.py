"""The shuffler without its socket: keeps deposits until enough have come, and releases each round once.

A release is stored in one durable transaction before it leaves. So a shuffler that was killed never releases a round in
two ways, which would tell single silos apart. Deposits are only ever in memory. Only pinned callers are heard, and all
that the shuffler says is signed.
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
from typing import Any, NamedTuple

import numpy as np

from tacit.channel.sealing import SealError, open_layer, unpad
from tacit.deploy.listener import RefusalLog
from tacit.deploy.shuffler import messages
from tacit.deploy.shuffler.config import Keys, ShufflerError, Terms, changed_terms, terms_text
from tacit.deploy.shuffler.messages import Collect, Deposit, Relay, fields_of
from tacit.deploy.signing import SignatureError, digest_of, opened_request, shuffler_address, signed_reply
from tacit.deploy.wire import RefusalError, SignedRequest, frame, parse_signed_request, refuse, unframed
from tacit.errors import TacitError

_log = logging.getLogger("tacit.shuffler")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS released(consortium TEXT PRIMARY KEY, round INTEGER NOT NULL, request TEXT NOT NULL, "
    "header TEXT NOT NULL, payload BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS requests(scope TEXT PRIMARY KEY, counter INTEGER NOT NULL, digest TEXT NOT NULL)",
)
_OVERHEAD = 4096
"""What a deposit takes in memory besides its bytes, so that many tiny ones count too."""


class _Held(NamedTuple):
    """A deposit with a digest of all of it, and its blobs with the first layer off."""

    deposit: Deposit
    digest: bytes
    blobs: list[bytes]


@dataclass
class _Pile:
    """The deposits for one round of one study under one broadcast, by silo.

    Deposits are compared when they are collected, not before: one that does not fit the others, in size or index, must
    not keep theirs out.
    """

    begun: float
    held: dict[str, _Held] = field(default_factory=dict)

    def bytes_of(self, silo: str) -> int:
        """Bytes in memory that a silo has brought."""
        return sum(map(len, self.held[silo].blobs)) + _OVERHEAD if silo in self.held else 0


class ShufflerService:
    """Answers the requests of one shuffler's callers.

    Formal guarantee: for each round of a study at most one batch is ever released. It holds everything or nothing of
    each silo, all under the same study, round and broadcast, from at least as many distinct registered silos as each of
    them asked for, in uniformly random order or as a sum. A later shuffler of a cascade leaves out what does not open,
    which is never an honest silo's report. The terms are those on disk at the moment of the request; while they cannot
    be used, everything is refused.

    ``terms_read`` is the text that ``terms`` was read from; by default what is on disk now.
    """

    def __init__(
        self,
        terms: Terms,
        keys: Keys,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        terms_read: bytes | None = None,
    ) -> None:
        self.terms, self._keys, self._clock, self._folder = terms, keys, clock, folder
        self._terms_read = terms_text(folder) if terms_read is None else terms_read
        self._terms_refused: bytes | None = None
        self._address = shuffler_address(terms.name)
        self._lock, self._refusals = threading.Lock(), RefusalLog(_log)
        self._piles: dict[tuple[str, int, str], _Pile] = {}
        self._released = _open_database(folder / "shuffler.sqlite")
        self._record = None if terms.record is None else (folder / terms.record).open("ab", buffering=0)

    def close(self) -> None:
        """Close the database of released rounds."""
        self._released.close()
        if self._record is not None:
            self._record.close()

    def knows(self, header: bytes, payload: bytes) -> bool:
        """Whether a pinned caller has signed this for this shuffler, and it has not come before; never raises."""
        with contextlib.suppress(Exception):
            signed, request = self._request_in(header, payload)
            with self._lock:
                newest = self._newest(self._scope(signed, request))
            return newest is None or signed.counter > newest[0]
        return False

    def _refresh(self) -> Terms:
        """Take the terms that are on disk now; while they cannot be used, refuse."""
        text = terms_text(self._folder)
        with self._lock:
            if text != self._terms_read:
                try:
                    terms = changed_terms(self._folder, text, self.terms)
                except TacitError as error:
                    if text != self._terms_refused:
                        _log.error("everything is refused, because the terms cannot take effect: %s", error)
                    self._terms_refused = text
                    raise RefusalError("terms", "the shuffler's terms cannot be used; its owner is told") from None
                self._take(terms)
                self._terms_read = text
            return self.terms

    def _take(self, terms: Terms) -> None:
        """Go on under other terms; what waits from a silo that is another one now, or none, is forgotten."""
        for pile in self._piles.values():
            for silo in [name for name in pile.held if terms.silos.get(name) != self.terms.silos.get(name)]:
                del pile.held[silo]
        self.terms = terms
        _log.info("the terms have changed: %d silos, %d callers", len(terms.silos), len(terms.callers))

    def _request_in(self, header: bytes, payload: bytes) -> tuple[SignedRequest, Any]:
        signed, terms = parse_signed_request(header), self.terms
        parse = messages.parse_request
        return signed, opened_request(
            signed, payload, silo=self._address, ledger="", proposers=terms.callers, parse=parse
        )

    def handle(self, header: bytes, payload: bytes) -> bytes:
        """The signed frame that answers a signed request; whatever is sent, this returns one.

        Formal guarantee: a request that no pinned caller has signed for this shuffler, or that is older than the last
        one of its study, is refused before anything is opened, compared or kept.
        """
        asked = digest_of(header, payload)
        head, body = unframed(self._reply(header, payload, asked.hex()))
        return signed_reply(head, body, request=asked, silo=self._address, signer=self._keys.sign)

    def _reply(self, header: bytes, payload: bytes, asked: str) -> bytes:
        try:
            terms = self._refresh()
            # Before the lock: who is unknown does not wait for others, and keeps nobody waiting.
            signed, request = self._request_in(header, payload)
            with self._lock:
                if self.terms is not terms:
                    signed, request = self._request_in(header, payload)
                scope = self._accept(signed, request, asked)
                payload = bytes(payload)  # reports are compared and put in order
                if self._record is not None:
                    self._record.write(frame(signed.request, payload))
                reply = self._dispatch(request, payload)
                self._accept(signed, request, asked, before=scope)  # by now the study may be known
                return reply
        except RefusalError as refusal:
            return self._refusals.refuse(refusal.code, str(refusal), refusal.numbers)
        except SealError as error:
            return self._refusals.refuse("sealed", str(error))
        except Exception as error:
            _log.error("request failed: %s", type(error).__name__)
            return refuse("internal", "the request could not be served")

    def _accept(self, signed: SignedRequest, request: Any, asked: str, before: str | None = None) -> str:
        """Refuse a request that is older than the last of its caller about the study, or about none that is known.

        The last one itself may come again: a lost reply is asked for once more. Returns the scope of the counter; what
        was accepted in the scope ``before`` is not written twice.
        """
        scope = self._scope(signed, request)
        if scope == before:
            return scope
        newest = self._newest(scope)
        if newest is None or signed.counter > newest[0]:
            self._released.execute("INSERT OR REPLACE INTO requests VALUES(?, ?, ?)", (scope, signed.counter, asked))
        elif (signed.counter, asked) != newest:
            raise RefusalError("replayed", "expected a request with a larger counter than the last one")
        return scope

    def _scope(self, signed: SignedRequest, request: Any) -> str:
        study = getattr(request, "consortium", "")
        own = f"{signed.proposer}/{study}"
        # A study whose deposits were forgotten keeps its counter: what came before that stays old.
        return own if self._is_known(study) or self._newest(own) else f"{signed.proposer}/"

    def _newest(self, scope: str) -> tuple[int, str] | None:
        """Counter and digest of the last request in a scope."""
        query = "SELECT counter, digest FROM requests WHERE scope = ?"
        row: tuple[int, str] | None = self._released.execute(query, (scope,)).fetchone()
        return row

    def _is_known(self, study: str) -> bool:
        """Whether anything of a study waits or was released."""
        released = self._released.execute("SELECT 1 FROM released WHERE consortium = ?", (study,)).fetchone()
        return released is not None or any(key[0] == study for key in self._piles)

    def _dispatch(self, request: Any, payload: bytes) -> bytes:
        self._tidy()
        if isinstance(request, messages.Hello):
            return self._greet()
        if isinstance(request, Deposit):
            return self._deposit(request, payload)
        if isinstance(request, Relay):
            return self._relay(request, payload)
        return self._collect(request)

    def _greet(self) -> bytes:
        terms = self.terms
        welcome = messages.Welcome(
            name=terms.name,
            seal=str(self._keys.seal.public),
            sign=self._keys.sign.public,
            layer=terms.layer,
            min_silos=terms.min_silos,
            silos=tuple(sorted(terms.silos)),
        )
        return frame(welcome)

    def _tidy(self) -> None:
        oldest = self._clock() - self.terms.keep_seconds
        for key in [key for key, pile in self._piles.items() if pile.begun < oldest]:
            del self._piles[key]

    def _deposit(self, request: Deposit, payload: bytes) -> bytes:
        terms = self.terms
        if request.shuffler != terms.name:
            raise RefusalError("unknown-shuffler", f"this is shuffler {terms.name}")
        if request.silo not in terms.silos:
            raise RefusalError("unknown-silo", f"silo {request.silo} is not registered at this shuffler")
        if terms.layer and request.mode == "reports":
            raise RefusalError("layer", "reports enter a cascade at its first shuffler")
        _check_signature(request, terms.silos[request.silo], payload)
        self._check_open(request.consortium, request.round)
        key = (request.consortium, request.round, request.broadcast)
        pile = self._piles.get(key) or _Pile(self._clock())
        if len(payload) != request.count * request.size:
            raise RefusalError("size", "the payload is not as long as its reports")
        digest = hashlib.sha256(request.unsigned() + payload).digest()
        before = pile.held.get(request.silo)
        if before is not None and before.digest != digest:
            raise RefusalError("twice", f"silo {request.silo} has contributed something else to this round")
        if before is None:
            held = sum(other.bytes_of(request.silo) for other in self._piles.values())
            most = terms.max_bytes // len(terms.silos)
            if held + len(payload) + _OVERHEAD > most:
                raise RefusalError("busy", f"expected at most {most} bytes of one silo, its part of max_bytes, to wait")
            pile.held[request.silo] = _Held(request, digest, self._open(_cut(payload, request.size), request))
            self._piles[key] = pile
        return frame(messages.Accepted(silos=len(pile.held)))

    def _open(self, blobs: list[bytes], request: Deposit) -> list[bytes]:
        """The blobs of a deposit with one layer off; if one does not open or is not as it should be, none is taken."""
        opened = [open_layer(blob, self._keys.seal, request.binding, layer=0) for blob in blobs]
        if request.mode == "reports":
            if len(set(opened)) != len(opened):
                raise RefusalError("twice", "a report is there twice")
            return opened
        shares = [unpad(blob) for blob in opened]
        # Sealed shares of one size must be of one size inside, or they could not be added up.
        if len(shares) != 1 or not shares[0] or len(shares[0]) % 8 or len(shares[0]) != len(opened[0]) - 4:
            raise RefusalError("size", "expected one share of 64-bit integers that is as long as its padding")
        return shares

    def _check_open(self, consortium: str, round_index: int) -> None:
        last = self._released.execute("SELECT round FROM released WHERE consortium = ?", (consortium,)).fetchone()
        if last is not None and round_index <= last[0]:
            raise RefusalError("round", f"round {round_index + 1} is over; expected one after {last[0] + 1}")

    def _collect(self, request: Collect) -> bytes:
        asked = hashlib.sha256(request.model_dump_json().encode()).hexdigest()
        stored = self._stored(request.consortium, request.round, asked)
        if stored is not None:
            return stored
        pile = self._piles.get((request.consortium, request.round, request.broadcast))
        wanted = set(request.silos)
        held = {} if pile is None else pile.held
        present = {name: own.deposit for name, own in held.items() if own.deposit.mode == request.mode}
        missing = sorted(wanted - set(present))
        if pile is None or missing:
            raise RefusalError("missing", f"nothing has come from {', '.join(missing)[:200] or 'anybody'}")
        min_silos = max([self.terms.min_silos, *(present[name].min_silos for name in wanted)])
        if len(wanted) < min_silos:
            numbers = {"silos": float(len(wanted)), "min_silos": float(min_silos)}
            raise RefusalError("too-few", f"expected at least {min_silos} silos", numbers)
        _check_alike({name: present[name] for name in sorted(wanted)})
        blobs = [blob for name in sorted(wanted) for blob in held[name].blobs]
        if request.mode == "sum":
            return self._keep(request, asked, *self._summed(request, blobs, tuple(sorted(wanted))))
        return self._keep(request, asked, *self._mixed(request, blobs, len(wanted), min_silos, 0))

    def _relay(self, request: Relay, payload: bytes) -> bytes:
        """The batch of the shuffler before, with one more layer off and in another random order."""
        terms = self.terms
        if request.by not in terms.before or request.layer != terms.layer - 1:
            raise RefusalError("layer", "expected a batch of the shuffler before this one")
        _check_signature(request, terms.before[request.by], payload)
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

        An honest silo seals for the keys that its owner pinned, so its reports open here. Only reports of colluding
        silos can be missing, and the price counts on none of these (`privacy.anonymity`). A dishonest shuffler before
        this one gains nothing: instead of spoiling a report it could have replaced it.
        """
        if len(set(blobs)) != len(blobs):
            # No honest shuffler sends one twice; a dishonest one would find it again behind this shuffler.
            raise RefusalError("twice", "a report is there twice")
        opened = []
        for blob in blobs:
            with contextlib.suppress(SealError):
                opened.append(open_layer(blob, self._keys.seal, request.binding, layer=self.terms.layer))
        distinct = len(set(opened))
        if distinct < min_silos:
            numbers = {"reports": float(distinct), "min_silos": float(min_silos)}
            raise RefusalError("too-few", f"expected at least {min_silos} reports that open, one of each silo", numbers)
        if distinct < len(blobs):
            _log.warning("round %d: %d of %d reports left out", request.round + 1, len(blobs) - distinct, len(blobs))
        return opened

    def _mixed(
        self, request: Collect | Relay, blobs: list[bytes], silos: int, min_silos: int, layer: int
    ) -> tuple[Any, bytes]:
        # Two colluding silos can seal the same report. Nobody can copy an honest silo's: it was sealed until now.
        # Keeping one copy stops no round, links nothing, and takes no honest report away.
        blobs = list(dict.fromkeys(blobs))
        if len({len(blob) for blob in blobs}) != 1:
            raise RefusalError("size", "the reports inside are of different sizes")
        secrets.SystemRandom().shuffle(blobs)
        header = Relay(
            **fields_of(request.binding),
            silos=silos,
            min_silos=min_silos,
            count=len(blobs),
            size=len(blobs[0]),
            layer=layer,
            by=self.terms.name,
        )
        return header, b"".join(blobs)

    def _summed(self, request: Collect, blobs: list[bytes], silos: tuple[str, ...]) -> tuple[Any, bytes]:
        shares = [np.frombuffer(blob, "<u8") for blob in blobs]
        if len({share.size for share in shares}) != 1:
            raise RefusalError("size", "the shares inside are of different sizes")
        total = np.sum(shares, axis=0, dtype=np.uint64)
        header = messages.Total(**fields_of(request.binding), silos=silos, by=self.terms.name)
        return header, total.astype("<u8").tobytes()

    def _stored(self, consortium: str, round_index: int, asked: str) -> bytes | None:
        row = self._released.execute(
            "SELECT round, request, header, payload FROM released WHERE consortium = ?", (consortium,)
        ).fetchone()
        if row is None or round_index > row[0]:
            return None
        if (round_index, asked) != (row[0], row[1]):
            raise RefusalError("round", f"round {round_index + 1} is over; it is released once and in one way")
        return frame(row[2], row[3])

    def _keep(self, request: Collect | Relay, asked: str, header: Any, payload: bytes) -> bytes:
        """Store a release durably, forget its deposits, and only then return it."""
        text = header.signed(self._keys.sign, payload).model_dump_json()
        row = (request.consortium, request.round, asked, text, payload)
        written = self._released.execute(
            "INSERT INTO released VALUES(?, ?, ?, ?, ?) ON CONFLICT(consortium) DO UPDATE SET round = excluded.round, "
            "request = excluded.request, header = excluded.header, payload = excluded.payload "
            "WHERE excluded.round > released.round",
            row,
        )
        if written.rowcount != 1:
            raise RefusalError("round", f"round {request.round + 1} is over; it is released once and in one way")
        for key in [k for k in self._piles if k[0] == request.consortium and k[1] <= request.round]:
            del self._piles[key]
        _log.info("round %d of %s released", request.round, request.consortium[:12])
        return frame(text, payload)


def _check_signature(request: Deposit | Relay, public: str, payload: bytes) -> None:
    try:
        request.check(public, payload)
    except SignatureError:
        named = f"silo {request.silo}" if isinstance(request, Deposit) else f"shuffler {request.by}"
        text = f"{named} has not signed it, or not with the key that is pinned here"
        raise RefusalError("forged", text) from None


def _check_alike(deposits: dict[str, Deposit]) -> None:
    """Refuse deposits that share an index or differ in size; the refusal names the silos."""
    by_index: dict[int, list[str]] = {}
    for name, deposit in deposits.items():
        by_index.setdefault(deposit.silo_index, []).append(name)
    for silo_index, names in by_index.items():
        if len(names) > 1:
            raise RefusalError("silo-index", f"{', '.join(names)[:200]} have all contributed for index {silo_index}")
    sizes = Counter(deposit.size for deposit in deposits.values())
    usual = max(sizes, key=lambda size: sizes[size])
    odd = [name for name, deposit in deposits.items() if deposit.size != usual]
    if odd:
        raise RefusalError("size", f"{', '.join(odd)[:200]}: reports of another size than the {usual} bytes of most")


def _open_database(path: Path) -> sqlite3.Connection:
    """The database of released rounds, held by this process alone until it ends."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        for line in ("PRAGMA locking_mode=EXCLUSIVE", "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", *_TABLES):
            database.execute(line)
        # A write takes the lock, which is then never given back.
        database.execute("BEGIN IMMEDIATE")
        database.execute("COMMIT")
    except sqlite3.OperationalError as error:
        database.close()
        if "locked" not in str(error):
            raise
        raise ShufflerError(f"{path} is held by another shuffler; stop that one first.") from None
    return database


def _cut(payload: bytes, size: int) -> list[bytes]:
    return [payload[at : at + size] for at in range(0, len(payload), size)]
