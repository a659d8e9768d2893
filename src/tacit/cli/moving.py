"""A silo's ledger that moves to another machine or folder, or was lost: what its owner runs then."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from tacit.deploy.silo.owner import myself
from tacit.deploy.silo.policy import Policy, digest, load_policy, load_records, plain_policy
from tacit.deploy.silo.service import Home, home_of
from tacit.errors import TacitError
from tacit.silo import lost
from tacit.silo.chain import place_of, promised, rules_in, written_off
from tacit.silo.ledger import Ledger, inspect
from tacit.silo.spending import LedgerError


def place(folder: Path) -> str:
    """Where a silo's folder is, as a fingerprint."""
    _, home = _home(folder)
    return place_of(home.folder, home.machine)


def move(folder: Path, to: str | None, *, here: bool) -> str:
    """Bind a ledger to another place, or to this one; returns what to do next."""
    if (to is None) != here:
        raise TacitError("Expected the PLACE to move to, as `tacit silo place` prints it there, or --here.")
    policy, home = _home(folder)
    if not home.ledger.exists():
        raise TacitError(f"No ledger at {home.ledger}; there is nothing to move.")
    own = place_of(home.folder, home.machine)
    if to is not None and not re.fullmatch(r"[0-9a-f]{32}", to):
        raise TacitError(f"Expected a place of 32 hexadecimal digits, as `tacit silo place` prints it, got {to!r}.")
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
    """The most that the lost ledgers of a folder can have spent: by the policy, what is left of them, and the owner."""
    policy, home = _home(folder)
    found, known = [(policy.budget.epsilon, policy.budget.delta)], "the policy's budget; no ledger is left"
    if home.ledger.exists():
        try:
            entries = inspect(home.ledger)
            known = f"the policy's budget, or more where the ledger of {len(entries)} entries that is left has had more"
        except LedgerError:
            entries, known = [], "the policy's budget; the ledger that is left cannot be read"
        before, rules = written_off(entries), rules_in(entries)
        earlier = (0.0, 0.0) if before is None else before
        if rules:
            found.append((promised(entries, rules[-1]) + earlier[0], rules[-1].delta + earlier[1]))
    found.append((epsilon or 0.0, delta or 0.0))
    return {"epsilon": max(e for e, _ in found), "delta": max(d for _, d in found), "known": known}


def write_off(folder: Path, loss: dict[str, Any]) -> str:
    """Begin a ledger anew that writes the loss off; returns what was put aside and what to do next."""
    policy, home = _home(folder)
    records = load_records(policy, folder)
    identity = {"records": len(records["y"]), "digest": digest(records), "test": False}
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    written = {"epsilon": loss["epsilon"], "delta": loss["delta"], "who": myself(), "when": when}
    aside = lost.write_off(
        home.ledger,
        home.counter,
        identity,
        written,
        place_of(home.folder, home.machine),
        policy=plain_policy(policy),
    )
    kept = f" Put aside: {', '.join(map(str, aside))}." if aside else ""
    return (
        f"A new ledger begins at {home.ledger}, with epsilon {loss['epsilon']:g} at delta {loss['delta']:g} written "
        f"off.{kept} To serve these records again, raise budget.epsilon and budget.delta in the policy above that."
    )


def _home(folder: Path) -> tuple[Policy, Home]:
    policy = load_policy(folder / "policy.toml")
    return policy, home_of(folder, policy)
