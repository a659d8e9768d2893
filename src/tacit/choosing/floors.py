"""What no protocol beats in a situation: the floor of every risk that the theorems bound, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.choosing.candidates import Measure
from tacit.choosing.situation import Rule, Situation
from tacit.theory import Claim, TheoryError, floor
from tacit.theory.statement import Risk

SOURCE = "van Trees with the information of private transcripts (tacit.theory.floor)"
_RULES: tuple[Rule, ...] = (
    (lambda s: s.convex, "floors are for convex losses"),
    (lambda s: not s.squared, "squared losses of a linear model are easier than the losses of the proof"),
    (lambda s: not s.fairness, "the proof protects records, not the sensitive attribute alone"),
)
_RISKS: tuple[tuple[Risk, Measure], ...] = (
    ("population", "population excess risk"),
    ("empirical", "empirical excess risk"),
)
_CLAIMS: tuple[Claim, ...] = ("(epsilon, delta)-DP", "Gaussian DP")


@dataclass(frozen=True, kw_only=True)
class FloorRow:
    """A measure that no protocol of a kind brings below ``value`` for every problem of the situation.

    ``claim`` is what the protocols promise each record; ``trusts`` says whether they trust anybody with more than what
    each silo may say in public. Without a value ``reasons`` say why. For "(epsilon, delta)-DP" constants are explicit,
    and it holds where the conditions of a theorem's lower bound fail; it may be above that one, with its hidden
    constant set to one, only for "Gaussian DP".
    """

    measure: Measure
    claim: Claim
    trusts: bool
    source: str = SOURCE
    value: float | None = None
    limited_by: str | None = None
    reasons: tuple[str, ...] = ()


def floors(s: Situation) -> tuple[FloorRow, ...]:
    """The floors of population and empirical risk, for the budget as it is and for Gaussian DP within it.

    >>> rows = floors(Situation(convex=True, sizes=(1000,) * 20, dimension=10, epsilon=1))
    >>> [(row.measure.split()[0], row.limited_by) for row in rows if row.claim == "Gaussian DP"]
    [('population', 'records'), ('empirical', 'privacy')]
    """
    reasons = tuple(text for holds, text in _RULES if not holds(s))
    return tuple(_row(s, risk, measure, claim, reasons) for risk, measure in _RISKS for claim in _CLAIMS)


def _row(s: Situation, risk: Risk, measure: Measure, claim: Claim, reasons: tuple[str, ...]) -> FloorRow:
    trusts = s.shuffler or s.trusted_server or s.peers
    if not reasons:
        try:
            found = floor(s.convex_setting(), risk, sizes=s.sizes, claim=claim, trusted=trusts)
            return FloorRow(measure=measure, claim=claim, trusts=trusts, value=found.value, limited_by=found.limited_by)
        except TheoryError as error:
            reasons = (str(error),)
    return FloorRow(measure=measure, claim=claim, trusts=trusts, reasons=reasons)
