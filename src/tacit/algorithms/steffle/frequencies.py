"""How often each group is: public by declaration, or released once as a histogram with noise.

    message of silo i    mean over all its records of (indicator of the cell of (condition, group) - 1/cells) + noise
    frequencies          the mean of all messages, made positive, floored at ``rarest``, rows that sum to one

One record is in one cell, so that replacing it moves the mean by sqrt(2)/n at most.
"""

from typing import Any

import jax.numpy as jnp

from tacit.algorithm import Broadcast, Message, Record, Round, Server, Silo, Terms
from tacit.algorithms.steffle.game import SteffleState, say
from tacit.objectives import Ermi

_SHARE = 0.05  # of the budget, which a private histogram takes


def table_of(frequencies: Any, groups: int | None, rows: int, rarest: float) -> Any:
    """The frequencies that are declared, one row or one for each target; else equal ones, to be released."""
    if frequencies is not None:
        return frequencies
    if groups is None or groups < 2:
        raise ValueError(
            f"Expected frequencies, or groups={groups} >= 2 to release them as a private histogram; declare "
            "frequencies that are public, or say how many values s takes."
        )
    if not 0 < rarest <= 1 / groups:
        raise ValueError(f"Expected 0 < rarest={rarest} <= 1/groups={1 / groups:.3g}; no group can be rarer.")
    return [[1.0 / groups] * groups] * rows


def histogram_round(term: Ermi, terms: Terms, ratio: Any, rarest: float, centre: Any) -> Round:
    """The share of records in each cell (condition, group), with noise; one record moves it by sqrt(2)/n at most."""
    groups = len(term.frequencies[0])
    middle = 1.0 / (len(term.frequencies) * groups)

    def query(work: Broadcast, record: Record) -> jnp.ndarray:
        return term.cell(record) - middle

    def tell(state: SteffleState, message: Message) -> SteffleState:
        shares = message + middle
        # Twice, so that what was raised to the floor stays there after the rows sum to one again.
        for _ in range(2):
            shares = shares / jnp.maximum(jnp.sum(jnp.maximum(shares, 0.0), axis=1, keepdims=True), 1e-6)
            shares = jnp.maximum(shares, rarest)
        table = shares / jnp.sum(shares, axis=1, keepdims=True)
        return state._replace(frequencies=table, duals=centre(table))

    half = (1.0 - middle if terms.protects == "record" else 0.5) ** 0.5
    release = terms.drawn(None, "full").release(clip=lambda work: half, noise=ratio, groups=groups)
    return Round(Silo(query, release), Server(say, tell), participants="all")


def histogram_noise(terms: Terms, num_rounds: int, passes: int) -> float:
    """Noise of the histogram over that of a step, so that it takes its share of the budget where that is known."""
    if terms.sampling not in ("full", "one-pass"):
        return 10.0
    releases = num_rounds if terms.sampling == "full" else passes
    return float(((1 - _SHARE) / (_SHARE * releases)) ** 0.5)
