"""Tables whose columns, ranges, levels and classes are known in advance: nothing is fitted.

A CSV file with a header line needs no code: ``tables/NAME.toml`` describes it, and :func:`read` and :func:`read_fair`
read it. In a description a feature's ``kind`` is a class of ``tacit.data.encode``, made once for each of its
``columns``; a column with ``levels`` holds text, of which features see the position among the levels.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tacit.data.encode import (
    Bands,
    Bounded,
    Column,
    OneHot,
    Sensitive,
    Signed,
    bound_norm,
    columns_step,
    encode_columns,
    norm_step,
    scaled_target,
    target_step,
)
from tacit.data.federation import DataError, Step
from tacit.data.files import locate
from tacit.data.layout import described, layout
from tacit.data.table import Encoding, Table

_KINDS: dict[str, Callable[..., Column]] = {"bounded": Bounded, "one-hot": OneHot, "signed": Signed, "bands": Bands}


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
    columns = [column for feature in tree["features"] for column in _columns(feature, tree.get("levels", {}))]
    names = tuple(dict.fromkeys(column.column for column in columns))
    paths = tuple(locate(layout()[file], directory, verify) for file in tree["files"])
    renamed, target = tree.get("renamed", {}), tree["target"]
    wanted = (*(renamed.get(name, name) for name in names), target["column"])
    cells = _cells(paths, tuple(path.stat().st_mtime_ns for path in paths), wanted, layout()[tree["files"][0]].how)
    raw = np.array([_numbers(cells[i], tree.get("levels", {}).get(name)) for i, name in enumerate(names)]).T
    steps: tuple[Step, ...] = ()
    if "positive" in target:
        y = np.isin(cells[-1], target["positive"])
    else:
        y = scaled_target(_numbers(cells[-1], None), target["low"], target["high"])
        steps = (target_step(target["column"], target["low"], target["high"]),)
    return fixed_table(
        raw,
        y,
        names,
        columns,
        norm=tree["norm"],
        citation=tree["citation"],
        classes=tuple(tree.get("classes", ())),
        attributes=tree["attributes"],
        steps=steps,
        **group,
    )


def _columns(feature: Mapping[str, Any], levels: Mapping[str, Sequence[str]]) -> list[Column]:
    given = {key: value for key, value in feature.items() if key not in ("kind", "columns")}
    if feature["kind"] == "one-hot" and not given:
        return [OneHot(name, tuple(range(len(levels[name]))), tuple(levels[name])) for name in feature["columns"]]
    return [_KINDS[feature["kind"]](name, **given) for name in feature["columns"]]


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


def _numbers(cells: Iterable[str], levels: Sequence[str] | None) -> np.ndarray:
    """Numbers, or positions among the levels; nan where a cell is not among them."""
    if levels is None:
        return np.array([float(cell) for cell in cells])
    codes = {level: float(code) for code, level in enumerate(levels)}
    return np.array([codes.get(cell, np.nan) for cell in cells])


def fixed_table(
    raw: np.ndarray,
    y: ArrayLike,
    names: Sequence[str],
    columns: Iterable[Column],
    norm: float,
    citation: str,
    *,
    classes: tuple[str, ...] = (),
    attributes: Mapping[str, str] | None = None,
    group: Sensitive | None = None,
    group_in_features: bool = False,
    steps: tuple[Step, ...] = (),
) -> Table:
    """A table of two classes, or of a target in [0, 1], encoded by fixed ``columns`` and a bound on the norm.

    ``names`` are the columns of ``raw``, ``attributes`` those by which it can be divided, by the names of their
    columns. ``group`` is the sensitive attribute; features leave it out unless ``group_in_features``.
    """
    apart = None if group is None or group_in_features else group.column
    if apart is not None:
        steps = (*steps, Step("sensitive attribute", True, f"{apart} is kept apart from the features."))
    used = [column for column in columns if column.column != apart]
    encoding = Encoding(
        apply=lambda records: bound_norm(encode_columns(records, names, used), norm),
        steps=(*steps, columns_step(used), norm_step(norm)),
        norm=norm,
        names=tuple(name for column in used for name in column.names),
    )
    return Table(
        x=raw,
        y=np.asarray(y, np.int32 if classes else np.float32),
        fit=lambda _reserve, _train: encoding,
        task="binary" if classes else "regression",
        citation=citation,
        class_names=classes,
        s=None if group is None else group.codes(raw[:, names.index(group.column)]),
        group_names=() if group is None else group.labels,
        attributes={name: raw[:, names.index(column)] for name, column in (attributes or {}).items()},
    )
