"""Curves of error against epsilon for a small network: tuned on validation records, measured on test records.

What the experiments of Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735) share: minibatch SGD, SPIDER, SVRG and
Local SGD at seven budgets, private and not, priced as they are here and as the theorems price them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from tacit.algorithm import Algorithm
from tacit.algorithms import find, paper_noise
from tacit.objectives import Objective, Problem
from tacit.runtime.participation import Participation
from tacit.runtime.simulate import Seed
from tacit.studies.papers.common import best_by, grid_of, interval, noise_for, table, train

EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)


@dataclass(frozen=True)
class Arm:
    """One algorithm with its static parameters, and the points that are tried at each budget.

    A point has a ``clip_norm``, a ``move`` (step size x clip: how far a clipped gradient moves the model) and own
    numbers. ``paper`` are further terms of the theorem that prices it, where there is one.
    """

    label: str
    algorithm: str
    static: dict[str, Any]
    points: Callable[[float], list[dict[str, float]]]
    paper: dict[str, Any] | None = None


@dataclass
class Curves:
    """An experiment: a network, silos by seed, rounds, and how many points a program holds.

    Settings are chosen on the validation records of the ``tuning`` seeds. Where those are among the ``testing`` seeds,
    their runs are not repeated: the test errors of the chosen settings are kept, those of the others are dropped.
    """

    objective: Objective
    tuning: Sequence[Seed]
    testing: Sequence[Seed]
    records: Sequence[int]
    delta: float
    rounds: int
    chunk: int = 12
    who: Participation | None = None
    epsilons: Sequence[float] = EPSILONS
    tried: dict[str, int] = field(default_factory=dict)

    def builder(self, arm: Arm, channel: str = "direct") -> Callable[..., Algorithm]:
        """The arm's algorithm as a function of the numbers of a point."""
        common = {"batch_size": None, "sampling": "full", "channel": channel, "num_rounds": self.rounds}
        entry, problem = find(arm.algorithm), Problem(self.objective)

        def build(noise_multiplier: Any, move: Any = 1.0, clip_norm: Any = 1.0, **own: Any) -> Algorithm:
            terms = {"clip_norm": clip_norm, "step_size": move / clip_norm, "noise_multiplier": noise_multiplier}
            return entry.build(problem, **{**common, **terms, **arm.static, **own})

        return build

    def noise(self, arm: Arm, epsilon: float, point: dict[str, float], ours: bool) -> float:
        """The noise multiplier of a point at this budget; ``ours=False``: the theorem's."""
        own = {name: value for name, value in point.items() if name not in ("move", "clip_norm")}
        least, cap = min(self.records), None if self.who is None else self.who.cap
        if not ours and arm.paper is not None:
            told: dict[str, Any] = {**arm.static, **arm.paper, "num_rounds": self.rounds}
            noise = paper_noise(arm.algorithm, records=least, epsilon=epsilon, delta=self.delta, **told)
            if noise is None:
                raise ValueError(f"Expected a theorem for {arm.algorithm}.")
            return noise.releases[0].noise_multiplier
        build = self.builder(arm)
        return float(noise_for(lambda **z: build(**z, **own), [least], epsilon, self.delta, cap)[0])

    def curve(self, arm: Arm, *, ours: bool = True) -> list[dict[str, Any]]:
        """For each budget, the point of the least validation error and its test error over seeds."""
        points = [
            {**point, "noise_multiplier": self.noise(arm, epsilon, point, ours), "epsilon": epsilon}
            for epsilon in self.epsilons
            for point in arm.points(epsilon)
        ]
        return self._choose(arm, points, "direct", ours)

    def non_private(self, arm: Arm, steps: Sequence[float]) -> list[dict[str, Any]]:
        """The same algorithm through the open channel, its step tuned on validation records."""
        fixed = {
            name: value
            for name, value in arm.points(max(self.epsilons))[0].items()
            if name not in ("move", "clip_norm")
        }
        points = [{**point, **fixed, "clip_norm": 1.0, "epsilon": math.inf} for point in grid_of(move=list(steps))]
        return self._choose(arm, points, "open", True)

    def _choose(self, arm: Arm, points: list[dict[str, Any]], channel: str, ours: bool) -> list[dict[str, Any]]:
        started = time.perf_counter()
        labels = [point["epsilon"] for point in points]
        tuned = self._run(arm, points, self.tuning, channel)
        scores = tuned["validation_error"]
        chosen = best_by(labels, scores)
        final = self._tested(arm, points, list(chosen.values()), tuned["test_error"], channel)
        label = arm.label if ours else f"{arm.label}, theorem's noise"
        label += ", not private" if channel == "open" else ""
        self.tried[label] = len(points)
        rows = []
        for place, (epsilon, i) in enumerate(chosen.items()):
            errors = 100 * final[:, place]
            rows.append(
                {
                    "label": label,
                    "epsilon": epsilon,
                    "point": {k: float(v) for k, v in points[i].items() if k != "epsilon"},
                    "validation_error": float(100 * scores[:, i].mean()),
                    "test_error": interval(errors),
                    "by_seed": [float(e) for e in errors],
                }
            )
        seconds = time.perf_counter() - started
        print(label, [(r["epsilon"], round(r["test_error"]["mean"], 2)) for r in rows], f"{seconds:.0f} s", flush=True)
        return rows

    def _tested(
        self, arm: Arm, points: list[dict[str, Any]], chosen: list[int], known: np.ndarray, channel: str
    ) -> np.ndarray:
        """Test errors of the chosen points on the testing seeds; those of tuning are not run again."""
        places = {id(seed): s for s, seed in enumerate(self.tuning)}
        others = [seed for seed in self.testing if id(seed) not in places]
        rows = iter(self._run(arm, [points[i] for i in chosen], others, channel)["test_error"]) if others else iter(())
        found = [known[places[id(seed)]][chosen] if id(seed) in places else next(rows) for seed in self.testing]
        return np.stack(found)

    def _run(self, arm: Arm, points: list[dict[str, Any]], seeds: Sequence[Seed], channel: str) -> dict[str, Any]:
        build, private = self.builder(arm, channel), channel != "open"

        def of_point(**point: Any) -> Algorithm:
            return build(**point) if private else build(noise_multiplier=None, **point)

        plain = [{k: v for k, v in point.items() if k != "epsilon"} for point in points]
        parts = []
        for first in range(0, len(plain), self.chunk):
            part = plain[first : first + self.chunk]
            parts.append(train(of_point, part, seeds, self.objective, who=self.who, rounds=self.rounds))
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def best_of(curves: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """At each budget, the curve of the least validation error: one more choice that test records do not see."""
    return [min(rows, key=lambda row: row["validation_error"]) for rows in zip(*curves, strict=True)]


def paired(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Error of the first less that of the second, seed by seed."""
    return [interval(np.subtract(a["by_seed"], b["by_seed"])) for a, b in zip(one, other, strict=True)]


def draw(path: Path, title: str, curves: dict[str, list[dict[str, Any]]], floors: dict[str, float]) -> None:
    """Error against epsilon with error bars, as the paper draws it; dotted lines are not private."""
    draw_panels(path, {title: (curves, floors)}, columns=1)


def draw_panels(path: Path, panels: dict[str, tuple[dict[str, Any], dict[str, float]]], columns: int = 2) -> None:
    """One panel for each title, of its curves and the errors without privacy."""
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6 * columns, 4 * rows), layout="constrained", squeeze=False)
    for axis, (title, (curves, floors)) in zip(axes.flat, panels.items(), strict=False):
        _draw_on(axis, title, curves, floors)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_on(axis: Axes, title: str, curves: dict[str, list[dict[str, Any]]], floors: dict[str, float]) -> None:
    for place, (label, rows) in enumerate(curves.items()):
        errors = [row["test_error"] for row in rows]
        means, spreads = [e["mean"] for e in errors], [e["std"] for e in errors]
        look: dict[str, Any] = {"ls": "--" if "theorem" in label else "-", "marker": "o", "ms": 3, "capsize": 2}
        axis.errorbar([row["epsilon"] for row in rows], means, spreads, label=label, color=f"C{place}", **look)
    for place, (label, error) in enumerate(floors.items()):
        axis.axhline(error, ls=":", lw=1, color=f"C{place}", label=f"{label}, not private")
    axis.set(xlabel="epsilon", ylabel="test error (%)", xscale="log", title=title)
    ticks = _epsilons(curves)
    axis.set_xticks(ticks, [f"{e:g}" for e in ticks])
    axis.minorticks_off()
    axis.legend(fontsize=7)


def error_table(curves: dict[str, list[dict[str, Any]]], floors: dict[str, float]) -> str:
    """Rows of test errors with their deviation over seeds."""
    rows = []
    for label, row in curves.items():
        cells = [f"{r['test_error']['mean']:.2f} ({r['test_error']['std']:.2f})" for r in row]
        rows.append([label, f"{floors[label]:.2f}" if label in floors else "", *cells])
    return table(["algorithm", "not private", *(f"{e:g}" for e in _epsilons(curves))], rows)


def difference_table(title: str, gains: dict[str, list[dict[str, float]]], epsilons: Sequence[float]) -> str:
    """Rows of differences that `paired` found, with 90% intervals."""
    rows = [[label, *(f"{g['mean']:+.2f} +- {g['half90']:.2f}" for g in row)] for label, row in gains.items()]
    return table([title, *(f"{e:g}" for e in epsilons)], rows)


def _epsilons(curves: dict[str, list[dict[str, Any]]]) -> list[float]:
    return [row["epsilon"] for row in next(iter(curves.values()))]
