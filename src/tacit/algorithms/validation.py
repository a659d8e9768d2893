"""How well a finished model does, counted at the silos on records that were set aside: one round.

    broadcast             the model
    message of silo i     for each table b: (1/n) sum over its n records of row_b(score, truth) + N(0, sigma_b^2 I)
    server                keeps the mean of all messages

`tacit.counting.scored` says which tables there are. A row's entries are not negative and add up to one, so replacing
a record moves a sum of rows by at most sqrt(2). Area under the curve, calibration, confusion and errors are computed
from the released counts (`tacit.counting.performance`), and cost nothing more. All tables are blocks of one release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Params, Record, Round, Server, Silo, Terms, recipe
from tacit.algorithms.statistics import Cells, row_of
from tacit.counting.request import StatisticsError, block, noise_ratios
from tacit.counting.scored import STEEP, Scored, Task, scored
from tacit.objectives import Problem, untapped
from tacit.objectives.losses import SURVIVAL

TASKS: Mapping[str, Task] = {
    "logistic": "binary",
    "hinge": "binary",
    "softmax": "multiclass",
    "squared": "regression",
    "absolute": "regression",
    "pinball": "regression",
    "huber": "regression",
    "poisson": "regression",
    SURVIVAL: "survival",
}
"""What a loss is for."""


class ValidationState(NamedTuple):
    """The model that is asked about, and the mean row of each table."""

    params: Params
    cells: Cells


@recipe
def validation(
    problem: Problem, terms: Terms, *, asked: Mapping[str, Any], columns: Sequence[Mapping[str, Any]] = ()
) -> Algorithm:
    """Counts by (score, truth) of the model that it starts from; the output has the mean row of each table.

    ``asked`` are terms of `tacit.counting.scored.scored`: bins, threshold, residual and groups. ``columns`` are those
    of a record's field ``columns`` that groups name, as a schema declares them.
    """
    if terms.channel == "shuffled-reports":
        raise StatisticsError('Expected channel="direct", "pairwise", "shuffled-sum" or "trusted" for validation.')
    wanted, groups = tables_for(problem, asked, columns), asked.get("groups")
    survives, counted = wanted.task == "survival", problem.objective.cost.name == "poisson"
    tables, names = wanted.tables, [block(place) for place in range(len(wanted.tables))]

    def init(params: Params) -> ValidationState:
        return ValidationState(params, {name: jnp.zeros(t.size) for name, t in zip(names, tables, strict=True)})

    def query(work: Params, record: Record) -> Cells:
        outputs = problem.objective.model.apply(work, record["x"][None], untapped)[0]
        outputs = jnp.exp(outputs) if counted else outputs
        values = _survival(work, outputs, record["y"]) if survives else _values(wanted, outputs, record["y"])
        values = jnp.concatenate([values, record["columns"]]) if groups else values
        return {name: row_of(table, values) for name, table in zip(names, tables, strict=True)}

    def tell(state: ValidationState, message: Message) -> ValidationState:
        return state._replace(cells=message)

    release = terms.drawn(None, "full").release(
        clip=lambda work: dict.fromkeys(names, 1.0), noise=noise_ratios(tables), nonnegative=True
    )
    reads = ("x", "y", "columns") if groups else ("x", "y")
    once = Round(Silo(query, release, reads=reads), Server(lambda state: state.params, tell), "all")
    return Algorithm(init, {"validation": once}, ("validation",), lambda state: state.cells)


def tables_for(problem: Problem, asked: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> Scored:
    """The tables of a validation of this problem's models."""
    if strange := sorted(set(asked) - {"bins", "threshold", "residual", "groups"}):
        raise StatisticsError(f"Expected bins, threshold, residual and groups of a validation, got {strange[0]!r}.")
    loss = problem.objective.cost.name or "a loss of one's own"
    if loss not in TASKS:
        raise StatisticsError(
            f"Expected a loss among {', '.join(TASKS)} to count scores of, got {loss!r}: what it measures is no count "
            "of single records."
        )
    outputs = _outputs(problem) if TASKS[loss] == "multiclass" else 2
    return scored(TASKS[loss], outputs, **{"columns": columns, **asked})


def _outputs(problem: Problem) -> int:
    """How many classes a model has an output for."""
    built = problem.objective.model.architecture
    if built is None:
        raise StatisticsError("Expected a model of Tacit's own; silos know no other.")
    return int(built.arguments["sizes"][-1] if "sizes" in built.arguments else built.arguments["outputs"])


def _survival(params: Params, outputs: jax.Array, truth: jax.Array) -> jax.Array:
    """Risk, time and event; of a model that tells nobody apart all risks are the same."""
    weights, start = params["linear"]["w"], params["linear"]["b"][0]
    risk = (outputs[0] - start) / jnp.maximum(jnp.linalg.norm(weights), 1e-30)
    return jnp.stack([jax.nn.sigmoid(STEEP * risk), jnp.abs(truth), (truth > 0).astype(jnp.float32)])


def _values(wanted: Scored, outputs: jax.Array, truth: jax.Array) -> jax.Array:
    """The numbers that the tables are made of, each a share, a bin's or a class's position."""
    if wanted.task == "regression":
        far = (outputs[0] - truth) / wanted.residual
        return jnp.stack([jnp.where(jnp.isfinite(far), (jnp.clip(far, -1.0, 1.0) + 1.0) / 2.0, -1.0), truth])
    label = truth.astype(jnp.float32)
    if wanted.task == "binary":
        return jnp.stack([jax.nn.sigmoid(outputs[0]), label])
    likely = jax.nn.softmax(outputs)
    predicted = jnp.argmax(likely).astype(jnp.float32)
    return jnp.stack([predicted, label, jnp.max(likely), (predicted == label).astype(jnp.float32)])
