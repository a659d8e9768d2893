"""Tables whose columns, ranges, levels and classes are known in advance: nothing is fitted.

``tables/NAME.toml`` describes a table. A feature's ``kind`` is a class of ``tacit.data.encode``, made once for each of
its ``columns``; a column with ``levels`` holds text, of which features see the position among the levels. A CSV file
with a header line needs no code of its own: :func:`read` and :func:`read_fair` read it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacit.data import encode
from tacit.data.encode import Cells, Column, Columns, Norm, OneHot, Sensitive, Standard
from tacit.data.federation import DataError, Encoding, RawColumn, Step, Table, Target
from tacit.data.files import locate
from tacit.data.layout import described, layout


def read(name: str, directory: Path | None, verify: bool) -> Table:
    """The table that ``tables/NAME.toml`` describes."""
    return _read(described(name), directory, verify)


def read_fair(
    name: str, directory: Path | None, verify: bool, *, sensitive: str = "sex", sensitive_in_features: bool = False
) -> Table:
    """The same with a sensitive attribute ``s``; features leave it out unless ``sensitive_in_features``."""
    tree = described(name)
    if sensitive not in tree["sensitive"]:
        raise DataError(f"Expected sensitive={sensitive!r} to be one of {', '.join(tree['sensitive'])}.")
    row = tree["sensitive"][sensitive]
    labels = row["labels"] if "labels" in row else tree["levels"][row["column"]]
    group = Sensitive(row["column"], tuple(row.get("values", range(len(labels)))), tuple(labels))
    return _read(tree, directory, verify, group=group, group_in_features=sensitive_in_features)


def _read(tree: dict[str, Any], directory: Path | None, verify: bool, **group: Any) -> Table:
    levels, renamed, target = tree.get("levels", {}), tree.get("renamed", {}), tree["target"]
    files = [layout()[path] for path in tree["files"]]
    paths = tuple(locate(file, directory, verify) for file in files)
    names = tuple(dict.fromkeys(name for feature in tree["features"] for name in feature["columns"]))
    wanted = (*(renamed.get(name, name) for name in names), target["column"])
    *cells, targets = _cells(paths, tuple(path.stat().st_mtime_ns for path in paths), wanted, files[0].how)
    columns = {name: _numbers(column, levels.get(name)) for name, column in zip(names, cells, strict=True)}
    if "positive" in target:
        table = fixed_table(tree, columns, np.isin(targets, target["positive"]), **group)
        return replace(table, **_natural(tree, columns)) if "natural" in tree else table
    low, high = target["low"], target["high"]
    step = encode.target_step(target["column"], low, high)
    return fixed_table(tree, columns, encode.scaled_target(_numbers(targets), low, high), steps=(step,), **group)


def _natural(tree: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Silos by the levels of a column; whoever has none of them, or none at all, is in the last."""
    about = tree["natural"]
    levels, cells = tree["levels"][about["column"]], columns[about["column"]]
    found = np.full(len(cells), len(about["silos"]))
    for index, (_, *own) in enumerate(about["silos"]):
        found[np.isin(cells, [levels.index(level) for level in own])] = index
    return {"natural": found, "silo_names": (*(name for name, *_ in about["silos"]), about["last"])}


@lru_cache(maxsize=1)
def _cells(
    paths: tuple[Path, ...], times: tuple[int, ...], columns: tuple[str, ...], how: str
) -> list[tuple[str, ...]]:
    """The columns of files with the same header; kept until a file changes, because studies load many partitions."""
    del times
    rows: list[tuple[str, ...]] = []
    for path in paths:
        with path.open(encoding="ascii", newline="") as stream:
            header, *body = csv.reader(stream, skipinitialspace=True)
        absent = [name for name in columns if name not in header]
        if absent:
            raise DataError(f"Expected {path} to have a column {absent[0]}; {how or 'replace the file.'}")
        places = [header.index(name) for name in columns]
        rows += [tuple(row[place] for place in places) for row in body if row]
    return list(zip(*rows, strict=True))


def _numbers(cells: Iterable[str], levels: Sequence[str] | None = None) -> np.ndarray:
    """Numbers, or positions among the levels; nan where a cell is not among them."""
    if levels is None:
        return np.array([float(cell) for cell in cells])
    codes = {level: float(code) for code, level in enumerate(levels)}
    return np.array([codes.get(cell, np.nan) for cell in cells])


def read_california_housing(directory: Path | None, verify: bool) -> Table:
    """California housing; the target is the value divided by 500,001, the census's own cap."""
    path = locate(layout()["california_housing/cal_housing.data"], directory, verify)
    names = "longitude", "latitude", "house age", "rooms", "bedrooms", "population", "households", "income", "value"
    columns = dict(zip(names, np.loadtxt(path, delimiter=",", encoding="ascii").T, strict=True))
    households, value = columns.pop("households"), columns.pop("value")
    per_household = {"rooms": columns["rooms"], "bedrooms": columns["bedrooms"], "people": columns["population"]}
    columns |= {name: values / households for name, values in per_household.items()}
    tree = described("california_housing")
    name, low, high = (tree["target"][key] for key in ("column", "low", "high"))
    y, step = encode.scaled_target(value, low, high), encode.target_step(name, low, high)
    return fixed_table(tree, columns, y, steps=(step,))


def read_school(directory: Path | None, verify: bool) -> Table:
    """Examination scores of pupils; every school is a silo. What is coded with zero and one keeps a number as name."""
    from scipy.io import loadmat  # slow to import, so only when asked for

    stored = loadmat(locate(layout()["school/school.mat"], directory, verify))
    schools, scores = stored["X"][0], stored["Y"][0]
    tree = described("school")
    # The last column is the constant one.
    raw = np.concatenate([school[:, :-1] for school in schools]).astype(np.float64)
    columns = dict(zip(tree["columns"], raw.T, strict=True))
    name, low, high = (tree["target"][key] for key in ("column", "low", "high"))
    y = encode.scaled_target(np.concatenate([own.ravel() for own in scores]).astype(np.float64), low, high)
    table = fixed_table(tree, columns, y, steps=(encode.target_step(name, low, high),))
    natural = np.repeat(np.arange(len(schools)), [len(school) for school in schools])
    return replace(table, natural=natural, silo_names=tuple(f"school {i + 1:03d}" for i in range(len(schools))))


def read_breast_cancer(directory: Path | None, verify: bool, *, scaling: str = "bounds") -> Table:
    """Wisconsin Diagnostic Breast Cancer, from scikit-learn; a label of 1 is malignant.

    ``scaling="bounds"`` (the default) scales by fixed bounds. ``scaling="standard"`` is what papers do: it standardises
    by the mean and the deviation of all *training* records together. That reads private records and is not priced, so
    the federation says so. Standardising each silo by itself is not offered: in a silo with one class it removes the
    very difference between the classes.
    """
    del directory, verify
    from sklearn.datasets import load_breast_cancer  # slow to import, so only when asked for

    if scaling not in ("bounds", "standard"):
        raise DataError(f"Expected scaling={scaling!r} to be 'bounds' (public) or 'standard' (reads private records).")
    bunch, tree = load_breast_cancer(), described("breast_cancer")
    names = tuple(name for feature in tree["features"] for name in feature["columns"])
    columns = dict(zip(names, np.asarray(bunch.data, dtype=np.float64).T, strict=True))
    table = fixed_table(tree, columns, 1 - np.asarray(bunch.target))

    def standard(_reserve: np.ndarray, train: np.ndarray) -> Encoding:
        mean, deviation = train.mean(axis=0), train.std(axis=0)
        detail = "Mean and deviation of the training records of all silos together, computed without noise."
        step = Step("standardisation", False, detail)
        raw = {name: RawColumn() for name in names}
        return Encoding((Standard(mean, deviation),), (step,), norm=None, names=names, columns=raw)

    return table if scaling == "bounds" else replace(table, fit=standard)


def fixed_table(
    tree: Mapping[str, Any],
    columns: Mapping[str, np.ndarray],
    y: ArrayLike,
    *,
    group: Sensitive | None = None,
    group_in_features: bool = False,
    steps: tuple[Step, ...] = (),
) -> Table:
    """A table of two classes, or of a target in [0, 1], with the features that ``tree`` describes.

    ``group`` is the sensitive attribute; features leave it out unless ``group_in_features``.
    """
    apart = None if group is None or group_in_features else group.column
    if apart is not None:
        steps = (*steps, Step("sensitive attribute", True, f"{apart} is kept apart from the features."))
    levels, names, norm, about = tree.get("levels", {}), list(columns), tree["norm"], tree["target"]
    used = [column for feature in tree["features"] for column in _columns(feature, levels) if column.column != apart]
    encoding = Encoding(
        stages=(Columns(tuple(names), tuple(used)), Norm(norm)),
        steps=(*steps, encode.columns_step(used), encode.norm_step(norm)),
        norm=norm,
        names=tuple(name for column in used for name in column.names),
        columns={name: _raw(name, tree) for name in names},
    )
    classes = tuple(tree.get("classes", ()))
    cells = _cells_of(tree, columns, used, np.asarray(y), group)
    return Table(
        x=np.column_stack(list(columns.values())),
        y=np.asarray(y, np.int32 if classes else np.float32),
        fit=lambda _reserve, _train: encoding,
        task="binary" if classes else "regression",
        citation=tree["citation"],
        class_names=classes,
        target=Target(about["column"], classes, None if classes else (float(about["low"]), float(about["high"]))),
        s=None if group is None else group.codes(columns[group.column]),
        group_names=() if group is None else group.labels,
        attributes={name: columns[column] for name, column in tree["attributes"].items()},
        cells=np.stack([own.values for own in cells], axis=1),
        columns=tuple(own.facts for own in cells),
    )


def _cells_of(
    tree: Mapping[str, Any],
    columns: Mapping[str, np.ndarray],
    used: Sequence[Column],
    y: np.ndarray,
    group: Sensitive | None,
) -> list[Cells]:
    """The columns that are declared: by features, as the sensitive attribute, and as the target, which is last."""
    found: dict[str, Cells] = {}
    for column in used:
        name, values = column.column, columns[column.column]
        levels = tree.get("levels", {}).get(name)
        if name in found or isinstance(column, encode.Missing):
            continue
        if levels is not None:
            found[name] = encode.level_cells(name, values, levels)
        elif isinstance(column, encode.Bounded):
            found[name] = encode.number_cells(name, values, column.low, column.high)
        elif isinstance(column, encode.Signed) or (isinstance(column, encode.OneHot) and len(column.names) == 1):
            marked = column.positive if isinstance(column, encode.Signed) else column.categories
            codes = np.where(np.isnan(values), np.nan, np.isin(values, marked))
            found[name] = encode.level_cells(name, codes, ("no", "yes"))
        else:
            rows = column.features(values)
            codes = np.where(rows.any(axis=1), rows.argmax(axis=1), rows.shape[1]).astype(np.float64)
            labels = [label.partition("=")[2] for label in column.names]
            found[name] = encode.level_cells(name, np.where(np.isnan(values), np.nan, codes), labels)
    if group is not None and group.column not in found:
        codes = group.codes(columns[group.column]).astype(np.float64)
        found[group.column] = encode.level_cells(group.column, codes, group.labels)
    target, classes = tree["target"], tree.get("classes", ())
    if classes:
        last = encode.level_cells(target["column"], y.astype(np.float64), classes)
    else:
        span = float(target["high"]) - float(target["low"])
        last = encode.number_cells(target["column"], target["low"] + span * y, target["low"], target["high"])
    return [own for name, own in found.items() if name != target["column"]] + [last]


def _raw(name: str, tree: Mapping[str, Any]) -> RawColumn:
    levels = tree.get("levels", {}).get(name)
    return RawColumn(None if levels is None else tuple(levels), tuple(tree.get("missing", {}).get(name, ())))


def _columns(feature: Mapping[str, Any], levels: Mapping[str, Sequence[str]]) -> list[Column]:
    given = {key: value for key, value in feature.items() if key not in ("kind", "columns")}
    if feature["kind"] == "OneHot" and not given:
        return [OneHot(name, tuple(range(len(levels[name]))), tuple(levels[name])) for name in feature["columns"]]
    return [getattr(encode, feature["kind"])(name, **given) for name in feature["columns"]]
