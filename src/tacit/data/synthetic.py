"""Records made up to order: so many silos of such sizes, with a linear rule behind the target.

A stand-in with the shape of records that one does not have yet. Features are uniform in the unit ball; the target is
1 where a fixed direction says so, and wrong with probability ``flip``. With ``heterogeneity`` above zero each silo has a
direction and a centre of its own, that share of the way from those of all.

Options:
    sizes: records of each silo, such as [200, 300, 250].
    features: how many.
    heterogeneity: 0 (all silos alike) to 1.
    flip: the chance of a wrong target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.data.encode import bound_norm, norm_step
from tacit.data.federation import DataError, Step
from tacit.data.table import Encoding, Table

CITATION = "Made up; nobody to thank."
_MADE_UP = Step("made up", True, "Drawn at random by a fixed seed; no record belongs to anybody.")


def read(
    directory: Path | None,
    verify: bool,
    *,
    sizes: Sequence[int] = (200, 200, 200, 200),
    features: int = 10,
    heterogeneity: float = 0.0,
    flip: float = 0.1,
) -> Table:
    """The made-up records; the same for the same options."""
    del directory, verify
    if not sizes or min(sizes) < 2 or features < 1 or not 0 <= heterogeneity <= 1 or not 0 <= flip <= 0.5:
        raise DataError(
            f"Expected sizes={list(sizes)} of at least 2 records, features={features} >= 1, 0 <= heterogeneity="
            f"{heterogeneity} <= 1 and 0 <= flip={flip} <= 0.5; correct data.options."
        )
    generator = np.random.default_rng(20_210_609)
    common = _direction(generator, features)
    x, y = [], []
    for size in sizes:
        direction = (1 - heterogeneity) * common + heterogeneity * _direction(generator, features)
        centre = 0.3 * heterogeneity * _direction(generator, features)
        radius = generator.uniform(size=(size, 1)) ** (1 / features)
        points = centre + 0.7 * radius * np.stack([_direction(generator, features) for _ in range(size)])
        x.append(points)
        y.append((points @ direction > 0) != (generator.uniform(size=size) < flip))
    encoding = Encoding(
        apply=lambda raw: bound_norm(raw, 1.0),
        steps=(_MADE_UP, norm_step(1.0)),
        norm=1.0,
        names=tuple(f"x{i}" for i in range(features)),
    )
    return Table(
        x=np.concatenate(x),
        y=np.concatenate(y).astype(np.int32),
        fit=lambda _reserve, _train: encoding,
        task="binary",
        class_names=("no", "yes"),
        natural=np.repeat(np.arange(len(sizes)), sizes),
        silo_names=tuple(f"silo {i + 1:0{len(str(len(sizes)))}d}" for i in range(len(sizes))),
    )


def _direction(generator: np.random.Generator, features: int) -> np.ndarray:
    vector = generator.normal(size=features)
    return np.asarray(vector / np.linalg.norm(vector))
