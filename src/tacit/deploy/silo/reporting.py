"""The contract of a study through shuffled reports: what a silo checks, and how its reports leave.

Each block of a statistic is a stream that is shuffled by itself, under a name of its own, so that no two reports of a
record can be linked. A stream's reports go to the first of the plan's shufflers, sealed for all of them and the server
in turn. As with sums, every honest silo checks its own number of records in the plan, and everything is bound to a
digest of the whole plan. Rounds in turn of the same study may leave directly, with Gaussian noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tacit.algorithm import Algorithm
from tacit.channel.sealing import Binding, Signer, public_key, sealed_size
from tacit.deploy.shuffler.deposits import report_deposit
from tacit.deploy.silo.policy import ShuffleSection
from tacit.deploy.silo.shuffling import bound_to, check_one_batch, coordinates
from tacit.deploy.wire import MOST_FRAME, MOST_HEADER, Answer, Plan, RefusalError, Sealed, broadcast_digest
from tacit.silo.local_reports import REPORT_BYTES, ReportTerms, report_terms

REPORTS = "shuffled-reports"
_WHOLE = "whole"


def check_reports(algorithm: Algorithm, plan: Plan, policy: ShuffleSection | None) -> None:
    """Refuse a plan whose reports could not be made, or not be told apart from others' by their number."""
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
            raise RefusalError(
                "not-allowed", 'expected randomiser "auto" or "duchi": reports of others are floating-point numbers'
            )


def reporting(algorithm: Algorithm) -> dict[str, Any]:
    """The kinds of round that travel as shuffled reports."""
    return {kind: part for kind, part in algorithm.rounds.items() if part.silo.release.channel == REPORTS}


def streams_of(algorithm: Algorithm, statistics: Mapping[str, Any]) -> dict[str, dict[str, ReportTerms]]:
    """The terms of every stream of every kind of round; all silos and the server find the same from the same plan."""
    found = {}
    for kind, part in reporting(algorithm).items():
        noise, shape = part.silo.release.noise_multiplier, statistics[kind]
        if isinstance(noise, Mapping):
            own = {name: report_terms(float(z), coordinates(shape[name])) for name, z in sorted(noise.items())}
        else:
            own = {"": report_terms(float(noise), coordinates(shape))}
        found[kind] = own
    return found


def check_streams(
    streams: Mapping[str, Mapping[str, ReportTerms]],
    algorithm: Algorithm,
    plan: Plan,
    records: int,
    policy: ShuffleSection | None,
) -> None:
    """Refuse reports that tell too much by themselves, or too many of them for one message."""
    most = 0.0 if policy is None or policy.max_local_epsilon is None else policy.max_local_epsilon
    for kind, own in streams.items():
        # What is left to a record if every shuffler colludes: all its reports of one round together.
        local = sum(terms.local_epsilon for terms in own.values())
        if local > most:
            numbers = {"local_epsilon": local, "limit": most}
            raise RefusalError("not-allowed", f"expected reports with epsilon_0 of at most {most:g} a round", numbers)
        size = algorithm.rounds[kind].silo.release.batch_size
        count = records if size is None else int(size)
        if len(own) * (count * sealed_size(REPORT_BYTES, _route(plan)) + MOST_HEADER) > MOST_FRAME:
            raise RefusalError("not-allowed", f"{count} reports do not fit a message; use a smaller batch")


def _route(plan: Plan) -> list[Any]:
    shuffle = plan.shuffle
    assert shuffle is not None
    assert shuffle.server is not None
    return [public_key(key) for key in (*shuffle.shufflers.values(), shuffle.server)]


def min_silos_of(algorithm: Algorithm, plan: Plan, kind: str) -> int:
    """How many silos a round must have at least, which is what its price counts on and the shuffler is told."""
    assert plan.shuffle is not None
    return plan.silos if algorithm.rounds[kind].participants == "all" else plan.shuffle.min_silos


def stream_binding(bound: bytes, stream: str, number: int, broadcast: bytes) -> Binding:
    """What the reports of a stream are bound to: each stream of a study (``bound_to``) is a shuffle of its own."""
    consortium = hashlib.sha256(b"tacit stream 2" + bound + stream.encode()).digest()
    return Binding(consortium, number, broadcast)


def sealed_reports(
    plan: Plan,
    terms: Mapping[str, Mapping[str, ReportTerms]],
    request: Answer,
    payload: bytes,
    reports: Mapping[str, Sequence[bytes]],
    *,
    min_silos: int,
    silo: str,
    signer: Signer,
    noise: bool,
) -> tuple[str, bytes]:
    """Header and payload of an answer through shuffled reports: for each stream, a frame for the first shuffler."""
    assert plan.shuffle is not None
    *_, server = _route(plan)
    bound, broadcast = bound_to(plan, terms, noise=noise), broadcast_digest(request.arrays, payload)
    frames = {
        stream_name(stream): report_deposit(
            own,
            size=REPORT_BYTES,
            shufflers={name: public_key(key) for name, key in plan.shuffle.shufflers.items()},
            server=server,
            binding=stream_binding(bound, stream, request.round, broadcast),
            silo=silo,
            silo_index=plan.silo_index,
            min_silos=max(2, min_silos),
            signer=signer,
        )
        for stream, own in reports.items()
    }
    lengths = {name: len(raw) for name, raw in frames.items()}
    header = Sealed(study=request.study, round=request.round, silo=silo, deposits=lengths)
    return header.model_dump_json(), b"".join(frames.values())


def stream_name(stream: str) -> str:
    """What a stream's frame is called in a sealed answer."""
    return stream or _WHOLE
