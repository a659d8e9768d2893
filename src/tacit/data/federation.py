"""What a data set looks like: a table of raw records on the way, a federation of silos in the end.

Records are given to silos, each silo splits its own at random into train, validation and test, and only then is
anything else done to them. Every later step is written down as a :class:`Step` that says whether it is *public* (fixed
in advance, or fitted on records that belong to no silo) or touches private records. A result computed from a federation
with a private step is not private, whatever the training algorithm does, unless that step was priced.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from tacit.errors import TacitError

Records = dict[str, np.ndarray]
"""Parallel arrays: ``x`` (n, ...) float32; ``y`` (n,) int32 for classes or float32 for a regression target;
and, where there is one, the sensitive attribute ``s`` (n,) int32."""

Task = Literal["binary", "multiclass", "regression"]


class DataError(TacitError):
    """A data set cannot be loaded as asked. The message names the value, the rule and the way out."""


@dataclass(frozen=True)
class Step:
    """One step of preprocessing, in words, with enough detail to do it again.

    It is ``public`` if it is fixed in advance or fitted on records of no silo, and ``priced`` if what it reads of
    private records leaves with noise, inside the budget of training.
    """

    name: str
    public: bool
    detail: str
    priced: bool = False


@dataclass(frozen=True)
class SiloData:
    """The records of one silo, already split; ``cells`` has the declared columns of all of them, in that order."""

    name: str
    train: Records
    validation: Records
    test: Records
    cells: np.ndarray | None = field(default=None, kw_only=True)


class Stage(ABC):
    """One stage of the map from raw records to features, held as plain values so that a model can keep it."""

    @abstractmethod
    def apply(self, rows: np.ndarray) -> np.ndarray:
        """The rows after this stage; every row is treated by itself."""


@dataclass(frozen=True)
class RawColumn:
    """A column before it is encoded: a number, or text of which the position among ``levels`` is taken.

    A number among ``missing`` stands for a missing value. ``unit`` is a text, such as "years".
    """

    levels: tuple[str, ...] | None = None
    missing: tuple[float, ...] = ()
    unit: str | None = None


@dataclass(frozen=True)
class Target:
    """What is predicted: the column, its classes in order, or the range, in its own unit, that was scaled to [0, 1].

    With ``event``, the column that says whether the last of two ``event_levels`` was seen, the number is a time. Values
    are signed then: negative where it was not.
    """

    column: str
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    unit: str | None = None
    event: str | None = None
    event_levels: tuple[str, str] | None = None


@dataclass(frozen=True)
class Encoding:
    """A map from raw records to features that treats every record by itself.

    ``apply`` takes raw ``x`` (n, ...) to float32 features (n, ...) row by row, and enforces ``norm``, a bound on the
    l2 norm of every row. It sees one record at a time and is fixed before it sees the first, so it commutes with the
    split: no record of a test set can influence a training record through it. ``columns`` are the raw columns by name,
    in the order of the raw ``x``; there are none for images.
    """

    stages: tuple[Stage, ...]
    steps: tuple[Step, ...]
    norm: float | None
    names: tuple[str, ...] = ()
    columns: Mapping[str, RawColumn] = field(default_factory=dict)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """The features of raw records."""
        for stage in self.stages:
            raw = stage.apply(raw)
        return raw


@dataclass(frozen=True)
class Federation:
    """Silos and everything that a study needs to know about their records.

    Attributes:
        num_classes: how many values ``y`` takes; ``None`` for regression.
        feature_norm: a public bound on the l2 norm of every ``x`` that the preprocessing enforces, or ``None``.
        steps: all preprocessing, in order.
        citation: whom to thank, and the licence where it asks for that.
        partition: the kind of partition and its parameters, in words.
        feature_names: one name per coordinate of a flat ``x``; empty for images and projections.
        class_names: what the values of ``y`` mean; empty for regression.
        group_names: what the values of ``s`` mean; empty where there is no ``s``.
        encoding: the map from raw records to ``x``, for new rows.
        target: the column that ``y`` is, in its own words and units.
        columns: what the columns of silos' ``cells`` are, as `tacit.data.encode.Cells` says it; for statistics.
    """

    name: str
    silos: tuple[SiloData, ...]
    task: Task
    num_classes: int | None
    feature_shape: tuple[int, ...]
    feature_norm: float | None
    steps: tuple[Step, ...]
    citation: str
    partition: str = ""
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    encoding: Encoding | None = None
    target: Target | None = None
    columns: tuple[Mapping[str, Any], ...] = ()

    @property
    def touches_private_data(self) -> bool:
        """Whether a step read private records: then a result is "not private" unless that step was priced."""
        return any(not step.public and not step.priced for step in self.steps)


@dataclass(frozen=True)
class Table:
    """The records of a data set as its loader found them.

    Attributes:
        x: raw records, one per row, in whatever form ``fit`` understands.
        y: the label or target, already in the type that a study sees.
        fit: the encoding, given the raw records that belong to no silo and those of all training sets. A
            public encoding ignores the second argument.
        s: the sensitive attribute.
        label: the class by which ``label``, ``one-class``, ``dirichlet`` and ``digit-pairs`` divide; else ``y``.
        natural: the silo of every record, as an index into ``silo_names``.
        silo_names: of the natural silos.
        attributes: columns by which ``attribute`` can divide; the first is the default.
        reserve: how many records to put aside, in no silo, for ``fit``.
        official_test: raw ``x``, ``y`` and ``label`` of a test set that the source itself keeps apart.
        target: the column that ``y`` is, where it has a name or a range.
        cells: the declared columns as numbers, for statistics; ``columns`` says what they are.
    """

    x: np.ndarray
    y: np.ndarray
    fit: Callable[[np.ndarray, np.ndarray], Encoding]
    task: Task
    citation: str
    class_names: tuple[str, ...] = ()
    s: np.ndarray | None = None
    group_names: tuple[str, ...] = ()
    label: np.ndarray | None = None
    natural: np.ndarray | None = None
    silo_names: tuple[str, ...] = ()
    attributes: Mapping[str, np.ndarray] = field(default_factory=dict)
    reserve: int = 0
    official_test: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    target: Target | None = None
    cells: np.ndarray | None = None
    columns: tuple[Mapping[str, Any], ...] = ()
