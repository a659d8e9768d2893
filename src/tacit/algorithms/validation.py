"""How well a finished model does, counted at the silos on records that were set aside: one round.

    broadcast             the model
    message of silo i     for each table b: (1/n) sum over its n records of row_b(score, truth) + N(0, sigma_b^2 I)
    server                keeps the mean of all messages

`tacit.counting.scored` says which tables there are. A row's entries are not negative and add up to one, so replacing
a record moves a sum of rows by at most sqrt(2). Area under the curve, calibration, confusion and errors are computed
from the released counts (`tacit.counting.performance`), and cost nothing more. All tables are blocks of one release.

Where the question names a study (``asked.own``), a silo counts the model that it has of its own from there too, on the
same records and in the same release: one more block for each table, and one that compares both models. What it pays is
the same epsilon, so every block has more noise. Its own model is made of what the silo has released before, so it tells
nothing more of records that train. A silo without one counts the broadcast model in its place. It says so by a number
beside its counts, which no record has a part in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Params, Record, Round, Server, Silo, Terms, recipe
from tacit.algorithms.mr_mtl import OwnModel
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


HAS_OWN = "own"
"""Beside the tables of an answer: 1 where the silo has a model of its own, 0 where it has none."""


_STUDY = re.compile("[0-9a-f]{64}")


class ValidationState(NamedTuple):
    """The model that is asked about, and the mean row of each table."""

    params: Params
    cells: Cells


class ValidationWork(NamedTuple):
    """Both models, and what was counted of them, once it is released."""

    params: Params
    own: Params
    cells: Any = ()


@recipe
def validation(
    problem: Problem, terms: Terms, *, asked: Mapping[str, Any], columns: Sequence[Mapping[str, Any]] = ()
) -> Algorithm:
    """Counts by (score, truth) of the model that it starts from; the output has the mean row of each table.

    ``asked`` are terms of `tacit.counting.scored.scored`: bins, threshold, residual and groups; and ``own``, the study
    that silos have models of their own from, which they are handed as their memory. ``columns`` are those of a record's
    field ``columns`` that groups name, as a schema declares them.
    """
    if terms.channel == "shuffled-reports":
        raise StatisticsError('Expected channel="direct", "pairwise", "shuffled-sum" or "trusted" for validation.')
    if asked.get("own") and terms.channel != "direct":
        raise StatisticsError(
            f'Expected channel="direct" for models of silos\' own, got {terms.channel!r}: a sum over silos would not '
            "tell whose is better; leave own out."
        )
    wanted, groups = tables_for(problem, asked, columns), asked.get("groups")
    tables, names = wanted.tables, [block(place) for place in range(len(wanted.tables))]

    def init(params: Params) -> ValidationState:
        cells = {name: jnp.zeros(t.size) for name, t in zip(names, tables, strict=True)}
        return ValidationState(params, cells | ({HAS_OWN: jnp.zeros(())} if wanted.own else {}))

    def query(work: Any, record: Record) -> Cells:
        values = _values(problem, wanted, work.params if wanted.own else work, record)
        told = jnp.concatenate([values, record["columns"]]) if groups else values
        rows = [row_of(table, told) for table in wanted.shared]
        if wanted.own:
            own = _values(problem, wanted, work.own, record)
            rows += [row_of(table, own) for table in wanted.first]
            rows += [row_of(table, _compared(wanted, values, own)) for table in wanted.paired]
        return dict(zip(names, rows, strict=True))

    def tell(state: ValidationState, message: Message) -> ValidationState:
        return state._replace(cells=message)

    release = terms.drawn(None, "full").release(
        clip=lambda work: dict.fromkeys(names, 1.0), noise=noise_ratios(tables), nonnegative=True
    )
    reads = ("x", "y", "columns") if groups else ("x", "y")
    keeping: dict[str, Any] = {"start": _start, "absorb": _absorb, "report": _report} if wanted.own else {}
    once = Round(Silo(query, release, reads=reads, **keeping), Server(lambda state: state.params, tell), "all")
    memory: dict[str, Any] = {"memory": _no_model} if wanted.own else {}
    return Algorithm(init, {"validation": once}, ("validation",), lambda state: state.cells, **memory)


def _no_model(params: Params) -> OwnModel:
    return OwnModel(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), bool))


def _start(params: Params, own: OwnModel) -> ValidationWork:
    return ValidationWork(params, jax.tree.map(lambda w, m: jnp.where(own.begun, w, m), own.params, params))


def _absorb(work: ValidationWork, cells: Cells) -> ValidationWork:
    return work._replace(cells=cells)


def _report(work: ValidationWork, own: OwnModel) -> tuple[Message, OwnModel]:
    return {**work.cells, HAS_OWN: own.begun.astype(jnp.float32)}, own


def tables_for(problem: Problem, asked: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> Scored:
    """The tables of a validation of this problem's models."""
    if strange := sorted(set(asked) - {"bins", "threshold", "residual", "groups", "own"}):
        raise StatisticsError(
            f"Expected bins, threshold, residual, groups and own of a validation, got {strange[0]!r}."
        )
    if (named := asked.get("own")) is not None and not (isinstance(named, str) and _STUDY.fullmatch(named)):
        raise StatisticsError(
            f"Expected own={named!r} to be a study's identity, 64 hexadecimal digits; or leave it out."
        )
    loss = problem.objective.cost.name or "a loss of one's own"
    if loss not in TASKS:
        raise StatisticsError(
            f"Expected a loss among {', '.join(TASKS)} to count scores of, got {loss!r}: what it measures is no count "
            "of single records."
        )
    outputs = _outputs(problem) if TASKS[loss] == "multiclass" else 2
    return scored(TASKS[loss], outputs, **{"columns": columns, **asked, "own": bool(asked.get("own"))})


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


def _values(problem: Problem, wanted: Scored, params: Params, record: Record) -> jax.Array:
    """The numbers that the tables are made of, each a share, a bin's or a class's position."""
    outputs, truth = problem.objective.model.apply(params, record["x"][None], untapped)[0], record["y"]
    outputs = jnp.exp(outputs) if problem.objective.cost.name == "poisson" else outputs
    if wanted.task == "survival":
        return _survival(params, outputs, truth)
    if wanted.task == "regression":
        far = (outputs[0] - truth) / wanted.residual
        return jnp.stack([jnp.where(jnp.isfinite(far), (jnp.clip(far, -1.0, 1.0) + 1.0) / 2.0, -1.0), truth])
    label = truth.astype(jnp.float32)
    if wanted.task == "binary":
        return jnp.stack([jax.nn.sigmoid(outputs[0]), label])
    likely = jax.nn.softmax(outputs)
    predicted = jnp.argmax(likely).astype(jnp.float32)
    return jnp.stack([predicted, label, jnp.max(likely), (predicted == label).astype(jnp.float32)])


def _compared(wanted: Scored, shared: jax.Array, own: jax.Array) -> jax.Array:
    """What the table that compares both models is made of, from the numbers of each."""
    if wanted.task == "regression":
        squares = [(2.0 * values[0] - 1.0) ** 2 for values in (shared, own)]
        missing = (shared[0] < 0) | (own[0] < 0)
        return jnp.where(missing, -1.0, (squares[0] - squares[1] + 1.0) / 2.0)[None]
    if wanted.task == "multiclass":
        return jnp.stack([shared[3], own[3]])
    # A score that is not a number is in the last bin, above the threshold.
    right = [~(values[0] < wanted.threshold) == (values[1] > 0) for values in (shared, own)]
    return jnp.stack(right).astype(jnp.float32)
