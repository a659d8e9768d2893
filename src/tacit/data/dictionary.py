"""A schema from a data dictionary: what a form, a manual or a law says of columns, before there is any record.

The dictionary is a TOML file with a table for each column, or a CSV file with a line for each, in the order in which
columns become features:

    name,kind,range,levels,unit,target
    age,number,0:110,,years,
    sex,category,,f|m,,
    ill,,,no|yes,,yes

    [age]
    kind = "number"
    range = "0:110"          # or low and high
    unit = "years"

In a CSV file levels are separated by ``|``. The kind follows from range or levels where it is left out. Exactly one
column has ``target = true``; its levels may be called classes. Where the target is a time, ``event = true`` marks the
column of two levels that says whether it ended with its event, the last of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.data.csv_silos import read_csv
from tacit.data.federation import DataError
from tacit.data.schema import Schema, schema_from
from tacit.errors import unknown

_KEYS = ("kind", "range", "low", "high", "levels", "classes", "unit", "target", "event", "log", "missing")
_YES, _NO = ("yes", "true", "1", "x"), ("no", "false", "0", "")
_ONE = "set it for one column, target = true in TOML or yes in its line of a CSV file"


def schema_of_dictionary(path: Path, norm: float = 1.0) -> Schema:
    """The schema that a data dictionary describes; no record is read."""
    rows = _rows(path)
    targets = [name for name, row in rows.items() if row.get("target")]
    if len(targets) != 1:
        raise DataError(f"{path}: expected one target, got {', '.join(targets) or 'none'}; {_ONE}.")
    events = [name for name, row in rows.items() if row.get("event")]
    if len(events) > 1 or set(events) & set(targets):
        raise DataError(f"{path}: expected at most one event, another column than the target, got {', '.join(events)}.")
    columns = {name: _column(path, name, row) for name, row in rows.items() if name not in (*targets, *events)}
    target = _scale(path, targets[0], rows[targets[0]])
    classes = {"classes": target.pop("levels")} if "levels" in target else {}
    for name in events:
        classes |= {"event": name, "event_levels": rows[name].get("levels")}
    tree = {"target": {"column": targets[0], **target, **classes}, "norm": norm, "columns": columns}
    return schema_from(tree, f"that {path} describes")


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    """What is said of each column, by name and in order."""
    if not path.is_file():
        raise DataError(f"Expected a data dictionary, a TOML or CSV file, got {path}; see docs/choosing.md.")
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _toml_rows(path)
    for name, row in rows.items():
        for key in row:
            if key not in _KEYS:
                raise DataError(f"{path}, column {name!r}: {unknown('key', key, _KEYS)}")
    return rows


def _toml_rows(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from None
    for name, row in tree.items():
        if not isinstance(row, dict):
            raise DataError(f"{path}: expected a table for each column, such as [{name}] with its kind.")
    return tree


def _csv_rows(path: Path) -> dict[str, dict[str, Any]]:
    file = read_csv(path)
    if "name" not in file.header:
        raise DataError(f"{path}: expected the columns name, kind, range, levels, unit and target, got no name.")
    rows: dict[str, dict[str, Any]] = {}
    for line, cells in enumerate(file.rows, start=2):
        row: dict[str, Any] = {key: cell for key, cell in zip(file.header, cells, strict=True) if cell}
        name = row.pop("name", "")
        if not name or name in rows:
            raise DataError(f"{path}, line {line}: expected a name that no other line has, got {name!r}.")
        for key in {"levels", "classes"} & set(row):
            row[key] = [part.strip() for part in row[key].split("|")]
        for key in {"target", "event", "log", "missing"} & set(row):
            row[key] = _flag(row[key], f"{path}, line {line}, {key}")
        rows[name] = row
    return rows


def _flag(text: str, where: str) -> bool:
    if text.lower() not in _YES + _NO:
        raise DataError(f"{where}: expected yes or no, got {text!r}.")
    return text.lower() in _YES


def _column(path: Path, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """One column as a schema has it."""
    if row.get("kind") == "drop":
        return {"kind": "drop"}
    marks = {key: row[key] for key in ("log", "missing") if row.get(key)}
    found = _scale(path, name, row)
    kind = row.get("kind", "category" if "levels" in found else "number")
    return {"kind": kind, **found, **marks}


def _scale(path: Path, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Range and unit of a number, or levels of a category."""
    levels = row.get("levels", row.get("classes"))
    found = {key: _number(path, name, key, row[key]) for key in ("low", "high") if key in row}
    if "range" in row:
        low, _, high = str(row["range"]).partition(":")
        found |= {"low": _number(path, name, "range", low), "high": _number(path, name, "range", high)}
    if (levels is None) == (not found):
        raise DataError(
            f"{path}, column {name!r}: expected a range, such as 0:110, or levels (classes of a target); set one of "
            'them, or kind = "drop".'
        )
    unit = {"unit": row["unit"]} if "unit" in row else {}
    return {**found, **unit} if levels is None else {"levels": levels, **unit}


def _number(path: Path, name: str, key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DataError(
            f"{path}, column {name!r}: expected {key} in numbers, such as 0:110 for a range, got {value!r}."
        ) from None
