"""Records made up to order: so many silos of such sizes, with a linear rule behind the target.

A stand-in with the shape of records that one does not have yet. Features are uniform in the unit ball; the target is
1 where a fixed direction says so, and wrong with probability ``flip``. With ``heterogeneity`` above zero each silo has
a direction and a centre of its own, that share of the way from those of all.

Options:
    sizes: records of each silo, such as [200, 300, 250].
    features: how many.
    heterogeneity: 0 (all silos alike) to 1.
    flip: the chance of a wrong target.
    groups: values of a sensitive attribute that goes with the first feature; 0 for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tacit.data.encode import Norm, norm_step
from tacit.data.federation import DataError, Encoding, RawColumn, Step, Table, Target

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
    groups: int = 0,
) -> Table:
    """The made-up records; the same for the same options."""
    del directory, verify
    shares = 0 <= heterogeneity <= 1 and 0 <= flip <= 0.5
    if not sizes or min(sizes) < 2 or features < 1 or groups < 0 or not shares:
        raise DataError(
            f"Expected sizes={list(sizes)} of at least 2 records, features={features} >= 1, groups={groups} >= 0, "
            f"0 <= heterogeneity={heterogeneity} <= 1 and 0 <= flip={flip} <= 0.5; correct data.options."
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
    names = tuple(f"x{i}" for i in range(features))
    encoding = Encoding(
        stages=(Norm(1.0),),
        steps=(_MADE_UP, norm_step(1.0)),
        norm=1.0,
        names=names,
        columns={name: RawColumn() for name in names},
    )
    everyone = np.concatenate(x)
    return Table(
        x=everyone,
        y=np.concatenate(y).astype(np.int32),
        fit=lambda _reserve, _train: encoding,
        task="binary",
        citation=CITATION,
        class_names=("no", "yes"),
        s=_attribute(everyone[:, 0], groups, generator) if groups else None,
        group_names=tuple(f"group {i}" for i in range(groups)),
        natural=np.repeat(np.arange(len(sizes)), sizes),
        target=Target("y", ("no", "yes")),
        silo_names=tuple(f"silo {i + 1:0{len(str(len(sizes)))}d}" for i in range(len(sizes))),
    )


def _attribute(feature: np.ndarray, groups: int, generator: np.random.Generator) -> np.ndarray:
    """Groups of like size along a feature, for half of the records at random."""
    slices = np.argsort(np.argsort(feature)) * groups // len(feature)
    return np.where(generator.uniform(size=len(feature)) < 0.5, slices, generator.integers(0, groups, len(feature)))


def _direction(generator: np.random.Generator, features: int) -> np.ndarray:
    vector = generator.normal(size=features)
    return np.asarray(vector / np.linalg.norm(vector))
