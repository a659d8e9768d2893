"""One consented study at work: from a round's broadcast to a message, and what must be remembered in between."""

from __future__ import annotations

import copy
import dataclasses
import io
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int64

from tacit.runtime.daemon.contract import Offer
from tacit.runtime.daemon.entropy import Entropy
from tacit.runtime.daemon.protocol import Plan, RefusalError
from tacit.silo import pass_order
from tacit.silo.secure_answer import Responder
from tacit.silo.secure_noise import Integers
from tacit.silo.secure_reports import ReportResponder
from tacit.silo.secure_share import ShareResponder


class Remembered(NamedTuple):
    """What a study keeps at the silo between rounds: its pass, its released memory, and the noises of running sums."""

    order_key: np.ndarray
    memory: list[np.ndarray]
    noise: dict[str, dict[str, Integers]]

    def to_bytes(self) -> bytes:
        """As an npz archive."""
        arrays = {"order": self.order_key}
        arrays |= {f"memory/{i}": leaf for i, leaf in enumerate(self.memory)}
        arrays |= {f"noise/{kind}/{block}": n for kind, blocks in self.noise.items() for block, n in blocks.items()}
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        return out.getvalue()


def remembered(raw: bytes) -> Remembered:
    """The inverse of ``Remembered.to_bytes``."""
    with np.load(io.BytesIO(raw), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    memory = [arrays[f"memory/{i}"] for i in range(sum(name.startswith("memory/") for name in arrays))]
    noise: dict[str, dict[str, Integers]] = {}
    for name, values in arrays.items():
        if name.startswith("noise/"):
            _, kind, block = name.split("/", 2)
            noise.setdefault(kind, {})[block] = values
    return Remembered(arrays["order"], memory, noise)


class Worker:
    """Answers the rounds of one study; it decides nothing about whether it may."""

    def __init__(self, offer: Offer, records: Any, entropy: Entropy, *, noise: bool) -> None:
        self.offer = offer
        self._entropy, self._records = entropy, {name: jnp.asarray(column) for name, column in records.items()}
        self._count = len(records["y"])
        place, parts = offer.plan.place, offer.algorithm.rounds
        kinds = [kind for kind in parts if kind in offer.algorithm.schedule]
        self._responders = {
            kind: Responder(
                parts[kind].silo, self._records, place=place, grid_sigma=offer.grid_sigma[kind] if noise else None
            )
            for kind in kinds
            if kind in offer.grid_sigma
        }
        self._sharers = {
            kind: ShareResponder(parts[kind].silo, self._records, place=place, terms=offer.shares[kind], coins=noise)
            for kind in kinds
            if kind in offer.shares
        }
        # Reports are randomised in a test build too: there is nothing else to say.
        self._reporters = {
            kind: ReportResponder(parts[kind].silo, self._records, place=place, terms=offer.streams[kind])
            for kind in kinds
            if kind in offer.streams
        }
        self._passes = any(part.silo.release.sampling == "one-pass" for part in offer.algorithm.rounds.values())

    def serving(self, plan: Plan) -> Worker:
        """The same work under another name: nothing of a study is kept here, so what was compiled can be shared."""
        twin = copy.copy(self)
        twin.offer = dataclasses.replace(self.offer, plan=plan)
        return twin

    def begin(self) -> Remembered:
        """What is remembered before the first round."""
        memory = [np.asarray(leaf) for leaf in jax.tree.leaves(self.offer.memory)]
        return Remembered(self._entropy.order_key(self.offer.plan.place), memory, {})

    def arrays_fit(self, number: int, arrays: list[np.ndarray]) -> Any:
        """The broadcast of a round from its arrays, or a refusal where they are not the plan's."""
        leaves, form = jax.tree.flatten(self.offer.broadcasts[self.offer.algorithm.schedule[number]])
        wanted = [(leaf.shape, "i" if leaf.dtype.kind in "iub" else "f") for leaf in leaves]
        if [(a.shape, a.dtype.kind) for a in arrays] != wanted:
            raise RefusalError("shape", f"expected the arrays {wanted} for round {number}")
        return jax.tree.unflatten(form, [jnp.asarray(a, leaf.dtype) for a, leaf in zip(arrays, leaves, strict=True)])

    def answer(self, number: int, broadcast: Any, kept: Remembered) -> tuple[list[np.ndarray], Remembered]:
        """The arrays of the message, and what to remember."""
        kind = self.offer.algorithm.schedule[number]
        steps, place = self.offer.algorithm.rounds[kind].silo.local_steps, self.offer.plan.place
        found = self._responders[kind].answer(
            broadcast,
            self._memory(kept),
            keys=self._entropy.batch_keys(number, place, steps),
            position=self.offer.positions[number],
            order=self._order(kept),
            before=kept.noise.get(kind),
        )
        memory = [np.asarray(leaf) for leaf in jax.tree.leaves(found.memory)]
        noise = {**kept.noise, kind: found.noise}
        return [np.asarray(leaf) for leaf in jax.tree.leaves(found.message)], Remembered(kept.order_key, memory, noise)

    def share(self, number: int, broadcast: Any, kept: Remembered) -> Int64[np.ndarray, " coordinates"]:
        """The silo's share of a round's sum, which must not leave but in parts; it changes nothing remembered."""
        return self._sharers[self.offer.algorithm.schedule[number]].answer(
            broadcast,
            self._memory(kept),
            keys=self._entropy.share_keys(number, self.offer.plan.place),
            position=self.offer.positions[number],
            order=self._order(kept),
        )

    def reports(self, number: int, broadcast: Any, kept: Remembered) -> dict[str, list[bytes]]:
        """The reports of each stream of a round, which must not leave but sealed."""
        (key,) = self._entropy.batch_keys(number, self.offer.plan.place, 1)
        return self._reporters[self.offer.algorithm.schedule[number]].answer(
            broadcast,
            self._memory(kept),
            key=key,
            position=self.offer.positions[number],
            order=self._order(kept),
        )

    def _memory(self, kept: Remembered) -> Any:
        form = jax.tree.structure(self.offer.memory)
        return jax.tree.unflatten(form, [jnp.asarray(leaf) for leaf in kept.memory])

    def _order(self, kept: Remembered) -> Any:
        key = jax.random.wrap_key_data(jnp.asarray(kept.order_key))
        return pass_order(key, self._count, self._count) if self._passes else None
