"""``load``: the one way from a name to a federation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data import csv_silos, heart_disease, images, synthetic, tabular, tcga_brca
from tacit.data.build import Division, build
from tacit.data.federation import DataError, Federation, Table
from tacit.data.partition import DEFAULT_LEVELS, DIGIT_PAIRS, PARTITIONS
from tacit.errors import unknown


@dataclass(frozen=True)
class DataSet:
    """A row of the catalogue: how to read a data set, and its defaults.

    ``validation`` and ``test`` keep the training share of the data set's paper and divide the rest.
    """

    read: Callable[..., Table]
    partition: str
    silos: int
    validation: float
    test: float
    records: int | None = None


DATA_SETS: dict[str, DataSet] = {
    "heart-disease": DataSet(heart_disease.read, "natural", 4, 0.1, 0.2),
    "breast-cancer": DataSet(tabular.read_breast_cancer, "label", 2, 0.1, 0.1),
    "mnist": DataSet(images.read_mnist, "digit-pairs", 25, 0.1, 0.1, records=1543),
    "cifar10": DataSet(images.read_cifar10, "one-class", 10, 0.1, 0.1),
    "adult": DataSet(partial(tabular.read_fair, "adult"), "attribute", 3, 0.05, 0.2),
    "acs-income": DataSet(partial(tabular.read_fair, "acs_income"), "attribute", 3, 0.05, 0.2),
    "credit-card": DataSet(partial(tabular.read_fair, "credit_card"), "attribute", 3, 0.05, 0.2),
    "california-housing": DataSet(tabular.read_california_housing, "iid", 10, 0.1, 0.1),
    "insurance": DataSet(partial(tabular.read, "insurance"), "sorted-target", 10, 0.1, 0.1),
    "school": DataSet(tabular.read_school, "natural", 139, 0.1, 0.2),
    "tcga-brca": DataSet(tcga_brca.read, "natural", 6, 0.1, 0.2),
}

OWN: dict[str, DataSet] = {
    "csv": DataSet(csv_silos.read, "natural", 0, 0.1, 0.2),
    "synthetic": DataSet(synthetic.read, "natural", 0, 0.1, 0.2),
}
"""Records that no file of ours holds: a folder of one's own, or made up to order."""


def names() -> tuple[str, ...]:
    """Names of the data sets that come with files; :func:`load` knows ``csv`` and ``synthetic`` too."""
    return tuple(DATA_SETS)


def load(
    name: str,
    *,
    partition: str | None = None,
    silos: int | None = None,
    level: float | None = None,
    seed: int = 0,
    directory: Path | None = None,
    validation: float | None = None,
    test: float | None = None,
    attribute: str | None = None,
    records_per_silo: int | None = None,
    verify: bool = True,
    **options: Any,
) -> Federation:
    """A data set, divided into silos and split.

    Args:
        name: one of :func:`names`, ``csv`` (a folder of one CSV file per silo) or ``synthetic``.
        partition: how to divide (see ``tacit.data.partition``); by default the data set's own way.
        silos: how many; by default the data set's own number.
        level: heterogeneity, for the partitions that have one.
        seed: of partition and split. The same seed gives the same federation.
        directory: where the files are; else ``TACIT_DATA``, else a cache in the home directory.
        validation: share of each silo for validation; by default the data set's own.
        test: share of each silo for test; by default the data set's own.
        attribute: the column for ``partition="attribute"``; by default the data set's first (age, mostly).
        records_per_silo: keep this many records in each silo, taken at random; by default all.
        verify: compare files with their known checksums; off, a file of your own with the same columns is read.
        **options: of the data set, such as ``features="pixels"``.

    >>> federation = load("heart-disease")
    >>> [(silo.name, len(silo.train["y"])) for silo in federation.silos]
    [('cleveland', 212), ('hungarian', 205), ('switzerland', 86), ('va', 140)]
    """
    known = DATA_SETS | OWN
    if name not in known:
        raise DataError(unknown("data set", name, known))
    entry = known[name]
    kind = entry.partition if partition is None else partition
    if kind not in PARTITIONS:
        raise DataError(unknown("partition", kind, PARTITIONS))
    if seed != int(seed) or seed < 0:
        raise DataError(f"Expected seed={seed} to be a whole number, at least 0.")
    _check_options(name, entry, options)
    if "partition" in inspect.signature(entry.read).parameters:
        options = options | {"partition": kind}
    table = entry.read(directory, verify, **options)
    share = 0.0 if table.official_test is not None else entry.test
    division = Division(
        kind=kind,
        silos=_silos(name, table, kind, entry, silos),
        level=_level(kind, level),
        attribute=attribute,
        records=entry.records if records_per_silo is None and kind == entry.partition else records_per_silo,
        validation=entry.validation if validation is None else validation,
        test=share if test is None else test,
        seed=int(seed),
    )
    if table.official_test is not None and division.test:
        raise DataError(f"Expected test={test} to be 0 with holdout='official', which brings its own test records.")
    return build(name, table, division)


def _check_options(name: str, entry: DataSet, options: dict[str, Any]) -> None:
    parameters = inspect.signature(entry.read).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "partition"]
    for option in options:
        if option not in known:
            raise DataError(f"Unknown option {option!r} for data set {name!r}; it has {', '.join(known) or 'none'}.")


def _silos(name: str, table: Table, kind: str, entry: DataSet, silos: int | None) -> int:
    if kind == "natural":
        if table.natural is None:
            raise DataError(
                f"Expected a data set with silos of its own for partition='natural'; {name!r} has none. "
                f"Its default is partition={entry.partition!r}."
            )
        if silos not in (None, len(table.silo_names)):
            raise DataError(
                f"Expected silos={silos} to be {len(table.silo_names)}, the natural silos of {name!r}; "
                "leave silos out, or choose another partition."
            )
        return len(table.silo_names)
    if silos is None:
        if kind == "digit-pairs":
            return len(DIGIT_PAIRS)
        if kind in ("one-class", "label") and table.task != "regression":
            return len(np.unique(table.y if table.label is None else table.label))
        return entry.silos
    if silos != int(silos) or silos < 1:
        raise DataError(f"Expected silos={silos} to be a whole number, at least 1.")
    return int(silos)


def _level(kind: str, level: float | None) -> float | None:
    if level is not None and kind not in DEFAULT_LEVELS:
        raise DataError(
            f"Expected no level={level} for partition={kind!r}, which has no heterogeneity level; leave "
            f"level out, or use one of {', '.join(DEFAULT_LEVELS)}."
        )
    return DEFAULT_LEVELS.get(kind) if level is None else float(level)
