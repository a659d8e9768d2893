"""The five types that every algorithm is written in. Read this file first.

An algorithm is a set of *kinds of round*. A round has a silo half and a server half; privacy sits between
the two and belongs to neither:

    server.ask(state) -> broadcast                                              untrusted
    silo.start -> local_steps x [sample -> query -> clip -> mean -> noise -> absorb] -> report      trusted
    server.tell(state, mean message) -> state                                   untrusted

Only ``query`` ever reads a record. ``start``, ``absorb`` and ``report`` see released values alone, so they
are post-processing by signature: the author of an algorithm has no way to leak.

Price is static, content is dynamic. Noise multiplier, batch, sampling, mechanism and schedule are fixed before
anything runs, so the whole price is known in advance; the clip may depend on the (public) broadcast. Noise has
standard deviation ``noise_multiplier x sensitivity`` and the sensitivity is computed from clip, batch and
adjacency (replace one record in one silo), never written down by hand.

This module imports no jax: ``tacit.privacy`` reads plans out of these types without jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Params = Any  # a pytree of arrays: the model
State = Any  # a pytree: what the server remembers
Broadcast = Any  # a pytree: what the server says
Work = Any  # a pytree: what a silo computes with; public or already released
Memory = Any  # a pytree: released values that a silo keeps between rounds
Record = Any  # one record: a dict of arrays
Statistic = Any  # a pytree: what a query computes from one record
Message = Any  # a pytree: what a silo says

# One number, or one per silo; it may be a traced jax value when a grid is compiled.
Number = Any
# One number, or one per named block of the statistic.
PerBlock = Any

Sampling = Literal["full", "wor", "wr", "poisson", "one-pass"]
Mechanism = Literal["gaussian"]
Channel = Literal["direct", "open"]
Protects = Literal["record"]
Participants = Literal["all", "sampled", "in turn"]

SAMPLINGS: tuple[Sampling, ...] = ("full", "wor", "wr", "poisson", "one-pass")
CHANNELS: tuple[Channel, ...] = ("direct", "open")


@dataclass(frozen=True)
class Release:
    """How one statistic leaves a silo. Everything but the value of ``clip`` is static and priced.

    ``clip`` maps the silo's work to a norm bound per record; ``noise_multiplier`` is sigma over the
    replace-one sensitivity; both are one number or a mapping from blocks of the statistic to numbers, and
    each number may be an array with one entry per silo. A release whose ``channel`` is ``"open"`` is not
    private: no clip, no noise, an infinite price. ``batch_size`` is the fixed divisor K (``None``: every
    record); ``capacity`` is the physical limit of a Poisson batch, over which a uniformly random subset of
    that size is kept.
    """

    clip: Callable[[Work], PerBlock]
    noise_multiplier: PerBlock
    batch_size: Number | None
    sampling: Sampling
    capacity: Number | None = None
    mechanism: Mechanism = "gaussian"
    channel: Channel = "direct"
    protects: Protects = "record"


def _broadcast_is_work(broadcast: Broadcast, memory: Memory) -> Work:
    return broadcast


def _released_is_work(work: Work, released: Statistic) -> Work:
    return released


def _work_is_message(work: Work, memory: Memory) -> tuple[Message, Memory]:
    return work, memory


@dataclass(frozen=True)
class Silo:
    """The silo half. ``query`` maps (work, record) to a statistic and is the only reader of a record."""

    query: Callable[[Work, Record], Statistic]
    release: Release
    local_steps: int = 1
    start: Callable[[Broadcast, Memory], Work] = _broadcast_is_work
    absorb: Callable[[Work, Statistic], Work] = _released_is_work
    report: Callable[[Work, Memory], tuple[Message, Memory]] = _work_is_message

    @property
    def stride(self) -> int:
        """How many records of its pass a silo uses up at each local step: zero unless sampling is one-pass."""
        release = self.release
        if release.sampling != "one-pass":
            return 0
        if release.batch_size is None:
            raise ValueError("Expected a batch_size for one-pass sampling; the pass is cut into batches of that size.")
        return int(np.max(release.batch_size))

    @property
    def says_what_it_released(self) -> bool:
        """Whether the message is the released statistic itself, so that a sum of messages is a sum of releases."""
        return (
            self.local_steps == 1
            and self.start is _broadcast_is_work
            and self.absorb is _released_is_work
            and self.report is _work_is_message
        )


@dataclass(frozen=True)
class Server:
    """The server half. It never sees a record nor a silo's memory; proximal steps live in ``tell``."""

    ask: Callable[[State], Broadcast]
    tell: Callable[[State, Message], State]


@dataclass(frozen=True)
class Round:
    """One kind of round, and who takes part in it."""

    silo: Silo
    server: Server
    participants: Participants = "sampled"


def _no_memory(params: Params) -> Memory:
    return ()


@dataclass(frozen=True)
class Algorithm:
    """Kinds of round and the order in which they happen. ``schedule`` is static: the price is read from it."""

    init: Callable[[Params], State]
    rounds: Mapping[str, Round]
    schedule: Sequence[str]
    output: Callable[[State], Params]
    memory: Callable[[Params], Memory] = _no_memory

    def __post_init__(self) -> None:
        unknown = sorted(set(self.schedule) - set(self.rounds))
        if unknown:
            raise ValueError(f"Expected every kind of the schedule among {sorted(self.rounds)}, got {unknown}.")
