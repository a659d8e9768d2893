"""One consented study at work: from a round's broadcast to its message, and what is kept between rounds."""

from __future__ import annotations

import copy
import dataclasses
import io
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int64

from tacit.deploy.silo.consent import Offer
from tacit.deploy.wire import Plan, RefusalError
from tacit.plans.assemble import coordinates
from tacit.silo.batches import SEED_BYTES, SecretBatch
from tacit.silo.door import Door, Engine, Past, Sampler, no_noise
from tacit.silo.noise import Buffers
from tacit.silo.sampler import discrete_gaussian

if TYPE_CHECKING:
    from tacit.deploy.silo.pairwise import Masks


class Samplers(NamedTuple):
    """Where a silo's noise comes from, and whether it flips the coins of shuffled sums."""

    gaussian: Sampler
    flips: bool


EXACT = Samplers(discrete_gaussian, flips=True)
TEST_BUILD = Samplers(no_noise, flips=False)
"""Zeros in place of noise, in a test build only. Reports are randomised there too."""

_ALIGNED = 64
"""Where jax uses an array's memory as it is, an array begins at a multiple of so many bytes."""

Integers = Int64[np.ndarray, " coordinates"]


class Remembered(NamedTuple):
    """What a silo keeps of a study between rounds, and forgets at its end.

    That is the seed of its pass, released memory, what later rounds need of the noise of each kind of round and the
    rounds that it was drawn for, and its secret key for pairwise sums.
    """

    order_seed: np.ndarray
    memory: list[np.ndarray]
    noise: dict[str, dict[str, Buffers]]
    study_key: bytes = b""
    drawn: Mapping[str, int] = MappingProxyType({})

    def to_bytes(self) -> bytes:
        """As an npz archive."""
        arrays = {"order": self.order_seed}
        arrays |= {"study_key": np.frombuffer(self.study_key, np.uint8)} if self.study_key else {}
        arrays |= {f"memory/{i}": leaf for i, leaf in enumerate(self.memory)}
        arrays |= {f"drawn/{kind}": np.asarray(rounds) for kind, rounds in self.drawn.items()}
        arrays |= {f"noise/{kind}/{block}": n for kind, blocks in self.noise.items() for block, n in blocks.items()}
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        return out.getvalue()


def remembered(raw: bytes) -> Remembered:
    """The inverse of ``Remembered.to_bytes``."""
    with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    memory = [arrays[f"memory/{i}"] for i in range(sum(name.startswith("memory/") for name in arrays))]
    noise: dict[str, dict[str, Buffers]] = {}
    for name, values in arrays.items():
        if name.startswith("noise/"):
            _, kind, block = name.split("/", 2)
            noise.setdefault(kind, {})[block] = values
    key = arrays["study_key"].tobytes() if "study_key" in arrays else b""
    drawn = {name.removeprefix("drawn/"): int(n) for name, n in arrays.items() if name.startswith("drawn/")}
    return Remembered(arrays["order"], memory, noise, key, drawn)


class Worker:
    """Answers the rounds of one study; whether it may is decided elsewhere.

    ``engine`` makes the engine of each kind of round; no guarantee rests on it.
    """

    def __init__(
        self, offer: Offer, records: Any, samplers: Samplers, *, engine: Callable[..., Engine] = Engine
    ) -> None:
        self.offer, self._samplers = offer, samplers
        parts = offer.algorithm.rounds
        self._doors = {}
        for kind in dict.fromkeys(offer.algorithm.schedule):
            silo, form = parts[kind].silo, kind not in offer.grid_sigma
            self._doors[kind] = Door(
                silo, records, silo_index=offer.plan.silo_index, form=form, engine=engine(silo, form=form)
            )

    def serving(self, plan: Plan) -> Worker:
        """The same worker for a plan that differs in name only: it shares what was compiled. No study is kept here."""
        twin = copy.copy(self)
        twin.offer = dataclasses.replace(self.offer, plan=plan)
        return twin

    def begin(self, own: Mapping[str, np.ndarray] | None = None) -> Remembered:
        """What is kept before the first round; ``own`` has the arrays of the silo's model, where a plan counts it."""
        seed, key = np.frombuffer(os.urandom(SEED_BYTES), np.uint8), b""
        if self.offer.plan.pairwise is not None:
            from tacit.channel.pairwise import new_study_key

            key = new_study_key()
        return Remembered(seed, _leaves(self.offer.memory if own is None else self._with_model(own)), {}, key)

    def _with_model(self, own: Mapping[str, np.ndarray]) -> Any:
        """The memory of a validation that has the silo's own model, which must be of the plan's shape."""
        from tacit.objectives.leaves import named_leaves

        empty = self.offer.memory
        wanted = named_leaves(empty.params)
        if {name: leaf.shape for name, leaf in own.items()} != {name: leaf.shape for name, leaf in wanted.items()}:
            raise RefusalError("bad-plan", "expected the model of the study whose own models are counted")
        leaves = [np.asarray(own[name], leaf.dtype) for name, leaf in wanted.items()]
        params = jax.tree.unflatten(jax.tree.structure(empty.params), leaves)
        return empty._replace(params=params, begun=jnp.ones((), bool))

    @property
    def longest(self) -> int:
        """How many bytes the longest broadcast of the plan has."""
        return max(4 * coordinates(shape) for shape in self.offer.broadcasts.values())

    def broadcast(self, round_index: int, arrays: list[np.ndarray]) -> Any:
        """The broadcast of a round from its arrays, or a refusal where they are not the plan's."""
        leaves, form = jax.tree.flatten(self.offer.broadcasts[self.offer.algorithm.schedule[round_index]])
        wanted = [(leaf.shape, "i" if leaf.dtype.kind in "iub" else "f") for leaf in leaves]
        if [(a.shape, a.dtype.kind) for a in arrays] != wanted:
            raise RefusalError("shape", f"expected the arrays {wanted} for round {round_index + 1}")
        return jax.tree.unflatten(form, [_placed(a, leaf.dtype) for a, leaf in zip(arrays, leaves, strict=True)])

    def answer(self, round_index: int, broadcast: Any, kept: Remembered) -> tuple[list[np.ndarray], Remembered]:
        """The arrays of the message, and what to keep."""
        kind = self.offer.algorithm.schedule[round_index]
        answer = self._doors[kind].answer(
            broadcast,
            self._memory(kept),
            batches=self._batches(round_index, kept),
            sampler=self._samplers.gaussian,
            past=self._past(round_index, kept),
        )
        kept = self._with_noise(round_index, kept, answer.noise)
        return _leaves(answer.message), kept._replace(memory=_leaves(answer.memory))

    def personal(self, kept: Remembered) -> Any:
        """The silo's own model, from released memory alone."""
        assert self.offer.algorithm.personal is not None
        return self.offer.algorithm.personal(self._memory(kept))

    def share(self, round_index: int, broadcast: Any, kept: Remembered) -> Integers:
        """The silo's share of a round's sum, which leaves only as sealed parts; what is kept does not change."""
        kind, offer = self.offer.algorithm.schedule[round_index], self.offer
        from tacit.silo.coins import count_heads
        from tacit.silo.shares import BinomialShare, no_coins

        coins = count_heads if self._samplers.flips else no_coins
        mechanism = BinomialShare(self._doors[kind].engine, offer.shares[kind], coins, offer.weights[kind])
        return self._release(round_index, broadcast, kept, mechanism)

    def masked(self, round_index: int, broadcast: Any, kept: Remembered, masks: Masks) -> tuple[np.ndarray, Remembered]:
        """The silo's masked message to a pairwise sum, and what to keep."""
        kind, offer = self.offer.algorithm.schedule[round_index], self.offer
        from tacit.silo.pairwise import PairwiseShare

        door, among = self._doors[kind], offer.plan.pairwise
        assert among is not None
        release = door.silo.release
        own = (release.nonnegative, masks.silos, among.colluding, offer.weights[kind], masks.values)
        past, sampler = self._past(round_index, kept), self._samplers.gaussian
        mechanism = PairwiseShare(door.engine, door.multiplier, sampler, door.strategy, past, *own)
        said = self._release(round_index, broadcast, kept, mechanism)
        return said.values, self._with_noise(round_index, kept, said.noise)

    def reports(self, round_index: int, broadcast: Any, kept: Remembered) -> dict[str, list[bytes]]:
        """The reports of each stream of a round, which leave only sealed."""
        kind, offer = self.offer.algorithm.schedule[round_index], self.offer
        from tacit.silo.local_reports import LocalReports

        mechanism = LocalReports(self._doors[kind].engine, offer.streams[kind], offer.weights[kind])
        return self._release(round_index, broadcast, kept, mechanism)

    def _release(self, round_index: int, broadcast: Any, kept: Remembered, mechanism: Any) -> Any:
        door = self._doors[self.offer.algorithm.schedule[round_index]]
        work = door.silo.start(broadcast, self._memory(kept))
        (batch,) = self._batches(round_index, kept)
        return door.release(work, batch, mechanism)

    def _past(self, round_index: int, kept: Remembered) -> Past:
        """What is remembered of the noise of earlier rounds of a kind, and how many of them were left out since."""
        kind = self.offer.algorithm.schedule[round_index]
        return Past(kept.noise.get(kind, {}), self._earlier(round_index) - kept.drawn.get(kind, 0))

    def _with_noise(self, round_index: int, kept: Remembered, noise: dict[str, Buffers]) -> Remembered:
        """What is kept after a round. Of fresh noise that is nothing: beside a stored message it would give it away."""
        kind = self.offer.algorithm.schedule[round_index]
        if not self._doors[kind].strategy.weights:
            return kept
        drawn = {**kept.drawn, kind: self._earlier(round_index) + 1}
        return kept._replace(noise={**kept.noise, kind: noise}, drawn=drawn)

    def _earlier(self, round_index: int) -> int:
        """How many rounds of its kind come before a round, if noise remembers them; fresh noise has nothing to miss."""
        kind = self.offer.algorithm.schedule[round_index]
        return self.offer.algorithm.schedule[:round_index].count(kind) if self._doors[kind].strategy.weights else 0

    def _batches(self, round_index: int, kept: Remembered) -> list[SecretBatch]:
        """A fresh secret batch for each local step of a round."""
        door = self._doors[self.offer.algorithm.schedule[round_index]]
        first, stride, seed = self.offer.positions[round_index], door.silo.stride, kept.order_seed.tobytes()
        places = [first + step * stride for step in range(door.silo.local_steps)]
        return [door.batch(place, door.order(place, seed)) for place in places]

    def _memory(self, kept: Remembered) -> Any:
        form = jax.tree.structure(self.offer.memory)
        return jax.tree.unflatten(form, [jnp.asarray(leaf) for leaf in kept.memory])


def _placed(array: np.ndarray, dtype: Any) -> jax.Array:
    """A copy of an array for jax, laid out such that jax makes no second one."""
    raw = np.empty(array.size * np.dtype(dtype).itemsize + _ALIGNED, np.uint8)
    first = -raw.ctypes.data % _ALIGNED
    own = raw[first : first + raw.size - _ALIGNED].view(dtype).reshape(array.shape)
    own[...] = array
    return jax.device_put(own)


def _leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
