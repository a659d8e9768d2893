"""What a folder of CSV silos seems to hold: kinds of columns, missing values, and what must still be declared.

Finding this out reads records. The *kind* of a column is taken to be public, as its name is. What records *say* (the
smallest and largest number, the levels of a category) is not: it is shown to the owner, who may know it from a form
or a manual and declare it, and else it is either marked as read from records (then nothing computed with it is
private) or left to private statistics, which are priced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tacit.data.csv_silos import RawFile, csv_files, encode_file, has_decimal_comma, is_missing, read_csv
from tacit.data.federation import DataError
from tacit.data.schema import AnyColumn, CategoryColumn, DroppedColumn, NumberColumn, Schema, TargetPart
from tacit.errors import counted, unknown

Kind = Literal["number", "category", "date", "text", "constant"]

MOST_LEVELS = 30
"""Text with more different values than this is taken for names or free text, not for a category."""
MOST_CLASSES = 10
"""A target of whole numbers with at most this many different values is taken for classes."""
WIDE = 1e6
"""The range, on a logarithmic scale, of a number of which nothing is known but private statistics."""

_DATES = (
    re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?"),
    re.compile(r"\d{1,2}[/.]\d{1,2}[/.]\d{2,4}( \d{1,2}:\d{2}.*)?"),
    re.compile(r"\d{4}/\d{1,2}/\d{1,2}.*"),
)


@dataclass(frozen=True)
class Found:
    """One column over all silos; ``low``, ``high`` and ``levels`` are what records say, hence private."""

    name: str
    kind: Kind
    missing: Mapping[str, int]
    low: float | None = None
    high: float | None = None
    levels: tuple[str, ...] = ()
    mostly_numbers: bool = False


@dataclass(frozen=True)
class Folder:
    """A folder of silos that agree on their columns."""

    path: Path
    sizes: Mapping[str, int]
    columns: Mapping[str, Found]


@dataclass(frozen=True)
class Declared:
    """What the owner knows of columns without looking at records: ranges, levels, and what to leave out.

    ``event`` is the column that says whether a target that is a time ended with its event.
    """

    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    drop: Sequence[str] = ()
    event: str | None = None


def look(folder: Path, drop: Sequence[str] = (), levels: Mapping[str, Sequence[str]] | None = None) -> Folder:
    """Read every file of a folder and describe its columns; a declared level is a value, also if it is "none"."""
    files = [read_csv(path) for path in csv_files(folder)]
    _agree(files, drop)
    names = [name for name in files[0].header if name not in drop]
    return Folder(
        folder,
        {file.silo: len(file.rows) for file in files},
        {name: _describe(name, files, (levels or {}).get(name, ())) for name in names},
    )


def _agree(files: Sequence[RawFile], drop: Sequence[str]) -> None:
    first = files[0]
    for name in drop:
        if not any(name in file.header for file in files):
            raise DataError(f"Expected a column to drop, got {name!r}; the columns are {', '.join(first.header)}.")
    for file in files[1:]:
        lacks = [name for name in first.header if name not in file.header and name not in drop]
        extra = [name for name in file.header if name not in first.header and name not in drop]
        for who, other, column in ((file, first, lacks), (first, file, extra)):
            if column:
                near = [own for own in who.header if own.strip().lower() == column[0].strip().lower()]
                cure = (
                    "add it to the file (empty cells count as missing), rename it, or leave it out everywhere with "
                    f"--drop {column[0]!r}."
                )
                cure = f"rename {near[0]!r}, which it has." if near else cure
                raise DataError(f"{who.path} has no column {column[0]!r}, which {other.path} has; {cure}")


def _describe(name: str, files: Sequence[RawFile], levels: Sequence[str]) -> Found:
    def is_there(cell: str) -> bool:
        return cell in levels or not is_missing(cell)

    missing = {file.silo: sum(not is_there(cell) for cell in file.column(name)) for file in files}
    values = [cell for file in files for cell in file.column(name) if is_there(cell)]
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return Found(name, "constant", missing, levels=tuple(distinct))
    if all(_is_number(cell) for cell in distinct):
        numbers = [float(cell) for cell in distinct]
        levels = tuple(sorted(distinct, key=float)) if len(distinct) <= MOST_CLASSES else ()
        return Found(name, "number", missing, min(numbers), max(numbers), levels)
    if not levels and all(_is_number(cell) or has_decimal_comma(cell) for cell in distinct):
        for file in files:
            file.numbers(name)  # raises at the first decimal comma
    if all(any(pattern.fullmatch(cell) for pattern in _DATES) for cell in distinct):
        return Found(name, "date", missing)
    if len(distinct) > MOST_LEVELS:
        mostly = 2 * sum(map(_is_number, values)) > len(values)
        return Found(name, "text", missing, mostly_numbers=mostly)
    return Found(name, "category", missing, levels=tuple(distinct))


def _is_number(cell: str) -> bool:
    try:
        return abs(float(cell)) < float("inf")
    except ValueError:
        return False


def undeclared(folder: Folder, target: str, declared: Declared, *, private: bool) -> list[Found]:
    """The columns, the target among them, of which somebody must still say range or levels.

    ``private`` leaves ranges of numbers to private statistics.
    """
    kinds = ("category",) if private else ("number", "category")
    return [
        column
        for column in folder.columns.values()
        if (column.kind in kinds or column.name in (target, declared.event))
        and column.name not in declared.ranges
        and column.name not in declared.levels
    ]


def _declaration_needed(folder: Path, columns: Sequence[Found]) -> DataError:
    """The error that says what to declare, with the lines to copy."""
    lines = []
    for column in columns:
        key = column.name if re.fullmatch(r"[A-Za-z0-9_-]+", column.name) else f'"{column.name}"'
        lines.append(f"{key} = " + ('{ levels = ["A", "B"] }' if column.levels else "{ low = 0, high = 100 }"))
    listed, table = ", ".join(column.name for column in columns), "\n       ".join(lines)
    return DataError(
        f"Expected a public range or public levels of {listed} in {folder}: what records say about them is private. "
        "Three ways:\n"
        "  1. declare them: --range COLUMN=LOW:HIGH, --levels COLUMN=A,B,C; or --bounds FILE with such lines, and your "
        f"own numbers and words in them:\n       {table}\n"
        "  2. price them: --private moments (or quantiles, histogram) standardises numbers by private statistics; "
        "levels must still be declared\n"
        "  3. read them from the records, which is not private: --read-records"
    )


@dataclass(frozen=True)
class Draft:
    """A schema and everything that was assumed on the way to it; ``loud`` touches records."""

    schema: Schema
    assumed: tuple[str, ...]
    loud: tuple[str, ...]


def draft(
    folder: Folder, target: str, declared: Declared, *, read_records: bool, private: bool, norm: float = 1.0
) -> Draft:
    """A schema for a folder.

    ``read_records`` takes what is not declared from the records and says so in the schema; ``private`` leaves ranges
    of numbers to private statistics.
    """
    check_declared(folder, target, declared)
    open_columns = undeclared(folder, target, declared, private=private)
    if open_columns and not read_records:
        raise _declaration_needed(folder.path, open_columns)
    sizes = ", ".join(f"{name} {size}" for name, size in folder.sizes.items())
    assumed = [
        f"Public: column names, kinds, and which columns have missing values; {counted(len(folder.sizes), 'silo')} and "
        f"{'their sizes' if len(folder.sizes) > 1 else 'its size'}: {sizes}."
    ]
    columns: dict[str, AnyColumn] = {name: DroppedColumn() for name in declared.drop}
    for name, column in folder.columns.items():
        if name not in (target, declared.event):
            columns[name], lines = _column(column, declared, private)
            assumed += lines
    part = _target_part(folder, folder.columns[target], declared)
    assumed += _outside(folder.columns[target], part.range) if part.event is None else []
    kind = (
        f"a number from {part.low:g} to {part.high:g}" if part.classes is None else f"one of {', '.join(part.classes)}"
    )
    if part.event is not None and part.event_levels is not None:
        kind = f"a time up to {part.high:g}, until {part.event} = {part.event_levels[1]} or until last seen"
    assumed.append(f"Target: {target}, {kind}.")
    read = tuple(column.name for column in open_columns)
    loud = [
        f"{name}: its {'range was' if folder.columns[name].kind == 'number' else 'levels were'} read from the records, "
        "which is NOT private. Every result says so until you declare it."
        for name in read
    ]
    if all(isinstance(column, DroppedColumn) for column in columns.values()):
        raise DataError(
            "Expected at least one column besides the target that is not dropped; a column of numbers or of at most "
            f"{MOST_LEVELS} levels can be used, and any column whose range or levels are declared."
        )
    schema = Schema(target=part, norm="box" if private else norm, columns=columns, read_from_records=read)
    for path in csv_files(folder.path):
        encode_file(read_csv(path), schema)
    return Draft(schema, tuple(assumed), tuple(loud))


def check_target(folder: Folder, target: str) -> None:
    """Raise unless the target is one of the columns."""
    if target not in folder.columns:
        raise DataError(f"Expected a column as the target. {unknown('column', target, folder.columns)}")


def check_declared(folder: Folder, target: str, declared: Declared) -> None:
    """Raise on a target or a declaration of no column, or of too few levels."""
    check_target(folder, target)
    if declared.event is not None and (declared.event == target or declared.event not in folder.columns):
        known = [name for name in folder.columns if name != target]
        raise DataError(
            f"Expected --event to name a column besides the target. {unknown('column', declared.event, known)}"
        )
    for flag, names in (("--range", declared.ranges), ("--levels", declared.levels)):
        for name in names:
            if name not in folder.columns and name not in declared.drop:
                raise DataError(f"Expected {flag} to name a column. {unknown('column', name, folder.columns)}")
    for name, levels in declared.levels.items():
        check_levels(name, levels, "choose another --target" if name == target else f"--drop {name}")


def check_levels(name: str, levels: Sequence[str], otherwise: str) -> None:
    """Raise unless there are two different levels at least, none empty."""
    if len(levels) < 2 or len(set(levels)) != len(levels) or "" in levels:
        raise DataError(
            f"Expected different levels of {name!r}, none empty, got {', '.join(map(repr, levels))}; give at least two "
            f"levels, each once, or {otherwise}."
        )


def _column(column: Found, declared: Declared, private: bool) -> tuple[AnyColumn, list[str]]:
    """The schema of one column, and what was assumed."""
    name, missing, lines = column.name, any(column.missing.values()), []
    if missing:
        counts = ", ".join(f"{silo} {count}" for silo, count in column.missing.items() if count)
        filled = "zeros" if name in declared.levels or column.kind == "category" else "the middle of its range"
        lines.append(
            f"{name}: missing at {counts}; a missing cell becomes {filled}, and a feature says that it is missing."
        )
    if name in declared.levels:
        lines += _not_listed(column, declared.levels[name])
        return CategoryColumn(levels=declared.levels[name], missing=missing), lines
    if name in declared.ranges:
        low, high = declared.ranges[name]
        return NumberColumn(low=low, high=high, missing=missing), [*lines, *_outside(column, (low, high))]
    if column.kind == "number" and private:
        wide = (
            f"{name}: no range declared; signed logarithmic scale up to {WIDE:g}, then private statistics. Expect a "
            f"poor model: declare a wide range as well, --range {name}=LOW:HIGH."
        )
        return NumberColumn(low=-WIDE, high=WIDE, log=True, missing=missing), [*lines, wide]
    if column.kind == "category" or (column.kind == "number" and len(column.levels) == 2):
        return CategoryColumn(levels=column.levels, missing=missing), lines
    if column.low is not None and column.high is not None:
        return NumberColumn(low=column.low, high=column.high, missing=missing), lines
    why = {
        "date": "it holds dates; to use it, write a number in its place, such as days since admission",
        "text": f"it holds text with more than {MOST_LEVELS} different values, such as names"
        + (f"; most cells are numbers: --range {name}=LOW:HIGH names the others" if column.mostly_numbers else ""),
        "constant": "all its values are the same",
    }
    return DroppedColumn(), [f"{name}: DROPPED, {why[column.kind]}."]


def _not_listed(column: Found, levels: Sequence[str]) -> list[str]:
    """What is assumed of values that are not among the declared levels; raise where none is."""
    strange = [level for level in column.levels if level not in levels]
    shown = ", ".join(map(repr, strange))
    if strange and len(strange) == len(column.levels):
        raise DataError(
            f"Expected some of --levels {column.name}={','.join(levels)} to occur in its column, but there are only "
            f"{shown}; write the levels as the files do, letter by letter, or --drop {column.name}."
        )
    return [f"{column.name}: {shown} occurs but is not among its levels; it becomes zeros."] if strange else []


def _outside(column: Found, declared: tuple[float, float] | None) -> list[str]:
    if column.low is None or column.high is None or declared is None:
        return []
    low, high = declared
    inside = low <= column.low <= column.high <= high
    return [] if inside else [f"{column.name}: values outside {low:g}:{high:g} occur; they are moved to its ends."]


def _check_classes(folder: Folder, column: Found, classes: Sequence[str]) -> None:
    """Raise where records hold classes of the target that are not declared: they cannot be left out."""
    strange = [value for value in column.levels if value not in classes]
    if strange:
        held = ", ".join(map(repr, column.levels))
        every = ",".join(column.levels) + ",..." * (len(column.levels) < 2)
        raise DataError(
            f"Expected --levels {column.name}={','.join(classes)} to name every class of the target, but the column "
            f"{column.name!r} holds {held} ({_first(folder, column.name, strange[0])}); list all of them, as the "
            f"files write them, such as --levels {column.name}={every}, or correct the cells."
        )


def _first(folder: Folder, name: str, value: str) -> str:
    """Where a value occurs first."""
    for path in csv_files(folder.path):
        cells = read_csv(path).column(name)
        if value in cells:
            return f"{value!r} in {path}, line {cells.index(value) + 2}"
    raise AssertionError(f"{value!r} was found in {name!r} before")


def _time_part(folder: Folder, column: Found, declared: Declared, event: str) -> TargetPart:
    """A target that is a time until an event, or until who was last seen without it."""
    seen = folder.columns[event]
    levels = declared.levels.get(event, seen.levels)
    if len(levels) != 2:
        raise DataError(
            f"Expected two levels of the event {event!r}, the last of which is the event, got "
            f"{', '.join(map(repr, levels)) or 'others'}; declare them: --levels {event}=no,yes."
        )
    _check_classes(folder, seen, levels)
    low, high = declared.ranges.get(column.name, (0.0, column.high))
    if column.kind != "number" or low != 0 or high is None:
        raise DataError(
            f"Expected a time from 0 to a horizon in {column.name!r}, the target that {event!r} ends: declare it as "
            f"--range {column.name}=0:HORIZON."
        )
    return TargetPart(column=column.name, low=0.0, high=high, event=event, event_levels=(levels[0], levels[1]))


def _target_part(folder: Folder, column: Found, declared: Declared) -> TargetPart:
    if declared.event is not None:
        return _time_part(folder, column, declared, declared.event)
    if column.name in declared.levels:
        _check_classes(folder, column, declared.levels[column.name])
        return TargetPart(column=column.name, classes=declared.levels[column.name])
    if column.name in declared.ranges:
        low, high = declared.ranges[column.name]
        return TargetPart(column=column.name, low=low, high=high)
    if column.levels and column.kind in ("number", "category"):
        return TargetPart(column=column.name, classes=column.levels)
    if column.kind == "number":
        return TargetPart(column=column.name, low=column.low, high=column.high)
    if column.kind == "constant":
        only = repr(column.levels[0]) if column.levels else "nothing"
        raise DataError(
            f"Expected a target with different values, but every cell of {column.name!r} holds {only}; declare its "
            f"classes, --levels {column.name}=A,B, add records of the other class, or choose another --target."
        )
    raise DataError(
        f"Expected a target of classes or numbers, but {column.name!r} holds {column.kind}; choose another --target."
    )
