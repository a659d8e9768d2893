"""The sensitive attribute alone is protected, with every record in each round or in fixed epochs.

Features and target count as known, so a batch is no secret and nothing is amplified. What is bounded is half of how far
``s`` can move a record's gradients as it takes any other value:

    in W       2 (p_r^(-1/2) e_r - p_q^(-1/2) e_q) F^T
    in theta   2 strength J^T (p_r^(-1/2) W_r - p_q^(-1/2) W_q),    J the derivative of the probabilities F

for the worst pair of groups r, q. Both follow from what the server says: where predictions are nearly independent of s
there is little to hide. In fixed epochs a record is used ``passes`` times and pays for as many releases.
"""

import jax.numpy as jnp

from tacit.algorithm import Number, PerBlock, Terms
from tacit.algorithms.steffle.game import Design, SteffleSays, bounded
from tacit.objectives import Ermi, Problem


def design(problem: Problem, terms: Terms, term: Ermi, strength: Number, dual_clip_norm: Number | None) -> Design:
    """The designs of full batches and of fixed epochs; ``clip_norm`` bounds half of what ``s`` can move in theta."""
    steep = term.steepness(problem.lipschitz, problem.objective.cost)

    def clips(work: SteffleSays) -> PerBlock:
        inverse = 1.0 / jnp.sqrt(work.frequencies)
        rare = jnp.sort(inverse**2, axis=1)[:, -2:]
        duals = jnp.sqrt(jnp.max(jnp.sum(rare, axis=1))) * term.longest
        params = jnp.asarray(terms.clip_norm, jnp.float32)
        if steep is not None:
            rows = inverse[:, :, None] * work.duals
            gaps = rows[:, :, None, :] - rows[:, None, :, :]
            params = jnp.minimum(params, strength * steep * jnp.sqrt(jnp.max(jnp.sum(gaps**2, axis=-1))))
        return {"params": params, "duals": bounded(duals, dual_clip_norm)}

    return Design(terms, clips)
