"""Private non-convex learning as its authors ran it: curves of error against epsilon, tuned alike, on fresh seeds.

What the studies of Lowy, Ghafelebashi and Razaviyayn (arXiv:2203.06735) share. MB-SGD, SPIDER and Local SGD have the
same grid of clips and moves (step x clip) at every budget. SPIDER is the best of Algorithm 3, with phases of 1, 2, 3,
..., and Algorithm 11; the noise of differences is that of the split rule, half or twice of it. Differences are clipped
in proportion to the distance of the points, or, as in the paper's experiments (sigma_2 = infinity), to twice the clip
however near they are; with phases of two the latter is Algorithm 11. A phase of 1 is MB-SGD, as in the paper's own
grid. Points are chosen by validation error, which is our rule, and by training loss, which is the paper's, on three
seeds by successive halving; test errors are those of other seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Runner, epsilon_axis, improvement, interval, noise_for, records_of, seeds_of, verdict
from experiments.folder import PROTOCOL, Data, Earlier, Experiment, Finding, save, table
from experiments.search import EVALUATION_SEEDS, TUNING_SEEDS, Point, Space, Trials, refuse_edges, search
from tacit import data
from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem
from tacit.plans.catalogue import find
from tacit.simulate.compiled import Seed
from tacit.simulate.participation import Participation

RULES = {"validation": "validation_error", "training loss": "train_loss"}
PRINTED = {"MB-SGD": 1.72, "Local SGD": 6.06}
"""Mean improvement of SPIDER in percent over all experiments, as the paper's text gives it."""
PHASES = (1, 2, 3)
RATIOS = (0.5, 1.0, 2.0)
"""Noise of differences over that of the split rule."""


@dataclass(frozen=True)
class Method:
    """One algorithm with static parameters: a line of a figure is the best of several methods."""

    label: str
    algorithm: str
    static: Mapping[str, Any] = field(default_factory=dict)
    slopes: tuple[float, ...] = ()
    shorter: float = 1.0


def methods(
    slopes: Sequence[float], local: Mapping[str, Any], phases: Sequence[int] = PHASES
) -> dict[str, list[Method]]:
    """The lines of a figure, each with the methods that it is the best of."""
    sgd = Method("MB-SGD", "mb-sgd", {"output": "last"})
    third = [Method(f"Algorithm 3, q={q}", "prox-spider", {"phase_length": q}, tuple(slopes)) for q in phases if q > 1]
    once = [sgd] if 1 in phases else []
    free = [
        Method(f"Algorithm 3, q={q}, sigma_2 infinite", "prox-spider", {"phase_length": q, "difference_slope": None})
        for q in phases
        if q > 2
    ]
    local_sgd = Method("Local SGD", "local-sgd", local, shorter=float(local["local_steps"]))
    return {
        "MB-SGD": [sgd],
        "SPIDER": [*once, *third, *free, Method("Algorithm 11", "alternate-spider")],
        "Local SGD": [local_sgd],
    }


@dataclass
class Study:
    """One setting of a page: silos by seed, rounds and budgets. Seeds 0, 1, ... tune; those after them are reported."""

    name: str
    objective: Objective
    seeds: Callable[[int], Seed]
    records: Sequence[int]
    delta: float
    rounds: int
    epsilons: Sequence[float]
    lines: Mapping[str, Sequence[Method]]
    clips: Sequence[float]
    moves: Callable[[float], Sequence[float]]
    trials: Trials
    batches: Mapping[str, Any] = field(default_factory=lambda: {"batch_size": None, "sampling": "full"})
    who: Participation | None = None
    tuning: int = TUNING_SEEDS
    testing: int = EVALUATION_SEEDS
    ratios: Sequence[float] = RATIOS
    later: Sequence[str] = ()
    runners: dict[Any, Runner] = field(default_factory=dict)

    def build(self, method: Method, channel: str = "direct") -> Callable[..., Algorithm]:
        """The method's algorithm as a function of a point's numbers."""
        problem, fixed = Problem(self.objective), {**self.batches, "channel": channel, **method.static}

        def built(
            noise_multiplier: Any, move: Any = 1.0, clip_norm: Any = 1.0, ratio: Any = None, **own: Any
        ) -> Algorithm:
            terms = {"clip_norm": clip_norm, "noise_multiplier": noise_multiplier, "num_rounds": self.rounds}
            given = {**terms, **fixed, "step_size": move / clip_norm, "silos": len(self.records), **own}
            if ratio is not None:
                given["difference_noise"] = ratio * self._rule(method)
            return find(method.algorithm).build(problem, **given)

        return built

    def _rule(self, method: Method) -> float:
        """The ratio of noises that the split rule gives: that of the algorithm with it left out."""
        slope = {"difference_slope": method.slopes[0]} if method.slopes else {}
        plain = {"clip_norm": 1.0, "noise_multiplier": 1.0, "num_rounds": self.rounds, "step_size": 1.0, **self.batches}
        made = find(method.algorithm).build(Problem(self.objective), **{**plain, **method.static, **slope})
        return float(made.rounds["difference"].silo.release.noise_multiplier)

    def space(self, method: Method, epsilon: float | None) -> Space:
        """The points of a method at a budget (``None``: without privacy)."""
        if epsilon is None:
            moves = tuple(sorted(self.moves(math.inf)))
            return Space(f"{self.name}, not private, {method.label}", {"move": moves}, derived=_plain(method))
        moves = tuple(sorted(move / method.shorter for move in self.moves(epsilon)))
        axes: dict[str, Sequence[float]] = {"clip_norm": tuple(self.clips), "move": moves}
        if method.algorithm in ("prox-spider", "alternate-spider"):
            axes["ratio"] = self.ratios
        if method.slopes:
            axes["difference_slope"] = method.slopes
        priced: dict[tuple[float, ...], float] = {}

        def derived(point: Point) -> Point:
            own: dict[str, float] = {name: point[name] for name in ("ratio", "difference_slope") if name in point}
            key = (point.get("ratio", 1.0),)
            if key not in priced:
                priced[key] = self.noise(method, epsilon, own)
            return {"noise_multiplier": priced[key]}

        return Space(f"{self.name}, {epsilon:g}, {method.label}", axes, later=self.later, derived=derived)

    def noise(self, method: Method, epsilon: float, own: Mapping[str, float]) -> float:
        """The noise multiplier at this budget, every silo priced for every round that it may answer."""
        build, cap = self.build(method), None if self.who is None else self.who.cap
        least = [min(self.records)]
        return float(noise_for(lambda **z: build(**z, **own), least, epsilon, self.delta, cap)[0])

    def run(self, method: Method, private: bool) -> Callable[[list[Point], int], Mapping[str, np.ndarray]]:
        """How trials of a method are run."""
        build = self.build(method, "direct" if private else "open")

        def of_point(**point: Any) -> Algorithm:
            return build(**point) if private else build(noise_multiplier=None, **point)

        key = method.label, private
        if key not in self.runners:
            self.runners[key] = Runner(of_point, self.objective, self.who, (3, self.trials.chunk))
        return lambda points, seed: self.runners[key](points, self.seeds(seed))

    def cell(self, line: str, epsilon: float | None, rule: str) -> dict[str, Any]:
        """The best method of a line at a budget by a rule, and its test errors."""
        measure, tuning = RULES[rule], range(self.tuning)
        found = []
        for method in self.lines[line]:
            space, run = self.space(method, epsilon), self.run(method, epsilon is not None)
            chosen = search(space, self.trials, run, measure, seeds=tuning)
            found.append((float(np.mean(chosen[measure])), method, space, run, chosen))
        _, method, space, run, chosen = min(found, key=lambda row: row[0])
        reported = range(self.tuning, self.tuning + self.testing)
        tested = self.trials.get(space.label, [chosen["point"]], reported, run)["test_error"][:, 0]
        errors = [float(100 * error) for error in tested]
        picked = {"method": method.label, **chosen, "tried": sum(row[-1]["tried"] for row in found)}
        return {"epsilon": epsilon, **picked, "test_error": interval(errors), "by_seed": errors}

    @cached_property
    def found(self) -> Data:
        """All lines at all budgets, by each rule, and without privacy."""
        return {
            "rounds": self.rounds,
            "later": list(self.later),
            "curves": {
                rule: {line: [self.cell(line, e, rule) for e in self.epsilons] for line in self.lines} for rule in RULES
            },
            "not_private": {line: self.cell(line, None, "validation") for line in self.lines},
        }


CLAIM = "ISRL-DP FedProx-SPIDER outperforms the other ISRL-DP baselines for most privacy levels."


def seeds_of_data(name: str, objective: Objective, **options: Any) -> tuple[Callable[[int], Seed], list[int]]:
    """Seeds by number, each another partition and start, measured on all parts, and the records of each silo."""

    @lru_cache(maxsize=16)
    def seed(number: int) -> Seed:
        made = seeds_of([data.load(name, seed=number, **options)], objective, ("train", "validation", "test"))
        return made[0]._replace(key=jax.random.key(number), params=objective.init(jax.random.key(1000 + number)))

    return seed, records_of(data.load(name, seed=0, **options))


def _plain(method: Method) -> Callable[[Point], Point]:
    extra = {"difference_slope": method.slopes[0]} if method.slopes else {}
    return lambda point: {"clip_norm": 1.0, **extra}


def draw_settings(path: Path, settings: Mapping[str, Data], rule: str = "validation") -> None:
    """Error against epsilon with 90% intervals, one panel for each setting; dotted lines are not private."""
    width = min(2, len(settings))
    rows = math.ceil(len(settings) / width)
    figure, axes = plt.subplots(rows, width, figsize=(6 * width, 4 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(settings) :]:
        axis.set_visible(False)
    for axis, (title, found) in zip(axes.flat, settings.items(), strict=False):
        for place, (line, cells) in enumerate(found["curves"][rule].items()):
            at = [cell["epsilon"] * 1.02**place for cell in cells]
            means, bars = ([cell["test_error"][k] for cell in cells] for k in ("mean", "half90"))
            axis.errorbar(at, means, bars, label=line, color=f"C{place}", marker="o", ms=3, capsize=2)
            floor = found["not_private"][line]["test_error"]["mean"]
            axis.axhline(floor, ls=":", lw=1, color=f"C{place}", label=f"{line}, not private")
        axis.set(ylabel="test error (%)", title=title)
        epsilon_axis(axis, [cell["epsilon"] for cell in next(iter(found["curves"][rule].values()))])
        axis.legend(fontsize=7)
    save(figure, path)


def experiment(
    name: str, compute: Callable[[argparse.Namespace], Data], words: Callable[[Data], Data], before: Any = None
) -> Experiment:
    """The result folder of one of these studies; ``before`` shows numbers of the earlier protocol."""

    def draw(folder: Path, data: Data) -> None:
        draw_settings(folder / "figure.png", data["settings"])

    return Experiment(
        name,
        compute,
        draw,
        lambda data: {**told(data["settings"]), **words(data)},
        template="spider.md.j2",
        tiny=True,
        earlier=Earlier(before.draw, before.words) if before is not None else None,
        finding=lambda data: finding(data["settings"]),
        since=PROTOCOL,
    )


def told(settings: Mapping[str, Data]) -> Data:
    """What a page says of its settings: tables, verdicts and improvements; it refuses choices at the edge of a grid."""
    refuse_edges(
        {
            f"{title}, {rule}, {line}, epsilon {cell['epsilon']:g}": cell
            for title, found in settings.items()
            for rule, lines in found["curves"].items()
            for line, cells in lines.items()
            for cell in cells
        }
        | {
            f"{t}, {line}, not private": cell
            for t, own in settings.items()
            for line, cell in own["not_private"].items()
        }
    )
    rules = list(next(iter(settings.values()))["curves"])
    return {
        "rules": rules,
        "panels": {title: {rule: _panel(found, rule) for rule in rules} for title, found in settings.items()},
        "improvements": {rule: {other: _improved(settings, rule, other) for other in PRINTED} for rule in rules},
        "printed": PRINTED,
        "claim": CLAIM,
        "later": any(found.get("later") for found in settings.values()),
        "testing": len(next(iter(next(iter(settings.values()))["curves"][rules[0]].values()))[0]["by_seed"]),
    }


def finding(settings: Mapping[str, Data]) -> Finding:
    """The improvement in percent over both baselines, by the paper's rule of selection and by ours."""
    said, words = [], []
    for rule in RULES:
        both = {other: _improved(settings, rule, other) for other in PRINTED}
        told = " and ".join(f"{one['mean']:+.1f}% ± {one['half90']:.1f} against {k}" for k, one in both.items())
        said.append(f"chosen by {rule}, SPIDER's improvement is {told}")
        words += [one["said"] for one in both.values()]
    verdict_of = {frozenset(["better"]): "reproduced", frozenset(["level"]): "level", frozenset(["worse"]): "differs"}
    return Finding("; ".join(said), verdict_of.get(frozenset(words), "partly"))


def _panel(found: Data, rule: str) -> Data:
    lines = found["curves"][rule]
    epsilons = [f"{cell['epsilon']:g}" for cell in lines["SPIDER"]]
    errors = [
        [line, _error(found["not_private"][line]), *(_error(cell) for cell in cells)] for line, cells in lines.items()
    ]
    versus = []
    for other in PRINTED:
        gains = [
            interval(np.subtract(a["by_seed"], b["by_seed"]))
            for a, b in zip(lines["SPIDER"], lines[other], strict=True)
        ]
        versus.append([f"SPIDER less {other}", *(f"{g['mean']:+.2f} ± {g['half90']:.2f}, {verdict(g)}" for g in gains)])
    names = {"MB-SGD": "q=1 (MB-SGD)"}
    chosen = [["SPIDER is", *(names.get(cell["method"], cell["method"]) for cell in lines["SPIDER"])]]
    return {
        "errors": table(["test error, % ± 90%", "not private", *epsilons], errors),
        "versus": table(["paired by seed, points", *epsilons], versus),
        "chosen": table(["chosen", *epsilons], chosen),
    }


def _error(cell: Data) -> str:
    return f"{cell['test_error']['mean']:.2f} ± {cell['test_error']['half90']:.2f}"


def _improved(settings: Mapping[str, Data], rule: str, other: str) -> Data:
    """The mean percent improvement of SPIDER over another line, over all settings and budgets, with its interval.

    The interval is over seeds, by the jackknife: one seed alone may have a rival without any error.
    """
    ours, theirs = (
        [cell["by_seed"] for found in settings.values() for cell in found["curves"][rule][line]]
        for line in ("SPIDER", other)
    )
    count = min(len(row) for row in (*ours, *theirs))

    def of(seeds: list[int]) -> float:
        return improvement(*([float(np.mean([row[s] for s in seeds])) for row in rows] for rows in (ours, theirs)))

    everyone = list(range(count))
    means = of(everyone)
    spread = interval([count * means - (count - 1) * of([s for s in everyone if s != left]) for left in everyone])
    size = {"mean": means, "half90": spread["half90"]}
    return {**size, "said": verdict({**size, "mean": -means}, "better", "worse"), "cells": len(ours)}
