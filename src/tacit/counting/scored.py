"""What is counted about a finished model: where its scores and the truth of records lie, in tables of cells.

    two classes       (bin of the score, class)
    several classes   (predicted class, class) and (bin of the likeliest class's probability, whether it is right)
    a number          powers of the residual, and powers of the target
    a time            (bin of the risk, bin of the time, whether the event was seen)

Each of them also by the levels of a group's column, where such are asked for. Where silos have models of their own, the
first tables are counted of those too, and one more table compares both models record by record:

    classes           (whether the shared model is right, whether the silo's own is)
    a number          powers of the difference of squared residuals

Scores are probabilities. A risk x . w is
squashed to 1 / (1 + exp(-3 x . w / |w|)): which of two is larger is all that counts of it. A record's row
in each table has no negative entry and adds up to one, as in `tacit.counting.request`; a score that is not a number
is in the last cell of its axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from tacit.counting.request import DEGREE, MISSING, Axis, Column, Request, StatisticsError, Table

Task = Literal["binary", "multiclass", "regression", "survival"]
BINS: Mapping[str, int] = {"binary": 20, "multiclass": 20, "regression": 20, "survival": 10}
"""Of scores, unless a study says how many: with times and events beside them there are more cells."""
TIMES = 8
"""Equal bins of time, up to the horizon; one more cell holds who was watched up to it."""
STEEP = 3.0
MOST_BINS = 200


class Scored(NamedTuple):
    """The tables of a validation: ``first`` are of all records, ``by`` of groups, as many for each group's column.

    With ``own`` the first tables are counted once more, of the silo's own model, and ``paired`` compares both models.
    """

    task: Task
    classes: int
    threshold: float
    residual: float
    first: tuple[Table, ...]
    by: tuple[tuple[Table, ...], ...]
    own: bool = False
    paired: tuple[Table, ...] = ()

    @property
    def shared(self) -> tuple[Table, ...]:
        """Those of the model that is broadcast."""
        return (*self.first, *(table for group in self.by for table in group))

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them, in the order of the blocks of a release."""
        return (*self.shared, *(self.first if self.own else ()), *self.paired)


VALUES: Mapping[str, int] = {"binary": 2, "multiclass": 4, "regression": 2, "survival": 3}
"""How many numbers are computed from the model: score and class; prediction, class, probability and whether it is
right; residual and target; risk, time and event."""


def scored(
    task: Task,
    classes: int,
    *,
    bins: int | None = None,
    threshold: float = 0.5,
    residual: float = 1.0,
    groups: Sequence[str] = (),
    columns: Sequence[Mapping[str, Any]] = (),
    own: bool = False,
) -> Scored:
    """The tables for a model of this task; ``groups`` name categories among the declared ``columns`` of records.

    ``own`` counts the silo's own model beside it, of all records; not by groups, which would cost as much again.

    ``threshold`` is a probability, and becomes an edge. ``residual`` is the largest that counts, as a share of the
    target's range: a smaller one leaves less noise in a mean square.
    """
    bins = BINS[task] if bins is None else bins
    if not 2 <= bins <= MOST_BINS:
        raise StatisticsError(f"Expected bins={bins} of scores from 2 to {MOST_BINS}.")
    if not 0.0 < threshold < 1.0:
        raise StatisticsError(f"Expected threshold={threshold:g} between 0 and 1: it is a probability.")
    if not 0.0 < residual <= 1.0:
        raise StatisticsError(f"Expected residual={residual:g} above 0 and at most 1, the whole range of the target.")
    first = _tables(task, classes, bins, threshold)
    known = {str(column["name"]): (place, column) for place, column in enumerate(columns)}
    by = tuple(tuple(_by(table, name, known, VALUES[task]) for table in first) for name in groups)
    return Scored(task, classes, threshold, residual, first, by, own, _paired(task) if own else ())


def _tables(task: Task, classes: int, bins: int, threshold: float) -> tuple[Table, ...]:
    if task == "regression":
        return tuple(_powers(name, place) for place, name in enumerate(("residual", "target")))
    even = tuple(b / bins for b in range(bins + 1))
    if task == "survival":
        watched = (_score("risk", 0, even), _time(), _classes("event", 2, ("no", "yes")))
        return (Table(Request(kind="table", columns=("risk", "time", "event")), watched),)
    edges = tuple(sorted({*even, threshold}))
    if task == "binary":
        axes = (_score("score", 0, edges), _classes("class", 1, ("0", "1")))
        return (Table(Request(kind="table", columns=("score", "class")), axes),)
    names = tuple(map(str, range(classes)))
    confusion = (_classes("predicted", 0, names), _classes("class", 1, names))
    sure = (_score("probability", 2, edges), _classes("right", 3, ("no", "yes")))
    return (
        Table(Request(kind="table", columns=("predicted", "class")), confusion),
        Table(Request(kind="table", columns=("probability", "right")), sure),
    )


def _paired(task: Task) -> tuple[Table, ...]:
    """What compares two models record by record; concordance is about pairs of records, and has no such table."""
    if task == "survival":
        return ()
    if task == "regression":
        return (_powers("difference", 0),)
    axes = tuple(_classes(name, place, ("no", "yes")) for place, name in enumerate(("shared right", "own right")))
    return (Table(Request(kind="table", columns=("shared right", "own right")), axes),)


def _score(name: str, index: int, edges: tuple[float, ...]) -> Axis:
    """A probability between public edges; there is nothing beyond them."""
    column = Column(name=name, kind="number", low=0.0, high=1.0)
    return Axis(column, index, "edges", tuple(f"{a:g} to {b:g}" for a, b in pairwise(edges)), edges)


def _time() -> Axis:
    """A time in shares of the horizon."""
    edges = tuple(b / TIMES for b in range(TIMES + 1))
    cells = (*(f"{a:g} to {b:g}" for a, b in pairwise(edges)), "1 or later")
    return Axis(Column(name="time", kind="number", low=0.0, high=1.0), 1, "edges", cells, edges, open=True)


def _classes(name: str, index: int, levels: tuple[str, ...]) -> Axis:
    """A class that every record has: no cell for another one, or for none."""
    return Axis(Column(name=name, kind="category", levels=levels), index, "levels", levels)


def _powers(name: str, index: int) -> Table:
    column = Column(name=name, kind="number", low=0.0, high=1.0)
    axis = Axis(column, index, "powers", (*(f"power {a}" for a in range(DEGREE + 1)), MISSING))
    return Table(Request(kind="moments", columns=(name,)), (axis,))


def _by(table: Table, name: str, known: Mapping[str, tuple[int, Mapping[str, Any]]], values: int) -> Table:
    """A table by the levels of a group's column; others, and who has none, are groups too."""
    if name not in known or known[name][1].get("kind") != "category":
        listed = ", ".join(n for n, (_, column) in known.items() if column.get("kind") == "category") or "none"
        raise StatisticsError(f"Expected a declared category to group by, got {name!r}; there are: {listed}.")
    place, tree = known[name]
    column = Column.model_validate(tree)
    index = values + (place if column.place is None else column.place)
    group = Axis(column, index, "levels", (*column.levels, "other", MISSING))
    return Table(table.request.model_copy(update={"by": name}), (group, *table.axes))
