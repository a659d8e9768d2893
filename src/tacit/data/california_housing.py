"""California housing (1990 census): the median house value of 20,640 block groups.

Eight features, as is usual: income, age, rooms and bedrooms per household, population, people per household,
latitude and longitude, between fixed bounds. The target is the value divided by 500,001, the census's own
cap, so that it lies in [0, 1].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data.encode import Bounded, scaled_target, target_step
from tacit.data.files import locate
from tacit.data.layout import layout
from tacit.data.table import Table
from tacit.data.tabular import fixed_table

CITATION = (
    "Pace and Barry (1997). Sparse spatial autoregressions. Statistics and Probability Letters 33, 291-297. "
    "From StatLib."
)

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

COLUMNS = tuple(column.column for column in ENCODED)
HIGHEST_VALUE = 500_001.0


def read(directory: Path | None, verify: bool) -> Table:
    """All block groups."""
    file = np.loadtxt(
        locate(layout()["california_housing/cal_housing.data"], directory, verify), delimiter=",", encoding="ascii"
    )
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = file.T
    derived = (income, age, rooms / households, bedrooms / households, population, population / households)
    return fixed_table(
        np.column_stack([*derived, latitude, longitude]),
        scaled_target(value, 0, HIGHEST_VALUE),
        COLUMNS,
        ENCODED,
        norm=3.0,
        citation=CITATION,
        attributes={name: name for name in ("income", "latitude", "longitude")},
        steps=(target_step("median house value", 0, HIGHEST_VALUE),),
    )
