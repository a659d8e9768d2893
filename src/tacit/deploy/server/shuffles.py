"""The server's part in shuffled rounds: it carries sealed answers to the shufflers and reads what they release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.channel.sealing import Binding, SecretKey, public_key, sealed_size
from tacit.channel.shuffled_reports import REPORT_BYTES, mean_of_reports
from tacit.channel.shuffled_sum import BlockTerms, mean_of_total
from tacit.deploy import contract, shuffling
from tacit.deploy.shuffler.client import Caller, mixed_reports, sum_over
from tacit.deploy.shuffler.deposits import Sender, check_deposit, header_of
from tacit.deploy.shuffler.messages import Deposit
from tacit.deploy.wire import REPORTS, Consent, Plan, RefusalError, Sealed
from tacit.errors import TacitError
from tacit.plans.assemble import Shapes, coordinates, shapes_of
from tacit.plans.price import releases_of
from tacit.privacy import Event
from tacit.silo.release import usable_clips

Answers = Mapping[str, tuple[Any, bytes]]


def tests_among(silos: Sequence[str], met: Mapping[str, Any]) -> list[str]:
    """The silos that are test builds without noise; raises where only some are."""
    tests = [name for name in silos if name in met and met[name][1].noise.startswith("off")]
    if tests and any(name in met and name not in tests for name in silos):
        raise TacitError(f"{', '.join(tests)}: a test build without noise, which shufflers never mix with real silos.")
    return tests


class Shuffled(ABC):
    """Turns the sealed answers of a round into the mean that they stand for."""

    def __init__(self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller]) -> None:
        if plan.shuffle is None or set(plan.shuffle.shufflers) != set(callers):
            raise TacitError("Expected a connection to each of the plan's shufflers.")
        self._plan, self._shuffle, self._silos = plan, plan.shuffle, tuple(silos)
        self._callers = {name: callers[name] for name in plan.shuffle.shufflers}
        records = plan.shuffle.records[0]
        builder = contract.builder_from(plan, records)
        self._shapes: Shapes = shapes_of(builder.noised(1.0), builder.problem, contract.record_of(plan))
        self._algorithm, self._events, _ = contract.affordable(builder, plan, records, self._shapes.dimensions)

    @abstractmethod
    def carries(self, kind: str) -> bool:
        """Whether rounds of this kind are shuffled; others leave directly."""

    @abstractmethod
    def mean(self, kind: str, round_index: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean over the records of all silos that answered.

        Raises `LeftOutError` where shufflers do not take some of the answers.
        """

    def check(self, consents: Mapping[str, Consent]) -> None:
        """Raise unless silos will add the noise that the server counts on: otherwise a release could not be read."""
        expected = {event.kind: event.noise_multiplier for event in self._events}
        odd = [name for name, consent in consents.items() if not consent.noise_multipliers.items() <= expected.items()]
        if odd:
            text = f"{', '.join(odd)}: other noise than the server's; use one version of Tacit everywhere"
            raise RefusalError("noise", text)

    def _sender(self, silo: str, min_silos: int) -> Sender:
        return Sender(silo, self._silos.index(silo), min_silos)


class Sums(Shuffled):
    """Shuffled sums: only the sum over silos is ever opened. ``coins=False`` reads the shares of test builds."""

    def __init__(self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller], *, coins: bool = True) -> None:
        super().__init__(plan, silos, callers)
        terms = shuffling.share_terms_of(self._algorithm, plan, self._shapes.messages)
        self._bound = shuffling.bound_to(plan, terms, noise=coins)
        self.terms = terms if coins else {kind: _coinless(own) for kind, own in terms.items()}

    def carries(self, kind: str) -> bool:
        """Every round is a sum."""
        return True

    def mean(self, kind: str, round_index: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean over the records of all silos that answered; only their sum is ever opened."""
        binding, shape = Binding(self._bound, round_index, digest), self._shapes.messages[kind]

        def expected(silo: str, shuffler: str) -> Deposit:
            header = header_of("sum", shuffler, binding, self._sender(silo, self._shuffle.min_silos))
            size = sealed_size(8 * coordinates(shape), [public_key(self._shuffle.shufflers[shuffler])])
            return header.model_copy(update={"size": size})

        frames, reasons = frames_of(answers, list(self._callers), expected)
        total = sum_over(self._callers, frames, binding, reasons)
        silo = self._algorithm.rounds[kind].silo
        size = silo.release.batch_size
        records = dict(zip(self._silos, self._shuffle.records, strict=True))
        count = sum(records[name] if size is None else int(np.max(size)) for name in answers)
        each = counted_each(self._plan, size, len(answers))
        return mean_of_total(
            total, usable_clips(silo.release, broadcast), shape, self.terms[kind], records=count, each=each
        )


class Reports(Shuffled):
    """Shuffled reports: each is opened with the server's ``key``, in an order that says nothing.

    ``noise=False`` reads those of test builds, which are never mixed with others.
    """

    def __init__(
        self, plan: Plan, silos: Sequence[str], callers: Mapping[str, Caller], key: SecretKey, *, noise: bool = True
    ) -> None:
        super().__init__(plan, silos, callers)
        self._key = key
        if self._shuffle.server != str(key.public):
            raise TacitError("Expected the key that the plan names as the server's.")
        by_kind: dict[str, Event] = {}
        for silo_index, records in enumerate(self._shuffle.records):
            # A silo whose turn never comes has no event for rounds in turn.
            seat = contract.seat_of(plan.model_copy(update={"silo_index": silo_index}), records)
            by_kind |= {event.kind: event for event in releases_of(self._algorithm, seat)}
        self._events = tuple(by_kind.values())
        self.streams = shuffling.streams_of(self._algorithm, self._shapes.messages)
        self._bound = shuffling.bound_to(plan, self.streams, noise=noise)

    def carries(self, kind: str) -> bool:
        """Rounds in turn leave directly."""
        return self._algorithm.rounds[kind].silo.release.channel == REPORTS

    def mean(self, kind: str, round_index: int, digest: bytes, broadcast: Any, answers: Answers) -> Any:
        """The mean of all reports, stream by stream."""
        bindings = {
            shuffling.stream_name(stream): shuffling.stream_binding(self._bound, stream, round_index, digest)
            for stream in self.streams[kind]
        }
        frames, reasons = frames_of(
            answers, list(bindings), lambda silo, name: self._expected(kind, silo, bindings[name])
        )
        streams = [(binding, {silo: own[name] for silo, own in frames.items()}) for name, binding in bindings.items()]
        mixed = mixed_reports(list(self._callers.values()), streams, self._key, reasons)
        reports = dict(zip(self.streams[kind], mixed, strict=True))
        silo, shape = self._algorithm.rounds[kind].silo, self._shapes.messages[kind]
        each = counted_each(self._plan, silo.release.batch_size, len(frames))
        return mean_of_reports(reports, usable_clips(silo.release, broadcast), shape, self.streams[kind], each=each)

    def _expected(self, kind: str, silo: str, binding: Binding) -> Deposit:
        sender = self._sender(silo, max(2, shuffling.min_silos_of(self._algorithm, self._plan, kind)))
        header = header_of("reports", next(iter(self._callers)), binding, sender)
        batch = self._algorithm.rounds[kind].silo.release.batch_size
        count = self._shuffle.records[sender.silo_index] if batch is None else int(np.max(batch))
        size = sealed_size(REPORT_BYTES, shuffling.route_of(self._plan))
        return header.model_copy(update={"count": count, "size": size})


def counted_each(plan: Plan, batch_size: Any, arrived: int) -> float:
    """What a record of weight one counts in the mean, if the contributions of ``arrived`` silos came."""
    assert plan.shuffle is not None
    _, largest = plan.shuffle.record_weights(None if batch_size is None else int(np.max(batch_size)))
    return float(largest) * plan.silos / arrived


def frames_of(
    answers: Answers, names: Sequence[str], expected: Callable[[str, str], Deposit]
) -> tuple[dict[str, dict[str, bytes]], dict[str, str]]:
    """Frames by silo and name, of silos whose deposits are those that the plan asks for; what is wrong with others.

    The plan fixes everything about a deposit but its sealed content and its signature.
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
