"""A silo's part in shuffled rounds: what it checks of a plan, and how its answer leaves.

An answer is sealed, signed and bound to the plan, the round and the broadcast.

A share of a sum is split into parts, one for each shuffler. Each block of a statistic is a stream of reports that is
shuffled by itself, so that no two reports of a record can be linked. A stream's reports go to the plan's first
shuffler, sealed for all shufflers and the server in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.algorithm import Algorithm, Release
from tacit.channel.sealing import Binding, SealError, public_key, sealed_size
from tacit.channel.shuffled_reports import REPORT_BYTES
from tacit.channel.shuffled_sum import BlockTerms
from tacit.deploy.shuffler.deposits import Integers, Sender, report_deposit, sum_deposits
from tacit.deploy.shuffling import (
    Streams,
    bound_to,
    min_silos_of,
    reporting,
    route_of,
    share_terms_of,
    stream_binding,
    stream_name,
    streams_of,
)
from tacit.deploy.signing import Signer
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.wire import MOST_FRAME, MOST_HEADER, REPORTS, Answer, Plan, RefusalError, Sealed, broadcast_digest
from tacit.plans.assemble import Shapes
from tacit.plans.price import LEAST_DELTA
from tacit.privacy.anonymity import colluding_silos


class ShuffledTerms(NamedTuple):
    """The terms of a plan's shares and streams, by kind of round, and what this silo's records count in them."""

    shares: Mapping[str, BlockTerms]
    streams: Streams
    weights: Mapping[str, float]


def shuffled_terms(
    algorithm: Algorithm, plan: Plan, shapes: Shapes, records: int, policy: ShuffleSection | None
) -> ShuffledTerms:
    """The terms of a plan as it was priced; reports that reveal too much by themselves are refused."""
    is_sum = plan.algorithm.get("channel") != REPORTS
    shares = share_terms_of(algorithm, plan, shapes.messages) if is_sum else {}
    streams = streams_of(algorithm, shapes.messages)
    check_streams(streams, algorithm, plan, records, policy)
    return ShuffledTerms(shares, streams, _weights(plan, algorithm, (*shares, *streams)))


class Sealer(NamedTuple):
    """A silo's name and signing key, and whether it adds noise; a test build may not."""

    silo: str
    signer: Signer
    noise: bool

    def share(
        self, plan: Plan, terms: Mapping[str, BlockTerms], request: Answer, payload: bytes, share: Integers
    ) -> tuple[str, bytes]:
        """Header and payload of the answer with a share of a sum: its parts, each sealed for one shuffler."""
        shuffle = plan.shuffle
        assert shuffle is not None
        bound = bound_to(plan, terms, noise=self.noise)
        binding = Binding(bound, request.round, broadcast_digest(request.arrays, payload))
        sender = Sender(self.silo, plan.silo_index, max(2, shuffle.min_silos))
        keys = {name: public_key(text) for name, text in shuffle.shufflers.items()}
        parts = sum_deposits(share, sender, self.signer, binding, shufflers=keys)
        return self._joined(request, dict(zip(keys, parts, strict=True)))

    def reports(
        self,
        plan: Plan,
        terms: Streams,
        request: Answer,
        payload: bytes,
        reports: Mapping[str, Sequence[bytes]],
        algorithm: Algorithm,
    ) -> tuple[str, bytes]:
        """Header and payload of the answer with reports: for each stream, a frame for the first shuffler."""
        assert plan.shuffle is not None
        *keys, server = route_of(plan)
        bound, broadcast = bound_to(plan, terms, noise=self.noise), broadcast_digest(request.arrays, payload)
        min_silos = min_silos_of(algorithm, plan, algorithm.schedule[request.round])
        sender = Sender(self.silo, plan.silo_index, max(2, min_silos))
        route: dict[str, Any] = {"shufflers": dict(zip(plan.shuffle.shufflers, keys, strict=True)), "server": server}
        frames = {}
        for stream, own in reports.items():
            binding = stream_binding(bound, stream, request.round, broadcast)
            frames[stream_name(stream)] = report_deposit(own, sender, self.signer, binding, size=REPORT_BYTES, **route)
        return self._joined(request, frames)

    def _joined(self, request: Answer, frames: Mapping[str, bytes]) -> tuple[str, bytes]:
        lengths = {name: len(raw) for name, raw in frames.items()}
        header = Sealed(study=request.study, round=request.round, silo=self.silo, deposits=lengths)
        return header.model_dump_json(), b"".join(frames.values())


def check_shuffle(plan: Plan, records: int, allow: AllowSection, policy: ShuffleSection | None) -> None:
    """Refuse a plan whose shufflers or anonymity set the owner does not allow."""
    shuffle = plan.shuffle
    if shuffle is None or policy is None:
        raise RefusalError("not-allowed", "the owner has named no shufflers")
    if shuffle.records[plan.silo_index] != records:
        raise RefusalError("bad-plan", f"expected shuffle.records[{plan.silo_index}] = {records}, this silo's own")
    if shuffle.min_silos < allow.min_silos:
        raise RefusalError("not-allowed", f"expected shuffle.min_silos of at least {allow.min_silos} silos")
    if colluding_silos(plan.silos, shuffle.honest) < policy.colluding:
        raise RefusalError("not-allowed", _more_colluding(plan.silos, policy.colluding))
    strange = [name for name, key in shuffle.shufflers.items() if policy.shufflers.get(name) != key]
    if strange or len(shuffle.shufflers) < policy.min_shufflers:
        raise RefusalError("not-allowed", f"expected {policy.min_shufflers} or more shufflers, all of the policy's")
    try:
        kinds = [public_key(key).kind for key in (*shuffle.shufflers.values(), shuffle.server) if key is not None]
    except SealError as error:
        raise RefusalError("bad-plan", str(error)) from None
    if policy.post_quantum and "x25519" in kinds:
        raise RefusalError("not-allowed", "expected sealing keys of the hybrid kind")
    if plan.delta < LEAST_DELTA:
        raise RefusalError("unpriceable", f"expected delta >= {LEAST_DELTA} for binomial noise, with its short tails")


def _more_colluding(silos: int, colluding: int) -> str:
    """What to change in a study that counts on more silos than the owner does."""
    expected = f"expected a study in which {colluding} of {silos} silos may collude with the server"
    if colluding >= silos:
        return f"{expected}; let more silos take part"
    unit = 10 ** max(3, len(str(silos)))
    most = math.ceil(unit * (silos - colluding) / silos) / unit
    return f"{expected}; set run.honest = {most} in the study, or less (the share of silos that do not)"


def check_rounds(unit: Algorithm, plan: Plan, policy: ShuffleSection | None) -> None:
    """Refuse rounds that shufflers cannot serve."""
    if plan.algorithm.get("channel") != REPORTS:
        check_sums(unit)
    else:
        check_reports(unit, plan, policy)


def check_sums(algorithm: Algorithm) -> None:
    """Refuse a plan whose rounds are not sums over a fixed count of records of many silos."""
    for part in algorithm.rounds.values():
        release = part.silo.release
        if part.participants == "in turn" or release.mechanism != "gaussian":
            raise RefusalError("not-allowed", "expected rounds of many silos, with fresh noise, through shufflers")
        check_one_batch(release)
        if release.sampling in ("poisson", "allocation", "wr"):
            text = 'expected sampling "full", "wor" or "one-pass": the anonymity set has a fixed size'
            raise RefusalError("bad-plan", text)


def check_one_batch(release: Release) -> None:
    """Refuse batch sizes that differ by silo: each silo counts on one number of coins, or reports, from every other."""
    if any(term is not None and np.ndim(term) for term in (release.batch_size, release.capacity)):
        raise RefusalError("bad-plan", "expected one batch size for all silos through shufflers")


def check_reports(algorithm: Algorithm, plan: Plan, policy: ShuffleSection | None) -> None:
    """Refuse a plan whose reports cannot be made, or whose counts would tell silos apart."""
    if plan.shuffle is None or plan.shuffle.server is None or policy is None:
        raise RefusalError("bad-plan", "expected shuffle.server, the key that single reports are sealed to")
    for part in reporting(algorithm).values():
        release = part.silo.release
        if part.participants == "in turn" or release.mechanism != "gaussian":
            raise RefusalError("not-allowed", "expected rounds of many silos through shuffled reports")
        if release.sampling not in ("full", "wor"):
            raise RefusalError("bad-plan", 'expected sampling "full" or "wor" through shuffled reports')
        check_one_batch(release)
        if release.randomiser not in ("auto", "duchi"):
            text = 'expected randomiser "auto" or "duchi": reports of others are floating-point numbers'
            raise RefusalError("not-allowed", text)


def check_streams(
    streams: Streams, algorithm: Algorithm, plan: Plan, records: int, policy: ShuffleSection | None
) -> None:
    """Refuse reports that reveal too much by themselves, or too many of them for one message."""
    most = 0.0 if policy is None or policy.max_local_epsilon is None else policy.max_local_epsilon
    for kind, own in streams.items():
        # All the protection that a record has if every shuffler colludes: its reports of one round together.
        local = sum(terms.local_epsilon for terms in own.values())
        if local > most:
            numbers = {"local_epsilon": local, "limit": most}
            raise RefusalError("not-allowed", f"expected reports with epsilon_0 of at most {most:g} a round", numbers)
        size = algorithm.rounds[kind].silo.release.batch_size
        count = records if size is None else int(size)
        if len(own) * (count * sealed_size(REPORT_BYTES, route_of(plan)) + MOST_HEADER) > MOST_FRAME:
            raise RefusalError("not-allowed", f"{count} reports do not fit a message; use a smaller batch")


def _weights(plan: Plan, algorithm: Algorithm, kinds: Iterable[str]) -> dict[str, float]:
    """What this silo's records count in the sums and reports of each kind of round."""
    weights = {}
    for kind in kinds:
        assert plan.shuffle is not None
        size = algorithm.rounds[kind].silo.release.batch_size
        relative, _ = plan.shuffle.record_weights(None if size is None else int(np.max(size)))
        weights[kind] = float(relative[plan.silo_index])
    return weights
