"""A silo's ledger in its owner's words: who asked for what, who approved it, what was told, and what is left."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from tacit.cli.status import (
    account_now,
    account_words,
    books,
    channel_of,
    in_force,
    moment,
    name_of,
    percent_of,
    plans_in,
    rests_on,
)
from tacit.deploy.silo.policy import Policy
from tacit.errors import counted
from tacit.privacy import Event, PricingError, price
from tacit.silo.chain import Ending, Entry, Notes, replay, settled
from tacit.silo.ledger import refusals, waiting
from tacit.silo.pools import POOLS
from tacit.silo.spending import Account, LedgerError, joint_price, share

# What `--json` shows of an entry; plans and policies are long.
_KEPT = {"round", "kind", "releases", "reason", "rule", "who", "when", "changed", "place", "vouched", "written_off"}
_KEPT |= {"name", "proposer", "approved", "note"}


def account_of(folder: Path) -> dict[str, Any]:
    """What a silo has spent, from its verified books, as plain data."""
    policy, home, problem = in_force(folder)
    entries = books(home)
    account, accounts = account_now(policy, entries), replay(entries)
    shares = _shares(policy, entries, accounts)
    endings = Notes(entries).endings
    reserved = {entry.study: entry for entry in entries if entry.kind == "reserve"}
    studies = [
        _study(reserved[study], own, endings.get(study), account["delta"], shares) for study, own in accounts.items()
    ]
    ended = [_refused(entry) for entry in entries if entry.kind == "refuse" and entry.study not in accounts]
    return {
        "silo": policy.name,
        "policy_problem": problem,
        "account": account,
        "epsilon_if_fixed_in_advance": _dearest(accounts.values(), account["delta"]),
        "by_trust": _by_trust(studies, accounts, account["delta"]),
        "length": len(entries),
        "head": entries[-1].hash if entries else None,
        "records": entries[0].data["records"] if entries else None,
        "test": bool(entries and entries[0].data.get("test")),
        "studies": studies + ended,
        "pending": [{"study": s, "name": name_of(p)} for s, p in (waiting(home.ledger) if entries else {}).items()],
        "refusals": [row | {"last": moment(row["last"])} for row in (refusals(home.ledger) if entries else [])],
        "entries": [
            {"entry": e.seq, "time": moment(e.time), "what": e.kind, "study": e.study}
            | {k: v for k, v in e.data.items() if k in _KEPT}
            for e in entries
        ],
    }


def _shares(policy: Policy, entries: list[Entry], accounts: Mapping[str, Account]) -> dict[str, float]:
    try:
        rule = settled(entries, policy.limit)
    except LedgerError as error:
        if error.code != "written-off":
            raise
        return dict.fromkeys(accounts, math.inf)
    return {study: share(rule, [account.charged(rule)]) for study, account in accounts.items()}


def _study(
    reserved: Entry, account: Account, ending: Ending | None, delta: float, shares: Mapping[str, float]
) -> dict[str, Any]:
    """One study that was reserved: what was asked, who let it in, what was released, and how it ended."""
    study, plan = reserved.study, _plain(reserved.data.get("plan"))
    return {
        "study": study,
        "name": name_of(plans_in([reserved])[study]),
        "state": "open" if account.live else "closed",
        "ended": None if ending is None else {"how": ending.reason, "who": ending.who, "when": moment(ending.time)},
        "proposer": reserved.data.get("proposer"),
        "purpose": plan.get("purpose"),
        "approved": reserved.data.get("approved"),
        "reserved": moment(reserved.time),
        "algorithm": plan.get("algorithm", {}).get("name"),
        "rounds": plan.get("algorithm", {}).get("num_rounds"),
        "pool": account.pool,
        "channel": channel_of(plan),
        "rests_on": rests_on(plan),
        "asked_epsilon": plan.get("epsilon"),
        "asked_delta": plan.get("delta"),
        "answers": account.answers,
        "releases": dict(account.made),
        "own_epsilon": price(account.debited(), delta=delta).epsilon,
        "takes_share": shares[study] if math.isfinite(shares[study]) else None,
    }


def _refused(entry: Entry) -> dict[str, Any]:
    """A study that its owner turned away before it was reserved."""
    data = entry.data
    nothing = dict.fromkeys(("purpose", "approved", "reserved", "algorithm", "rounds", "pool", "channel", "rests_on"))
    return {
        "study": entry.study,
        "name": data.get("name") or "(unnamed)",
        "state": "refused",
        "ended": {
            "how": data["reason"],
            "who": data.get("who", ""),
            "when": moment(entry.time),
            "note": data.get("note", ""),
        },
        "proposer": data.get("proposer") or None,
        **nothing,
        "asked_epsilon": None,
        "asked_delta": None,
        "answers": 0,
        "releases": {},
        "own_epsilon": 0.0,
        "takes_share": 0.0,
    }


def _plain(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text)
        return found if isinstance(found, dict) else {}
    except (ValueError, TypeError):
        return {}


def _dearest(accounts: Iterable[Account], delta: float) -> float | None:
    """What `_joint` says of the pool of records that pays more; none where one cannot be had."""
    accounts = list(accounts)
    found = [_joint([own for own in accounts if own.pool in (None, pool)], delta) for pool in POOLS]
    return None if None in found else max(epsilon for epsilon in found if epsilon is not None)


def _joint(accounts: Any, delta: float) -> float | None:
    """The price of the releases made, as one composition; none where it cannot be had."""
    accounts = list(accounts)
    kept = math.fsum(account.delta_set_aside for account in accounts)
    events: list[Sequence[Event]] = [account.debited() for account in accounts]
    try:
        return joint_price(events, delta=delta - kept).epsilon
    except PricingError:
        return None


def _by_trust(
    studies: Sequence[Mapping[str, Any]], accounts: Mapping[str, Account], delta: float
) -> list[dict[str, Any]]:
    """What was released, apart by what its guarantee rests on; the epsilons of two rows are not one number.

    All rows together are what the account counts: that number rests on all of what they rest on.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for row in studies:
        rows.setdefault(row["rests_on"], []).append(row)
    return [
        {
            "rests_on": trust,
            "channels": sorted({row["channel"] for row in own}),
            "studies": [row["name"] for row in own],
            "answers": sum(row["answers"] for row in own),
            "epsilon_if_fixed_in_advance": _dearest((accounts[row["study"]] for row in own), delta),
            "takes_share": None
            if any(row["takes_share"] is None for row in own)
            else math.fsum(row["takes_share"] for row in own),
        }
        for trust, own in rows.items()
    ]


def ended_words(row: Mapping[str, Any]) -> str:
    """How a study stands, and who ended it."""
    ended = row["ended"]
    if ended is None:
        return "open" if row["state"] == "open" else "closed"
    who = f" by {ended['who']}" if ended["who"] else ""
    return f"{ended['how']}{who}" + (f": {ended['note']}" if ended.get("note") else "")


def approved_words(row: Mapping[str, Any]) -> str:
    """Who approved a study, and when."""
    approved = row["approved"]
    if not approved:
        return "not known" if row["state"] != "refused" else "nobody"
    said = f"{approved['who']}, {approved['when']}" if approved["when"] else str(approved["who"])
    return f"{said}: {approved['note']}" if approved.get("note") else said


def trust_words(found: Mapping[str, Any]) -> list[str]:
    """What was released by what it rests on, a line each; then that these numbers are not to be added up."""
    lines = [
        f"{counted(row['answers'], 'answer')} to {', '.join(row['studies'])} ({', '.join(row['channels'])}): epsilon "
        f"{_number(row['epsilon_if_fixed_in_advance'])}, resting on: {row['rests_on']}."
        for row in found["by_trust"]
    ]
    if len(lines) > 1:
        lines.append("These epsilons are not one number: all of them together rest on everything named above.")
    return lines


def _number(value: float | None) -> str:
    return "that cannot be priced" if value is None else f"{value:.4f}"


def write_page(folder: Path, path: Path) -> None:
    """Write the ledger as one self-contained page for a data-protection officer."""
    import jinja2

    found = account_of(folder)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": percent_of,
        "number": _number,
        "counted": counted,
        "ended": ended_words,
        "approved": approved_words,
    }
    template = resources.files("tacit.cli") / "templates" / "ledger.html.jinja"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    changes = [row for row in found["entries"] if row["what"] in ("policy", "move", "rule") or row.get("written_off")]
    page = environment.from_string(template.read_text(encoding="utf-8")).render(
        **found, now=now, words=account_words(found["account"]), trust=trust_words(found), changes=changes
    )
    path.write_text(page, encoding="utf-8")
    path.chmod(0o600)
