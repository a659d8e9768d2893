"""A silo's ledger that moves to another machine or folder, or was lost: what its owner runs then."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from tacit.deploy.permissions import check_owner
from tacit.deploy.silo.owner import myself
from tacit.deploy.silo.policy import Policy, digest, load_policy, load_records, plain_policy
from tacit.deploy.silo.service import Home, home_of
from tacit.errors import TacitError
from tacit.silo import lost
from tacit.silo.chain import Counter, Entry, Notes, most_spent, place_of, rules_in, written_off
from tacit.silo.ledger import Ledger, inspect, put_aside
from tacit.silo.spending import LedgerError

_PLACES = (
    "give the number that `tacit silo place` prints at the new place, before the ledger is copied there; if the ledger "
    "and its counter are in their new place already, run there: tacit silo move FOLDER --here"
)


def place(folder: Path) -> tuple[str, Path]:
    """Where a silo's folder is, as a fingerprint, and its counter, which the fingerprint depends on."""
    _, home = _home(folder)
    return place_of(home.folder, home.machine), home.counter


def move(folder: Path, to: str | None, *, here: bool) -> str:
    """Bind a ledger to another place, or to this one; returns what to do next."""
    if (to is None) != here:
        raise TacitError("Expected the PLACE to move to, as `tacit silo place` prints it there, or --here.")
    policy, home = _home(folder)
    if not home.ledger.exists():
        raise TacitError(f"No ledger at {home.ledger}; there is nothing to move.")
    own = place_of(home.folder, home.machine)
    if to is not None and not re.fullmatch(r"[0-9a-f]{32}", to):
        raise TacitError(f"Expected a place of 32 hexadecimal digits, got {to!r}; {_PLACES}")
    # Whoever vouches for this place may open a ledger that lives elsewhere; nobody else may.
    open_from = None if here else own
    ledger = Ledger(home.ledger, home.counter, {}, policy.limit, checked=policy.checked_second, place=open_from)
    try:
        ledger.note("move", "", {"place": to or own, "who": myself(), "vouched": here})
    finally:
        ledger.close()
    if here:
        return f"The ledger of {folder} is bound to this place. Never serve another copy of it."
    return (
        f"The ledger of {folder} is bound to {to}, and is not served here any more. Copy {home.ledger} and the counter "
        f"{home.counter} there now, with mode 600; the file {home.machine} stays here."
    )


def loss_of(folder: Path, epsilon: float | None, delta: float | None) -> dict[str, Any]:
    """The most that the lost ledgers of a folder can have spent.

    That is the largest of the policy's budget, what the counter says that they had, what is left of them says, and what
    the owner says.
    """
    policy, home = _home(folder)
    counted, budget = Counter(home.counter).promised(), (policy.budget.epsilon, policy.budget.delta)
    found: list[tuple[float, float]] = [] if counted is None else [counted]
    for ledger in (home.ledger, *put_aside(home.ledger)):
        entries = _left(ledger)
        rules, before = rules_in(entries), written_off(entries)
        found += [most_spent(entries, rules[-1])] if rules else [] if before is None else [before]
    known = "or more where the counter or a ledger that is left has had more" if found else "as nothing else is left"
    found += [budget, (epsilon or 0.0, delta or 0.0)]
    most = {"epsilon": max(e for e, _ in found), "delta": max(d for _, d in found)}
    return {**most, "known": f"the policy's budget, {known}"}


def _left(ledger: Path) -> list[Entry]:
    """The entries of a ledger of which something may be left."""
    try:
        return inspect(ledger)
    except LedgerError:
        return []


def write_off(folder: Path, loss: dict[str, Any]) -> str:
    """Begin a ledger anew that writes the loss off; returns what was put aside and what to do next."""
    policy, home = _home(folder)
    records = load_records(policy, folder)
    identity = {"records": len(records["y"]), "digest": digest(records), "test": False}
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    written = {"epsilon": loss["epsilon"], "delta": loss["delta"], "who": myself(), "when": when}
    before = [Notes(_left(ledger)) for ledger in (home.ledger, *put_aside(home.ledger))]
    splits = [one.split for one in before if one.split is not None and sum(one.split[1:]) == len(records["y"])]
    aside = lost.write_off(
        home.ledger,
        home.counter,
        identity,
        written,
        place_of(home.folder, home.machine),
        approvals=sorted(home.approved.glob("*")),
        policy=plain_policy(policy),
        revoked=sorted(set().union(*(one.revoked for one in before))),
        # What was set aside has never trained, and never will.
        **({"pools": splits[0]._asdict()} if splits else {}),
    )
    kept = f" Put aside: {', '.join(map(str, aside))}." if aside else ""
    return (
        f"A new ledger begins at {home.ledger}, with epsilon {loss['epsilon']:g} at delta {loss['delta']:g} written "
        f"off.{kept} What was approved must be approved again. To serve these records again, raise budget.epsilon and "
        "budget.delta in the policy above that."
    )


def _home(folder: Path) -> tuple[Policy, Home]:
    policy = load_policy(folder / "policy.toml")
    check_owner(folder)
    return policy, home_of(folder, policy)
