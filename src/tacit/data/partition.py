"""Who holds which record: the ways of dividing a data set into silos.

A partition is a list of disjoint arrays of row indices, one per silo. It simulates how records came to be where they
are: it happens before the split, silos do not compute it, and it costs no privacy.

| kind | what a silo holds | ``level`` |
| --- | --- | --- |
| ``natural`` | what its own institution recorded | - |
| ``iid`` | a uniform share | - |
| ``label`` | a group of whole classes, in order | - |
| ``one-class`` | records of one class | - |
| ``digit-pairs`` | one even and one odd digit: all 25 pairs | - |
| ``dirichlet`` | shares of each class drawn from Dirichlet(level) | concentration, above 0 (default 0.5) |
| ``attribute`` | a slice of an attribute's range, mixed with a uniform share | 0 (iid) to 1 (default 0.75) |
| ``sorted-target`` | a slice of the target's range, mixed with a uniform share | 0 (iid) to 1 (default 1) |

``attribute`` is Algorithm 3 of Gupta, Poornash, Lowy and Razaviyayn ("A stochastic optimization framework for
private and fair learning from decentralized data"), with sizes that differ by at most one where the number of
silos does not divide the number of records, and ties in the attribute broken at random. ``sorted-target`` with
level 1 is the insurance experiment of Lowy and Razaviyayn ("Private federated learning without a trusted
server"): groups by level of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tacit.data.federation import DataError

DEFAULT_LEVELS = {"dirichlet": 0.5, "attribute": 0.75, "sorted-target": 1.0}

DIGIT_PAIRS = tuple((even, odd) for even in (0, 2, 4, 6, 8) for odd in (1, 3, 5, 7, 9))


@dataclass(frozen=True)
class Request:
    """One question to a partition: the columns it may look at, and its parameters.

    ``records`` is the number of records per silo for ``digit-pairs``; ``None`` takes as many as there are.
    """

    label: np.ndarray | None
    target: np.ndarray
    attribute: np.ndarray | None
    natural: np.ndarray | None
    silos: int
    level: float | None
    records: int | None
    generator: np.random.Generator


def by_label(request: Request) -> list[np.ndarray]:
    """Whole classes, dealt in order to the silos."""
    label = _label(request, "label")
    classes = np.unique(label)
    if request.silos > len(classes):
        raise DataError(
            f"Expected silos={request.silos} <= {len(classes)} classes for partition 'label', where no "
            "class is divided; lower silos, or use partition='one-class' with a multiple of the number of "
            "classes."
        )
    return [np.flatnonzero(np.isin(label, group)) for group in np.array_split(classes, request.silos)]


def by_one_class(request: Request) -> list[np.ndarray]:
    """One class per silo; each class is shared equally by as many silos."""
    classes = np.unique(_label(request, "one-class"))
    if request.silos % len(classes):
        raise DataError(
            f"Expected silos={request.silos} to be a multiple of the {len(classes)} classes for partition "
            f"'one-class'; try silos={max(1, request.silos // len(classes)) * len(classes)}."
        )
    parts = []
    for value in classes:
        members = request.generator.permutation(np.flatnonzero(request.label == value))
        parts.append(np.array_split(members, request.silos // len(classes)))
    return [part[share] for share in range(request.silos // len(classes)) for part in parts]


def by_digit_pairs(request: Request) -> list[np.ndarray]:
    """All 25 pairs of an even and an odd digit; no image is in two silos.

    Each digit appears in five silos, so it needs five times half of a silo's records.
    """
    label = _label(request, "digit-pairs")
    if request.silos != len(DIGIT_PAIRS):
        raise DataError(
            f"Expected silos={request.silos} to be 25, the number of pairs of an even and an odd digit; "
            "leave silos out."
        )
    stock = {digit: list(request.generator.permutation(np.flatnonzero(label == digit))) for digit in range(10)}
    smallest = min(len(images) for images in stock.values())
    records = 2 * (smallest // 5) if request.records is None else request.records
    parts = []
    for place, (even, odd) in enumerate(DIGIT_PAIRS):
        # An odd number of records is shared unequally, in turn, so that no digit is used up first.
        evens = (records + place % 2) // 2
        taken = [
            stock[digit].pop()
            for digit, count in ((even, evens), (odd, records - evens))
            for _ in range(min(count, len(stock[digit])))
        ]
        if len(taken) < records:
            raise DataError(
                f"Expected records_per_silo={records} to leave enough images of each digit for five "
                f"disjoint silos; the rarest digit has {smallest} images, so use records_per_silo <= "
                f"{2 * (smallest // 5)}."
            )
        parts.append(np.asarray(taken, dtype=np.int64))
    return parts


def by_dirichlet(request: Request) -> list[np.ndarray]:
    """Shares of each class drawn from a symmetric Dirichlet distribution with concentration ``level``."""
    label = _label(request, "dirichlet")
    level = request.level
    if not (level is not None and 0 < level < np.inf):
        raise DataError(
            f"Expected level={level} > 0: it is the Dirichlet concentration; small is heterogeneous, try 0.5."
        )
    classes = np.unique(label)
    shares = request.generator.dirichlet(np.full(request.silos, level), size=len(classes))
    parts: list[list[np.ndarray]] = [[] for _ in range(request.silos)]
    for value, share in zip(classes, shares, strict=True):
        members = request.generator.permutation(np.flatnonzero(label == value))
        cuts = np.round(np.cumsum(share)[:-1] * len(members)).astype(int)
        for part, chunk in zip(parts, np.split(members, cuts), strict=True):
            part.append(chunk)
    return [np.concatenate(part) for part in parts]


def by_slices(request: Request, values: np.ndarray | None) -> list[np.ndarray]:
    """Slices of an attribute or the target, each mixed with a uniform share: ``level`` is the share kept of a slice."""
    assert values is not None
    level = request.level
    if not (level is not None and 0 <= level <= 1):
        raise DataError(f"Expected 0 <= level={level} <= 1: 0 gives every silo a uniform share, 1 a slice of its own.")
    shuffled = request.generator.permutation(len(values))
    slices = np.array_split(shuffled[np.argsort(values[shuffled], kind="stable")], request.silos)
    kept, loose = [], []
    for part in slices:
        order = request.generator.permutation(part)
        cut = int(np.floor(len(part) * level))
        kept.append(order[:cut])
        loose.append(order[cut:])
    pool = request.generator.permutation(np.concatenate(loose))
    needed = np.cumsum([len(part) for part in loose])
    return [np.concatenate(pair) for pair in zip(kept, np.split(pool, needed[:-1]), strict=True)]


def _label(request: Request, kind: str) -> np.ndarray:
    if request.label is None:
        raise DataError(
            f"Expected classes for partition={kind!r}, but this data set has a real-valued target; "
            "use partition='sorted-target', 'attribute' or 'iid'."
        )
    return request.label


PARTITIONS: Mapping[str, Callable[[Request], list[np.ndarray]]] = {
    "natural": lambda request: [np.flatnonzero(request.natural == silo) for silo in range(request.silos)],
    "label": by_label,
    "digit-pairs": by_digit_pairs,
    "sorted-target": lambda request: by_slices(request, request.target),
    "attribute": lambda request: by_slices(request, request.attribute),
    "dirichlet": by_dirichlet,
    "iid": lambda r: np.array_split(r.generator.permutation(len(r.target)), r.silos),
    "one-class": by_one_class,
}
