"""The rule of a ledger: written into its chain before the first study, and the same ever after.

The chain holds the rule, its order, delta and epsilon: in the entry that opens the ledger, or in an entry ``rule``.
Until the first study is reserved the owner may choose another rule. Afterwards only epsilon may change, and every
change is an entry. A filter bounds a sum of losses, so another epsilon at the same order and delta is another bound:
for all messages together the largest epsilon holds that the chain has had since its first study. Another rule, delta or
order would be a choice that may follow messages, and is refused.
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
    """The budget in the owner's policy; a ledger keeps its rule where ``rule`` is None, a new one takes ``default``."""

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
    old = rules_in(entries)
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
        raise LedgerError(
            "rule",
            f"The ledger's delta is {rule.delta:g} since before its first study, and the policy says {limit.delta:g}. "
            f"Rule and order hang on it. Set budget.delta = {rule.delta!r}; epsilon may be changed instead.",
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


def rule_body(rule: Rule) -> dict[str, Any]:
    """A rule as it is written into the chain."""
    return {"rule": dataclasses.asdict(rule)}


def _from_json(row: Any, seq: int) -> Rule:
    try:
        return Rule(**row)
    except TypeError:
        unknown = f"Entry {seq} of the ledger holds no rule that this Tacit knows; upgrade it."
        raise LedgerError("ledger", unknown) from None
