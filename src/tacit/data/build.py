"""From a table to a federation, in the order that keeps test records out of training.

1. Records that the encoding needs and that shall belong to no silo are put aside.
2. The others are given to silos.
3. Each silo splits its records at random.
4. Only then is anything encoded, by a map that is fixed in advance, fitted on the records put aside, or
   (marked as not public) fitted on training records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tacit.data.federation import DataError, Encoding, Federation, Records, SiloData, Step, Table
from tacit.data.partition import DEFAULT_LEVELS, DIGIT_PAIRS, PARTITIONS, Request

_SPLIT = (
    "Each silo's records at random, before anything else and without looking at them: validation {:g}, test {:g}, the "
    "rest for training."
)
Split = tuple[np.ndarray, ...]
"""Row indices of train, validation and test."""


@dataclass(frozen=True)
class Division:
    """How to divide a table: every parameter decided.

    ``records`` is how many each silo keeps, ``None`` for all; ``attribute`` is a column, by default the table's first.
    """

    kind: str
    silos: int
    level: float | None
    attribute: str | None
    records: int | None
    validation: float
    test: float
    seed: int


def build(name: str, table: Table, division: Division) -> Federation:
    """Divide, split and encode a table."""
    streams = [np.random.default_rng([division.seed, stream]) for stream in range(5)]
    for_reserve, for_silos, for_trim, for_split, for_test = streams
    order = for_reserve.permutation(len(table.y))
    reserve, free = order[: table.reserve], np.sort(order[table.reserve :])
    parts = [free[part] for part in _parts(table, free, division, for_silos)]
    parts = [_trim(part, division.records, silo, for_trim) for silo, part in enumerate(parts)]
    shares = division.validation, division.test
    splits = [tuple(part[rows] for rows in split_indices(len(part), *shares, for_split)) for part in parts]
    titles = _titles(table, division)
    _check_sizes(division, titles, splits)
    train = np.concatenate([split[0] for split in splits])
    encoding = table.fit(table.x[reserve], table.x[train])
    encoded = [[_records(table, encoding, rows) for rows in split] for split in splits]
    cells = [None if table.cells is None else table.cells[np.concatenate(split)] for split in splits]
    silos = [SiloData(title, *parts, cells=own) for title, parts, own in zip(titles, encoded, cells, strict=True)]
    detail = _SPLIT.format(division.validation, division.test)
    if table.official_test is not None:
        x, y, label = table.official_test
        apart = replace(table, x=x, y=y, label=label)
        parts = _parts(apart, np.arange(len(y)), replace(division, records=None), for_test)
        tests = [_records(apart, encoding, part) for part in parts]
        silos = [replace(silo, test=test) for silo, test in zip(silos, tests, strict=True)]
        detail += " The test records are the source's own test set, divided in the same way."
    return Federation(
        name=name,
        silos=tuple(silos),
        task=table.task,
        num_classes=len(table.class_names) or None,
        feature_shape=silos[0].train["x"].shape[1:],
        feature_norm=encoding.norm,
        steps=(Step("split", True, detail), *encoding.steps),
        citation=table.citation,
        partition=_describe(table, division),
        feature_names=encoding.names,
        class_names=table.class_names,
        group_names=table.group_names,
        encoding=encoding,
        target=table.target,
        columns=table.columns,
    )


def split_sizes(records: int, validation: float, test: float) -> tuple[int, int, int]:
    """Sizes of train, validation and test.

    Training gets ``floor(records * (1 - validation - test))``; what is held out is shared in proportion.

    >>> split_sizes(1543, 0.1, 0.1)
    (1234, 155, 154)
    """
    for name, value in (("validation", validation), ("test", test)):
        if not 0 <= value < 1:
            raise DataError(f"Expected 0 <= {name}={value} < 1: it is the share of a silo's records; try {name}=0.1.")
    if not validation + test < 1:
        raise DataError(
            f"Expected validation={validation} + test={test} < 1, or nothing is left to train on; lower one of them."
        )
    # The nudge keeps shares such as 0.7 * 10, which is 6.999... in floating point, from losing a record.
    train = int(np.floor(records * (1 - validation - test) + 1e-9))
    held = records - train
    held_for_test = round(held * test / (validation + test)) if validation + test > 0 else 0
    return (records, 0, 0) if validation + test == 0 else (train, held - held_for_test, held_for_test)


def split_indices(
    records: int, validation: float, test: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row indices of train, validation and test: disjoint, together all of ``range(records)``.

    A random permutation, drawn from the number of records alone: it never looks at a record. In particular it is not
    stratified. That would make the *size* of a class in the training set a function of the labels of the held-out
    records, and under replace-one adjacency one changed label would move other records across the split, which no
    accountant of the training algorithm covers.
    """
    train, held_for_validation, _ = split_sizes(records, validation, test)
    order = generator.permutation(records)
    return order[:train], order[train : train + held_for_validation], order[train + held_for_validation :]


def _parts(table: Table, rows: np.ndarray, division: Division, generator: np.random.Generator) -> list[np.ndarray]:
    if division.silos > len(rows):
        raise DataError(f"Expected silos={division.silos} <= {len(rows)} records; lower silos.")
    if division.kind == "digit-pairs" and table.label is None:
        raise DataError("Expected digits for partition='digit-pairs', which only 'mnist' has; try 'one-class'.")
    label = table.y if table.label is None else table.label
    attribute = table.attributes[_attribute(table, division)][rows] if division.kind == "attribute" else None
    request = Request(
        label=label[rows] if table.task != "regression" else None,
        target=table.y[rows],
        attribute=attribute,
        natural=None if table.natural is None else table.natural[rows],
        silos=division.silos,
        level=division.level,
        records=division.records,
        generator=generator,
    )
    return PARTITIONS[division.kind](request)


def _attribute(table: Table, division: Division) -> str:
    choices = tuple(table.attributes)
    if not choices:
        raise DataError(
            "Expected a data set with an attribute for partition='attribute'; this one has none. Use 'iid' or 'label'."
        )
    attribute = choices[0] if division.attribute is None else division.attribute
    if attribute not in choices:
        raise DataError(f"Expected attribute={attribute!r} to be one of {', '.join(choices)}.")
    return attribute


def _trim(part: np.ndarray, records: int | None, silo: int, generator: np.random.Generator) -> np.ndarray:
    if records is None:
        return part
    if not 1 <= records <= len(part):
        raise DataError(
            f"Expected 1 <= records_per_silo={records} <= {len(part)}, the records of silo {silo}; lower "
            "it, use fewer silos, or leave it out to keep all."
        )
    return generator.permutation(part)[:records]


def _check_sizes(division: Division, titles: list[str], splits: list[Split]) -> None:
    cure = (
        f"partition={division.kind!r}, silos={division.silos}, level={division.level}; use fewer silos, a milder "
        "level, or another seed."
    )
    if division.kind == "natural":
        cure = (
            f"validation={division.validation:g}, test={division.test:g}; give it more records, leave it out, or lower "
            "validation and test of [partition]."
        )
    for title, split in zip(titles, splits, strict=True):
        if not len(split[0]):
            raise DataError(
                f"Expected every silo to have a training record; silo {title!r} has {sum(map(len, split))} records in "
                f"all and none to train on with {cure}"
            )


def _titles(table: Table, division: Division) -> list[str]:
    if division.kind == "natural":
        return list(table.silo_names)
    if division.kind == "digit-pairs":
        return [f"digits {even} and {odd}" for even, odd in DIGIT_PAIRS]
    width = len(str(division.silos))
    return [f"silo {silo + 1:0{width}d}" for silo in range(division.silos)]


def _records(table: Table, encoding: Encoding, rows: np.ndarray) -> Records:
    records = {"x": encoding.apply(table.x[rows]), "y": table.y[rows]}
    return records if table.s is None else records | {"s": table.s[rows]}


def _describe(table: Table, division: Division) -> str:
    by = f", by {_attribute(table, division)}" if division.kind == "attribute" else ""
    level = "" if division.level is None or division.kind not in DEFAULT_LEVELS else f", level {division.level:g}"
    return f"{division.kind}, {division.silos} silos{by}{level}"
