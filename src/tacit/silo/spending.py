"""What a silo has promised and released, study by study, and what all of it costs together.

Plans of different studies are priced as one composition, never by adding epsilons. Inside a study everything that is
not subsampled is one Gaussian of known separation, whatever its passes and running sums; across studies those
separations add up in squares, because each study cuts its own passes and keeps its own sums. Subsampled releases and
shuffled reports keep their privacy loss distributions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tacit.errors import TacitError
from tacit.privacy import Event, Price, PricingError, price
from tacit.privacy.schedule import gaussian_mu, is_subsampled, payable

# A reciprocal in float arithmetic may round to the cheap side; this is far above what it loses.
_SHAVE = 1 - 1e-12


class LedgerError(TacitError):
    """The ledger refuses: ``code`` says why in one word, and the message says the way out."""

    def __init__(self, code: str, text: str, numbers: Mapping[str, float] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.numbers = dict(numbers or {})


@dataclass(frozen=True)
class Account:
    """One study in the ledger: the terms that were reserved, and how many releases of each kind were debited.

    ``last`` is the last round answered (-1: none) and ``answers`` how many there were.
    """

    events: tuple[Event, ...]
    expires: float
    live: bool = True
    made: Mapping[str, int] = field(default_factory=dict)
    last: int = -1
    answers: int = 0

    def debited(self) -> tuple[Event, ...]:
        """The releases that were made."""
        return tuple(dataclasses.replace(e, count=self.made.get(e.kind, 0)) for e in self.events)

    def charged(self) -> tuple[Event, ...]:
        """What counts against the budget: everything that may still be released while the study lives."""
        return self.events if self.live else self.debited()

    def after(self, kind: str, releases: int, round_number: int) -> Account:
        """The account with one more answer, or a refusal if the reservation does not cover it.

        Formal guarantee: no sequence of answers releases more of a kind than was reserved.
        """
        reserved = {event.kind: event.count for event in self.events}
        made = self.made.get(kind, 0) + releases
        if not self.live:
            raise LedgerError("closed", "Expected a study that is open; this one has ended.")
        if releases < 1 or made > reserved.get(kind, 0):
            raise LedgerError(
                "exhausted",
                f"Expected at most {reserved.get(kind, 0)} releases of kind {kind!r} as reserved, got {made}; "
                "propose a new study for more.",
            )
        if round_number <= self.last:
            raise LedgerError("round", f"Expected a round after {self.last}, got {round_number}.")
        return dataclasses.replace(self, made={**self.made, kind: made}, last=round_number, answers=self.answers + 1)


def joint_price(studies: Iterable[Sequence[Event]], *, delta: float) -> Price:
    """The price of the releases of several studies together.

    Formal guarantee: for Gaussian releases that are not subsampled, all messages of all studies are (epsilon,
    delta)-DP for each record even if later plans were chosen after reading earlier messages (separations of Gaussians
    form a filter). With subsampled releases or shuffled reports among them, full batches of reports included, the same
    holds for plans that were settled without reading the messages of earlier studies; queries, as always, may follow
    the messages.

    >>> full = dict(kind="g", count=8, records=99, batch=99, sampling="full")
    >>> one, two = Event(noise_multiplier=30.0, **full), Event(noise_multiplier=40.0, **full)
    >>> together = joint_price([[one], [two]], delta=1e-6).epsilon
    >>> abs(together - price([one, two], delta=1e-6).epsilon) < 1e-9
    True
    """
    merged: dict[Event, int] = {}
    for events in studies:
        paid = payable(events)
        plain = [event for event in paid if not is_subsampled(event)]
        if plain:
            whole = dataclasses.replace(_one_gaussian(plain), kind="studies")
            merged[whole] = merged.get(whole, 0) + 1
        for event in paid:
            if event.mechanism == "reports" and event.sampling == "one-pass":
                raise PricingError("Expected no one-pass reports in a ledger: passes of several studies do not merge.")
            if is_subsampled(event):
                terms = dataclasses.replace(event, kind="studies", count=1)
                merged[terms] = merged.get(terms, 0) + event.count
    ordered = sorted(merged.items(), key=lambda item: repr(item[0]))
    return price([dataclasses.replace(terms, count=count) for terms, count in ordered], delta=delta)


def _one_gaussian(events: Sequence[Event]) -> Event:
    """One full-batch Gaussian release that is as informative as these events of one study."""
    n = events[0].records
    silent = any(event.noise_multiplier == 0.0 for event in events)
    multiplier = 0.0 if silent else _SHAVE / gaussian_mu(events)
    return Event(kind="study", noise_multiplier=multiplier, count=1, records=n, batch=n, sampling="full")


def events_to_json(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Events as plain data."""
    return [dataclasses.asdict(event) for event in events]


def events_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[Event, ...]:
    """Events from plain data; anything that is not an event raises."""
    return tuple(Event(**row) for row in rows)
