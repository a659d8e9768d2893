"""A silo's answer with secure noise: the steps of `answer`, each compiled, with the noise drawn between them.

Statistics are computed in float64. Addition rounds, and on records crafted for it one replaced record can change how
every later addition rounds: of n records it moves a sum by up to n^2 rounding units, which is far beyond the priced
sensitivity in float32 and below `SLACK` of it in float64, up to `MOST_RECORDS` in a batch, even where terms of a
difference are hundreds of times as large as their sum, because micro-batches are short there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Broadcast, Memory, Message, Record, Silo, Statistic, Work
from tacit.silo.answer import desk_of, exact_statistic
from tacit.silo.secure_noise import Integers, Sampler, add_discrete_gaussian, discrete_gaussian

MOST_RECORDS = 2**19
"""Records of a silo up to which rounding of a float64 sum stays inside the slack of the sensitivity."""


class Answered(NamedTuple):
    """The message, what the silo keeps for its next round, and the noise that a running sum will need again.

    That noise must not leave; of other releases none is kept, because beside a stored message it would give it away.
    """

    message: Message
    memory: Memory
    noise: dict[str, Integers]


class Responder:
    """The silo half of one kind of round, at one silo.

    ``grid_sigma`` is the noise in grid units that was priced; ``None`` leaves all noise and rounding out, which only a
    test build may do.
    """

    def __init__(
        self,
        silo: Silo,
        records: Record,
        *,
        place: int,
        grid_sigma: float | None,
        sampler: Sampler = discrete_gaussian,
    ) -> None:
        if silo.release.channel != "direct":
            raise ValueError('Expected channel="direct": a silo adds its noise itself, or says nothing.')
        self._silo, self._grid_sigma, self._sampler = silo, grid_sigma, sampler
        self._records = records
        count = int(jax.tree.leaves(records)[0].shape[0])
        if count > MOST_RECORDS:
            raise ValueError(
                f"Expected at most {MOST_RECORDS} records, got {count}: more could round past their price."
            )

        def exact(work: Work, records: Record, order: Array | None, key: Array, position: Array) -> Any:
            desk = desk_of(_doubled(records), count, order, place)
            return exact_statistic(silo, _doubled(work), desk, key=key, position=position)

        self._exact = jax.jit(exact)
        self._start, self._absorb, self._report = jax.jit(silo.start), jax.jit(silo.absorb), jax.jit(silo.report)

    def answer(
        self,
        broadcast: Broadcast,
        memory: Memory,
        *,
        keys: Sequence[Array],
        position: int,
        order: Array | None,
        before: Mapping[str, Integers] | None,
    ) -> Answered:
        """Start, then local steps of release and absorb, then report; ``keys`` choose the batches, one for each step.

        Formal guarantee: the message is post-processing of as many releases as there are local steps, each of them on
        the grid and with the noise that `add_discrete_gaussian` promises. Everything is computed to the end whatever
        the records are.
        """
        work = self._start(broadcast, memory)
        noise: dict[str, Integers] = {}
        for number, key in enumerate(keys):
            at = position + number * self._silo.stride
            mean, deviation = self.statistic(work, order=order, key=key, position=at)
            released, noise = self._release(mean, deviation, before)
            work = self._absorb(work, released)
        message, memory = self._report(work, memory)
        return Answered(message, memory, noise)

    def statistic(self, work: Work, *, order: Array | None, key: Array, position: int) -> tuple[Statistic, Any]:
        """The clipped mean *before* noise, in float64, and the deviation of its noise: never to be said as it is."""
        with jax.enable_x64(True):
            return self._exact(work, self._records, order, key, position)

    def _release(
        self, mean: Statistic, deviation: Any, before: Mapping[str, Integers] | None
    ) -> tuple[Statistic, dict[str, Integers]]:
        if self._grid_sigma is None:
            return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float32)), mean), {}
        if deviation is None:
            raise ValueError("Expected a private release; this one has no noise.")
        runs = self._silo.release.mechanism == "cumulative"
        released, noise = add_discrete_gaussian(
            mean, deviation, grid_sigma=self._grid_sigma, before=before if runs else None, sampler=self._sampler
        )
        return released, noise if runs else {}


def _doubled(tree: Any) -> Any:
    """Floating-point leaves in float64."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )
