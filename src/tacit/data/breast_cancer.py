"""Wisconsin Diagnostic Breast Cancer (WBCD), from scikit-learn: 569 tumours, malignant or benign.

``scaling="bounds"`` (the default) scales by fixed bounds: round numbers around the ranges that the public
description of the data set prints. ``scaling="standard"`` is what papers do: it standardises by the mean and
the deviation of all *training* records together. That reads private records and is not priced, so the federation
says so. Standardising each silo by itself is not offered: in a silo with one class it removes the very
difference between the classes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data.encode import Bounded
from tacit.data.federation import DataError, Step
from tacit.data.table import Encoding, Table
from tacit.data.tabular import fixed_table

CITATION = (
    "Wolberg, Mangasarian, Street and Street (1995). Breast Cancer Wisconsin (Diagnostic). "
    "UCI Machine Learning Repository. https://doi.org/10.24432/C5DW2B. CC BY 4.0."
)

# measurement: bounds of the mean, of its standard error, and of the worst cell nuclei
_BOUNDS: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "radius": ((5, 25), (0, 1.5), (5, 35)),
    "texture": ((10, 35), (0, 3), (10, 45)),
    "perimeter": ((40, 180), (0, 10), (50, 230)),
    "area": ((100, 2000), (0, 150), (100, 3000)),
    "smoothness": ((0.05, 0.15), (0, 0.015), (0.05, 0.2)),
    "compactness": ((0, 0.3), (0, 0.1), (0, 0.8)),
    "concavity": ((0, 0.4), (0, 0.15), (0, 1)),
    "concave points": ((0, 0.2), (0, 0.03), (0, 0.3)),
    "symmetry": ((0.1, 0.3), (0, 0.05), (0.1, 0.5)),
    "fractal dimension": ((0.05, 0.1), (0, 0.01), (0.05, 0.15)),
}

ENCODED = tuple(
    Bounded(f"{statistic} {name}", *bounds[index])
    for index, statistic in enumerate(("mean", "error of", "worst"))
    for name, bounds in _BOUNDS.items()
)

COLUMNS = tuple(column.column for column in ENCODED)


def read(directory: Path | None, verify: bool, *, scaling: str = "bounds") -> Table:
    """All tumours; a label of 1 is malignant."""
    del directory, verify
    from sklearn.datasets import load_breast_cancer  # slow to import, so only when asked for

    if scaling not in ("bounds", "standard"):
        raise DataError(f"Expected scaling={scaling!r} to be 'bounds' (public) or 'standard' (reads private records).")
    bunch = load_breast_cancer()
    raw = np.asarray(bunch.data, dtype=np.float64)
    table = fixed_table(
        raw,
        1 - np.asarray(bunch.target),
        COLUMNS,
        ENCODED,
        norm=4.0,
        citation=CITATION,
        classes=("benign", "malignant"),
    )
    return table if scaling == "bounds" else replace(table, fit=_standard)


def _standard(reserve: np.ndarray, train: np.ndarray) -> Encoding:
    del reserve
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    step = Step(
        "standardisation",
        False,
        "Mean and deviation of the training records of all silos together, computed without noise.",
    )
    return Encoding(
        apply=lambda raw: ((raw - mean) / deviation).astype(np.float32),
        steps=(step,),
        norm=None,
        names=COLUMNS,
    )
