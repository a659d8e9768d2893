"""Error against epsilon of minibatch SGD and Local SGD on a convex problem, tuned on validation records.

What the experiments of Lowy and Razaviyayn (arXiv:2106.09779) share: both methods at several budgets, priced exactly
and as the theorem prices them, and not private; tables, figures and verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import best_by, grid_of, interval, noise_for, train
from experiments.folder import Data, Finding, save, table
from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem
from tacit.plans.catalogue import find, paper_noise
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass_experiments
from tacit.simulate.compiled import Seed
from tacit.simulate.participation import Participation, participation


@dataclass(frozen=True)
class Method:
    """A line of the figure: an algorithm, what is tuned, and the noise of each silo by epsilon (not private: none)."""

    name: str
    build: Callable[..., Algorithm]
    grid: Mapping[str, Sequence[float]]
    noise: Callable[[float], np.ndarray] | None = None


@dataclass(frozen=True)
class Design:
    """What an experiment fixes: silos, how many of them take part, rounds, what is tuned, and the metric."""

    silos: int
    participants: Sequence[int]
    epsilons: Sequence[float]
    steps: Sequence[float]
    clips: Sequence[float]
    metric: str
    rounds: int = 35
    local_steps: int = 4

    def methods(self, problem: Problem, records: Sequence[int]) -> list[Method]:
        """Both algorithms, private and not, and minibatch SGD with the theorem's noise."""
        common: dict[str, Any] = {"num_rounds": self.rounds, "batch_size": None, "sampling": "full"}

        def minibatch(**point: Any) -> Algorithm:
            return find("mb-sgd").build(problem, **common, output="last", **point)

        def local(**point: Any) -> Algorithm:
            return find("local-sgd").build(problem, **common, local_steps=self.local_steps, **point)

        def opened(build: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
            return lambda **point: build(clip_norm=None, noise_multiplier=None, channel="open", **point)

        def exact(build: Callable[..., Algorithm], epsilon: float) -> np.ndarray:
            point = {name: values[0] for name, values in grid.items()}
            return noise_for(partial(build, **point), records, epsilon, delta)

        def theorem(epsilon: float) -> np.ndarray:
            terms: dict[str, Any] = {"num_rounds": self.rounds, "epsilon": epsilon, "delta": delta, "sampling": "full"}
            found = [paper_noise("mb-sgd", records=n, **terms) for n in records]
            return np.asarray([noise.releases[0].noise_multiplier for noise in found if noise is not None], np.float32)

        delta = 1 / min(records) ** 2
        grid, wide = {"step_size": self.steps, "clip_norm": self.clips}, {"step_size": self.steps}
        return [
            Method("MB-SGD", minibatch, grid, partial(exact, minibatch)),
            Method("Local SGD", local, grid, partial(exact, local)),
            Method("MB-SGD, the theorem's noise", minibatch, grid, theorem),
            Method("MB-SGD, not private", opened(minibatch), wide),
            Method("Local SGD, not private", opened(local), wide),
        ]

    def panels(
        self, problem: Problem, seeds: Sequence[Seed], records: Sequence[int], naive: np.ndarray | None = None
    ) -> Data:
        """The curves of all methods, for each number of silos that take part in a round."""
        found: Data = {}
        for number in self.participants:
            who = participation(self.silos, number)
            found[f"M={number}"] = {
                method.name: self.curve(method, problem.objective, seeds, who, naive)
                for method in self.methods(problem, records)
            }
            print(f"M={number} done", flush=True)
        return found

    def curve(
        self, method: Method, objective: Objective, seeds: Sequence[Seed], who: Participation, naive: np.ndarray | None
    ) -> Data:
        """The test score at each epsilon, at the setting that is best on validation records.

        With ``naive`` (one per seed) the score is the root of the metric over the naive one.
        """
        labels, points = [], []
        for label in ["none"] if method.noise is None else [str(epsilon) for epsilon in self.epsilons]:
            noise = {} if method.noise is None else {"noise_multiplier": method.noise(float(label))}
            for point in grid_of(**method.grid):
                labels.append(label)
                points.append({**point, **noise})
        found = train(method.build, points, seeds, objective, who=who, rounds=self.rounds)
        chosen = best_by(labels, found[f"validation_{self.metric}"])
        scores = found[f"test_{self.metric}"]
        scores = scores if naive is None else np.sqrt(scores / naive[:, None])
        return {
            label: {
                "score": interval(scores[:, i]),
                "scores": [round(float(v), 6) for v in scores[:, i]],
                "setting": {k: float(v) for k, v in points[i].items() if k != "noise_multiplier"},
            }
            for label, i in chosen.items()
        }

    def meta(self, records: Sequence[int], trials: int) -> Data:
        """The design as its page tells it."""
        sizes = {"silos": self.silos, "records": records, "rounds": self.rounds, "local_steps": self.local_steps}
        return {**sizes, "trials": trials}

    def words(self, data: Data, told: Sequence[float]) -> Data:
        """Who wins where, the paper's own noise at the epsilons to be told of, and a table for each participation."""
        panels = {number: data["curves"][f"M={number}"] for number in self.participants}
        least = min(data["records"])
        return {
            "least": least,
            "verdicts": {number: verdict(curves) for number, curves in panels.items()},
            "claim": claim_of(panels),
            "experiments": _experiments_noise(least, self.rounds, 1 / least**2, told),
            "tables": {number: table_of(curves, self.epsilons) for number, curves in panels.items()},
        }

    def finding(self, data: Data) -> Finding:
        """In how many cases minibatch SGD is ahead of Local SGD."""
        kinds = {k: len(v) for k, v in _cases({n: data["curves"][f"M={n}"] for n in self.participants}).items()}
        total = sum(kinds.values())
        ahead = f"priced exactly and tuned alike, MB-SGD is clearly ahead of Local SGD in {kinds['ahead']} of {total}"
        said = f"{ahead} cases, clearly behind in {kinds['behind']} and level in {kinds['level']}"
        most = max(kinds, key=lambda kind: kinds[kind])
        word = {"ahead": "partly", "level": "level", "behind": "differs"}[most]
        return Finding(said, "reproduced" if kinds["ahead"] == total else word)


def mean_at(curves: Mapping[str, Any], name: str, epsilon: str = "none") -> float:
    """The mean score of a method at a budget."""
    return float(curves[name][epsilon]["score"]["mean"])


def _experiments_noise(records: int, rounds: int, delta: float, epsilons: Sequence[float]) -> str:
    """What the noise of the paper's own experiments, which rests on an unstated constant, is worth on full batches."""
    words = []
    for epsilon in epsilons:
        setting = Setting(
            records=records, num_rounds=rounds, batch_size=records, epsilon=epsilon, delta=delta, sampling="full"
        )
        found = multi_pass_experiments(setting)
        words.append(
            f"{found.ratio:.2f} times ours at epsilon = {epsilon:g} (certified: {found.epsilon_certified:.3g})"
        )
    return "The noise that the paper's own experiments add is " + ", ".join(words) + "."


def _gaps(curves: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By how much minibatch SGD is better than Local SGD at each epsilon, paired by seed."""
    pairs = {epsilon: (curves["Local SGD"][epsilon], cell) for epsilon, cell in curves["MB-SGD"].items()}
    return {e: interval(np.subtract(other["scores"], ours["scores"])) for e, (other, ours) in pairs.items()}


def verdict(curves: Mapping[str, Any]) -> str:
    """In how many budgets minibatch SGD beats Local SGD, with paired differences."""
    gaps = _gaps(curves)
    wins = sum(gap["mean"] > 0 for gap in gaps.values())
    words = [f"{gap['mean']:+.3f} ± {gap['half90']:.3f} at {epsilon}" for epsilon, gap in gaps.items()]
    return (
        f"MB-SGD is better than Local SGD on average at {wins} of {len(words)} values of epsilon (paired differences, "
        f"90% intervals: {', '.join(words)})."
    )


def _cases(panels: Mapping[int, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Where minibatch SGD is clearly ahead of Local SGD, clearly behind, and neither."""
    kinds: dict[str, list[str]] = {"ahead": [], "behind": [], "level": []}
    for number, curves in panels.items():
        for epsilon, gap in _gaps(curves).items():
            clear = abs(gap["mean"]) > gap["half90"]
            kind = ("ahead" if gap["mean"] > 0 else "behind") if clear else "level"
            kinds[kind].append(f"{epsilon} (M={number})")
    return kinds


def claim_of(panels: Mapping[int, Mapping[str, Any]]) -> str:
    """Whether minibatch SGD beats Local SGD at every epsilon: where it does, does not, and cannot be told."""
    kinds = _cases(panels)
    total = sum(map(len, kinds.values()))
    if len(kinds["ahead"]) == total:
        return f"So the paper's claim holds here: MB-SGD is clearly ahead in all {total} cases."
    words = [f"MB-SGD is clearly ahead in {len(kinds['ahead'])} of {total} cases"]
    for kind, said in (("level", "within the 90% interval at epsilon ="), ("behind", "clearly behind at epsilon =")):
        if kinds[kind]:
            words.append(f"{said} {', '.join(kinds[kind])}")
    return "So the paper's claim does not hold at every epsilon here: " + "; ".join(words) + "."


def table_of(curves: Mapping[str, Any], epsilons: Sequence[float]) -> str:
    """Scores with 90% intervals."""

    def cell(values: Mapping[str, Any], epsilon: float) -> str:
        score = values[str(epsilon) if str(epsilon) in values else "none"]["score"]
        return f"{score['mean']:.3f} ± {score['half90']:.3f}"

    return table(
        ("epsilon", *(f"{e:g}" for e in epsilons)),
        [(name, *(cell(values, e) for e in epsilons)) for name, values in curves.items()],
    )


def plot(path: Path, panels: Mapping[str, Mapping[str, Any]], label: str) -> None:
    """One panel for each participation, with 90% error bars; non-private runs as lines across."""
    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.8), sharey=True, layout="constrained")
    for axis, (title, curves) in zip(np.atleast_1d(axes), panels.items(), strict=True):
        for colour, (name, values) in enumerate(curves.items()):
            if "none" in values:
                axis.axhline(values["none"]["score"]["mean"], color=f"C{colour}", linestyle=":", label=name)
                continue
            at = [float(epsilon) for epsilon in values]
            means = [cell["score"]["mean"] for cell in values.values()]
            bars = [cell["score"]["half90"] for cell in values.values()]
            axis.errorbar(at, means, bars, marker="o", capsize=3, color=f"C{colour}", label=name)
        axis.set(xscale="log", xlabel=r"$\epsilon$", title=title)
    np.atleast_1d(axes)[0].set_ylabel(label)
    np.atleast_1d(axes)[0].legend(fontsize=7)
    save(figure, path, 150)
