"""Wisconsin Diagnostic Breast Cancer (WBCD), from scikit-learn: 569 tumours, malignant or benign.

``scaling="bounds"`` (the default) scales by the fixed bounds of ``tables/breast_cancer.toml``. ``scaling="standard"``
is what papers do: it standardises by the mean and the deviation of all *training* records together. That reads private
records and is not priced, so the federation says so. Standardising each silo by itself is not offered: in a silo with
one class it removes the very difference between the classes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data.federation import DataError, Encoding, Step, Table
from tacit.data.layout import described
from tacit.data.tabular import fixed_table


def read(directory: Path | None, verify: bool, *, scaling: str = "bounds") -> Table:
    """All tumours; a label of 1 is malignant."""
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
        return Encoding(lambda raw: ((raw - mean) / deviation).astype(np.float32), (step,), norm=None, names=names)

    return table if scaling == "bounds" else replace(table, fit=standard)
