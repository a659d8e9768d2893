"""Medical insurance: the yearly charges of 1,338 people.

By default ten silos by level of the target, as in the linear regression experiment of Lowy and Razaviyayn
("Private federated learning without a trusted server"). The target is the charge divided by 65,000 dollars,
so that it lies in [0, 1].
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tacit.data import layout
from tacit.data.encode import Bounded, OneHot, Signed, fixed_encoding, target_step
from tacit.data.files import locate
from tacit.data.table import Table

CITATION = "Choi (2018). Medical cost personal datasets. Kaggle, after Lantz, Machine learning with R (2013)."

COLUMNS = ("age", "bmi", "children", "male", "smoker", "region")
REGIONS = ("northeast", "northwest", "southeast", "southwest")

ENCODED = (
    Bounded("age", 18, 65),
    Bounded("bmi", 15, 55),
    Bounded("children", 0, 5),
    Signed("male", (1,)),
    Signed("smoker", (1,)),
    OneHot("region", (0, 1, 2, 3), REGIONS),
)

HIGHEST_CHARGE = 65_000.0
FEATURE_NORM = 2.5


def read(directory: Path | None, verify: bool) -> Table:
    """Everyone."""
    with locate(layout.INSURANCE, directory, verify).open(encoding="ascii", newline="") as stream:
        rows = list(csv.DictReader(stream))
    raw = np.array(
        [
            [
                float(row["age"]),
                float(row["bmi"]),
                float(row["children"]),
                float(row["sex"] == "male"),
                float(row["smoker"] == "yes"),
                float(REGIONS.index(row["region"])),
            ]
            for row in rows
        ]
    )
    charges = np.array([float(row["charges"]) for row in rows])
    return Table(
        x=raw,
        y=(np.clip(charges, 0, HIGHEST_CHARGE) / HIGHEST_CHARGE).astype(np.float32),
        fit=fixed_encoding(COLUMNS, ENCODED, FEATURE_NORM, steps=(target_step("charges", 0, HIGHEST_CHARGE),)),
        task="regression",
        attributes={"age": raw[:, 0], "bmi": raw[:, 1]},
    )
