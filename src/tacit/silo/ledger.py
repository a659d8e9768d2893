"""The silo's ledger: one SQLite file that outlives every run.

Reserve, then debit before the reply leaves, then a receipt. A debit, the reply it pays for and what the silo must
remember for the next round are one durable transaction, followed by the counter that is kept apart; only then may the
reply be sent. A crash before the transaction has released nothing. After a crash behind it, a repeated request is given
the stored reply. Nothing is ever released that the ledger does not show.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tacit.privacy import Event, PricingError
from tacit.privacy.filter import Rule, rule_for
from tacit.silo.chain import (
    Counter,
    Entry,
    Limit,
    Notes,
    entry_after,
    lock,
    most_spent,
    replay,
    rule_body,
    rules_in,
    settled,
    verify,
)
from tacit.silo.pools import POOLS, drawn
from tacit.silo.spending import Account, Charge, LedgerError, over_budget, pool_shares, share

T = TypeVar("T")

YEAR = 366 * 86_400.0
"""How far the clock may be ahead of the newest entry, in seconds, before somebody must look at it."""

TABLES = """
CREATE TABLE entries(
  seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, study TEXT NOT NULL,
  body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL);
CREATE TRIGGER entries_keep BEFORE UPDATE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER entries_stay BEFORE DELETE ON entries BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TABLE studies(study TEXT PRIMARY KEY, plan TEXT NOT NULL, asked REAL NOT NULL, pending INTEGER NOT NULL,
  state BLOB);
CREATE TABLE replies(study TEXT NOT NULL, round INTEGER NOT NULL, request TEXT NOT NULL, header TEXT NOT NULL,
  payload BLOB NOT NULL, PRIMARY KEY(study, round));
"""

# Tables that ledgers of earlier versions lack; none of them is part of the chain.
_BESIDE = """
CREATE TABLE IF NOT EXISTS requests(scope TEXT PRIMARY KEY, counter INTEGER NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS proposers(study TEXT PRIMARY KEY, proposer TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refusals(day TEXT NOT NULL, code TEXT NOT NULL, proposer TEXT NOT NULL,
  count INTEGER NOT NULL, last REAL NOT NULL, PRIMARY KEY(day, code, proposer));
"""

REPLY_BYTES = 1 << 30
"""How much room the replies of an open study may take; the oldest make room, but for the last two."""

MOST_REFUSALS = 1000
"""How many rows of refusals a ledger keeps: one for each day, code and proposer, the newest."""


@dataclass(frozen=True)
class Reply:
    """An answer as it left: the digest of the request that it answers, a header and the bytes of the message."""

    request: str
    header: str
    payload: bytes


class Ledger:
    """One ledger, held by one process.

    ``identity`` says what the ledger protects (digest and number of the records, whether this is a test build); a
    ledger that was opened for something else refuses. ``limit`` is the owner's budget and rule (`tacit.silo.spending`).
    ``checked`` is a moment that the owner has vouched for. ``place`` is where this process runs; a ledger that lives
    elsewhere refuses. ``opening`` is what the first entry of a new ledger says besides.
    """

    def __init__(
        self,
        path: Path,
        counter: Path,
        identity: Mapping[str, Any],
        limit: Limit,
        clock: Callable[[], float] = time.time,
        checked: float = 0.0,
        *,
        place: str | None = None,
        opening: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self._clock, self._checked = path, clock, checked
        self._place, self._opening = place, dict(opening or {})
        self._counter = Counter(counter)
        self._broken: str | None = None
        self.joint_share: float | None = None
        """If studies without a rule have just got one: the share of the account that their joint price was."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        counter.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.ExitStack() as undo:
            # A copy of the ledger under another name shares the counter, so the counter is locked too.
            running = "Another `tacit silo serve` is running"
            for file, held in (
                (path, f"{running} on the silo's folder {path.parent}"),
                (counter, f"{running} on a ledger with the same counter, {counter}"),
            ):
                undo.callback(os.close, lock(file.with_name(file.name + ".lock"), held))
            if not path.exists():
                check_beginning(path)
            # Made before SQLite opens it, so that nobody else can read it even for a moment.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = connect(path)
            undo.callback(self._database.close)
            self._load(identity, limit)
            self._undo = undo.pop_all()

    def _load(self, identity: Mapping[str, Any], limit: Limit) -> None:
        try:
            others = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name NOT IN (?, ?, ?)"
            fresh = self._database.execute(others, ("requests", "proposers", "refusals")).fetchone()[0] == 0
            entries = [] if fresh else _read_entries(self._database)
            for statement in _BESIDE.split(";\n"):
                self._database.execute(statement) if statement.strip() else None
        except sqlite3.Error as error:
            raise LedgerError("ledger", f"The ledger {self.path} cannot be read: {error}.") from None
        self._head = verify(entries)
        self._counter.check(entries)
        self._accounts, self.notes = replay(entries), Notes(entries)
        self.identity = uuid.uuid4().hex if self._head is None else _identity(entries[0])
        """Which ledger this is, of all that there are; requests are signed for one."""
        if self._head is None:
            check_beginning(self.path)
            self._rule, self._shares = limit.fresh, dict.fromkeys(POOLS, 0.0)
            self._promised = most_spent([], self._rule)
            place = {} if self._place is None else {"place": self._place}
            body = {**identity, "ledger": self.identity, **rule_body(self._rule), **place, **self._opening}
            with self._write("open", "", body) as database:
                for statement in TABLES.split(";\n"):
                    database.execute(statement) if statement.strip() else None
            return
        opened = entries[0].data
        different = sorted(key for key, value in identity.items() if opened.get(key) != value)
        if different:
            raise LedgerError("identity", _mismatch(self.path, different))
        if self._place is not None and self.notes.place not in (None, self._place):
            raise LedgerError("moved", _moved(self.path))
        self.now()
        self._settle(entries, limit)
        if self._place is not None and self.notes.place is None:
            self.note("move", "", {"place": self._place, "reason": "bound"})

    def _settle(self, entries: list[Entry], limit: Limit) -> None:
        """Take the rule of this limit, if the ledger may have it; a change is an entry."""
        rule = settled(entries, limit)
        try:
            after = pool_shares(rule, [(own.pool, own.charged(rule)) for own in self._accounts.values()])
        except PricingError as error:
            held = f'The ledger holds studies that the rule "{rule.name}" cannot price: {error}'
            raise LedgerError("rule", held) from None
        # Before anything is released under this rule.
        self._promised = most_spent(entries, rule)
        self._counter.advance(self.head, self._promised)
        old = rules_in(entries)
        if not old and self._accounts:
            self.joint_share = self._joint(rule)
        if old[-1:] != [rule]:
            self.note("rule", "", rule_body(rule))
        self._rule, self._shares = rule, after

    def _joint(self, rule: Rule) -> float:
        before = rule_for("fixed-in-advance", rule.epsilon, rule.delta)
        try:
            return share(before, [account.charged(before) for account in self._accounts.values()])
        except PricingError:
            return math.inf

    def adopt(self, limit: Limit, checked: float) -> None:
        """Take another limit from now on, as at an opening; one that this ledger may not have is refused."""
        entries, before, self._checked = self._entries(), self._checked, checked
        try:
            self._settle(entries, limit)
        except BaseException:
            self._checked = before
            raise

    def _entries(self) -> list[Entry]:
        try:
            return _read_entries(self._database)
        except sqlite3.Error:
            raise LedgerError("ledger", "The ledger cannot be read.") from None

    def note(self, kind: str, study: str, body: Mapping[str, Any]) -> None:
        """Append an entry that changes no account."""
        with self._write(kind, study, body):
            pass

    @contextlib.contextmanager
    def _write(self, kind: str, study: str, body: Mapping[str, Any]) -> Iterator[sqlite3.Connection]:
        """One durable transaction that appends an entry; memory follows only after disk and counter."""
        if self._broken:
            raise LedgerError("ledger", self._broken)
        database, moment = self._database, self.now()
        try:
            database.execute("BEGIN IMMEDIATE")
            yield database
            head = database.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1").fetchone()
            if head != (None if self._head is None else (self._head.seq, self._head.hash)):
                raise LedgerError("ledger", "The ledger was changed by somebody else while it was open.")
            entry = entry_after(self._head, time=moment, kind=kind, study=study, body=body)
            database.execute("INSERT INTO entries VALUES(?, ?, ?, ?, ?, ?, ?)", dataclasses.astuple(entry))
            database.execute("COMMIT")
            self._counter.advance(entry, self._promised)
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            self._broken = "The ledger could not be written, so nothing is released; make room, then start again."
            if isinstance(error, sqlite3.Error | OSError):
                raise LedgerError("ledger", self._broken) from None
            raise
        self._head = entry
        self.notes.take(entry)

    def close(self) -> None:
        """Let go of the file."""
        self._undo.close()

    def now(self) -> float:
        """The time, never before what the ledger has seen; a clock that jumps ahead by more than a year is refused."""
        now = self._clock()
        if self._head is None:
            return max(now, 0.0)
        # A false time far ahead could never be taken back.
        if now > max(self._head.time, self._checked) + YEAR:
            raise LedgerError(
                "clock",
                f"The clock says {_day(now)}, more than a year after the ledger's newest entry of "
                f"{_day(self._head.time)}; set it right. If it is right, say so in the policy: "
                f"clock_checked = {_day(now)}",
            )
        return max(now, self._head.time)

    @property
    def head(self) -> Entry:
        """The newest entry."""
        assert self._head is not None
        return self._head

    @property
    def accounts(self) -> Mapping[str, Account]:
        """Every study that ever reserved anything."""
        return self._accounts

    @property
    def rule(self) -> Rule:
        """The rule that decides what still fits."""
        return self._rule

    @property
    def charged(self) -> float:
        """The share of the dearer pool's account that is spent or reserved: what the record that pays most pays."""
        return self.charged_in(None)

    def charged_in(self, pool: str | None) -> float:
        """The share of a pool's account that is spent or reserved; above 1 nothing more is granted."""
        return max(self._shares.values()) if pool is None else self._shares[pool]

    def spent(self, pool: str | None = None) -> float:
        """The share of a pool's account, or the dearer one's, that releases made so far have used up for good."""
        found = pool_shares(self._rule, [(own.pool, own.spent()) for own in self._accounts.values()])
        return max(found.values()) if pool is None else found[pool]

    def charged_with(self, pool: str | None, charge: Charge | None = None, *, without: str = "") -> float:
        """The share of a pool's account with one more charge, or without one of its studies."""
        kept = [(own.pool, own.charged(self._rule)) for study, own in self._accounts.items() if study != without]
        found = pool_shares(self._rule, [*kept, *([] if charge is None else [(pool, charge)])])
        return max(found.values()) if pool is None else found[pool]

    def set_aside(self, records: int, share: float) -> None:
        """Split the records, once and for ever, such that this share of them is set aside for validation.

        Formal guarantee: a ledger that is split stays split as it is; another share is refused. Studies that were
        reserved before count in both pools' accounts.
        """
        known = self.notes.split
        if known is None and not share:
            return
        try:
            wanted = drawn(records, share) if share else None
        except ValueError as error:
            raise LedgerError("pools", f"data.validation: {error}") from None
        if known is not None:
            if wanted is None or wanted.validation != known.validation:
                raise LedgerError("pools", _split_already(known.validation, records, share))
            return
        assert wanted is not None
        if self._accounts and self._rule.name == "fixed-in-advance":
            raise LedgerError(
                "pools",
                'data.validation: the rule "fixed-in-advance" prices all studies as one, and cannot price studies of '
                "all records beside those of a part; set data.validation = 0.",
            )
        self.note("pools", "", wanted._asdict())

    def reserve(
        self,
        study: str,
        plan: str,
        events: tuple[Event, ...],
        *,
        delta_set_aside: float,
        samples: int,
        expires: float,
        state: bytes,
        facts: Mapping[str, Any] | None = None,
        pool: str | None = None,
    ) -> float:
        """Set aside what a study may release, and what it keeps of delta (`Charge`); returns the share charged.

        ``pool`` is the pool that it reads, which pays for it; with none it may read every record, and both pay.

        Formal guarantee: after it, everything released or reserved is together (epsilon, delta)-DP within the ledger's
        rule; a study that does not fit is refused and leaves no trace. By the rules ``gdp`` and ``renyi`` this holds
        even if plans, and the moments at which studies end, were chosen after reading messages; by
        ``fixed-in-advance`` only if they were settled before. ``facts`` say who proposed and approved it.
        """
        if study in self._accounts:
            raise LedgerError("study", f"Expected a new study, but {study} has been reserved before.")
        charge = Charge(events, delta_set_aside, samples)
        after = self.charged_with(pool, charge)
        # Written so that a share which is not a number is refused.
        if not after <= 1.0:
            raise over_budget(self._rule, self.charged_in(pool), after)
        kept: dict[str, Any] = {"delta_set_aside": delta_set_aside, "samples": samples}
        kept |= {} if pool is None else {"pool": pool}
        body = {"events": [dataclasses.asdict(e) for e in events], "expires": expires, "plan": plan, **kept}
        body |= facts or {}
        with self._write("reserve", study, body) as database:
            row = (study, plan, self.now(), 0, state)
            database.execute("INSERT OR REPLACE INTO studies VALUES(?, ?, ?, ?, ?)", row)
            if "proposer" in body:
                database.execute("INSERT OR IGNORE INTO proposers VALUES(?, ?)", (study, body["proposer"]))
        self._accounts[study] = Account(events, expires, delta_set_aside=delta_set_aside, samples=samples, pool=pool)
        self._charge()
        return after

    def _charge(self) -> None:
        """Add up what all studies take from each pool's account."""
        charges = [(own.pool, own.charged(self._rule)) for own in self._accounts.values()]
        self._shares = pool_shares(self._rule, charges)

    def after(self, study: str, round_number: int, kind: str, releases: int, attempt: int) -> Account:
        """The account of a study once an answer is paid for, or the error of one that will not be."""
        account = self._accounts.get(study)
        if account is None:
            raise LedgerError("study", f"Expected a study with a reservation, got {study}.")
        if account.expires <= self.now():
            raise LedgerError("expired", f"The reservation of {study} has expired.")
        charged = self.charged_in(account.pool)
        if not charged <= 1.0:
            raise over_budget(self._rule, charged, charged)
        return account.after(kind, releases, round_number, attempt)

    def debit(
        self, study: str, round_number: int, kind: str, releases: int, *, reply: Reply, state: bytes, attempt: int = 0
    ) -> None:
        """Pay for one answer; when this returns, debit, reply and state are on disk and the reply may leave.

        Of several attempts of a round the reply to the last one is kept, and of all rounds the newest that have room.

        Formal guarantee: no answer is paid for from an account that is overdrawn, as it can be after its owner has
        lowered epsilon, or where studies of version 0.1 cost more by the rule of today.
        """
        after = self.after(study, round_number, kind, releases, attempt)
        body = {"round": round_number, "kind": kind, "releases": releases, "request": reply.request}
        body |= {"attempt": attempt} if attempt else {}
        with self._write("debit", study, body) as database:
            row = (study, round_number, reply.request, reply.header, reply.payload)
            database.execute("INSERT OR REPLACE INTO replies VALUES(?, ?, ?, ?, ?)", row)
            oldest = round_number - max(2, REPLY_BYTES // max(1, len(reply.payload)))
            database.execute("DELETE FROM replies WHERE study = ? AND round <= ?", (study, oldest))
            database.execute("UPDATE studies SET state = ? WHERE study = ?", (state, study))
        self._accounts[study] = after

    def finish(self, study: str, reason: str, **facts: str) -> Entry:
        """Close a study for good: by a filter what it did not use goes back; replies and state are forgotten."""
        account = self._accounts[study]
        if account.live:
            body = {"reason": reason, "made": dict(account.made), "answers": account.answers, **facts}
            with self._write("close", study, body) as database:
                database.execute("DELETE FROM replies WHERE study = ?", (study,))
                database.execute("UPDATE studies SET state = NULL WHERE study = ?", (study,))
            # Keys of the study and old noise must not stay behind in the write-ahead log either.
            self._note("PRAGMA wal_checkpoint(TRUNCATE)")
            self._accounts[study] = account.closed()
            self._charge()
        return self.head

    def refuse(self, study: str, reason: str, **facts: str) -> None:
        """End a study by its owner's word, reserved or not; with ``terms`` among the facts it never comes again.

        Formal guarantee: when this returns, the ledger pays for no further answer of the study, now or after a restart.
        """
        account = self._accounts.get(study)
        if account is not None and account.live:
            self.finish(study, reason, **facts)
            return
        with self._write("refuse", study, {"reason": reason, **facts}) as database:
            database.execute("DELETE FROM studies WHERE study = ? AND pending = 1", (study,))

    def expire(self) -> None:
        """Close every study whose time is up."""
        for study, account in list(self._accounts.items()):
            if account.live and account.expires <= self.now():
                self.finish(study, "expired")

    def stored(self, study: str, round_number: int) -> Reply | None:
        """The reply to a round that was answered, while its study is open and it has room."""
        columns = "request, header, payload"
        row = self._ask(f"SELECT {columns} FROM replies WHERE study = ? AND round = ?", study, round_number)
        return None if row is None else Reply(*row)

    def accept(self, scope: str, counter: int, digest: str) -> None:
        """Write down a signed request of a proposer and study; refuse one that is older than the newest, or its twin.

        The newest itself may come again: a lost reply is asked for once more.
        """
        row = self._ask("SELECT counter, digest FROM requests WHERE scope = ?", scope)
        if row is not None and (counter, digest) != tuple(row) and counter <= row[0]:
            raise LedgerError("replayed", "expected a request with a larger counter than the last one")
        self._note("INSERT OR REPLACE INTO requests VALUES(?, ?, ?)", scope, counter, digest)

    def has_heard(self, scope: str) -> bool:
        """Whether a request of this proposer and study was ever written down."""
        return self._ask("SELECT 1 FROM requests WHERE scope = ?", scope) is not None

    def newest_counters(self) -> dict[str, int]:
        """The largest counter that each proposer's requests have had."""
        rows = self._all("SELECT substr(scope, 1, instr(scope, '/') - 1), max(counter) FROM requests GROUP BY 1")
        return {str(proposer): int(counter) for proposer, counter in rows}

    def owner_of(self, study: str) -> str | None:
        """The proposer whose study this is; none of a study that nobody has proposed by name."""
        row = self._ask("SELECT proposer FROM proposers WHERE study = ?", study)
        return None if row is None else str(row[0])

    def claim(self, study: str, proposer: str) -> None:
        """Remember whose study this is, once."""
        self._note("INSERT OR IGNORE INTO proposers VALUES(?, ?)", study, proposer)

    def count_refusals(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Add to the refusals of today, by code and proposer; the oldest make room."""
        now = self.now()
        for (code, proposer), count in counts.items():
            row = (_day(now), code, proposer, count, now)
            more = "ON CONFLICT DO UPDATE SET count = count + excluded.count, last = excluded.last"
            self._note(f"INSERT INTO refusals VALUES(?, ?, ?, ?, ?) {more}", *row)
        kept = f"SELECT rowid FROM refusals ORDER BY last DESC LIMIT {MOST_REFUSALS}"
        self._note(f"DELETE FROM refusals WHERE rowid NOT IN ({kept})")

    def state(self, study: str) -> bytes:
        """What the silo must remember about a study between rounds."""
        row = self._ask("SELECT state FROM studies WHERE study = ?", study)
        return b"" if row is None or row[0] is None else bytes(row[0])

    def plan(self, study: str) -> str | None:
        """The plan of a study, pending or reserved."""
        row = self._ask("SELECT plan FROM studies WHERE study = ?", study)
        return None if row is None else str(row[0])

    def pending(self) -> dict[str, float]:
        """Studies that wait for their owner's approval, and when they were proposed."""
        rows = self._all("SELECT study, asked FROM studies WHERE pending = 1")
        return {str(study): float(asked) for study, asked in rows}

    def hold(self, study: str, plan: str, proposer: str) -> None:
        """Keep a proposal for its owner's approval; it reserves nothing."""
        self._note("INSERT OR IGNORE INTO studies VALUES(?, ?, ?, 1, NULL)", study, plan, self.now())
        self.claim(study, proposer)

    def drop(self, study: str) -> None:
        """Forget a proposal that was not approved."""
        self._note("DELETE FROM studies WHERE study = ? AND pending = 1", study)
        self._note("DELETE FROM proposers WHERE study = ?", study)

    def _note(self, statement: str, *values: Any) -> None:
        try:
            self._database.execute(statement, values)
        except sqlite3.Error:
            raise LedgerError("ledger", "The ledger cannot be written; make room, then ask again.") from None

    def _all(self, statement: str, *values: Any) -> list[Any]:
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error:
            raise LedgerError("ledger", "The ledger cannot be read.") from None

    def _ask(self, statement: str, *values: Any) -> Any:
        return next(iter(self._all(statement, *values)), None)


def _split_already(aside: int, records: int, share: float) -> str:
    """What to do about a policy that asks for another split."""
    return (
        f"The ledger has set {aside} of its {records} records aside for validation, for ever, and the policy's "
        f"data.validation is {share:g}: a second split would let a record pay from two accounts. Set data.validation = "
        f"{aside / records:g}."
    )


def _identity(first: Entry) -> str:
    """What tells a ledger apart from all others: random, in its first entry."""
    return str(first.data.get("ledger", first.hash))


def aside_of(path: Path, moment: str) -> Path:
    """Where what is left of a ledger is put when it is written off."""
    return path.with_name(f"{path.name}.written-off-{moment}")


def put_aside(path: Path) -> list[Path]:
    """What is left of ledgers that were written off, or were about to be."""
    return sorted(path.parent.glob(aside_of(path, "*").name))


def check_beginning(path: Path) -> None:
    """Raise where a ledger would begin at zero although one of these records was written off."""
    found = put_aside(path)
    if found:
        raise LedgerError(
            "restored",
            f"No ledger is at {path}, but {found[0].name} lies beside it: a write-off was cut off, or the ledger was "
            f"lost after one. Run: tacit silo write-off {path.parent}",
        )


def _mismatch(path: Path, different: list[str]) -> str:
    """What to do about a ledger that was opened for something else."""
    if different == ["test"]:
        return (
            f"The ledger {path} belongs to a test build without noise and this one has noise, or the other way round; "
            "serve another folder, with a ledger of its own (tacit silo init)."
        )
    what = "another number of records" if "records" in different else "as many records, but not the same"
    return (
        f"The records, or the schema that they are read by, are not those that the ledger {path} was opened for "
        f"({what}); a ledger belongs to one fixed set of records. Either put the files back as "
        "they were, or serve the changed records from a new folder (tacit silo init), whose ledger begins at zero: for "
        "every record that is in both sets the budgets of both ledgers add up. See New patients in docs/deployment.md."
    )


def _moved(path: Path) -> str:
    """What to do about a ledger that lives elsewhere."""
    folder = path.parent
    return (
        f"The ledger {path} is bound to another machine or folder: this is a copy, or it was moved without a word. Two "
        f"copies that serve would spend one budget twice. To move it, run there: tacit silo move {folder.name} PLACE, "
        f"with the place that `tacit silo place {folder}` prints here, and copy the folder and its counter afterwards. "
        "See Lost, moved, copied in docs/deployment.md."
    )


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes durably."""
    # A statement that is kept for later keeps what was last bound to it: a reply of megabytes.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=0)
    try:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        # What a finished study leaves behind is overwritten, not only forgotten.
        database.execute("PRAGMA secure_delete=ON")
    except sqlite3.Error as error:
        database.close()
        raise LedgerError("ledger", f"{path} is not a ledger, or cannot be opened: {error}.") from None
    return database


def _read_entries(database: sqlite3.Connection) -> list[Entry]:
    columns = "seq, time, kind, study, body, previous, hash"
    return [Entry(*row) for row in database.execute(f"SELECT {columns} FROM entries ORDER BY seq")]


def inspect(path: Path) -> list[Entry]:
    """The verified entries of a ledger that another process may hold; nothing is changed."""
    entries = _look(path, _read_entries)
    verify(entries)
    return entries


def waiting(path: Path) -> dict[str, str]:
    """The plans that wait for their owner's approval in a ledger that another process may hold."""
    pending = "SELECT study, plan FROM studies WHERE pending = 1"
    return _look(path, lambda database: dict(database.execute(pending).fetchall()))


def refusals(path: Path) -> list[dict[str, Any]]:
    """The refusals that a ledger has counted, newest first; none in ledgers of earlier versions."""
    columns = ("day", "code", "proposer", "count", "last")

    def read(database: sqlite3.Connection) -> list[dict[str, Any]]:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'refusals'").fetchone():
            return []
        rows = database.execute(f"SELECT {', '.join(columns)} FROM refusals ORDER BY last DESC")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    return _look(path, read)


def _look(path: Path, read: Callable[[sqlite3.Connection], T]) -> T:
    if not path.is_file():
        raise LedgerError("ledger", f"No ledger at {path}; start the silo once: tacit silo serve {path.parent}")
    database = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)
    try:
        return read(database)
    except sqlite3.Error as error:
        raise LedgerError("ledger", f"{path} is not a ledger: {error}.") from None
    finally:
        database.close()
