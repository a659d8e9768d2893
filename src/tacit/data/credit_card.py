"""UCI default of credit card clients: does a client in Taiwan default next month; 30,000 clients.

Months of delay have a feature per code; amounts (New Taiwan dollars) are on a logarithmic scale between fixed
bounds.

Options:
    sensitive: ``"sex"``, the only one.
    sensitive_in_features: whether ``x`` also has the sensitive attribute; by default not.
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np

from tacit.data import layout
from tacit.data.encode import Bounded, Column, OneHot, Sensitive, fixed_encoding
from tacit.data.files import locate
from tacit.data.table import Table

CITATION = (
    "Yeh (2009). Default of credit card clients. UCI Machine Learning Repository. "
    "https://doi.org/10.24432/C55S3H. CC BY 4.0."
)

DELAYS = ("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6")
BILLS = tuple(f"BILL_AMT{month}" for month in range(1, 7))
PAYMENTS = tuple(f"PAY_AMT{month}" for month in range(1, 7))
COLUMNS = ("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE", *DELAYS, *BILLS, *PAYMENTS)

ENCODED: tuple[Column, ...] = (
    Bounded("LIMIT_BAL", 10_000, 1_000_000, log=True, unit=10_000),
    Bounded("AGE", 20, 80),
    OneHot("SEX", (1, 2), ("male", "female")),
    OneHot("EDUCATION", (1, 2, 3, 4), ("graduate school", "university", "high school", "other")),
    OneHot("MARRIAGE", (1, 2, 3), ("married", "single", "other")),
    *(OneHot(name, tuple(range(-2, 9))) for name in DELAYS),
    *(Bounded(name, -1_000_000, 1_000_000, log=True, unit=1_000, from_zero=True) for name in BILLS),
    *(Bounded(name, 0, 1_000_000, log=True, unit=1_000, from_zero=True) for name in PAYMENTS),
)

SENSITIVE = {"sex": Sensitive("SEX", (1, 2), ("male", "female"))}

FEATURE_NORM = 4.0


def read(directory: Path | None, verify: bool, *, sensitive: str = "sex", sensitive_in_features: bool = False) -> Table:
    """All clients."""
    raw, y = _columns(locate(layout.CREDIT_CARD, directory, verify))
    group = Sensitive.choose(SENSITIVE, sensitive)
    return Table(
        x=raw,
        y=y,
        fit=fixed_encoding(COLUMNS, ENCODED, FEATURE_NORM, None if sensitive_in_features else group.column),
        task="binary",
        class_names=("pays", "defaults"),
        s=group.codes(raw[:, COLUMNS.index(group.column)]),
        group_names=group.labels,
        attributes={"age": raw[:, COLUMNS.index("AGE")], "limit": raw[:, 0]},
    )


@lru_cache(maxsize=1)
def _columns(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the file and who defaults; kept, because studies load many partitions."""
    with path.open(encoding="ascii", newline="") as stream:
        rows = list(csv.DictReader(stream))
    raw = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
    return raw, np.array([row["default.payment.next.month"] == "1" for row in rows], dtype=np.int32)
