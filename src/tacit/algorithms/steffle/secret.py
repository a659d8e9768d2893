"""The sensitive attribute is protected by a secret batch, whose records are clipped whole so that it stays secret.

The gradient of the loss comes from all records, in a round of its own that is not handed ``s``: it is free.
"""

from __future__ import annotations

from tacit.algorithm import Message, Number, Round, Server, Silo, Terms
from tacit.algorithms.steffle.game import Design, SteffleState, say
from tacit.algorithms.steffle.whole import whole_records
from tacit.objectives import Ermi, Problem, gradient_at


def secret_batch(problem: Problem, terms: Terms, term: Ermi, dual_clip_norm: Number | None) -> Design:
    """The design of a secret batch; ``clip_norm`` bounds a record's gradient of strength x psi in theta."""
    design = whole_records(terms, term, dual_clip_norm)
    return design._replace(with_loss=False, before={"loss": _loss_round(problem, len(term.frequencies[0]))})


def _loss_round(problem: Problem, groups: int) -> Round:
    """The gradient of the loss on all records, from a division that is not handed ``s``."""
    free = Terms(1.0, None, None, "full", channel="open", protects="sensitive-attribute")

    def tell(state: SteffleState, message: Message) -> SteffleState:
        return state._replace(gradient=message)

    query = gradient_at(problem.objective, lambda work: work.params)
    return Round(Silo(query, free.release(groups=groups), reads=("x", "y")), Server(say, tell))
