"""A simulation over records that stay on disk."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Algorithm, Params
from tacit.silo import StoredSilos
from tacit.simulate.compiled import Outcome
from tacit.simulate.participation import Participation, participation
from tacit.simulate.program import Noise, advance, split_keys, start, turns_of


def simulate_stored(
    algorithm: Algorithm,
    params: Params,
    silos: StoredSilos,
    *,
    key: Array,
    who: Participation | None = None,
    measure: Callable[[Params], dict[str, Array]] | None = None,
    measure_every: int = 1,
    noise: Noise = "summed",
) -> Outcome:
    """What `simulate` does with the same records in memory, number for number; only batches are read."""
    who = participation(silos.number) if who is None else who
    keys = split_keys(key)
    turns = turns_of(algorithm, 0 if measure is None else measure_every, who, silos.number, keys)

    @jax.jit
    def run(params: Params) -> tuple[Params, Params, dict[str, Array]]:
        carry = start(algorithm, params, silos.number)
        carry, trace = advance(algorithm, silos, keys, carry, turns, who=who, noise=noise, measure=measure)
        return algorithm.output(carry.state), carry.state, trace

    output, state, trace = jax.block_until_ready(run(params))
    rounds = np.flatnonzero(turns.measured)
    return Outcome(output, state, {name: np.asarray(values)[rounds] for name, values in trace.items()}, rounds + 1)
