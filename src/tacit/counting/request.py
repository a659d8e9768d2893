"""What can be asked about records: counts, histograms, tables, quantiles, moments, correlations and survival.

Every statistic is a table of *cells*. A record belongs to the cells of each of its columns by weights that are not
negative and add up to one, and to a table's cell by their product:

    levels    a category: one cell for each level, one for any other, one for what is missing
    edges     a number: one cell between each two public edges, those beyond them, and one for what is missing
    powers    a number s in [0, 1] of its declared range: the Bernstein polynomials C(4, a) s^a (1 - s)^(4 - a), and one
              for what is missing. Their means give the means of s, s^2, s^3 and s^4.

So a record's row has no negative entry and an l1 norm of one: two rows are at most sqrt(2) apart.

Columns, edges and levels are public: who writes them knows them from a form, a manual or a law, not from records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tacit.errors import TacitError, explained, unknown

Kind = Literal["counts", "histogram", "table", "quantiles", "moments", "correlation", "survival"]
KINDS: tuple[Kind, ...] = ("counts", "histogram", "table", "quantiles", "moments", "correlation", "survival")

DEGREE = 4
"""Of the Bernstein polynomials: the error of a variance depends on fourth moments."""

OTHER, MISSING = "other", "missing"
"""The cells of a level that the schema does not list, and of a value that is not there."""

MOST_CELLS = 100_000
"""Of one statistic: more would be noise alone."""

_BINS: dict[str, int] = {"histogram": 10, "table": 5, "quantiles": 64, "survival": 24}
_WIDTHS: dict[str, int] = {"counts": 1, "histogram": 1, "quantiles": 1, "moments": 1, "correlation": 2, "survival": 2}

Finite = Annotated[float, Field(allow_inf_nan=False)]


class StatisticsError(TacitError):
    """A statistic that cannot be asked for as written; the message names the value, the rule and the way out."""


class Column(BaseModel):
    """A column as its schema declares it: a number with a range, or a category with levels.

    ``place`` is where it lies among the columns of a record; by default where it stands in the list.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    place: Annotated[int, Field(ge=0, le=10_000)] | None = None
    kind: Literal["number", "category"]
    low: Finite | None = None
    high: Finite | None = None
    levels: tuple[str, ...] = ()
    unit: str | None = None

    @model_validator(mode="after")
    def _has_a_domain(self) -> Column:
        if self.kind == "number" and not (self.low is not None and self.high is not None and self.low < self.high):
            raise ValueError(f"expected low={self.low} < high={self.high} for the number {self.name!r}")
        if self.kind == "category" and len(self.levels) < 2:
            raise ValueError(f"expected at least two levels for the category {self.name!r}")
        return self

    def share(self, value: float) -> float:
        """Where a value lies in the declared range, as a share of it."""
        low, high = self.range
        return (value - low) / (high - low)

    @property
    def range(self) -> tuple[float, float]:
        """Of a number."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high


class Request(BaseModel):
    """One statistic. ``by`` is a category whose levels get a statistic each; ``weight`` is how much it matters.

    ``edges`` are public cuts of number columns, ``bins`` divides their declared ranges evenly instead. ``survival``
    names the column of times and that of events, a category of two levels of which the last is the event.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    columns: tuple[str, ...] = Field(min_length=1)
    by: str | None = None
    edges: dict[str, tuple[Finite, ...]] = {}
    bins: Annotated[int, Field(ge=2, le=4096)] | None = None
    probabilities: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (0.25, 0.5, 0.75)
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _one_column_needs_no_name(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and isinstance(tree.get("edges"), list | tuple | str) and tree.get("columns"):
            return {**tree, "edges": {tree["columns"][0]: tree["edges"]}}
        return tree

    @field_validator("edges", mode="before")
    @classmethod
    def _edges_are_public(cls, value: Any) -> Any:
        for name, own in value.items() if isinstance(value, Mapping) else ():
            if isinstance(own, str):
                raise ValueError(
                    f"expected edges of {name!r} as numbers, got {own!r}: edges that are computed from records tell "
                    "about the records that lie at them, and no noise would hide it; give public edges such as "
                    "[20, 40, 60], or bins = 10 for equal parts of the declared range"
                )
        return value

    @model_validator(mode="after")
    def _fits(self) -> Request:
        width = _WIDTHS.get(self.kind)
        if width is not None and len(self.columns) != width:
            raise ValueError(f"expected {width} columns for {self.kind}, got {len(self.columns)}")
        named = (*self.columns, *([self.by] if self.by else []))
        if len(set(named)) != len(named):
            raise ValueError(f"expected different columns, got {', '.join(named)}")
        if strange := sorted(set(self.edges) - set(self.columns)):
            raise ValueError(f"expected edges of {', '.join(self.columns)} only, got those of {strange[0]!r}")
        for name, own in self.edges.items():
            if len(own) < 2 or any(not a < b for a, b in pairwise(own)):
                raise ValueError(f"expected at least two edges of {name!r} that rise")
        return self

    @property
    def title(self) -> str:
        """What is asked, in words."""
        return f"{self.kind} of {', '.join(self.columns)}" + (f" by {self.by}" if self.by else "")


@dataclass(frozen=True)
class Axis:
    """One column of a table: where it lies in a record's columns, and its cells; ``edges`` are shares of the range.

    The last bin holds its upper edge, unless it is ``open``: what reaches it then lies above.
    """

    column: Column
    index: int
    kind: Literal["levels", "edges", "powers"]
    cells: tuple[str, ...]
    edges: tuple[float, ...] = ()
    open: bool = False

    @property
    def below(self) -> bool:
        """Whether there is a cell for what lies below the first edge."""
        return self.edges[0] > 0

    @property
    def above(self) -> bool:
        """Whether there is a cell for what lies above the last edge."""
        return self.open or self.edges[-1] < 1

    @property
    def inner(self) -> int:
        """How many cells come first that hold a level, a bin or a polynomial; the others follow."""
        if self.kind == "levels":
            return len(self.column.levels)
        return DEGREE + 1 if self.kind == "powers" else len(self.edges) - 1


@dataclass(frozen=True)
class Table:
    """One statistic as it is released: its axes in order, the group's first."""

    request: Request
    axes: tuple[Axis, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple(len(axis.cells) for axis in self.axes)

    @property
    def size(self) -> int:
        """How many cells there are."""
        return math.prod(self.shape)

    @property
    def need(self) -> float:
        """How much the variance of a cell's noise weighs in that of the numbers that are read off, on average.

        A share is one cell. A quantile, or a survival curve, sums about a sixth of its bins. A correlation divides a
        covariance by two variances, of a sixteenth of the squared range or so.
        """
        summed = max((axis.inner for axis in self.axes if axis.kind == "edges"), default=1) / 6
        factors = {"quantiles": summed, "survival": 2 * summed, "correlation": 16.0}
        return self.request.weight * max(1.0, factors.get(self.request.kind, 1.0))


def parsed(columns: Sequence[Mapping[str, Any]], statistics: Sequence[Mapping[str, Any]]) -> tuple[Table, ...]:
    """The tables that plain requests about plain columns ask for."""
    listed = enumerate(_checked(Column, columns, "columns"))
    known = {column.name: (place if column.place is None else column.place, column) for place, column in listed}
    if len(known) != len(columns):
        raise StatisticsError("Expected different names of columns; rename one of those that are alike.")
    if not statistics:
        raise StatisticsError(f"Expected at least one statistic; ask for some of {', '.join(KINDS)}.")
    tables = [_table(request, known) for request in _checked(Request, statistics, "statistics")]
    for table in tables:
        if table.size > MOST_CELLS:
            raise StatisticsError(
                f"{table.request.title}: expected at most {MOST_CELLS} cells, got {table.size}; give fewer edges."
            )
    return tuple(tables)


def _checked(model: type[Any], trees: Sequence[Mapping[str, Any]], where: str) -> list[Any]:
    found = []
    for place, tree in enumerate(trees):
        try:
            found.append(model.model_validate(tree))
        except ValidationError as error:
            raise StatisticsError(f"{where}[{place}]: {explained(error.errors(include_input=False), model)}") from None
    return found


def _table(request: Request, known: Mapping[str, tuple[int, Column]]) -> Table:
    names = (*([request.by] if request.by else []), *request.columns)
    for name in names:
        if name not in known:
            raise StatisticsError(f"{request.title}: {unknown('column', name, known)}")
    axes = [_by(request, *known[request.by])] if request.by else []
    for place, name in enumerate(request.columns):
        axes.append(_axis(request, place, *known[name]))
    return Table(request, tuple(axes))


def _by(request: Request, index: int, column: Column) -> Axis:
    if column.kind != "category":
        raise StatisticsError(
            f"{request.title}: expected a category to group by, and {column.name!r} is a number; ask for a table."
        )
    return _levels(index, column)


def _axis(request: Request, place: int, index: int, column: Column) -> Axis:
    kind, number = request.kind, column.kind == "number"
    event = kind == "survival" and place == 1
    if event and (number or len(column.levels) != 2):
        raise StatisticsError(f"{request.title}: expected an event of two levels, got {column.name!r}; declare it so.")
    if kind in ("moments", "correlation"):
        if not number:
            raise StatisticsError(f"{request.title}: expected a number, and {column.name!r} is a category; use counts.")
        cells = (*(f"power {a}" for a in range(DEGREE + 1)), MISSING)
        return Axis(column, index, "powers", cells)
    if not number:
        if kind in ("histogram", "quantiles") or (kind == "survival" and place == 0):
            raise StatisticsError(f"{request.title}: expected a number, and {column.name!r} is a category; use counts.")
        return _levels(index, column)
    if kind == "counts":
        raise StatisticsError(f"{request.title}: expected a category, and {column.name!r} is a number; use histogram.")
    return _cut(request, index, column)


def _levels(index: int, column: Column) -> Axis:
    return Axis(column, index, "levels", (*column.levels, OTHER, MISSING))


def _cut(request: Request, index: int, column: Column) -> Axis:
    """A number between public edges, with cells for what lies beyond them where the declared range does."""
    low, high = column.range
    edges = request.edges.get(column.name)
    if edges is None:
        bins = request.bins or _BINS[request.kind]
        edges = (*(low + (high - low) * i / bins for i in range(bins)), high)
    shares = tuple(column.share(edge) for edge in edges)
    if shares[0] >= 1 or shares[-1] <= 0:
        raise StatisticsError(
            f"{request.title}: expected edges within the declared range {low:g} to {high:g} of "
            f"{column.name!r}, got {edges[0]:g} to {edges[-1]:g}."
        )
    # Times end where nobody was watched any longer: who reaches the end was at risk all the time.
    axis = Axis(column, index, "edges", (), shares, open=request.kind == "survival")
    beyond = [f"below {edges[0]:g}"] * axis.below + [f"above {edges[-1]:g}"] * axis.above
    return replace(axis, cells=(*(f"{a:g} to {b:g}" for a, b in pairwise(edges)), *beyond, MISSING))


def noise_ratios(tables: Sequence[Table]) -> dict[str, float]:
    """How many times the noise multiplier of the whole release each table's is: budget by need.

    With noise multipliers z_b all tables together cost the sum of z_b^-2, and the sum of need_b z_b^2 is least where
    need_b z_b^4 is the same for all. The ratios are such that the whole costs what one release without blocks would.

    >>> columns = [{"name": "sex", "kind": "category", "levels": ["f", "m"]}]
    >>> noise_ratios(parsed(columns, [{"kind": "counts", "columns": ["sex"]}] * 4))["s00"]
    2.0
    """
    raw = [table.need**-0.25 for table in tables]
    whole = math.sqrt(sum(ratio**-2 for ratio in raw))
    return {block(place): ratio * whole for place, ratio in enumerate(raw)}


def block(place: int) -> str:
    """The name of a table's block in the release."""
    return f"s{place:02d}"


def used_columns(columns: Sequence[Mapping[str, Any]], statistics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns that statistics read, each with its place among all."""
    names = {axis.column.name for table in parsed(columns, statistics) for axis in table.axes}
    return [{**column, "place": place} for place, column in enumerate(columns) if column["name"] in names]


def same_columns(claimed: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> bool:
    """Whether columns that somebody claims are what they are here, each at its place."""

    def meant(tree: Mapping[str, Any]) -> Column:
        return Column.model_validate({key: part for key, part in tree.items() if key != "place"})

    try:
        return all(meant(column) == meant(own[column["place"]]) for column in claimed)
    except (ValidationError, KeyError, IndexError, TypeError):
        return False


def columns_of(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The columns of a schema's description, in the order in which a silo's records hold them: the target is last.

    After a time comes the column of its event.
    """
    kept = ("name", "kind", "low", "high", "levels", "unit")
    rows = [{key: part[key] for key in kept if part.get(key) is not None} for part in description["columns"]]
    target = dict(description["target"])
    last: dict[str, Any] = {"name": target["column"], "kind": "number", "low": target["low"], "high": target["high"]}
    if target.get("classes"):
        last = {"name": target["column"], "kind": "category", "levels": tuple(target["classes"])}
    elif target.get("unit"):
        last["unit"] = target["unit"]
    if target.get("event"):
        event = {"name": target["event"], "kind": "category", "levels": tuple(target["event_levels"])}
        return [*rows, last, event]
    return [*rows, last]
