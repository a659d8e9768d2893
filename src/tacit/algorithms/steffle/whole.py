"""Whole records are protected: everything that a record says is clipped, as in any other algorithm.

The bound on its part in the duals is that of -2 W diag(F) + 2 p_s^(-1/2) e_s F^T, from what the server says.
"""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp

from tacit.algorithm import Number, PerBlock, Terms
from tacit.algorithms.steffle.game import Design, SteffleSays, bounded
from tacit.objectives import Ermi


def whole_records(terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """The design for whole records; ``clip_norm`` bounds the gradient of a record in theta."""

    def clips(work: SteffleSays) -> PerBlock:
        rarest = jnp.max(1.0 / jnp.sqrt(work.frequencies))
        duals = 2.0 * (jnp.sqrt(jnp.sum(work.duals**2)) + rarest) * term.longest
        return {"params": jnp.asarray(terms.clip_norm, jnp.float32), "duals": bounded(duals, dual_clip_norm)}

    return Design(replace(terms, protects="record"), clips)
