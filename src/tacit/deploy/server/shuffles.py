"""The server's part in shuffled rounds: it carries sealed answers to the shufflers and reads what they release."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tacit.channel.sealing import Binding, SecretKey, public_key, sealed_size
from tacit.deploy.contract import (
    REPORTS,
    affordable,
    bound_to,
    builder_from,
    min_silos_of,
    record_of,
    seat_of,
    share_terms_of,
    stream_binding,
    stream_name,
    streams_of,
)
from tacit.deploy.shuffler.client import Caller, mixed_reports, sum_over
from tacit.deploy.shuffler.deposits import check_deposit, header_of
from tacit.deploy.shuffler.messages import Deposit
from tacit.deploy.wire import Consent, Plan, RefusalError, Sealed
from tacit.errors import TacitError
from tacit.plans.price import releases_of
from tacit.plans.shapes import Shapes, coordinates, shapes_of
from tacit.privacy import Event
from tacit.silo.local_reports import REPORT_BYTES, mean_of_reports
from tacit.silo.shares import BlockTerms, mean_of_total

Answers = Mapping[str, tuple[Any, bytes]]


class Shuffled(Protocol):
    """Turns the sealed answers of a round into the mean that they stand for."""

    def carries(self, kind: str) -> bool:
        """Whether rounds of this kind are shuffled; others leave directly."""
        ...

    def check(self, consents: Mapping[str, Consent]) -> None:
        """All parties must have found the same noise, or what is released could not be read."""
        ...

    def mean(self, kind: str, number: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean over the records of all silos that answered.

        Raises `LeftOutError` where shufflers do not take what some of them said.
        """
        ...


class Sums:
    """Shuffled sums: only the sum over silos is ever opened. ``coins=False`` reads the shares of test builds."""

    def __init__(self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller], *, coins: bool = True) -> None:
        self._plan, self._callers, self._silos = plan, _in_order(plan, callers), tuple(silos)
        assert plan.shuffle is not None
        self._records = dict(zip(silos, plan.shuffle.records, strict=True))
        builder = builder_from(plan, plan.shuffle.records[0])
        self._shapes: Shapes = shapes_of(builder.noised(1.0), builder.problem, record_of(plan))
        self._algorithm, self._events, _ = affordable(builder, plan, plan.shuffle.records[0], self._shapes.dimensions)
        found = share_terms_of(self._algorithm, plan, self._shapes.messages)
        self._bound = bound_to(plan, found, noise=coins)
        self.terms = found if coins else {kind: _coinless(terms) for kind, terms in found.items()}

    def carries(self, kind: str) -> bool:
        """Every round is a sum."""
        return True

    def check(self, consents: Mapping[str, Consent]) -> None:
        """As of all that is shuffled."""
        _check_noise(self._events, consents)

    def mean(self, kind: str, number: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean over the records of all silos that answered; only their sum is ever opened."""
        binding = Binding(self._bound, number, digest)

        def expected(name: str, shuffler: str) -> Deposit:
            assert self._plan.shuffle is not None
            header = header_of("sum", shuffler, binding, name, self._silos.index(name), self._plan.shuffle.min_silos)
            keys = [public_key(self._plan.shuffle.shufflers[shuffler])]
            size = sealed_size(8 * coordinates(self._shapes.messages[kind]), keys)
            return header.model_copy(update={"size": size})

        frames, reasons = frames_of(answers, list(self._callers), expected)
        total = sum_over(self._callers, frames, binding, reasons)
        silo = self._algorithm.rounds[kind].silo
        size = silo.release.batch_size
        count = sum(self._records[name] if size is None else int(np.max(size)) for name in answers)
        shape, each = self._shapes.messages[kind], counted_each(self._plan, size, len(answers))
        return mean_of_total(total, silo, broadcast, shape, self.terms[kind], records=count, each=each)


class Reports:
    """Shuffled reports: single ones are opened with the server's ``key``, in an order that says nothing.

    ``noise=False`` reads those of test builds, which are never mixed with others.
    """

    def __init__(
        self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller], key: SecretKey, *, noise: bool = True
    ) -> None:
        self._plan, self._callers, self._key, self._silos = plan, _in_order(plan, callers), key, tuple(silos)
        assert plan.shuffle is not None
        if plan.shuffle.server != str(key.public):
            raise TacitError("Expected the key that the plan names as the server's.")
        builder = builder_from(plan, plan.shuffle.records[0])
        self._shapes: Shapes = shapes_of(builder.noised(1.0), builder.problem, record_of(plan))
        self._algorithm, _, _ = affordable(builder, plan, plan.shuffle.records[0], self._shapes.dimensions)
        every: dict[str, Event] = {}
        for silo_index, records in enumerate(plan.shuffle.records):
            # A silo whose turn never comes has no event for rounds in turn.
            own = releases_of(self._algorithm, seat_of(plan.model_copy(update={"silo_index": silo_index}), records))
            every |= {event.kind: event for event in own}
        self._events = tuple(every.values())
        self.streams = streams_of(self._algorithm, self._shapes.messages)
        self._bound = bound_to(plan, self.streams, noise=noise)

    def carries(self, kind: str) -> bool:
        """Rounds in turn leave directly."""
        return self._algorithm.rounds[kind].silo.release.channel == REPORTS

    def check(self, consents: Mapping[str, Consent]) -> None:
        """As of all that is shuffled."""
        _check_noise(self._events, consents)

    def mean(self, kind: str, number: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean of all reports, stream by stream."""
        bindings = {stream: stream_binding(self._bound, stream, number, digest) for stream in self.streams[kind]}
        named = {stream_name(stream): binding for stream, binding in bindings.items()}
        frames, reasons = frames_of(answers, list(named), lambda silo, name: self._expected(kind, silo, named[name]))
        streams = [(named[name], {silo: own[name] for silo, own in frames.items()}) for name in named]
        mixed = mixed_reports(list(self._callers.values()), streams, self._key, reasons)
        found = dict(zip(bindings, mixed, strict=True))
        silo = self._algorithm.rounds[kind].silo
        each = counted_each(self._plan, silo.release.batch_size, len(frames))
        return mean_of_reports(found, silo, broadcast, self._shapes.messages[kind], self.streams[kind], each=each)

    def _expected(self, kind: str, silo: str, binding: Binding) -> Deposit:
        shuffle, silo_index = self._plan.shuffle, self._silos.index(silo)
        assert shuffle is not None
        min_silos = max(2, min_silos_of(self._algorithm, self._plan, kind))
        header = header_of("reports", next(iter(self._callers)), binding, silo, silo_index, min_silos)
        batch = self._algorithm.rounds[kind].silo.release.batch_size
        count = shuffle.records[silo_index] if batch is None else int(np.max(batch))
        route = [*(public_key(key) for key in shuffle.shufflers.values()), self._key.public]
        return header.model_copy(update={"count": count, "size": sealed_size(REPORT_BYTES, route)})


def counted_each(plan: Plan, batch_size: Any, arrived: int) -> float:
    """What a record counts in the mean whose silo's weight is one, when so many silos' contributions arrived."""
    assert plan.shuffle is not None
    _, largest = plan.shuffle.record_weights(None if batch_size is None else int(np.max(batch_size)))
    return float(largest) * plan.silos / arrived


def frames_of(
    answers: Answers, names: Sequence[str], expected: Callable[[str, str], Deposit]
) -> tuple[dict[str, dict[str, bytes]], dict[str, str]]:
    """Frames by silo and name where each holds the deposit that the plan has there; and what is wrong with others.

    The plan settles everything about a deposit but what is sealed in it and its signature.
    """
    frames, reasons = {}, {}
    for silo, answer in answers.items():
        try:
            own = cut(*answer)
            if set(own) != set(names):
                raise RefusalError("bad-message", f"expected frames for {', '.join(names)}")
            for name, raw in own.items():
                check_deposit(raw, expected(silo, name))
            frames[silo] = own
        except RefusalError as refusal:
            reasons[silo] = f"{refusal.code}: {refusal}"
    return frames, reasons


def _in_order(plan: Plan, callers: Mapping[str, Caller]) -> dict[str, Caller]:
    if plan.shuffle is None or set(plan.shuffle.shufflers) != set(callers):
        raise TacitError("Expected a connection to each of the plan's shufflers.")
    return {name: callers[name] for name in plan.shuffle.shufflers}


def _check_noise(events: Sequence[Event], consents: Mapping[str, Consent]) -> None:
    expected = {event.kind: event.noise_multiplier for event in events}
    odd = [name for name, consent in consents.items() if not consent.noise_multipliers.items() <= expected.items()]
    if odd:
        raise TacitError(f"{', '.join(odd)}: other noise than the server's; use one version of Tacit everywhere.")


def _coinless(terms: BlockTerms) -> BlockTerms:
    if isinstance(terms, Mapping):
        return {name: own._replace(coins=0) for name, own in terms.items()}
    return terms._replace(coins=0)


def cut(response: Any, body: bytes) -> dict[str, bytes]:
    """The frames in a sealed answer: for each shuffler, or for each stream."""
    if not isinstance(response, Sealed) or sum(response.deposits.values()) != len(body):
        raise RefusalError("bad-message", "expected a sealed answer with frames for shufflers")
    frames, at = {}, 0
    for name, length in response.deposits.items():
        frames[name] = body[at : at + length]
        at += length
    return frames
