"""Broadcasts that no honest server sends: every scale, points that are equal or nearly so, numbers that are none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_RELATIONS = {"equal": 0.35, "ulp": 0.15, "near": 0.2, "apart": 0.3}
_SCALES = {
    "ordinary": 0.1,
    "tiny": 0.05,
    "large": 0.25,
    "huge": 0.1,
    "layered": 0.2,
    "mixed": 0.1,
    "denormal": 0.05,
    "special": 0.1,
    "zero": 0.05,
}
_NUMBERS = (
    0,
    1,
    -1,
    3,
    1e-30,
    1e-45,
    1e8,
    1e30,
    -1e30,
    3e38,
    2**24 + 1,
    2**31,
    -(2**31),
    1e18,
    np.nan,
    np.inf,
    -np.inf,
)
_SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e-40, 3.4e38, -3.4e38, 0.0, -0.0], np.float32)


@dataclass(frozen=True)
class Broadcast:
    """One hostile broadcast, and what is hostile about it."""

    scale: str
    relation: str  # of its points; "one" if it has a single one, "none" without any
    points: list[list[np.ndarray]]
    numbers: list[np.ndarray]

    @property
    def arrays(self) -> list[np.ndarray]:
        """All arrays in the order of the protocol."""
        return [array for point in self.points for array in point] + self.numbers


def draw(rng: np.random.Generator, shapes: list[tuple[int, ...]], points: int, numbers: int) -> Broadcast:
    """A broadcast for a model with these arrays, of so many points and numbers; it may have nothing in it."""
    if not points:
        return Broadcast("nothing", "none", [], [])
    scale = str(rng.choice(list(_SCALES), p=list(_SCALES.values())))
    first = _point(rng, shapes, scale)
    found, relation = [first], "one"
    if points > 1:
        relation = str(rng.choice(list(_RELATIONS), p=list(_RELATIONS.values())))
        found.append(_beside(rng, first, relation, scale))
    if points > 2:
        found.append(_point(rng, shapes, str(rng.choice(["ordinary", "tiny", scale]))))
    told = [np.asarray(_number(rng), "<f4") for _ in range(numbers)]
    return Broadcast(scale, relation, found, told)


def silent(rng: np.random.Generator, shapes: list[tuple[int, ...]], points: int, numbers: int) -> Broadcast:
    """A broadcast at which records of zeros have no gradient under a squared loss: all that is said is noise.

    Only the weights that meet the features are not zero.
    """
    found = []
    for _ in range(points):
        point = [np.zeros(shape, "<f4") for shape in shapes]
        point[1] = np.asarray(10.0 ** rng.uniform(-2, 2) * rng.standard_normal(shapes[1]), "<f4")
        found.append(point)
    return Broadcast("silent", "apart" if points > 1 else "one", found, [np.asarray(0.0, "<f4")] * numbers)


def _number(rng: np.random.Generator) -> float:
    return float(_NUMBERS[rng.integers(len(_NUMBERS))]) if rng.random() < 0.8 else float(10.0 ** rng.uniform(-3, 3))


def _point(rng: np.random.Generator, shapes: list[tuple[int, ...]], scale: str) -> list[np.ndarray]:
    together = rng.uniform(2, 10) if scale == "large" else rng.uniform(12, 38)
    return [_leaf(rng, shape, scale, together) for shape in shapes]


def _leaf(rng: np.random.Generator, shape: tuple[int, ...], scale: str, together: float) -> np.ndarray:
    normal = rng.standard_normal(shape)
    if scale == "special":
        plain = np.asarray(normal * 10.0 ** rng.uniform(-3, 6), np.float32)
        strange = rng.choice(_SPECIAL, shape)
        return np.asarray(np.where(rng.random(shape) < rng.choice([0.05, 0.5]), strange, plain), "<f4")
    power = {
        "ordinary": 0.0,
        "tiny": -30.0,
        "large": together,
        "huge": together,
        "layered": rng.uniform(-3, 9),
        "mixed": rng.uniform(-30, 30),
        "denormal": -40.0,
        "zero": -400.0,
    }[scale]
    with np.errstate(over="ignore"):
        return np.asarray(np.clip(normal * 10.0**power, -3.4e38, 3.4e38), "<f4")


def _beside(rng: np.random.Generator, point: list[np.ndarray], relation: str, scale: str) -> list[np.ndarray]:
    if relation == "apart":
        return _point(rng, [array.shape for array in point], scale)
    other = [array.copy() for array in point]
    if relation == "equal":
        return other
    with np.errstate(all="ignore"):
        if relation == "near" and rng.random() < 0.5:
            return [np.asarray(array * (1.0 + 1e-7 * rng.standard_normal(array.shape)), "<f4") for array in other]
        array = other[rng.integers(len(other))]
        at = tuple(rng.integers(size) for size in array.shape)
        array[at] = np.nextafter(array[at], np.float32(np.inf)) if relation == "ulp" else array[at] * (1.0 + 3e-7)
    return other
