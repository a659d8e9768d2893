"""California housing (1990 census): the median house value of 20,640 block groups.

Eight features, as is usual: income, age, rooms and bedrooms per household, population, people per household,
latitude and longitude, between fixed bounds. The target is the value divided by 500,001, the census's own
cap, so that it lies in [0, 1].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data import layout
from tacit.data.encode import Bounded, fixed_encoding, target_step
from tacit.data.files import locate
from tacit.data.table import Table

CITATION = (
    "Pace and Barry (1997). Sparse spatial autoregressions. Statistics and Probability Letters 33, 291-297. "
    "From StatLib."
)

COLUMNS = ("income", "house age", "rooms", "bedrooms", "population", "people", "latitude", "longitude")

ENCODED = (
    Bounded("income", 0.5, 15),
    Bounded("house age", 1, 52),
    Bounded("rooms", 1, 20, log=True),
    Bounded("bedrooms", 0.5, 5, log=True),
    Bounded("population", 1, 20_000, log=True),
    Bounded("people", 1, 10, log=True),
    Bounded("latitude", 32.5, 42),
    Bounded("longitude", -124.5, -114),
)

HIGHEST_VALUE = 500_001.0
FEATURE_NORM = 3.0


def read(directory: Path | None, verify: bool) -> Table:
    """All block groups."""
    text = locate(layout.CALIFORNIA_HOUSING, directory, verify).read_text(encoding="ascii")
    file = np.array([[float(cell) for cell in line.split(",")] for line in text.split()])
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = file.T
    derived = (income, age, rooms / households, bedrooms / households, population, population / households)
    raw = np.column_stack([*derived, latitude, longitude])
    target = target_step("median house value", 0, HIGHEST_VALUE)
    return Table(
        x=raw,
        y=(np.clip(value, 0, HIGHEST_VALUE) / HIGHEST_VALUE).astype(np.float32),
        fit=fixed_encoding(COLUMNS, ENCODED, FEATURE_NORM, steps=(target,)),
        task="regression",
        attributes={"income": income, "latitude": latitude, "longitude": longitude},
    )
