"""How an answer leaves a silo through shufflers: sealed, signed and bound to the plan, the round and the broadcast.

A share of a sum is split into parts, one for each shuffler. Each block of a statistic is a stream of reports that is
shuffled by itself, so that no two reports of a record can be linked. A stream's reports go to the plan's first
shuffler, sealed for all shufflers and the server in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tacit.channel.sealing import Binding, Signer, public_key
from tacit.channel.shuffled_reports import REPORT_BYTES
from tacit.channel.shuffled_sum import BlockTerms
from tacit.deploy.contract import Streams, bound_to, route_of, stream_binding, stream_name
from tacit.deploy.shuffler.deposits import Integers, Sender, report_deposit, sum_deposits
from tacit.deploy.wire import Answer, Plan, Sealed, broadcast_digest


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
        min_silos: int,
    ) -> tuple[str, bytes]:
        """Header and payload of the answer with reports: for each stream, a frame for the first shuffler."""
        assert plan.shuffle is not None
        *keys, server = route_of(plan)
        bound, broadcast = bound_to(plan, terms, noise=self.noise), broadcast_digest(request.arrays, payload)
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
