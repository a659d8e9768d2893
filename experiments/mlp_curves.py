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

from experiments.common import Rows, best_by, epsilon_axis, interval, noise_for, train
from experiments.folder import Parts, save, table
from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem
from tacit.plans.catalogue import find, paper_noise
from tacit.simulate.compiled import Seed
from tacit.simulate.participation import Participation

EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)
FLOORS = {"MB-SGD": "MB-SGD", "SPIDER": "SPIDER q=2", "Local SGD": "Local SGD"}
"""Which arms are run without privacy, by the label that they are shown under."""


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


def family(
    phases: Sequence[int],
    plain: Callable[[float], list[dict[str, float]]],
    reduced: Callable[[float], list[dict[str, float]]],
    local: Callable[[float], list[dict[str, float]]],
    local_batches: dict[str, Any] | None = None,
) -> dict[str, Arm]:
    """Minibatch SGD, SPIDER with each phase length, SVRG with the last, and Local SGD with 4 steps, by label."""
    last = phases[-1]
    made = [
        Arm("MB-SGD", "mb-sgd", {"output": "last"}, plain, {"sampling": "full"}),
        *(Arm(f"SPIDER q={q}", "prox-spider", {"phase_length": q}, reduced, {}) for q in phases),
        Arm(f"SVRG q={last}", "prox-svrg", {"phase_length": last}, reduced),
        Arm("Local SGD", "local-sgd", {"local_steps": 4, **(local_batches or {})}, local),
    ]
    return {arm.label: arm for arm in made}


@dataclass
class Curves:
    """An experiment: a network, silos by seed, rounds, and how many points a program holds.

    Settings are chosen on the validation records of the ``tuning`` seeds. Where those are among the ``testing`` seeds,
    their runs are not repeated: the test errors of the chosen settings are kept, those of the others are dropped.
    Finished curves are kept in ``parts``, under their label and ``at``.
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
    parts: Parts | None = None
    at: str = ""
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

    def curve(self, arm: Arm, *, ours: bool = True) -> Rows:
        """For each budget, the point of the least validation error and its test error over seeds."""

        def make() -> Rows:
            points = [
                {**point, "noise_multiplier": self.noise(arm, epsilon, point, ours), "epsilon": epsilon}
                for epsilon in self.epsilons
                for point in arm.points(epsilon)
            ]
            return self._choose(arm, points, "direct", kind)

        kind = "" if ours else ", theorem's noise"
        return self._kept(arm, kind, make)

    def non_private(self, arm: Arm, steps: Sequence[float]) -> Rows:
        """The same algorithm through the open channel, its step tuned on validation records."""

        def make() -> Rows:
            own = arm.points(max(self.epsilons))[0]
            points = [{**own, "move": step, "clip_norm": 1.0, "epsilon": math.inf} for step in steps]
            return self._choose(arm, points, "open", ", not private")

        return self._kept(arm, ", not private", make)

    def _kept(self, arm: Arm, kind: str, make: Callable[[], Rows]) -> Rows:
        return make() if self.parts is None else self.parts.get(f"{arm.label}, {self.at}{kind}", make)

    def _choose(self, arm: Arm, points: Rows, channel: str, kind: str) -> Rows:
        started = time.perf_counter()
        labels = [point["epsilon"] for point in points]
        tuned = self._run(arm, points, self.tuning, channel)
        scores = tuned["validation_error"]
        chosen = best_by(labels, scores)
        final = self._tested(arm, points, list(chosen.values()), tuned["test_error"], channel)
        label = arm.label + kind
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

    def _tested(self, arm: Arm, points: Rows, chosen: list[int], known: np.ndarray, channel: str) -> np.ndarray:
        """Test errors of the chosen points on the testing seeds; those of tuning are not run again."""
        places = {id(seed): s for s, seed in enumerate(self.tuning)}
        others = [seed for seed in self.testing if id(seed) not in places]
        rows = iter(self._run(arm, [points[i] for i in chosen], others, channel)["test_error"]) if others else iter(())
        found = [known[places[id(seed)]][chosen] if id(seed) in places else next(rows) for seed in self.testing]
        return np.stack(found)

    def _run(self, arm: Arm, points: Rows, seeds: Sequence[Seed], channel: str) -> dict[str, Any]:
        build, private = self.builder(arm, channel), channel != "open"

        def of_point(**point: Any) -> Algorithm:
            return build(**point) if private else build(noise_multiplier=None, **point)

        plain = [{k: v for k, v in point.items() if k != "epsilon"} for point in points]
        parts = []
        for first in range(0, len(plain), self.chunk):
            part = plain[first : first + self.chunk]
            parts.append(train(of_point, part, seeds, self.objective, who=self.who, rounds=self.rounds))
        return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def shown_of(curves: dict[str, Rows], phases: Sequence[int]) -> dict[str, Rows]:
    """The lines of a figure of a `family`.

    At each budget SPIDER is that of the least validation error: one more choice that test records do not see.
    """
    spiders = zip(*(curves[f"SPIDER q={q}"] for q in phases), strict=True)
    best = [min(rows, key=lambda row: row["validation_error"]) for rows in spiders]
    shown = {"MB-SGD": curves["MB-SGD"], "SPIDER": best}
    return {**shown, "SVRG": curves[f"SVRG q={phases[-1]}"], "Local SGD": curves["Local SGD"]}


def paired(one: Rows, other: Rows) -> list[dict[str, float]]:
    """Error of the first less that of the second, seed by seed."""
    return [interval(np.subtract(a["by_seed"], b["by_seed"])) for a, b in zip(one, other, strict=True)]


def floor_of(rows: Rows) -> float:
    """The test error without privacy."""
    return float(rows[0]["test_error"]["mean"])


def paired_with(shown: dict[str, Rows], base: str = "MB-SGD") -> dict[str, list[dict[str, float]]]:
    """Every other curve less the base, seed by seed."""
    return {label: paired(rows, shown[base]) for label, rows in shown.items() if label != base}


def counted(gains: Sequence[dict[str, float]]) -> dict[str, int]:
    """In how many cells the error is smaller, and larger, beyond the 90% interval."""
    better = sum(gain["mean"] + gain["half90"] < 0 for gain in gains)
    worse = sum(gain["mean"] - gain["half90"] > 0 for gain in gains)
    return {"better": better, "worse": worse, "cells": len(gains)}


def draw_panels(path: Path, panels: dict[str, tuple[dict[str, Rows], dict[str, float]]]) -> None:
    """Error against epsilon with error bars, one panel for each title; dotted lines are not private."""
    width = min(2, len(panels))
    rows = math.ceil(len(panels) / width)
    figure, axes = plt.subplots(rows, width, figsize=(6 * width, 4 * rows), layout="constrained", squeeze=False)
    for axis, (title, (curves, floors)) in zip(axes.flat, panels.items(), strict=False):
        _draw_on(axis, title, curves, floors)
    save(figure, path)


def _draw_on(axis: Axes, title: str, curves: dict[str, Rows], floors: dict[str, float]) -> None:
    for place, (label, rows) in enumerate(curves.items()):
        errors = [row["test_error"] for row in rows]
        means, spreads = [e["mean"] for e in errors], [e["std"] for e in errors]
        look: dict[str, Any] = {"ls": "--" if "theorem" in label else "-", "marker": "o", "ms": 3, "capsize": 2}
        axis.errorbar([row["epsilon"] for row in rows], means, spreads, label=label, color=f"C{place}", **look)
    for place, (label, error) in enumerate(floors.items()):
        axis.axhline(error, ls=":", lw=1, color=f"C{place}", label=f"{label}, not private")
    axis.set(ylabel="test error (%)", title=title)
    epsilon_axis(axis, _epsilons(curves))
    axis.legend(fontsize=7)


def error_table(curves: dict[str, Rows], floors: dict[str, float]) -> str:
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


def _epsilons(curves: dict[str, Rows]) -> list[float]:
    return [row["epsilon"] for row in next(iter(curves.values()))]
