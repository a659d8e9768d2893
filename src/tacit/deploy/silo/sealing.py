"""How an answer leaves a silo through shufflers: sealed, signed and bound to the plan, the round and the broadcast.

A share of a sum is split into parts, one for each shuffler. Each block of a statistic is a stream of reports that is
shuffled by itself, under a name of its own, so that no two reports of a record can be linked. A stream's reports go to
the first of the plan's shufflers, sealed for all of them and the server in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from tacit.channel.sealing import Binding, Signer, public_key
from tacit.deploy.contract import bound_to, route_of, stream_binding, stream_name
from tacit.deploy.shuffler.deposits import report_deposit, sum_deposits
from tacit.deploy.wire import Answer, Plan, Sealed, broadcast_digest
from tacit.silo.local_reports import REPORT_BYTES, ReportTerms
from tacit.silo.shares import BlockTerms


def sealed_answer(
    plan: Plan,
    terms: Mapping[str, BlockTerms],
    request: Answer,
    payload: bytes,
    share: Int64[np.ndarray, " coordinates"],
    *,
    silo: str,
    signer: Signer,
    noise: bool,
) -> tuple[str, bytes]:
    """Header and payload of an answer through shufflers: the share in parts, each sealed for one of them."""
    shuffle = plan.shuffle
    assert shuffle is not None
    bound = bound_to(plan, terms, noise=noise)
    binding = Binding(bound, request.round, broadcast_digest(request.arrays, payload))
    keys = {name: public_key(text) for name, text in shuffle.shufflers.items()}
    frames = sum_deposits(
        share,
        shufflers=keys,
        binding=binding,
        silo=silo,
        silo_index=plan.silo_index,
        min_silos=max(2, shuffle.min_silos),
        signer=signer,
    )
    lengths = {name: len(raw) for name, raw in zip(keys, frames, strict=True)}
    header = Sealed(study=request.study, round=request.round, silo=silo, deposits=lengths)
    return header.model_dump_json(), b"".join(frames)


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
    *_, server = route_of(plan)
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
