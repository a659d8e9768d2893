"""What is asked without training: tables of `statistics` and `validation`, as docs/protocol.md describes them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak.silos import Silo

ONCE = ("ridge", "statistics", "validation")
"""Studies of one round; the first and the second are asked with an empty broadcast."""
_POWERS = 6  # five polynomials, and what is missing
_BINS = {"histogram": 10, "table": 5, "quantiles": 64, "survival": 24}
_SCORES = 20
STATISTICS: tuple[dict[str, Any], ...] = (
    {"kind": "counts", "columns": ["ward"]},
    {"kind": "counts", "columns": ["ward"], "by": "sex"},
    {"kind": "histogram", "columns": ["age"], "edges": {"age": [20.0, 40.0, 60.0]}},
    {"kind": "histogram", "columns": ["days"], "by": "ward"},
    {"kind": "table", "columns": ["sex", "age", "ward"]},
    {"kind": "quantiles", "columns": ["days"], "bins": 32},
    {"kind": "moments", "columns": ["age"]},
    {"kind": "moments", "columns": ["days"], "by": "sex"},
    {"kind": "correlation", "columns": ["age", "days"]},
    {"kind": "survival", "columns": ["age", "sex"], "bins": 8},
)
"""One of each kind, and some by the levels of a category."""


@dataclass(frozen=True)
class Table:
    """How many cells a table has, and how much it needs of a release's budget."""

    cells: int
    need: float = 1.0


def asked_statistics(silo: Silo, chosen: tuple[dict[str, Any], ...] = STATISTICS) -> dict[str, Any]:
    """The section of an algorithm that asks for these."""
    return {"name": "statistics", "num_rounds": 1, "statistics": list(chosen), "columns": claimed(silo)}


def claimed(silo: Silo) -> list[dict[str, Any]]:
    """The columns of a silo as a plan claims them, each with its place among all."""
    return [{**column, "place": place} for place, column in enumerate(silo.columns)]


def random_statistics(rng: np.random.Generator, silo: Silo) -> dict[str, Any]:
    """Some of them, with weights."""
    places = rng.choice(len(STATISTICS), int(rng.integers(1, 6)), replace=False)
    chosen = (STATISTICS[place] | {"weight": float(rng.choice([1.0, 1e-3, 1e3]))} for place in places)
    return asked_statistics(silo, tuple(chosen))


def random_validation(rng: np.random.Generator, silo: Silo) -> dict[str, Any]:
    """A question about a model: with other bins, by groups, or beside a model that the silo does not have."""
    asked: dict[str, Any] = {}
    if rng.random() < 0.5:
        asked["bins"] = int(rng.choice([2, 7, 200]))
    if rng.random() < 0.5:
        asked["threshold"] = float(rng.choice([0.5, 0.05, 0.123, 0.999]))
    if rng.random() < 0.5:
        asked["residual"] = float(rng.choice([1.0, 0.1, 1e-6]))
    if rng.random() < 0.3:
        asked["own"] = f"{rng.integers(2**32):064x}"
    grouped = bool(silo.columns) and rng.random() < 0.5
    groups = {"groups": ["ward", "sex"][: int(rng.integers(1, 3))]} if grouped else {}
    return {"name": "validation", "num_rounds": 1, "asked": asked | groups} | (
        {"columns": claimed(silo)} if grouped else {}
    )


def tables_of(algorithm: dict[str, Any], loss: str, classes: int | None) -> list[Table]:
    """The tables of a question's answer, in order; none for what is no such question."""
    if algorithm["name"] == "statistics":
        columns = {column["name"]: column for column in algorithm["columns"]}
        return [_statistic(one, columns) for one in algorithm["statistics"]]
    if algorithm["name"] != "validation":
        return []
    asked = algorithm["asked"]
    first, pair = _scored(asked, loss, classes)
    levels = {column["name"]: len(column.get("levels", ())) for column in algorithm.get("columns", ())}
    groups = [levels[name] + 2 for name in asked.get("groups", ())]
    shared = [*first, *(cells * group for group in groups for cells in first)]
    return [Table(cells) for cells in (*shared, *((*first, pair) if "own" in asked else ()))]


def ratios(tables: list[Table]) -> list[float]:
    """How many times the noise multiplier of the whole release each table has."""
    whole = math.sqrt(sum(math.sqrt(table.need) for table in tables))
    return [whole / table.need**0.25 for table in tables]


def _scored(asked: dict[str, Any], loss: str, classes: int | None) -> tuple[list[int], int]:
    """Cells of the tables of a model, and of the one that compares two."""
    bins = asked.get("bins", _SCORES)
    edges = len({*(b / bins for b in range(bins + 1)), asked.get("threshold", 0.5)})
    if loss in ("logistic", "hinge"):
        return [2 * (edges - 1)], 4
    if loss == "softmax":
        assert classes is not None
        return [classes**2, 2 * (edges - 1)], 4
    return [_POWERS, _POWERS], _POWERS


def _statistic(one: dict[str, Any], columns: dict[str, dict[str, Any]]) -> Table:
    kind, sizes = one["kind"], list(_axes(one, columns))
    bins = one.get("bins", _BINS.get(kind, 0))
    factor = {"quantiles": bins / 6, "survival": bins / 3, "correlation": 16.0}.get(kind, 1.0)
    return Table(math.prod(sizes), one.get("weight", 1.0) * max(1.0, factor))


def _axes(one: dict[str, Any], columns: dict[str, dict[str, Any]]) -> Iterator[int]:
    """How many cells there are along each axis, the group's first."""
    kind = one["kind"]
    if "by" in one:
        yield len(columns[one["by"]]["levels"]) + 2
    for name in one["columns"]:
        column, edges = columns[name], one.get("edges", {}).get(name)
        if kind in ("moments", "correlation"):
            yield _POWERS
        elif "levels" in column:
            yield len(column["levels"]) + 2
        elif edges is None:
            yield one.get("bins", _BINS[kind]) + (kind == "survival") + 1
        else:
            beyond = (edges[0] > column["low"]) + (edges[-1] < column["high"] or kind == "survival")
            yield len(edges) - 1 + beyond + 1
