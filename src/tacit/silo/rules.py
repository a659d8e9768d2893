"""The rule of a ledger: written into its chain before the first study, and the same ever after.

The chain holds the rule, its order, delta and epsilon: in the entry that opens the ledger, or in an entry ``rule``.
Until the first study is reserved the owner may choose another rule. Afterwards only epsilon may change, and every
change is an entry. A filter bounds a sum of losses, so a smaller epsilon at the same order and delta is a smaller
bound, and a larger one is a larger promise: what holds for all messages together is the largest epsilon that the chain
has had since its first study. Another rule, another delta or another order would be a choice that may follow messages,
and is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from tacit.privacy.filter import Rule, RuleName, rule_for
from tacit.silo.chain import Entry
from tacit.silo.spending import LedgerError


@dataclasses.dataclass(frozen=True)
class Limit:
    """What all studies together may ever cost each record, as the owner's policy says it.

    ``rule`` is None where the policy leaves it open: then the ledger's own stays, and a new ledger takes ``default``.
    """

    epsilon: float
    delta: float
    rule: RuleName | None
    default: RuleName

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
    old = rules_in(entries)[-1:]
    if not old or not _used(entries):
        return limit.fresh
    [rule] = old
    if limit.rule not in (None, rule.name):
        raise LedgerError(
            "rule",
            f'The ledger\'s rule is "{rule.name}" since before its first study, and the policy asks for '
            f'"{limit.rule}". A rule that is changed after messages were read bounds nothing. Set budget.rule = '
            f'"{rule.name}" in the policy, or leave it out. Other records can have another rule, in a new folder '
            "(tacit silo init).",
        )
    if limit.delta != rule.delta:
        raise LedgerError(
            "rule",
            f"The ledger's delta is {rule.delta:g} since before its first study, and the policy says {limit.delta:g}. "
            f"Rule and order hang on it. Set budget.delta = {rule.delta!r}; epsilon may be changed instead.",
        )
    return dataclasses.replace(rule, epsilon=limit.epsilon)


def rules_in(entries: Iterable[Entry]) -> list[Rule]:
    """The rules that a chain has had, oldest first; none in a ledger of version 0.1."""
    found = []
    for entry in entries:
        data = entry.data if entry.kind in ("open", "rule") else {}
        if "rule" in data:
            found.append(_from_json(data["rule"], entry.seq))
    return found


def promised(entries: Iterable[Entry], rule: Rule) -> float:
    """The largest epsilon that the chain has had since its first study, ``rule`` being the one of today."""
    found, before, used = [rule.epsilon], None, False
    for entry in entries:
        if entry.kind == "reserve" and not used:
            used = True
            found += [] if before is None else [before.epsilon]
        for changed in rules_in([entry]):
            before = changed
            found += [changed.epsilon] if used else []
    return max(found)


def rule_body(rule: Rule) -> dict[str, Any]:
    """A rule as it is written into the chain."""
    return {"rule": dataclasses.asdict(rule)}


def _used(entries: Iterable[Entry]) -> bool:
    return any(entry.kind == "reserve" for entry in entries)


def _from_json(row: Any, seq: int) -> Rule:
    try:
        return Rule(**row)
    except TypeError:
        raise LedgerError(
            "ledger", f"Entry {seq} of the ledger holds no rule that this Tacit knows; upgrade it."
        ) from None
