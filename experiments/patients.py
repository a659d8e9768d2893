"""Made-up patients, of whom everything is known, and what statistics of them should say."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

COLUMNS: Sequence[Mapping[str, Any]] = [
    {"name": "age", "kind": "number", "low": 0, "high": 100},
    {"name": "bmi", "kind": "number", "low": 10, "high": 60},
    {"name": "sex", "kind": "category", "levels": ["f", "m"]},
    {"name": "time", "kind": "number", "low": 0, "high": 10},
    {"name": "event", "kind": "category", "levels": ["no", "yes"]},
]
STATISTICS: Sequence[Mapping[str, Any]] = [
    {"kind": "counts", "columns": ["sex"]},
    {"kind": "histogram", "columns": ["age"], "edges": [20, 40, 50, 60, 80], "by": "sex"},
    {"kind": "table", "columns": ["sex", "age"], "edges": {"age": [0, 45, 55, 100]}},
    {"kind": "moments", "columns": ["age"], "by": "sex"},
    {"kind": "quantiles", "columns": ["age"]},
    {"kind": "correlation", "columns": ["age", "bmi"]},
    {"kind": "survival", "columns": ["time", "event"], "by": "sex", "bins": 20},
]
MEAN_LIFE = 5.0


def patients(rng: np.random.Generator, count: int) -> np.ndarray:
    """Columns of so many patients, as `tacit.data.encode.Cells` has them; survival is the same for both sexes."""
    u = rng.normal(size=count)
    v = 0.5 * u + np.sqrt(0.75) * rng.normal(size=count)
    age, bmi = np.clip(0.5 + 0.15 * u, 0, 1), np.clip(0.4 + 0.12 * v, 0, 1)
    age = np.where(rng.random(count) < 0.05, -1.0, age)
    life, seen = rng.exponential(MEAN_LIFE, count), rng.uniform(0, 14, count)
    time, event = np.minimum(life, seen), (life <= seen).astype(float)
    sex = (rng.random(count) < 0.4).astype(float)
    return np.stack([age, bmi, sex, np.minimum(time, 10) / 10, event], axis=1).astype(np.float32)
