"""Records are clipped whole: where they are protected whole, and where a batch must stay secret.

Whole records (``protects="record"``): everything that a record says is clipped and noised, as in any other algorithm.

A secret batch (the attribute alone is protected, batches are drawn at random): noise that hides ``s`` does not hide the
rest of a record, which would tell who is in the batch, and amplification would be void. So the records of the batch are
clipped whole, for psi alone. The gradient of the loss comes from all records, in a round of its own that is not handed
``s``: it is free.

The bound on a record's part in the duals is that of -2 W diag(F) + 2 p_s^(-1/2) e_s F^T, from what the server says.
"""

from dataclasses import replace

import jax.numpy as jnp

from tacit.algorithm import Message, Number, PerBlock, Round, Server, Silo, Terms
from tacit.algorithms.steffle.game import Design, SteffleSays, SteffleState, bounded, say
from tacit.objectives import Ermi, Problem, gradient_at


def design(terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """The design for whole records; ``clip_norm`` bounds the gradient of a record in theta."""

    def clips(work: SteffleSays) -> PerBlock:
        rarest = jnp.max(1.0 / jnp.sqrt(work.frequencies))
        duals = 2.0 * (jnp.sqrt(jnp.sum(work.duals**2)) + rarest) * term.longest
        return {"params": jnp.asarray(terms.clip_norm, jnp.float32), "duals": bounded(duals, dual_clip_norm)}

    return Design(replace(terms, protects="record"), clips)


def secret(problem: Problem, terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """The design of a secret batch; ``clip_norm`` bounds a record's gradient of strength x psi in theta."""
    free = Terms(1.0, None, None, "full", channel="open", protects="sensitive-attribute")
    query = gradient_at(problem.objective, lambda work: work.params)

    def tell(state: SteffleState, message: Message) -> SteffleState:
        return state._replace(gradient=message)

    silo = Silo(query, free.release(groups=len(term.frequencies[0])), reads=("x", "y"))
    loss = Round(silo, Server(say, tell))
    return design(terms, term, dual_clip_norm)._replace(with_loss=False, before=(("loss", loss),))
