"""A folder of one CSV file per silo, read by a public schema.

A file's name, without ``.csv``, is the name of its silo. Nothing is fitted: ranges and levels come from the schema.
Errors name file, line and column, and never what stands in a cell: they end in a daemon's log.

Options:
    folder: the folder.
    schema: the schema file; by default ``schema.toml`` in the folder.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tacit.data.encode import (
    Cells,
    Columns,
    Norm,
    Scaled,
    columns_step,
    level_cells,
    norm_step,
    number_cells,
    scaled_target,
    signed_times,
    target_step,
)
from tacit.data.federation import DataError, Encoding, RawColumn, Records, Step, Table, Target
from tacit.data.schema import (
    AnyColumn,
    CategoryColumn,
    NumberColumn,
    Schema,
    TargetPart,
    public_schema,
    read_schema,
    with_ranges,
)
from tacit.errors import counted, nearest

CITATION = "Records of your own, one CSV file per silo."
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "."})
"""What counts as missing, whatever its case, unless a schema lists it as a level."""

FILL = Step(
    "missing values",
    True,
    "Fixed: the middle of a range, zeros for a category; a level that is not listed gives zeros too.",
)


@dataclass(frozen=True)
class RawFile:
    """A CSV file as text: its columns and its cells."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def silo(self) -> str:
        """The name of the silo."""
        return self.path.stem

    def column(self, name: str) -> list[str]:
        """The cells of one column."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, nan where one is missing; an error names the line."""
        return np.array([_number(self, name, line, cell) for line, cell in enumerate(self.column(name), start=2)])


def is_missing(cell: str) -> bool:
    """Whether a cell holds nothing."""
    return cell.strip().lower() in MISSING


def csv_files(folder: Path) -> list[Path]:
    """The silos' files in order of name."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "which does not exist"
        raise DataError(
            f"Expected a folder of CSV files, one per silo, got {folder}, {what}; give the path of such a folder."
        )
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    if not files:
        raise DataError(f"Expected at least one .csv file in {folder}, got none; put one file per silo there.")
    return files


def read_csv(path: Path, empty: str = "no records; leave an empty silo out") -> RawFile:
    """A file with a header line, separated by commas, semicolons or tabs."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError(
            f"No file at {path}; give the path of a CSV file (at a silo: data.file in policy.toml)."
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}); save it as CSV in UTF-8.") from None
    lines = text.splitlines()
    if not lines:
        raise DataError(f"{path} is empty; expected a header line and one line per record.")
    separator = max(",;\t", key=lines[0].count)
    try:
        rows = [tuple(cell.strip() for cell in row) for row in csv.reader(lines, delimiter=separator) if row]
    except csv.Error:
        raise DataError(f"{path} is not a CSV file: a cell is too long, or its quotes do not close.") from None
    header, body = rows[0], rows[1:]
    # Without a header line the names would be cells.
    repeated = [str(place) for place, name in enumerate(header, start=1) if header.count(name) > 1 or not name]
    if repeated:
        raise DataError(
            f"{path}: expected different column names in the first line, none empty; rename column "
            f"{' and '.join(repeated)}, or put the header line there if it is missing."
        )
    for number, row in enumerate(body, start=2):
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: expected {len(header)} cells as in the header, got {len(row)}; quote cells "
                "that hold the separator."
            )
    if not body:
        raise DataError(f"{path} has a header but {empty}.")
    return RawFile(path, header, tuple(body))


def check_columns(file: RawFile, schema: Schema) -> None:
    """Raise unless the file has the columns of the schema and no others; a misspelt one is named."""
    target, event = schema.target.column, schema.target.event
    asked = (target, *(() if event is None else (event,)), *schema.used)
    lacking = [name for name in asked if name not in file.header]
    strange = [name for name in file.header if name not in {*asked, *schema.columns}]
    if len(strange) == len(file.header):
        raise DataError(
            f"{file.path}: expected a header line with the columns of the schema, but its first line has none of them; "
            f"put it there: {', '.join(asked)}."
        )
    for name in lacking or [name for name in schema.columns if name not in file.header]:
        near = nearest(name, strange)
        if near is not None:
            raise DataError(
                f"{file.path} has no column {name!r}, which the schema names; did you mean {near!r}? Then write it so "
                f"in the schema of every silo, or rename the file's column; else add {name!r} to the file (empty cells "
                "count as missing)."
            )
    if lacking:
        raise DataError(
            f"{file.path} has no column {lacking[0]!r}, which the schema asks for; add it to the file (empty cells "
            'count as missing), or set its kind to "drop" in the schema of every silo.'
        )
    if strange:
        raise DataError(
            f"{file.path} has a column {strange[0]!r} that the schema does not know; remove it from the file, or add "
            f'[columns."{strange[0]}"] with kind = "drop" to the schema.'
        )


def encode_file(file: RawFile, schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Raw numbers, one column per used column of the schema, and the target."""
    check_columns(file, schema)
    columns = [_codes(file, name, schema.columns[name]) for name in schema.used]
    return np.stack(columns, axis=1), _target(file, schema.target)


def _codes(file: RawFile, name: str, column: AnyColumn) -> np.ndarray:
    """One column as numbers: a category's position among its levels, nan where missing or not listed."""
    if not isinstance(column, CategoryColumn):
        return file.numbers(name)
    positions = {level: float(position) for position, level in enumerate(column.levels)}
    return np.array([positions.get(cell, np.nan) for cell in file.column(name)])


def cells_of(file: RawFile, schema: Schema) -> list[Cells]:
    """Every used column and the target, as statistics read them; a level that is not listed is any other."""
    found = []
    for name in schema.used:
        column = schema.columns[name]
        if isinstance(column, NumberColumn):
            found.append(number_cells(name, file.numbers(name), column.low, column.high, column.unit))
        elif isinstance(column, CategoryColumn):
            found.append(level_cells(name, _positions(file, name, column.levels), column.levels))
    target = schema.target
    if target.range is not None:
        found.append(number_cells(target.column, file.numbers(target.column), *target.range, target.unit))
        if target.event is not None and target.event_levels is not None:
            levels = target.event_levels
            found.append(level_cells(target.event, _positions(file, target.event, levels), levels))
    elif target.classes is not None:
        found.append(level_cells(target.column, _positions(file, target.column, target.classes), target.classes))
    return found


def _positions(file: RawFile, name: str, levels: Sequence[str]) -> np.ndarray:
    """Positions among levels: nan where missing, and one past the last where not listed."""
    known = {level: float(position) for position, level in enumerate(levels)}
    other = float(len(levels))
    return np.array([known.get(cell, np.nan if is_missing(cell) else other) for cell in file.column(name)])


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell would be a number if its comma were a point.

    >>> has_decimal_comma("178,5"), has_decimal_comma("178.5"), has_decimal_comma("a,5")
    (True, False, False)
    """
    return re.fullmatch(r"[+-]?[\d.]*\d,\d+", cell) is not None


def _number(file: RawFile, name: str, line: int, cell: str) -> float:
    if is_missing(cell):
        return float("nan")
    try:
        value = float(cell)
    except ValueError:
        value = float("inf")
    if not np.isfinite(value):
        cure = "correct the cell, leave it empty, or make the column a category with levels"
        if has_decimal_comma(cell):
            cure = "write decimals with a point, not a comma, in the whole file, or make the column a category"
        raise DataError(f"{file.path}, line {line}: expected a number in column {name!r}; {cure}.")
    return value


def _target(file: RawFile, target: TargetPart) -> np.ndarray:
    if target.range is not None:
        numbers = file.numbers(target.column)
        _no_missing(file, target.column, np.isnan(numbers))
        if target.event is None or target.event_levels is None:
            return scaled_target(numbers, *target.range)
        _no_negative(file, target.column, numbers)
        return signed_times(numbers, _codes_of(file, target.event, target.event_levels) == 1, target.range[1])
    assert target.classes is not None
    return _codes_of(file, target.column, target.classes)


def _codes_of(file: RawFile, name: str, classes: Sequence[str]) -> np.ndarray:
    """Positions among classes that every record has one of."""
    places, cells = {level: place for place, level in enumerate(classes)}, file.column(name)
    for line, cell in enumerate(cells, start=2):
        if cell not in places and not is_missing(cell):
            raise DataError(
                f"{file.path}, line {line}: expected the target {name!r} to be one of "
                f"{', '.join(classes)}; correct the cell, or name it among the classes: "
                f"tacit init --levels {name}=A,B,C, or target.classes of a schema that is made already."
            )
    codes = np.array([places.get(cell, -1) for cell in cells], np.int32)
    _no_missing(file, name, codes < 0)
    return codes


def _no_missing(file: RawFile, name: str, missing: np.ndarray) -> None:
    if missing.any():
        raise DataError(
            f"{file.path}, line {int(missing.argmax()) + 2}: the target {name!r} is missing; remove records "
            "without a target from the file."
        )


def _no_negative(file: RawFile, name: str, times: np.ndarray) -> None:
    if (times < 0).any():
        raise DataError(
            f"{file.path}, line {int((times < 0).argmax()) + 2}: expected a time of 0 or more in {name!r}; correct it, "
            "or remove the record."
        )


def encoding_of(schema: Schema) -> Encoding:
    """The public map from raw numbers to features."""
    encoders = schema.encoders()
    last = Scaled() if schema.norm == "box" else Norm(schema.norm)
    steps = [FILL]
    if schema.target.range is not None:
        steps.append(_target_step(schema.target))
    steps.append(columns_step(encoders))
    if schema.read_from_records:
        listed = ", ".join(schema.read_from_records)
        detail = f"Range or levels of {listed} were taken from the records themselves."
        steps.append(Step("read from records", False, detail))
    if schema.norm != "box":
        steps.append(norm_step(schema.norm))
    return Encoding(
        stages=(Columns(schema.used, encoders), last),
        steps=tuple(steps),
        norm=schema.bound,
        names=tuple(name for encoder in encoders for name in encoder.names),
        columns={name: _raw(schema.columns[name]) for name in schema.used},
    )


def target_of(schema: Schema) -> Target:
    """What the schema predicts, in its own words and units."""
    target = schema.target
    return Target(target.column, target.classes or (), target.range, target.unit, target.event, target.event_levels)


def _target_step(target: TargetPart) -> Step:
    assert target.range is not None
    if target.event is None or target.event_levels is None:
        return target_step(target.column, *target.range)
    horizon = f"{target.range[1]:g}{f' {target.unit}' if target.unit else ''}"
    seen = f"{target.event} = {target.event_levels[1]}"
    return Step(
        "target", True, f"The {target.column} in shares of {horizon}, negative where {seen} was not seen by then."
    )


def _raw(column: AnyColumn) -> RawColumn:
    return RawColumn(getattr(column, "levels", None), unit=getattr(column, "unit", None))


def reencoded(cells: np.ndarray, declared: Schema, ranges: Mapping[str, Sequence[float]]) -> np.ndarray:
    """Features by narrower ranges, from a record's cells (`cells_of`) by the declared ones; record by record."""
    raw = []
    for place, name in enumerate(declared.used):
        column, own = declared.columns[name], np.asarray(cells[:, place], np.float64)
        if isinstance(column, NumberColumn):
            raw.append(np.where(own < 0, np.nan, column.low + own * (column.high - column.low)))
        elif isinstance(column, CategoryColumn):
            raw.append(np.where((own < 0) | (own >= len(column.levels)), np.nan, own))
    return encoding_of(with_ranges(declared, ranges)).apply(np.stack(raw, axis=1))


def read(
    directory: Path | None,
    verify: bool,
    *,
    folder: str = "",
    schema: str = "",
    ranges: Mapping[str, Sequence[float]] | None = None,
) -> Table:
    """All silos of a folder; ``ranges`` of numbers in place of the schema's, for features alone."""
    del directory, verify
    if not folder:
        raise DataError('Expected data.options.folder for data.name = "csv"; make such a study with: tacit init FOLDER')
    place = Path(folder)
    rules = read_schema(place / (schema or "schema.toml"))
    files = [read_csv(path) for path in csv_files(place)]
    encoded = [encode_file(file, rules) for file in files]
    encoding = encoding_of(with_ranges(rules, ranges or {}))
    cells = [cells_of(file, rules) for file in files]
    # A range or levels that were read from records are not public, and nothing is counted by them.
    shown = [i for i, one in enumerate(cells[0]) if one.facts["name"] not in rules.read_from_records]
    return Table(
        x=np.concatenate([x for x, _ in encoded]),
        y=np.concatenate([y for _, y in encoded]),
        fit=lambda _reserve, _train: encoding,
        task=rules.target.task,
        citation=CITATION,
        class_names=rules.target.classes or (),
        target=target_of(rules),
        natural=np.repeat(np.arange(len(files)), [len(y) for _, y in encoded]),
        silo_names=tuple(file.silo for file in files),
        cells=np.concatenate([_stacked([own[i] for i in shown], len(own[0].values)) for own in cells]),
        columns=tuple(cells[0][i].facts for i in shown),
    )


def _stacked(cells: Sequence[Cells], count: int) -> np.ndarray:
    return np.stack([own.values for own in cells], axis=1) if cells else np.zeros((count, 0), np.float32)


def strays(file: RawFile, schema: Schema) -> list[str]:
    """What a file holds outside the declared ranges and levels, column by column; counts of records, hence private."""
    ranges = {name: (c.low, c.high) for name, c in schema.columns.items() if isinstance(c, NumberColumn)}
    # Whoever was watched for longer than the horizon was watched for it.
    if schema.target.range is not None and schema.target.event is None:
        ranges[schema.target.column] = schema.target.range
    lines = []
    for name, (low, high) in ranges.items():
        values = file.numbers(name)
        out = int(((values < low) | (values > high)).sum())
        if out:
            lines.append(f"{counted(out, 'cell')} of {name!r} outside [{low:g}, {high:g}], moved to its ends")
    for name, column in schema.columns.items():
        if isinstance(column, CategoryColumn):
            out = sum(cell not in column.levels and not is_missing(cell) for cell in file.column(name))
            if out:
                lines.append(f"{counted(out, 'cell')} of {name!r} not among its levels, counted as zeros")
    return lines


def silo_records(path: Path, schema_path: Path, *, tell: Callable[[str], None]) -> Records:
    """The records of one silo, for its own daemon: every record of its file.

    ``tell`` is given a line for the silo's owner alone where cells do not fit the schema's ranges and levels.
    """
    rules = public_schema(schema_path)
    file = read_csv(path)
    raw, target = encode_file(file, rules)
    lines = strays(file, rules)
    if lines:
        tell(
            f"{path}: {'; '.join(lines)}. Correct the cells, or agree with all silos on a schema that covers them; the "
            "count is for the owner's eyes and is not sent."
        )
    cells = cells_of(file, rules)
    return {"x": encoding_of(rules).apply(raw), "y": target, "columns": _stacked(cells, len(target))}
