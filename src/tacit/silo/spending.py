"""What a silo has promised and released, study by study, and how much of its account that takes.

By a filter (`tacit.privacy.filter`) what studies take adds up. Under the rule ``fixed-in-advance`` plans of different
studies are priced as one composition. Inside a study everything that is not subsampled is one Gaussian of known
separation, whatever its passes and running sums. Across studies the squares of these separations add up, because each
study has its own passes and sums. Subsampled releases and shuffled reports keep their loss distributions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tacit.errors import TacitError
from tacit.privacy import Event, Price, PricingError, price
from tacit.privacy.filter import Rule, cost
from tacit.privacy.schedule import gaussian_mu, is_subsampled, is_whole, limit_of, payable, worst_allocation
from tacit.silo.pools import POOLS
from tacit.silo.sampler import sampler_delta

# A reciprocal in float arithmetic may round to the cheap side; this is far above what it loses.
_SHAVE = 1 - 1e-12


class LedgerError(TacitError):
    """The ledger refuses: ``code`` says why in one word, and the message says the way out."""

    def __init__(self, code: str, text: str, numbers: Mapping[str, float] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.numbers = dict(numbers or {})


class Charge(NamedTuple):
    """What counts against an account: releases, and what their study keeps of delta.

    That is ``delta_set_aside`` for noise with short tails, and `tacit.silo.sampler.sampler_delta` of as many samples
    that are not quite discrete Gaussians.
    """

    events: tuple[Event, ...]
    delta_set_aside: float
    samples: int = 0

    def kept(self, epsilon: float) -> float:
        """What is kept of delta at this epsilon."""
        return self.delta_set_aside + sampler_delta(self.samples, epsilon)


@dataclass(frozen=True)
class Account:
    """One study in the ledger: what was reserved, what was debited, the last round answered (-1: none), its attempt.

    ``pool`` is the pool of records that it reads; ``None`` is every record.
    """

    events: tuple[Event, ...]
    expires: float
    live: bool = True
    made: Mapping[str, int] = field(default_factory=dict)
    last: int = -1
    answers: int = 0
    delta_set_aside: float = 0.0
    samples: int = 0
    attempt: int = 0
    pool: str | None = None

    def debited(self) -> tuple[Event, ...]:
        """The releases that were made."""
        return tuple(dataclasses.replace(e, count=self.made.get(e.kind, 0)) for e in self.events)

    def spent(self) -> Charge:
        """What the answers so far have used up for good.

        A release of a full or sampled batch counts by itself. Passes over the records and running sums count whole
        from the first answer on: their price is not a sum over releases, and where they end may follow messages.
        """
        begun = any(self.made.get(event.kind, 0) for event in self.events if is_whole(event))
        events = tuple(
            (event if begun else dataclasses.replace(event, count=0)) if is_whole(event) else made
            for event, made in zip(self.events, self.debited(), strict=True)
        )
        return Charge(events, self.delta_set_aside, self.samples) if self.answers else Charge(events, 0.0)

    def charged(self, rule: Rule) -> Charge:
        """What counts: all that was reserved while the study lives, then what was spent; only a filter gives back."""
        if self.live or rule.name == "fixed-in-advance":
            return Charge(self.events, self.delta_set_aside, self.samples)
        return self.spent()

    def closed(self) -> Account:
        """The account of the study after its end, which nothing opens again."""
        return dataclasses.replace(self, live=False)

    def after(self, kind: str, releases: int, round_number: int, attempt: int = 0) -> Account:
        """The account with one more answer, or a refusal if the reservation does not cover it.

        Formal guarantee: no sequence of answers releases more of a kind than was reserved, nor has more answers in all
        than the reserved events allow. Nothing is answered twice: rounds, and attempts of a round, only go forward.
        """
        reserved = {event.kind: event.count for event in self.events}
        made = self.made.get(kind, 0) + releases
        limit = limit_of(self.events)
        if not self.live:
            raise LedgerError("closed", "Expected a study that is open; this one has ended.")
        if releases < 1 or made > reserved.get(kind, 0):
            raise LedgerError(
                "exhausted",
                f"Expected at most {reserved.get(kind, 0)} releases of kind {kind!r} as reserved, got {made}; "
                "propose a new study for more.",
            )
        if limit is not None and self.answers >= limit:
            raise LedgerError(
                "exhausted", f"Expected at most {limit} answers as reserved; propose a new study for more."
            )
        if (round_number, attempt) <= (self.last, self.attempt if self.last >= 0 else -1):
            text = f"Expected a round after {self.last}, or a later attempt of it than {self.attempt}, got"
            raise LedgerError("round", f"{text} {round_number}, attempt {attempt}.")
        known = {**self.made, kind: made}
        answers = self.answers + 1
        return dataclasses.replace(self, made=known, last=round_number, attempt=attempt, answers=answers)


def share(rule: Rule, charges: Iterable[Charge]) -> float:
    """How much of an account these charges take together, as a share of its budget: 1 is all of it.

    Formal guarantee: while the share of everything released or reserved is at most 1, all messages together are
    (epsilon, delta)-DP for each record: by a filter whatever plans and ends depend on, under ``fixed-in-advance`` if
    they were settled without reading messages.
    """
    charges = list(charges)
    _check_same("protects", charges)
    kept = [charge.kept(rule.epsilon) for charge in charges]
    if rule.name == "fixed-in-advance":
        if math.fsum(kept) > rule.set_aside:
            return math.inf
        together = joint_price([charge.events for charge in charges], delta=rule.delta - math.fsum(kept))
        return together.epsilon / rule.epsilon
    costs = [cost(rule, charge.events) for charge in charges]
    loss, mass = math.fsum(own.loss for own in costs), math.fsum([own.mass for own in costs] + kept)
    if rule.limit <= 0.0:
        return math.inf
    return max(loss / rule.limit, mass / rule.set_aside)


def _check_same(name: str, charges: Sequence[Charge]) -> None:
    """Raise unless all releases have the same value of a field."""
    values = sorted({str(getattr(event, name)) for charge in charges for event in charge.events})
    if len(values) > 1:
        raise PricingError(f"Expected one value of {name} in an account, got {', '.join(values)}.")


def pool_shares(rule: Rule, charges: Iterable[tuple[str | None, Charge]]) -> dict[str, float]:
    """How much of each pool's account these charges take, each with the pool that it reads (``None``: both).

    Formal guarantee: while both shares are at most 1, all messages together are (epsilon, delta)-DP for each record, as
    `share` says of the pool that the record lies in: releases of the other pool do not depend on it.
    """
    charges = list(charges)
    for pool in (None, *POOLS):
        # A study of all records, from before a split, has another number of them; costs of a filter still add up.
        _check_same("records", [own for read, own in charges if read == pool])
    if all(pool is None for pool, _ in charges):
        return dict.fromkeys(POOLS, share(rule, [own for _, own in charges]))
    return {pool: share(rule, [own for read, own in charges if read in (None, pool)]) for pool in POOLS}


def joint_price(studies: Iterable[Sequence[Event]], *, delta: float) -> Price:
    """The price of the releases of several studies together, as one composition.

    Formal guarantee: all messages of all studies are (epsilon, delta)-DP for each record if the plans, and the moments
    at which they end, were settled without reading messages of earlier studies; queries, as always, may follow the
    messages. Where plans follow messages only a filter bounds an account (`share`).
    """
    merged: dict[Event, int] = {}
    epochs: dict[Event, int] = {}
    for events in studies:
        paid = worst_allocation(payable(events))
        plain = [event for event in paid if not is_subsampled(event)]
        if plain:
            whole = dataclasses.replace(_one_gaussian(plain), kind="studies")
            merged[whole] = merged.get(whole, 0) + 1
        for event in paid:
            if event.mechanism == "reports" and event.sampling == "one-pass":
                raise PricingError("Expected no one-pass reports in a ledger: passes of several studies do not merge.")
            if is_subsampled(event):
                own = 1 if event.sampling == "allocation" else event.passes
                terms = dataclasses.replace(event, kind="studies", count=1, passes=own)
                merged[terms] = merged.get(terms, 0) + event.count
                epochs[terms] = epochs.get(terms, 0) + event.passes if event.sampling == "allocation" else own
    ordered = sorted(merged.items(), key=lambda item: repr(item[0]))
    both = [dataclasses.replace(terms, count=n, passes=epochs.get(terms, terms.passes)) for terms, n in ordered]
    return price(both, delta=delta)


def _one_gaussian(events: Sequence[Event]) -> Event:
    """One full-batch Gaussian release that is as informative as these events of one study."""
    n = events[0].records
    silent = any(event.noise_multiplier == 0.0 for event in events)
    multiplier = 0.0 if silent else _SHAVE / gaussian_mu(events)
    return Event(kind="study", noise_multiplier=multiplier, count=1, records=n, batch=n, sampling="full")


def fitting_epsilon(
    rule: Rule, before: Iterable[Charge], charge: Charge, *, delta: float, tries: int = 12
) -> float | None:
    """The epsilon at which releases like these would still fit what is left of an account; none where nothing does.

    Noise is scaled until all charges take no more than the account, and the result is priced and rounded down.
    """
    kept = list(before)

    def scaled(factor: float) -> tuple[Event, ...]:
        return tuple(
            dataclasses.replace(
                event,
                noise_multiplier=event.noise_multiplier * factor,
                grid_sigma=None if event.grid_sigma is None else event.grid_sigma * factor,
            )
            for event in charge.events
        )

    if any(event.mechanism == "reports" for event in charge.events):
        return None  # their noise is no multiplier
    low, high = 0.0, 10.0  # of the logarithm of the factor
    try:
        if not share(rule, [*kept, charge._replace(events=scaled(math.exp(high)))]) <= 1.0:
            return None
        for _ in range(tries):
            middle = (low + high) / 2
            fits = share(rule, [*kept, charge._replace(events=scaled(math.exp(middle)))]) <= 1.0
            low, high = (low, middle) if fits else (middle, high)
        found = price(scaled(math.exp(high)), delta=delta).epsilon
    except PricingError:
        return None
    digits = 1 - math.floor(math.log10(found)) if found > 0 else 0
    return math.floor(found * 10**digits) / 10**digits or None


def over_budget(rule: Rule, before: float, after: float, fits: float | None = None) -> LedgerError:
    """The refusal of what does not fit an account that has ``before`` charged and would have ``after``.

    ``fits`` is an epsilon that would fit, where it is known.
    """
    facts = {"takes": after - before, "left": max(0.0, 1 - before), "epsilon": rule.epsilon, "delta": rule.delta}
    facts |= {} if fits is None else {"fits": fits}
    numbers = {name: value for name, value in facts.items() if math.isfinite(value)}
    held = f"the account of epsilon={rule.epsilon:g} at delta={rule.delta:g} (rule {rule_words(rule)})"
    if not before <= 1.0:
        words = f"{held} is overdrawn: {percent(before)} of it is used or reserved. Nothing more is granted."
        return LedgerError("over-budget", words[0].upper() + words[1:], numbers)
    return LedgerError(
        "over-budget",
        f"Expected a study that fits {held}: it would take {percent(after - before)} of it, and "
        f"{percent(1 - before)} is left; " + ("ask for less." if fits is None else f"epsilon {fits:g} would fit."),
        numbers,
    )


def rule_words(rule: Rule) -> str:
    """A rule in a few words."""
    return rule.name if rule.order is None else f"{rule.name} of order {rule.order:g}"


def percent(part: float) -> str:
    """A share of an account as people read it."""
    return "more than all" if math.isinf(part) else f"{100 * part:.1f}%"
