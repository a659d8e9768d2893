"""Columns to features with bounds and categories that are fixed before any record is seen.

Everything here is public: a column is scaled by bounds that come from the meaning of the column (a top code
in a census manual, a clinical range), one-hot columns list their categories in advance, and norms are bounded
record by record. Nothing is fitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.data.federation import DataError, Stage, Step

# Rounding to float32 may raise a norm by half a unit in the last place, so the target sits inside the bound.
_FLOAT32_SLACK = 1e-6

# Rows that are worked on at a time in float64, to bound memory.
_BLOCK = 8192


@dataclass(frozen=True)
class Column(ABC):
    """A raw column and the features that it becomes; ``str`` says how."""

    column: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features: that of the column, where it becomes one feature."""
        return (self.column,)

    @abstractmethod
    def features(self, values: np.ndarray) -> np.ndarray:
        """The features of the column's values, shape (n, number of features)."""


@dataclass(frozen=True)
class Bounded(Column):
    """A number clipped to ``[low, high]`` and scaled to ``[-1, 1]``, or to ``[0, 1]`` if ``from_zero``.

    A missing value (nan) is replaced by the middle.
    On the logarithmic scale the number is ``sign(v) log(1 + |v| / unit)``.
    """

    low: float
    high: float
    log: bool = False
    unit: float = 1.0
    from_zero: bool = False

    def features(self, values: np.ndarray) -> np.ndarray:
        """Scaled values."""
        filled = np.clip(np.nan_to_num(values, nan=(self.low + self.high) / 2), self.low, self.high)
        low, high, scaled = (self._scale(np.asarray(v)) for v in (self.low, self.high, filled))
        share = (scaled - low) / (high - low)
        return (share if self.from_zero else 2 * share - 1)[:, None]

    def _scale(self, values: np.ndarray) -> np.ndarray:
        return np.sign(values) * np.log1p(np.abs(values) / self.unit) if self.log else values

    def __str__(self) -> str:
        return f"{self.column} in [{self.low:g}, {self.high:g}]{' (log scale)' if self.log else ''}"


@dataclass(frozen=True)
class OneHot(Column):
    """One 0/1 feature per listed category; a value that is not listed gives all zeros."""

    categories: tuple[float, ...]
    labels: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, one per category."""
        return tuple(f"{self.column}={label}" for label in self.labels or (f"{c:g}" for c in self.categories))

    def features(self, values: np.ndarray) -> np.ndarray:
        """Indicators."""
        return (values[:, None] == np.asarray(self.categories)[None, :]).astype(np.float64)

    def __str__(self) -> str:
        return f"{self.column} one-hot over {len(self.categories)} listed categories"


@dataclass(frozen=True)
class Signed(Column):
    """+1 if the value is one of ``positive``, -1 if it is anything else, 0 if it is missing (nan)."""

    positive: tuple[float, ...]
    labels: tuple[str, str] | None = None
    """What -1 and +1 stand for, where every other value is missing."""

    def features(self, values: np.ndarray) -> np.ndarray:
        """Signs."""
        signs = np.where(np.isin(values, self.positive), 1.0, -1.0)
        return np.where(np.isnan(values), 0.0, signs)[:, None]

    def __str__(self) -> str:
        if self.labels is not None:
            return f"{self.column}: {self.labels[1]} +1, {self.labels[0]} -1, anything else 0"
        return f"{self.column}: +1 for {', '.join(f'{v:g}' for v in self.positive)}, -1 otherwise, 0 if missing"


@dataclass(frozen=True)
class Missing(Column):
    """1 if the value is missing (nan), else 0."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the one feature."""
        return (f"{self.column} missing",)

    def features(self, values: np.ndarray) -> np.ndarray:
        """Indicators."""
        return np.isnan(values).astype(np.float64)[:, None]

    def __str__(self) -> str:
        return f"{self.column} missing: 1 if missing, else 0"


@dataclass(frozen=True)
class Bands(Column):
    """One 0/1 feature per label; ``starts`` are the first codes of ranges with their labels, up to ``end``.

    A label may have several ranges. A code outside all of them gives all zeros.
    """

    starts: tuple[tuple[float, str], ...]
    end: float

    @property
    def labels(self) -> tuple[str, ...]:
        """Without repetition, in order of first appearance."""
        return tuple(dict.fromkeys(label for _, label in self.starts))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features, one per label."""
        return tuple(f"{self.column}={label}" for label in self.labels)

    def features(self, values: np.ndarray) -> np.ndarray:
        """Indicators."""
        band = np.searchsorted([start for start, _ in self.starts], values, side="right") - 1
        label = np.array([self.labels.index(name) for _, name in self.starts])[band]
        inside = (band >= 0) & (values < self.end)
        return (label[:, None] == np.arange(len(self.labels))[None, :]) * inside[:, None].astype(np.float64)

    def __str__(self) -> str:
        return f"{self.column} one-hot over {len(self.labels)} groups of codes"


@dataclass(frozen=True)
class Sensitive:
    """A sensitive attribute: its listed values become 0, 1, ... in this order, in every silo."""

    column: str
    values: tuple[float, ...]
    labels: tuple[str, ...]

    def codes(self, column: np.ndarray) -> np.ndarray:
        """Position of each entry in ``values``."""
        unlisted = ~np.isin(column, self.values)
        if unlisted.any():
            raise DataError(
                f"Expected every {self.column} to be one of {self.values}; record {int(unlisted.argmax())} has another."
            )
        return np.searchsorted(self.values, column).astype(np.int32)


def encode_columns(raw: np.ndarray, names: Sequence[str], columns: Sequence[Column]) -> np.ndarray:
    """The features of ``columns`` side by side, from a raw float array whose columns are called ``names``.

    >>> raw = np.array([[40.0, 2.0], [np.nan, 3.0]])
    >>> encode_columns(raw, ["age", "kind"], [Bounded("age", 20, 60), OneHot("kind", (1, 2))])
    array([[0., 0., 1.],
           [0., 0., 0.]])
    """
    position = {name: index for index, name in enumerate(names)}
    return np.concatenate([column.features(raw[:, position[column.column]]) for column in columns], axis=1)


def bound_norm(features: np.ndarray, bound: float) -> np.ndarray:
    """Shrink every row whose l2 norm exceeds ``bound`` onto the sphere of that radius, and return float32.

    The norm of the float32 row, computed in float64, is at most ``bound``.

    >>> bound_norm(np.array([[3.0, 4.0], [0.3, 0.4]]), 1.0).round(3)
    array([[0.6, 0.8],
           [0.3, 0.4]], dtype=float32)
    """
    bounded = np.empty(features.shape, np.float32)
    for start in range(0, len(features), _BLOCK):
        block = features[start : start + _BLOCK].astype(np.float64)
        norms = np.sqrt((block**2).sum(axis=tuple(range(1, block.ndim)), keepdims=True))
        factor = np.minimum(1.0, bound * (1 - _FLOAT32_SLACK) / np.maximum(norms, np.finfo(np.float64).tiny))
        bounded[start : start + _BLOCK] = block * factor
    return bounded


@dataclass(frozen=True)
class Columns(Stage):
    """The features of ``columns`` side by side, from raw columns called ``names``."""

    names: tuple[str, ...]
    columns: tuple[Column, ...]

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Features in float64."""
        return encode_columns(rows, self.names, self.columns)


@dataclass(frozen=True)
class Norm(Stage):
    """`bound_norm`, as a stage."""

    bound: float

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Rows of norm at most ``bound``, in float32."""
        return bound_norm(rows, self.bound)


@dataclass(frozen=True)
class Scaled(Stage):
    """``rows / divisor + shift`` in float32: the levels of pixels, or numbers as they are."""

    divisor: float = 1.0
    shift: float = 0.0

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Scaled rows."""
        scaled = rows.astype(np.float32) / np.float32(self.divisor)
        return scaled + np.float32(self.shift) if self.shift else scaled


@dataclass(frozen=True, eq=False)
class Standard(Stage):
    """``(rows - mean) / deviation``, column by column, in float32."""

    mean: np.ndarray
    deviation: np.ndarray

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Standardised rows."""
        return ((rows - self.mean) / self.deviation).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Projected(Stage):
    """``(rows - mean) components``: principal components that are known already."""

    mean: np.ndarray
    components: np.ndarray

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """Coordinates along the components."""
        return (rows - self.mean) @ self.components


@dataclass(frozen=True, eq=False)
class Curves(Stage):
    """Features at ``places``, clipped to [-1, 1], through one piecewise linear curve each: ``knots`` to ``heights``.

    Beyond its first and its last knot a curve is flat.
    """

    places: tuple[int, ...]
    knots: np.ndarray
    heights: np.ndarray

    def apply(self, rows: np.ndarray) -> np.ndarray:
        """The features, in float64."""
        rows = rows.astype(np.float64)
        for place, knots, heights in zip(self.places, self.knots, self.heights, strict=True):
            rows[:, place] = np.interp(np.clip(rows[:, place], -1.0, 1.0), knots, heights)
        return rows


@dataclass(frozen=True)
class Cells:
    """A column as statistics read it: plain facts, and a number for each record.

    A number with a declared range is the share of it that lies below the value, between 0 and 1. A category is the
    position among its levels, and one more is any other level. What is missing is -1.
    """

    facts: Mapping[str, Any]
    values: np.ndarray


def number_cells(name: str, values: np.ndarray, low: float, high: float, unit: str | None = None) -> Cells:
    """A number, moved to the nearer end of its declared range where it is outside; nan is missing.

    >>> number_cells("age", np.array([30.0, 200.0, np.nan]), 20, 60).values.tolist()
    [0.25, 1.0, -1.0]
    """
    share = np.clip((values.astype(np.float64) - low) / (high - low), 0.0, 1.0)
    facts = {"name": name, "kind": "number", "low": float(low), "high": float(high)} | ({"unit": unit} if unit else {})
    return Cells(facts, np.where(np.isnan(values), -1.0, share).astype(np.float32))


def level_cells(name: str, codes: np.ndarray, levels: Sequence[str]) -> Cells:
    """A category from positions among its levels; nan is missing, and what is no position any other level."""
    known = np.isin(codes, np.arange(len(levels)))
    values = np.where(np.isnan(codes), -1.0, np.where(known, codes, len(levels)))
    return Cells({"name": name, "kind": "category", "levels": tuple(levels)}, values.astype(np.float32))


def scaled_target(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """A target clipped to [low, high] and scaled to [0, 1], as float32."""
    return ((np.clip(values, low, high) - low) / (high - low)).astype(np.float32)


def target_step(name: str, low: float, high: float) -> Step:
    """The public step that describes :func:`scaled_target`."""
    return Step("target", True, f"The {name}, clipped to [{low:g}, {high:g}] and scaled to [0, 1].")


def signed_times(times: np.ndarray, happened: np.ndarray, horizon: float) -> np.ndarray:
    """Times in shares of a horizon, with a minus where the event was not seen by then, as float32.

    >>> signed_times(np.array([5.0, 5.0, 30.0]), np.array([True, False, True]), 10.0).tolist()
    [0.5, -0.5, -1.0]
    """
    # At the very beginning there would be no sign.
    shares = np.clip(times / horizon, 1e-4, 1.0)
    return np.where(happened & (times < horizon), shares, -shares).astype(np.float32)


def columns_step(columns: Sequence[Column]) -> Step:
    """The public step that describes ``columns``."""
    return Step("fixed columns", True, "; ".join(str(column) for column in columns) + ".")


def norm_step(bound: float) -> Step:
    """The public step that describes :func:`bound_norm`."""
    return Step("norm bound", True, f"Each record by itself is shrunk to l2 norm at most {bound:g}.")
