"""The append-only chain of a ledger, and the counter that is kept apart from it.

Every entry holds the hash of the one before: a changed, removed or reordered entry is found. A chain cannot know that
its newest entries are missing, so a small file elsewhere remembers how long it was. A ledger that is shorter than its
counter was restored from a backup and has forgotten releases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tacit.privacy import Event
from tacit.privacy.filter import Rule, RuleName, rule_for
from tacit.silo.pools import Split, split_in
from tacit.silo.spending import Account, LedgerError

GENESIS = "0" * 64
# Entries that change no account: how the ledger began, its rule, the owner's policy and refusals, where it lives, and
# how its records are split.
_MOVES_NOTHING = ("open", "rule", "policy", "refuse", "move", "pools")


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    seq: int
    time: float
    kind: str
    study: str
    body: str
    previous: str
    hash: str

    @property
    def data(self) -> dict[str, Any]:
        """What the entry says."""
        body = json.loads(self.body)
        if not isinstance(body, dict):
            raise LedgerError("ledger", f"Expected entry {self.seq} of the ledger to hold an object.")
        return body


def entry_after(previous: Entry | None, *, time: float, kind: str, study: str, body: Mapping[str, Any]) -> Entry:
    """The next entry of a chain."""
    seq, before = (1, GENESIS) if previous is None else (previous.seq + 1, previous.hash)
    text = json.dumps(body, sort_keys=True, allow_nan=False)
    return Entry(seq, time, kind, study, text, before, _hash(seq, time, kind, study, text, before))


def _hash(seq: int, time: float, kind: str, study: str, body: str, previous: str) -> str:
    return hashlib.sha256(json.dumps([seq, time, kind, study, body, previous]).encode()).hexdigest()


def verify(entries: Iterable[Entry]) -> Entry | None:
    """The last entry of a chain whose every link holds; an altered, missing or reordered entry raises."""
    last: Entry | None = None
    for entry in entries:
        seq, before = (1, GENESIS) if last is None else (last.seq + 1, last.hash)
        own = _hash(entry.seq, entry.time, entry.kind, entry.study, entry.body, entry.previous)
        if (entry.seq, entry.previous, entry.hash) != (seq, before, own):
            raise LedgerError(
                "ledger", f"Entry {entry.seq} of the ledger does not follow from the one before: it was altered."
            )
        last = entry
    return last


def replay(entries: Iterable[Entry]) -> dict[str, Account]:
    """The accounts that a chain adds up to."""
    accounts: dict[str, Account] = {}
    for entry in entries:
        data = entry.data
        if entry.kind == "reserve":
            kept = data["delta_set_aside"] if "delta_set_aside" in data else _set_aside_before(data.get("plan"))
            accounts[entry.study] = Account(
                tuple(Event(**row) for row in data["events"]),
                float(data["expires"]),
                delta_set_aside=float(kept),
                samples=int(data.get("samples", 0)),
                pool=data.get("pool"),
            )
        elif entry.kind == "debit":
            accounts[entry.study] = accounts[entry.study].after(
                data["kind"], data["releases"], data["round"], data.get("attempt", 0)
            )
        elif entry.kind == "close":
            accounts[entry.study] = accounts[entry.study].closed()
        elif entry.kind not in _MOVES_NOTHING:
            raise LedgerError("ledger", f"Entry {entry.seq} is of the unknown kind {entry.kind!r}.")
    return accounts


class Ending(NamedTuple):
    """How a study ended: ``finished`` by its proposer, ``expired``, or by the owner (``rejected``, ``closed``,
    ``revoked``)."""

    reason: str
    who: str
    time: float


class Notes:
    """What a chain says beside its accounts.

    ``endings`` has every study that is over, ``revoked`` the terms that the owner will not have again, ``policy`` the
    newest policy, ``place`` where the ledger may be served (`place_of`), and ``split`` how its records are split.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.endings: dict[str, Ending] = {}
        self.revoked: set[str] = set()
        self.policy: dict[str, Any] | None = None
        self.place: str | None = None
        self.split: Split | None = None
        for entry in entries:
            self.take(entry)

    def take(self, entry: Entry) -> None:
        """Read one more entry."""
        data = entry.data
        if entry.kind in ("close", "refuse"):
            self.endings[entry.study] = Ending(str(data["reason"]), str(data.get("who", "")), entry.time)
            self.revoked |= {str(data["terms"])} if "terms" in data else set()
        if entry.kind == "open":
            # By the owner of ledgers that were written off.
            self.revoked |= set(map(str, data.get("revoked", ())))
        if entry.kind in ("open", "policy"):
            self.policy = data.get("policy", self.policy)
        if entry.kind in ("open", "move"):
            self.place = data.get("place", self.place)
        # A ledger that writes another one off begins with that one's split, where it is known.
        split = data if entry.kind == "pools" else data.get("pools") if entry.kind == "open" else None
        if split is not None and self.split is None:
            self.split = split_in(split)


def _set_aside_before(plan: Any) -> float:
    """What a study of version 0.1 kept of delta: 1e-12 if it went through shufflers, or if its plan cannot be read."""
    try:
        return 0.0 if json.loads(plan)["shuffle"] is None else 1e-12
    except (ValueError, KeyError, TypeError):
        return 1e-12


class Counter:
    """A file that remembers the longest chain seen, and the budget it had; it must not share the ledger's backups."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[int, str] | None:
        """Length and last hash of the longest chain, or nothing if there never was one."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            return int(stored["seq"]), str(stored["hash"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            raise LedgerError(
                "counter", f"The counter {self.path} cannot be read; restore that file, or start a new ledger."
            ) from None

    def promised(self) -> WrittenOff | None:
        """The most that the chain can have promised to spend, with what it wrote off; none in earlier versions."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            return WrittenOff(float(stored["epsilon"]), float(stored["delta"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def advance(self, entry: Entry, promised: WrittenOff) -> None:
        """Remember this entry, and what its chain can have spent at most, durably."""
        temporary = self.path.with_name(self.path.name + ".new")
        body = json.dumps({"seq": entry.seq, "hash": entry.hash, **promised._asdict()})
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as handle:
            os.write(handle, body.encode())
            os.fsync(handle)
        temporary.replace(self.path)
        synced(self.path.parent)

    def check(self, entries: list[Entry]) -> None:
        """Raise if the chain is shorter than, or branches off from, the one that the counter remembers."""
        known = self.read()
        if known is None:
            # Only a ledger that has never been used may lack a counter: it was being created.
            if len(entries) > 1:
                raise LedgerError(
                    "counter", f"The counter {self.path} is missing for a ledger in use; restore that file."
                )
            return
        seq, expected = known
        if len(entries) < seq or entries[seq - 1].hash != expected:
            raise LedgerError(
                "restored",
                f"The ledger has {len(entries)} entries but its counter has seen {seq}: it was restored from a backup "
                "and has forgotten releases that were made. Put the newest ledger back. If it is lost, its whole "
                "budget counts as spent: tacit silo write-off FOLDER, which asks before it does.",
            )


def synced(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    with _opened(path, os.O_RDONLY) as handle:
        os.fsync(handle)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def lock(path: Path, held: str) -> int:
    """Hold a file for this process alone until its handle is closed; a second holder is refused with ``held``."""
    # It is written to below, and must be no link to somebody's file.
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = ""
        with contextlib.suppress(OSError):
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
        os.close(handle)
        who, how = (f" (process {holder})", f", with: kill {holder}") if holder.isdigit() else ("", "")
        raise LedgerError(
            "locked", f"{held}{who}; one ledger has one daemon. Let that one go on, or stop it first{how}"
        ) from None
    # Only a courtesy to a second holder: a full disk must not keep the first one out.
    with contextlib.suppress(OSError):
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


class WrittenOff(NamedTuple):
    """What earlier ledgers of the same records count as having spent."""

    epsilon: float
    delta: float


def written_off(entries: Iterable[Entry]) -> WrittenOff | None:
    """What the first entry of a chain writes off, if anything."""
    for entry in entries:
        body = entry.data.get("written_off")
        return None if body is None else WrittenOff(float(body["epsilon"]), float(body["delta"]))
    return None


MACHINE_ID = Path("/etc/machine-id")


def place_of(folder: Path, secret: Path) -> str:
    """Where a ledger may be served: a fingerprint of this machine and of the folder's path.

    The machine is known by its id and by random bytes in the file ``secret``, made here if they are not there. A clone
    of both cannot be told apart from it.
    """
    secret.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError), _opened(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as handle:
        os.write(handle, os.urandom(32))
        os.fsync(handle)
    machine = b""
    with contextlib.suppress(OSError):
        machine = MACHINE_ID.read_bytes().strip()
    parts = (b"tacit place 1", machine, secret.read_bytes(), str(folder.resolve()).encode())
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Limit:
    """The budget in the owner's policy; a ledger keeps its rule where ``rule`` is None, a new one takes ``default``."""

    epsilon: float
    delta: float
    rule: RuleName | None
    default: RuleName

    def less(self, written: WrittenOff | None) -> Limit:
        """What is left for a ledger whose predecessors count as spent; a refusal where that is nothing."""
        if written is None:
            return self
        if not (self.epsilon > written.epsilon and self.delta > written.delta):
            raise LedgerError(
                "written-off",
                f"An earlier ledger of these records was lost, and its whole budget counts as spent: epsilon "
                f"{written.epsilon:g} at delta {written.delta:g}. The policy's budget, epsilon {self.epsilon:g} at "
                f"delta {self.delta:g}, leaves nothing to serve. If these records may lose more, raise budget.epsilon "
                "and budget.delta above what is written off; the difference is what later studies may cost.",
            )
        return dataclasses.replace(self, epsilon=self.epsilon - written.epsilon, delta=self.delta - written.delta)

    @property
    def fresh(self) -> Rule:
        """The rule of a ledger that has none yet."""
        return rule_for(self.rule or self.default, self.epsilon, self.delta)


def settled(entries: Iterable[Entry], limit: Limit) -> Rule:
    """The rule that a ledger with these entries has under this limit.

    Formal guarantee: if a study was ever reserved under a rule, the result has the same name, order, delta, delta set
    aside and tail; a limit that asks for anything else is refused.
    """
    entries = list(entries)
    written = written_off(entries)
    limit, old = limit.less(written), rules_in(entries)
    if not old or not any(entry.kind == "reserve" for entry in entries):
        return limit.fresh
    rule = old[-1]
    if limit.rule not in (None, rule.name):
        raise LedgerError(
            "rule",
            f'The ledger\'s rule is "{rule.name}" since before its first study, and the policy asks for '
            f'"{limit.rule}". A rule that is changed after messages were read bounds nothing. Set budget.rule = '
            f'"{rule.name}" in the policy, or leave it out. Other records can have another rule, in a new folder '
            "(tacit silo init).",
        )
    if limit.delta != rule.delta:
        # The policy counts what is written off too.
        right = rule.delta if written is None else rule.delta + written.delta
        raise LedgerError(
            "rule",
            f"The ledger's delta is {rule.delta:g} since before its first study, and the policy says {limit.delta:g}. "
            f"Rule and order hang on it. Set budget.delta = {right!r}; epsilon may be changed instead.",
        )
    return dataclasses.replace(rule, epsilon=limit.epsilon)


def rules_in(entries: Iterable[Entry]) -> list[Rule]:
    """The rules that a chain has had, oldest first; none in a ledger of version 0.1."""
    bodies = [(entry.data, entry.seq) for entry in entries if entry.kind in ("open", "rule")]
    return [_from_json(body["rule"], seq) for body, seq in bodies if "rule" in body]


def promised(entries: Iterable[Entry], rule: Rule) -> float:
    """The largest epsilon that the chain has had since its first study, ``rule`` being the one of today."""
    epsilons, before, used = [rule.epsilon], None, False
    for entry in entries:
        if entry.kind == "reserve" and not used:
            used = True
            epsilons += [] if before is None else [before.epsilon]
        for changed in rules_in([entry]):
            before = changed
            epsilons += [changed.epsilon] if used else []
    return max(epsilons)


def most_spent(entries: Iterable[Entry], rule: Rule) -> WrittenOff:
    """The most that a chain can have spent, ``rule`` being the one of today, with what it has written off."""
    entries = list(entries)
    before = written_off(entries) or WrittenOff(0.0, 0.0)
    return WrittenOff(promised(entries, rule) + before.epsilon, rule.delta + before.delta)


def rule_body(rule: Rule) -> dict[str, Any]:
    """A rule as it is written into the chain."""
    return {"rule": dataclasses.asdict(rule)}


def _from_json(row: Any, seq: int) -> Rule:
    try:
        return Rule(**row)
    except TypeError:
        unknown = f"Entry {seq} of the ledger holds no rule that this Tacit knows; upgrade it."
        raise LedgerError("ledger", unknown) from None
