"""From rows as people have them to features, exactly as training made them, and a count of what was done on the way."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.data.csv_silos import RawFile, is_missing, read_csv
from tacit.data.encode import Bounded, Column, Columns
from tacit.data.federation import RawColumn, Stage, Target
from tacit.errors import counted, nearest
from tacit.models.description import BundleError, Description

_NOTHING = frozenset({"NAType", "NaTType", "NoneType"})
_OVER = 1.001  # encoded rows keep the norm but for rounding


class RowsWarning(UserWarning):
    """Some cells were not as the model's columns say; they were treated as training would have treated them."""


class Encoded(NamedTuple):
    """Features of rows, and what was done to cells that are missing, unknown or outside their range."""

    x: np.ndarray
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Columns by name, and how to say where a row stands."""

    cells: Mapping[str, Sequence[Any]]
    count: int
    place: Callable[[int], str]


def rows_of(source: Any) -> Rows | None:
    """Columns of a CSV file, a mapping or a data frame; none for arrays."""
    if isinstance(source, str | Path):
        file = read_csv(Path(source), "no rows to predict; add one line per row")
        return Rows(_by_column(file), len(file.rows), lambda index: f"{file.path}, line {index + 2}")
    if isinstance(source, Mapping) or (hasattr(source, "columns") and hasattr(source, "to_dict")):
        names = list(source) if isinstance(source, Mapping) else list(source.columns)
        cells = {str(name): list(source[name]) for name in names}
        lengths = {name: len(values) for name, values in cells.items()}
        if len(set(lengths.values())) > 1:
            raise BundleError(f"Expected columns of one length, got {lengths}; give one cell per row and column.")
        return Rows(cells, next(iter(lengths.values()), 0), lambda index: f"row {index}")
    return None


def _by_column(file: RawFile) -> dict[str, list[str]]:
    return {name: [row[place] for row in file.rows] for place, name in enumerate(file.header)}


def encoded(source: Any, description: Description, stages: Sequence[Stage]) -> Encoded:
    """The features of rows: columns are encoded, arrays of features are checked and taken as they are."""
    rows = rows_of(source)
    if rows is None:
        return Encoded(_array(source, description, stages), ())
    if not rows.count:
        raise BundleError("There are no rows to predict; give at least one.")
    if not description.columns and not stages and description.features.names:
        return _plain_columns(rows, description)
    if not description.columns:
        raise BundleError(
            f"Expected an array of encoded features, (rows, {_shape(description)}): this bundle has no columns, for "
            "its model was trained on arrays. Encode rows as you did for training; if they came from CSV files, give "
            "the silos' schema: load_model(folder, schema=...), or --schema."
        )
    return _columns(rows, description, stages)


def _plain_columns(rows: Rows, description: Description) -> Encoded:
    """Features that are columns of numbers, as they stand: no rule says what a missing one would be."""
    names, values = description.features.names, []
    _check_names(rows, description, names)
    for name in names:
        column = [_number(cell, name, rows.place, index) for index, cell in enumerate(rows.cells[name])]
        if np.isnan(column).any():
            place = rows.place(int(np.isnan(column).argmax()))
            raise BundleError(f"{place}: expected a number in column {name!r}, got none; fill it by a public rule.")
        values.append(column)
    extra = [name for name in rows.cells if name not in (*names, description.target.column, description.target.event)]
    notes = (f"{counted(len(extra), 'column')} not used: {', '.join(extra)}",) if extra else ()
    return Encoded(np.asarray(values, np.float32).T, notes)


def _columns(rows: Rows, description: Description, stages: Sequence[Stage]) -> Encoded:
    encoders = [column for stage in stages if isinstance(stage, Columns) for column in stage.columns]
    _check_names(rows, description, tuple(description.columns))
    raw, notes = [], []
    for name, column in description.columns.items():
        values = _codes(rows, name, column)
        raw.append(values)
        notes += _notes(rows, name, column, values, encoders)
    known = {*description.columns, description.target.column, description.target.event}
    extra = [name for name in rows.cells if name not in known]
    if extra:
        notes.append(f"{counted(len(extra), 'column')} not used: {', '.join(extra)}")
    x = np.stack(raw, axis=1)
    for stage in stages:
        x = stage.apply(x)
    return Encoded(np.asarray(x, np.float32), tuple(notes))


def _check_names(rows: Rows, description: Description, names: Sequence[str]) -> None:
    lacking = [name for name in names if name not in rows.cells]
    if not lacking:
        return
    near = nearest(lacking[0], [name for name in rows.cells if name not in names])
    hint = "" if near is None else f"; did you mean {near!r}? Then rename it"
    more = "" if len(lacking) == 1 else f" ({len(lacking)} are lacking: {', '.join(lacking)})"
    cells = " Empty cells count as missing." if description.columns else ""
    raise BundleError(f"Expected a column {lacking[0]!r}, which the model reads{more}{hint}.{cells}")


def _codes(rows: Rows, name: str, column: RawColumn) -> np.ndarray:
    """One column as the numbers that training saw: nan where a cell is missing or not among the levels."""
    cells = rows.cells[name]
    if column.levels is not None:
        places = {level: float(place) for place, level in enumerate(column.levels)}
        return np.array([places.get(text_of_cell(cell, places), np.nan) for cell in cells])
    values = np.array([_number(cell, name, rows.place, index) for index, cell in enumerate(cells)])
    return np.where(np.isin(values, column.missing), np.nan, values) if column.missing else values


def text_of_cell(cell: Any, known: Mapping[str, Any]) -> str:
    """A cell as a CSV file would hold it; whole numbers that a library has made into floats are whole again."""
    if _is_nothing(cell):
        return ""
    text = str(cell).strip()
    if text not in known and isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return text


def _is_nothing(cell: Any) -> bool:
    return type(cell).__name__ in _NOTHING or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def _number(cell: Any, name: str, place: Callable[[int], str], index: int) -> float:
    if _is_nothing(cell) or (isinstance(cell, str) and is_missing(cell)):
        return float("nan")
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = float("inf")
    if not np.isfinite(value):
        raise BundleError(
            f"{place(index)}: expected a number in column {name!r}; correct the cell, with a point for decimals, or "
            "leave it empty."
        )
    return value


def _notes(rows: Rows, name: str, column: RawColumn, values: np.ndarray, encoders: Sequence[Column]) -> list[str]:
    """What is done to the cells of one column that are not as it says, with counts."""
    lines = []
    unlisted = 0
    if column.levels is not None:
        cells = [text_of_cell(cell, dict.fromkeys(column.levels)) for cell in rows.cells[name]]
        unlisted = sum(cell not in column.levels and not is_missing(cell) for cell in cells)
    missing = int(np.isnan(values).sum()) - unlisted
    bounds = next((e for e in encoders if isinstance(e, Bounded) and e.column == name), None)
    if missing:
        filled = "zeros" if bounds is None else f"the middle of [{bounds.low:g}, {bounds.high:g}]"
        lines.append(f"{counted(missing, 'cell')} of {name!r} missing: {filled}")
    if unlisted:
        lines.append(f"{counted(unlisted, 'cell')} of {name!r} not among its levels: zeros")
    if bounds is not None:
        out = int(((values < bounds.low) | (values > bounds.high)).sum())
        if out:
            lines.append(
                f"{counted(out, 'cell')} of {name!r} outside [{bounds.low:g}, {bounds.high:g}]: moved to its ends"
            )
    return lines


def _shape(description: Description) -> str:
    return ", ".join(map(str, description.features.shape))


def _array(source: Any, description: Description, stages: Sequence[Stage]) -> np.ndarray:
    """An array of encoded features; whole numbers are raw pixels where the encoding begins with images."""
    wanted, features = f"(rows, {_shape(description)})", description.features
    x = np.asarray(source)
    if x.dtype.kind in "OUS":
        raise BundleError(
            f"Expected columns by name for raw rows (a mapping or a data frame), or an array {wanted} of encoded "
            f"features, got an array of {x.dtype}."
        )
    if x.dtype.kind in "iu" and stages and not description.columns:
        x = x.reshape(len(x), -1) if x.ndim > 1 and features.shape and len(features.shape) == 1 else x
        for stage in stages:
            x = stage.apply(x)
    if x.ndim != 1 + len(features.shape) or x.shape[1:] != features.shape:
        raise BundleError(f"Expected an array {wanted} of encoded features, got shape {x.shape}; one row per record.")
    if not len(x):
        raise BundleError("There are no rows to predict; give at least one.")
    x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise BundleError("Expected finite features; missing values have a meaning in raw rows only.")
    norm = float(np.sqrt((x.reshape(len(x), -1).astype(np.float64) ** 2).sum(axis=1).max()))
    if features.norm is not None and norm > features.norm * _OVER:
        raise BundleError(
            f"Expected encoded rows of norm at most {features.norm:g}, got {norm:g}: these seem to be raw rows. Give "
            "them as columns by name, and they are encoded."
        )
    return x


def labels_of(rows: Sequence[Any], target: Target, place: Callable[[int], str]) -> np.ndarray:
    """Labels in the target's own words as positions among its classes, or numbers in its own unit."""
    if not target.classes:
        values = np.array([_number(cell, target.column, place, index) for index, cell in enumerate(rows)])
        missing = np.isnan(values)
    else:
        known = {name: float(position) for position, name in enumerate(target.classes)}
        values = np.array([known.get(text_of_cell(cell, known), np.nan) for cell in rows])
        missing = np.isnan(values)
    if missing.any():
        rule, first = f"one of {', '.join(target.classes)}" if target.classes else "a number", int(missing.argmax())
        raise BundleError(
            f"{place(first)}: expected the label {target.column!r} to be {rule}, got {rows[first]!r}; correct it, or "
            "leave the row out."
        )
    return values
