"""The server's part in a shuffled sum: it carries sealed shares to the shufflers and adds up their totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.algorithm import Algorithm
from tacit.channel.sealing import Binding
from tacit.errors import TacitError
from tacit.runtime.daemon.contract import Shapes, builder_from, record_of, shapes_of
from tacit.runtime.daemon.protocol import Consent, Plan, Sealed
from tacit.runtime.daemon.shuffling import affordable_sum, terms_of
from tacit.runtime.shuffler.client import Caller, sum_over
from tacit.silo.secure_share import BlockTerms, mean_of_total


class Sums:
    """Turns the sealed answers of a round into the mean that they stand for.

    ``coins=False`` reads the shares of test builds, which add no noise.
    """

    def __init__(self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller], *, coins: bool = True) -> None:
        if plan.shuffle is None or set(plan.shuffle.shufflers) != set(callers):
            raise TacitError("Expected a connection to each of the plan's shufflers.")
        self._plan = plan
        self._callers = {name: callers[name] for name in plan.shuffle.shufflers}
        self._records = dict(zip(silos, plan.shuffle.records, strict=True))
        builder = builder_from(plan, plan.shuffle.records[0])
        unit = builder.build(noise_multiplier=1.0)
        shapes = shapes_of(unit, builder, record_of(plan))
        self._algorithm, self._events, _ = affordable_sum(builder, unit, plan, plan.shuffle.records[0])
        found = terms_of(self._algorithm, plan, shapes.messages)
        self.terms = found if coins else {kind: _coinless(terms) for kind, terms in found.items()}

    def check(self, consents: Mapping[str, Consent]) -> None:
        """All parties must have found the same noise, or the sum could not be read."""
        expected = {event.kind: event.noise_multiplier for event in self._events}
        odd = [name for name, consent in consents.items() if consent.noise_multipliers != expected]
        if odd:
            raise TacitError(f"{', '.join(odd)}: other noise than the server's; use one version of Tacit everywhere.")

    def mean(
        self,
        algorithm: Algorithm,
        kind: str,
        number: int,
        digest: bytes,
        broadcast: Any,
        answers: Mapping[str, tuple[Any, bytes]],
        shapes: Shapes,
    ) -> Any:
        """The mean over the records of all silos that answered; only their sum is ever opened."""
        binding = Binding(self._plan.consortium, number, digest)
        total = sum_over(self._callers, {name: cut(*answer) for name, answer in answers.items()}, binding)
        silo = algorithm.rounds[kind].silo
        size = silo.release.batch_size
        count = sum(self._records[name] if size is None else int(np.max(size)) for name in answers)
        return mean_of_total(total, silo, broadcast, shapes.messages[kind], self.terms[kind], count)


def _coinless(terms: BlockTerms) -> BlockTerms:
    if isinstance(terms, Mapping):
        return {name: own._replace(coins=0) for name, own in terms.items()}
    return terms._replace(coins=0)


def cut(response: Any, body: bytes) -> dict[str, bytes]:
    """The frames for each shuffler in a sealed answer."""
    if not isinstance(response, Sealed) or sum(response.deposits.values()) != len(body):
        raise TacitError("Expected a sealed answer with a frame for each shuffler.")
    frames, at = {}, 0
    for name, length in response.deposits.items():
        frames[name] = body[at : at + length]
        at += length
    return frames
