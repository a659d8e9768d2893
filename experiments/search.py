"""Tuning that every study shares: successive halving over a grid, on several seeds, away from the grid's edges.

All points are tried on one seed, the best of them on the next, and so on, until a few have been tried on all seeds:
the one of the least mean score is chosen. A choice at the edge of its grid is not a choice: the axis grows by its own
ratio and the search goes on there. An axis whose middle a rule gives may come *later*: it stays there until the others
are searched, and then the neighbours of the best point along all axes are tried until none is better. Every trial is
kept in a file as soon as it is there, so a search that was stopped goes on where it was, and two rules of selection
(validation error, training loss) share their trials.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import grid_of
from experiments.folder import fingerprint_of
from tacit.errors import TacitError

Point = dict[str, float]
Axes = Mapping[str, Sequence[float]]
Run = Callable[[list[Point], int], Mapping[str, np.ndarray]]
"""Measurements of these points on the seed of this number, one value for each point."""

TUNING_SEEDS = 3
EVALUATION_SEEDS = 5
KEPT = 1 / 3
GROWTHS = 6


@dataclass
class Trials:
    """Finished trials in a file of lines; those that other ``settings`` (plain data) have made are not read."""

    path: Path
    settings: Any
    chunk: int = 12
    found: dict[str, dict[str, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint_of(self.settings)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            row = json.loads(line)
            if row["settings"] == self.fingerprint:
                self.found[row["trial"]] = row["found"]

    def get(self, label: str, points: Sequence[Point], seeds: Sequence[int], run: Run) -> dict[str, np.ndarray]:
        """Measurements with axes (seeds, points); only what is missing is run."""
        for seed in seeds:
            missing = [point for point in points if _name(label, point, seed) not in self.found]
            for first in range(0, len(missing), self.chunk):
                some, begun = missing[first : first + self.chunk], time.perf_counter()
                made = run(some, seed)
                self._keep(label, some, seed, made, time.perf_counter() - begun)
        rows = [[self.found[_name(label, point, seed)] for point in points] for seed in seeds]
        return {name: np.asarray([[cell[name] for cell in row] for row in rows]) for name in rows[0][0]}

    def _keep(
        self, label: str, points: Sequence[Point], seed: int, made: Mapping[str, np.ndarray], seconds: float
    ) -> None:
        each = round(seconds / len(points), 3)
        with self.path.open("a", encoding="utf-8") as file:
            for i, point in enumerate(points):
                name = _name(label, point, seed)
                self.found[name] = {measure: float(values[i]) for measure, values in made.items()}
                line = {"settings": self.fingerprint, "trial": name, "found": self.found[name], "seconds": each}
                file.write(json.dumps(line) + "\n")
        print(f"{label}, seed {seed}: {len(points)} trials", flush=True)


def _name(label: str, point: Point, seed: int) -> str:
    plain = {name: float(f"{value:.9g}") for name, value in sorted(point.items())}
    return json.dumps([label, plain, seed])


@dataclass(frozen=True)
class Space:
    """The points of one method: its axes in increasing order, and the values at which an axis ends by its nature.

    A ratio of noises may end at infinity, a share at one. ``later`` names axes that begin at their middle value.
    ``derived`` adds what follows from a point: its noise.
    """

    label: str
    axes: Axes
    ends: Axes = field(default_factory=dict)
    derived: Callable[[Point], Point] = lambda point: {}
    later: Sequence[str] = ()

    def points(self, axes: Axes) -> list[Point]:
        """All points of these axes."""
        return [{**point, **self.derived(point)} for point in grid_of(**axes)]

    def first(self) -> list[Point]:
        """The points to begin with."""
        return self.points({n: (v[len(v) // 2],) if n in self.later else v for n, v in self.axes.items()})


def search(
    space: Space, trials: Trials, run: Run, measure: str, *, seeds: Sequence[int] = range(TUNING_SEEDS)
) -> dict[str, Any]:
    """The point of the least mean ``measure`` on these seeds, its axes as they are in the end, and how many were tried.

    A run that diverged counts as infinitely bad.
    """
    axes = {name: tuple(values) for name, values in space.axes.items()}
    left, seen, growths = space.first(), set[str](), 0
    best: Point = {}
    while left:
        seen |= {_name("", point, 0) for point in left}
        best = halved(
            left if not best else [best, *left], lambda some, s: _scores(space, trials, run, measure, some, s), seeds
        )
        grown = {name: _grown(axes[name], side) for name, side in edges(best, axes, space.ends).items()}
        growths += bool(grown)
        if growths > GROWTHS:
            break
        axes |= {name: values for name, (values, _) in grown.items()}
        near = _further(space, axes, best, {name: fresh for name, (_, fresh) in grown.items()})
        left = [point for point in near if _name("", point, 0) not in seen]
    final = _scores(space, trials, run, measure, [best], seeds)
    return {
        "point": best,
        "axes": {name: list(values) for name, values in axes.items()},
        "ends": {name: list(values) for name, values in space.ends.items()},
        "tried": len(seen),
        measure: [float(score) for score in final[:, 0]],
    }


def _further(space: Space, axes: Axes, best: Point, grown: Axes) -> list[Point]:
    """Where to go on from the best point: into axes that have grown, else, if some are later, to its neighbours."""
    fixed = {name: (best[name],) for name in axes}
    if not grown:
        ways = [fixed | {name: _near(axes[name], best[name])} for name in axes if space.later]
        return [point for own in ways for point in space.points(own)]
    near = {name: _near(values, best[name]) for name, values in axes.items() if name not in space.later}
    return space.points({**fixed, **near, **grown})


def _scores(
    space: Space, trials: Trials, run: Run, measure: str, points: Sequence[Point], seeds: Sequence[int]
) -> np.ndarray:
    found = trials.get(space.label, points, seeds, run)[measure]
    return np.where(np.isfinite(found), found, np.inf)


def halved(
    points: list[Point], score: Callable[[list[Point], Sequence[int]], np.ndarray], seeds: Sequence[int]
) -> Point:
    """The best of these points: after each seed the best third goes on, three at least.

    >>> halved(grid_of(step=[1.0, 2.0, 4.0]), lambda some, s: np.array([[abs(p["step"] - 2)] * 1 for p in some]).T, [0])
    {'step': 2.0}
    """
    for number in range(1, len(seeds) + 1):
        means = score(points, seeds[:number]).mean(axis=0)
        order = np.argsort(means, kind="stable")
        points = [points[i] for i in order[: max(3, math.ceil(KEPT * len(points)))]]
    return points[0]


def edges(point: Mapping[str, float], axes: Axes, ends: Axes) -> dict[str, int]:
    """Which axes the point is at an open edge of: -1 for the least value, 1 for the largest.

    >>> edges({"step": 4.0, "ratio": 1.0}, {"step": (1.0, 2.0, 4.0), "ratio": (1.0,)}, {})
    {'step': 1}
    """
    found = {}
    for name, values in axes.items():
        if len(values) < 2 or any(math.isclose(point[name], end) for end in ends.get(name, ())):
            continue
        at = [i for i, value in enumerate(values) if math.isclose(value, point[name])]
        if at and at[0] in (0, len(values) - 1):
            found[name] = -1 if at[0] == 0 else 1
    return found


def _grown(values: Sequence[float], side: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The axis with two more values at this side, in the ratio of the last two there, and the new ones."""
    finite = [value for value in values if math.isfinite(value)]
    last, other = (finite[-1], finite[-2]) if side > 0 else (finite[0], finite[1])
    fresh = tuple(last * (last / other) ** k for k in (1, 2))
    return tuple(sorted({*values, *fresh})), fresh


def _near(values: Sequence[float], value: float) -> tuple[float, ...]:
    place = min(range(len(values)), key=lambda i: abs(math.log(values[i] / value)) if values[i] != value else -1.0)
    return tuple(values[max(0, place - 1) : place + 2])


def refuse_edges(choices: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise if a choice lies at an open edge of its grid: such a page is not written."""
    at = {label: edges(choice["point"], choice["axes"], choice["ends"]) for label, choice in choices.items()}
    said = [f"{label}: {name}={choices[label]['point'][name]:g}" for label, own in at.items() for name in own]
    if said:
        raise TacitError(
            f"Expected choices away from the edges of their grids, got {'; '.join(said)}; widen these axes and "
            "run again."
        )
