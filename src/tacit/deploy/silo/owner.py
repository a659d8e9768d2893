"""What the silo's owner decides while the daemon runs: studies that end, and a policy that changes.

Decisions are files in the silo's folder, so that they count whether the daemon runs or not. It reads them before every
request, and each becomes an entry of the ledger's chain, with who decided and when. The daemon loads this module only
when there is something to decide.
"""

from __future__ import annotations

import datetime
import logging
import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.deploy.permissions import check_owner, write_secret
from tacit.deploy.sections import changed_values
from tacit.deploy.silo.consent import terms_of
from tacit.deploy.silo.policy import Policy, PolicyError, plain_policy, policy_from
from tacit.deploy.wire import Plan
from tacit.silo.ledger import Ledger

REASONS = {"reject": "rejected", "close": "closed", "revoke": "revoked"}
"""What an owner can do to a study, and how it has ended then; the second word is the code of refusals."""

_log = logging.getLogger("tacit.silo")
_LONGEST = 64
LONGEST_NOTE = 500
_IDENTITY = re.compile(r"[0-9a-f]{64}")
# What the daemon has read, opened or locked at its start.
_FIXED = ("name", "data", "key", "counter", "test")


def myself() -> str:
    """Who runs this process, as far as the system knows."""
    name, caller = _user(os.geteuid()), os.environ.get("SUDO_USER", "")
    return f"{caller} as {name}" if caller and caller != name else name


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def author(path: Path) -> dict[str, str]:
    """Who wrote a decision, when, and why: its first line if it names somebody, else its owner; and the note in it."""
    found = path.stat()
    name, _, note = _lines(path)
    facts = {"who": name[:_LONGEST] or _user(found.st_uid), "when": _moment(found.st_mtime)}
    return facts | ({"note": note[:LONGEST_NOTE]} if note else {})


def _lines(path: Path) -> tuple[str, str, str]:
    """Who has decided, the terms that are revoked, and the note, as the lines of a decision say it."""
    text = path.read_text(encoding="utf-8", errors="replace")[: 4 * LONGEST_NOTE]
    lines = ["".join(letter for letter in line if letter.isprintable()).strip() for line in text.split("\n")]
    first, second, third = [*lines, "", "", ""][:3]
    return first, second, third


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def decide(folder: Path, study: str, verb: str, terms: str = "", note: str = "") -> None:
    """Write a decision down for the daemon, with the ``terms`` that are revoked: the proposal may be gone by then.

    ``note`` says why, in one line; it goes into the ledger's chain, and to nobody else.

    Only the owner of the silo's folder may: the daemon could not read what anybody else writes.
    """
    check_owner(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / (study if verb == "approve" else f"{study}.{verb}")
    # Written elsewhere first: a daemon that finds it in the folder finds all of it.
    draft = folder.parent / f".{path.name}.new"
    draft.unlink(missing_ok=True)
    write_secret(draft, decision(terms, note))
    draft.replace(path)


def decision(terms: str, note: str) -> str:
    """What a decision's file says: who has decided, the terms that are revoked, and why."""
    line = " ".join(note.split())
    if len(line) > LONGEST_NOTE:
        raise PolicyError(f"Expected a note of at most {LONGEST_NOTE} characters, got {len(line)}; shorten it.")
    return f"{myself()}\n{terms}\n{line}"


def heed(ledger: Ledger, decided: Path, names: list[str]) -> None:
    """Make entries of the owner's decisions in a folder, then take the files away."""
    for name in sorted(names):
        study, _, verb = name.partition(".")
        if verb in REASONS and _IDENTITY.fullmatch(study):
            _end(ledger, study, verb, decided / name)
        else:
            _log.warning("decided/%s is no decision about a study; it is removed", name[:100])
    for name in names:
        (decided / name).unlink(missing_ok=True)


def _end(ledger: Ledger, study: str, verb: str, path: Path) -> None:
    """End a study, unless a crash came between the entry and the end of its file."""
    text, account, facts = ledger.plan(study), ledger.accounts.get(study), author(path)
    plan = None if text is None else Plan.model_validate_json(text)
    _, told, _ = _lines(path)
    revoked = told if plan is None else terms_of(plan)
    terms = {"terms": revoked} if verb == "revoke" and _IDENTITY.fullmatch(revoked) else {}
    is_over = study in ledger.notes.endings and not (account is not None and account.live)
    if is_over and not set(terms.values()) - ledger.notes.revoked:
        return
    name = "" if plan is None else plan.name
    ledger.refuse(study, REASONS[verb], name=name, proposer=ledger.owner_of(study) or "", **facts, **terms)
    _log.info("study %s (%s) is %s by %s", study, name, REASONS[verb], facts["who"])


def changed_policy(folder: Path, text: bytes, before: Policy) -> Policy:
    """The policy in an edited file, or an error where it cannot take effect while the daemon runs."""
    path = folder / "policy.toml"
    policy = policy_from(changed_values(text, path, PolicyError))
    fixed = [line for line in differences(plain_policy(before), plain_policy(policy)) if _section(line) in _FIXED]
    if fixed:
        raise PolicyError(f"{path}: restart needed for {'; '.join(fixed)}. Until then everything is refused.")
    return policy


def _section(line: str) -> str:
    return line.partition(":")[0].partition(".")[0]


def policy_entry(folder: Path, before: Mapping[str, Any] | None, policy: Policy) -> dict[str, Any]:
    """What the chain keeps of a policy that takes effect: all of it, what is new in words, who wrote it and when."""
    after = plain_policy(policy)
    lines = ["first kept in the chain"] if before is None else differences(before, after)
    path = folder / "policy.toml"
    found = path.stat() if path.exists() else None
    who = {} if found is None else {"who": _user(found.st_uid), "when": _moment(found.st_mtime)}
    return {"policy": after, "changed": lines, **who}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between two policies, field by field, in words."""
    old, new = _flat(before), _flat(after)
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return [f"{name}: {_word(old.get(name))} -> {_word(new.get(name))}" for name in changed]


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) else {above + key: value}
    return found


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_word, value)) + "]"
    return "nothing" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
