"""What the columns of CSV silos mean, decided in advance: a small TOML file that every silo shares.

A schema is public. It holds a range for every number and the levels of every category, so that the map from a row to
features is fixed before any record is seen. Whoever writes it knows these from a manual, a form or a law, not from
records. A value outside a range is moved to its end, a level that is not listed gives zeros, and a missing value
becomes the middle of its range (zeros for a category).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tacit.data.encode import Bounded, Column, Missing, OneHot, Signed
from tacit.data.federation import DataError, Task
from tacit.errors import explained, unknown

FORMAT = 1
"""The version of the schema format."""

ENCODING = 1
"""The version of the map from cells to features and targets; it changes with every change of a single feature."""

# Minus zero becomes zero: two files that mean the same must not differ.
Finite = Annotated[float, Field(allow_inf_nan=False), AfterValidator(lambda value: value + 0.0)]
Unit = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NumberColumn(_Part):
    """A number with a public range; ``missing`` adds a feature that tells whether it is missing.

    ``unit`` is a text, such as "years". Nothing is converted: silos whose units differ do not train together.
    """

    kind: Literal["number"] = "number"
    low: Finite
    high: Finite
    unit: Unit | None = None
    log: bool = False
    missing: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> NumberColumn:
        if not self.low < self.high:
            raise ValueError(f"expected low={self.low:g} < high={self.high:g}; give the public range of the column")
        return self


class CategoryColumn(_Part):
    """A category with public levels; two levels become one signed feature, more become one feature each."""

    kind: Literal["category"] = "category"
    levels: tuple[str, ...] = Field(min_length=2)
    missing: bool = False

    @model_validator(mode="after")
    def _different(self) -> CategoryColumn:
        if len(set(self.levels)) != len(self.levels):
            raise ValueError("expected different levels; name each once")
        return self


class DroppedColumn(_Part):
    """A column that is not used."""

    kind: Literal["drop"] = "drop"


_KINDS = {"number": NumberColumn, "category": CategoryColumn, "drop": DroppedColumn}
AnyColumn = Annotated[NumberColumn | CategoryColumn | DroppedColumn, Field(discriminator="kind")]


class TargetPart(_Part):
    """What is predicted: classes in order, or a number with a public range that is scaled to [0, 1].

    With ``event`` it is a time, from 0 to the horizon ``high``: until the event, or until who was last seen without it.
    ``event`` is the column that says which, by one of two ``event_levels``, of which the last is the event.
    """

    column: str
    classes: tuple[str, ...] | None = None
    low: Finite | None = None
    high: Finite | None = None
    unit: Unit | None = None
    event: str | None = None
    event_levels: tuple[str, str] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TargetPart:
        if (self.classes is None) == (self.range is None) or (self.low is None) != (self.high is None):
            raise ValueError("set classes, or low and high for a number")
        if self.classes is not None and (len(self.classes) < 2 or len(set(self.classes)) != len(self.classes)):
            raise ValueError("expected at least two different classes")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError(f"expected low={self.low} < high={self.high}")
        if self.unit is not None and self.classes is not None:
            raise ValueError("set unit only where the target is a number, with low and high")
        return self

    @model_validator(mode="after")
    def _is_a_time(self) -> TargetPart:
        if (self.event is None) != (self.event_levels is None):
            raise ValueError(
                'set event and event_levels together, such as event = "died", event_levels = ["no", "yes"]'
            )
        if self.event is None or self.event_levels is None:
            return self
        if self.low != 0:
            raise ValueError(f"expected low=0 of a time that {self.event!r} ends, got {self.low}; high is the horizon")
        if self.event == self.column or len(set(self.event_levels)) != 2:
            raise ValueError(f"expected another column than {self.column!r} for the event, of two different levels")
        return self

    @property
    def range(self) -> tuple[float, float] | None:
        """Of a number; none of classes."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def task(self) -> Task:
        """What kind of target this is."""
        if self.classes is None:
            return "regression"
        return "binary" if len(self.classes) == 2 else "multiclass"


class Schema(_Part):
    """The columns of every silo's file, and how they become features.

    ``norm`` bounds the l2 norm of each record's features; with ``"box"`` features just stay between -1 and 1.
    ``read_from_records`` names the columns whose range or levels were taken from records: nothing that uses them is
    private. Take a name out of it once you know that its range or levels are public.
    """

    format: int = FORMAT
    target: TargetPart
    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | Literal["box"] = 1.0
    read_from_records: tuple[str, ...] = ()
    columns: dict[str, AnyColumn]

    @field_validator("format")
    @classmethod
    def _is_known(cls, value: int) -> int:
        if value != FORMAT:
            raise ValueError(
                f"expected format={FORMAT}, got {value}: the schema was written for another version of Tacit; install "
                "that version, or bring the file up to date"
            )
        return value

    @model_validator(mode="after")
    def _has_features(self) -> Schema:
        if self.target.column in self.columns:
            raise ValueError(f"the target {self.target.column!r} cannot be a feature too; take it out of columns")
        if self.target.event in self.columns:
            raise ValueError(f"the event {self.target.event!r} cannot be a feature too; take it out of columns")
        if all(column.kind == "drop" for column in self.columns.values()):
            raise ValueError("expected at least one column that is not dropped")
        return self

    @property
    def used(self) -> tuple[str, ...]:
        """The columns that become features."""
        return tuple(name for name, column in self.columns.items() if column.kind != "drop")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns that are numbers."""
        return tuple(name for name, column in self.columns.items() if column.kind == "number")

    def encoders(self) -> tuple[Column, ...]:
        """The public map of each used column; categories are numbered in the order of their levels."""
        encoders: list[Column] = []
        for name in self.used:
            column = self.columns[name]
            if isinstance(column, NumberColumn):
                encoders.append(Bounded(name, column.low, column.high, log=column.log))
            elif isinstance(column, CategoryColumn) and len(column.levels) == 2:
                encoders.append(Signed(name, (1.0,), (column.levels[0], column.levels[1])))
            elif isinstance(column, CategoryColumn):
                encoders.append(OneHot(name, tuple(map(float, range(len(column.levels)))), column.levels))
            if not isinstance(column, DroppedColumn) and column.missing:
                encoders.append(Missing(name))
        return tuple(encoders)

    @property
    def width(self) -> int:
        """How many features a record has."""
        return sum(len(encoder.names) for encoder in self.encoders())

    @property
    def bound(self) -> float:
        """A bound on the l2 norm of every record's features."""
        return math.sqrt(self.width) if self.norm == "box" else self.norm

    def description(self) -> dict[str, Any]:
        """What features and target mean, as plain values: all that must be the same at every silo.

        Dropped columns are no part of it, and what was read from records is not marked: no silo serves that.
        """
        target = self.target
        return {
            "encoding": ENCODING,
            "features": (self.width,),
            "task": target.task,
            "classes": None if target.classes is None else len(target.classes),
            "norm": self.norm,
            "target": target.model_dump(),
            "columns": tuple({"name": name, **self.columns[name].model_dump()} for name in self.used),
        }


def schema_from(tree: dict[str, Any], where: str) -> Schema:
    """A schema from plain values, or an error that names the field."""
    try:
        return Schema.model_validate(tree)
    except ValidationError as error:
        lines = [_line(problem) for problem in error.errors(include_input=False)]
        raise DataError(f"The schema {where} cannot be used:\n  " + "\n  ".join(lines)) from None


def with_ranges(schema: Schema, ranges: Mapping[str, Sequence[float]]) -> Schema:
    """The schema with narrower ranges of some numbers, as a priced release has found them.

    Values beyond them are moved to their ends, as beyond any range.
    """
    columns = dict(schema.columns)
    for name, (low, high) in ranges.items():
        column = columns.get(name)
        if not isinstance(column, NumberColumn):
            raise DataError(f"ranges: {unknown('number column', name, schema.numbers)}")
        if not column.low <= low < high <= column.high:
            raise DataError(
                f"ranges.{name}: expected {column.low:g} <= low={low:g} < high={high:g} <= {column.high:g}, within the "
                "declared range."
            )
        columns[name] = column.model_copy(update={"low": float(low), "high": float(high)})
    return schema.model_copy(update={"columns": columns})


def described_schema(described: Mapping[str, Any]) -> Schema:
    """The schema that a description, as `Schema.description` gives it, is of; dropped columns are not in it."""
    if described.get("encoding") != ENCODING:
        raise DataError(f"Expected a description of encoding={ENCODING}, got {described.get('encoding')}.")
    fields = {"number": NumberColumn.model_fields, "category": CategoryColumn.model_fields}
    columns = {column["name"]: {key: column[key] for key in fields[column["kind"]]} for column in described["columns"]}
    tree = {"target": described["target"], "norm": described["norm"], "columns": columns}
    return schema_from(tree, "that silos describe")


def _line(problem: Mapping[str, Any]) -> str:
    """What is wrong with one key; what pydantic knows of a column's kind is not a part of the file's key."""
    place = problem["loc"]
    if problem["type"] == "union_tag_invalid":
        return f"columns.{place[1]}.kind: {unknown('kind', problem['ctx']['tag'], _KINDS)}"
    if problem["type"] == "union_tag_not_found":
        return f"columns.{place[1]}.kind: missing; set it to one of {', '.join(_KINDS)}."
    if place[:1] != ("columns",) or place[2:3] == () or place[2] not in _KINDS:
        return explained([problem], Schema)
    inside = explained([{**problem, "loc": place[3:]}], _KINDS[place[2]])
    return f"columns.{place[1]}{'.' if place[3:] else ': '}{inside}"


def read_schema(path: Path) -> Schema:
    """The schema in a TOML file."""
    if not path.exists():
        raise DataError(f"No schema at {path}; make one with: tacit init FOLDER --target COLUMN")
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from None
    return schema_from(tree, str(path))


def public_schema(path: Path) -> Schema:
    """A schema that a silo may serve: nothing in it was read from records."""
    schema = read_schema(path)
    if schema.read_from_records:
        listed = ", ".join(schema.read_from_records)
        raise DataError(
            f"{path}: range or levels of {listed} were read from records, so that what is computed with them is "
            "not private. Declare them: put what is known from a form or a manual there and take the names out of "
            "read_from_records, or make the schema again with tacit init --range and --levels."
        )
    return schema


def schema_text(schema: Schema) -> str:
    """The schema as TOML."""
    return tomli_w.dumps(schema.model_dump(mode="json", exclude_none=True))
