"""California housing (1990 census): the median house value of 20,640 block groups.

The target is the value divided by 500,001, the census's own cap, so that it lies in [0, 1].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data.encode import scaled_target, target_step
from tacit.data.federation import Table
from tacit.data.files import locate
from tacit.data.layout import described, layout
from tacit.data.tabular import fixed_table

HIGHEST_VALUE = 500_001.0


def read(directory: Path | None, verify: bool) -> Table:
    """All block groups."""
    path = locate(layout()["california_housing/cal_housing.data"], directory, verify)
    names = "longitude", "latitude", "house age", "rooms", "bedrooms", "population", "households", "income", "value"
    columns = dict(zip(names, np.loadtxt(path, delimiter=",", encoding="ascii").T, strict=True))
    households = columns.pop("households")
    per_household = {"rooms": columns["rooms"], "bedrooms": columns["bedrooms"], "people": columns["population"]}
    columns |= {name: values / households for name, values in per_household.items()}
    y = scaled_target(columns.pop("value"), 0, HIGHEST_VALUE)
    step = target_step("median house value", 0, HIGHEST_VALUE)
    return fixed_table(described("california_housing"), columns, y, steps=(step,))
