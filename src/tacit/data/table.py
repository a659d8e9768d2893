"""Between a file and a federation: a table of raw records, and the map from raw records to features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tacit.data.federation import Step, Task


@dataclass(frozen=True)
class Encoding:
    """A map from raw records to features that treats every record by itself.

    Because ``apply`` sees one record at a time and is fixed before it sees the first, it commutes with the
    split: no record of a test set can influence a training record through it.

    Attributes:
        apply: raw ``x`` (n, ...) to float32 features (n, ...), row by row.
        steps: what it does, in words, and whether it was fixed without looking at private records.
        norm: a bound on the l2 norm of every row that ``apply`` enforces.
        names: of the coordinates, where they have names.
    """

    apply: Callable[[np.ndarray], np.ndarray]
    steps: tuple[Step, ...]
    norm: float | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """The records of a data set as its loader found them.

    Attributes:
        x: raw records, one per row, in whatever form ``fit`` understands.
        y: the label or target, already in the type that a study sees.
        fit: the encoding, given the raw records that belong to no silo and those of all training sets. A
            public encoding ignores the second argument.
        task: what ``y`` is.
        citation: whom to thank.
        class_names: what the values of ``y`` mean.
        s: the sensitive attribute.
        group_names: what the values of ``s`` mean.
        label: the class by which ``label``, ``one-class``, ``dirichlet`` and ``digit-pairs`` divide; ``y`` if
            absent.
        natural: the silo of every record, as an index into ``silo_names``.
        silo_names: of the natural silos.
        attributes: columns by which ``attribute`` can divide; the first is the default.
        reserve: how many records to put aside, in no silo, for ``fit``.
        official_test: raw ``x``, ``y`` and ``label`` of a test set that the source itself keeps apart.
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
