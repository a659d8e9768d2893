"""Error against epsilon for several methods, tuned on validation records, as tables, figures and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from tacit.algorithm import Algorithm
from tacit.algorithms import paper_noise
from tacit.objectives import Objective
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass_experiments
from tacit.runtime.participation import Participation
from tacit.runtime.simulate import Seed
from tacit.studies.papers.common import best_by, grid_of, interval, noise_for, table, train

Noise = Callable[[float], np.ndarray]


@dataclass(frozen=True)
class Method:
    """A line of the figure: an algorithm, what is tuned, and its noise (``delta=None``: not private).

    ``noise`` maps an epsilon to a multiplier per silo; by default the least that exact accounting allows.
    """

    name: str
    build: Callable[..., Algorithm]
    grid: Mapping[str, Sequence[float]]
    records: Sequence[int]
    delta: float | None
    noise: Noise | None = None

    def noise_at(self, epsilon: float) -> np.ndarray:
        """One multiplier per silo."""
        if self.noise is not None:
            return self.noise(epsilon)
        assert self.delta is not None
        point = {name: values[0] for name, values in self.grid.items()}
        return noise_for(lambda **terms: self.build(**point, **terms), self.records, epsilon, self.delta)


def theorem_noise(algorithm: str, records: Sequence[int], rounds: int, delta: float, local_steps: int = 1) -> Noise:
    """The noise that the algorithm's theorem prints for an epsilon, on full batches."""

    def at(epsilon: float) -> np.ndarray:
        found = [
            paper_noise(
                algorithm,
                records=n,
                num_rounds=rounds,
                epsilon=epsilon,
                delta=delta,
                sampling="full",
                local_steps=local_steps,
            )
            for n in records
        ]
        return np.asarray([noise.releases[0].noise_multiplier for noise in found if noise is not None], np.float32)

    return at


def experiments_noise(records: int, rounds: int, delta: float, epsilons: Sequence[float]) -> str:
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


def curve(
    method: Method,
    seeds: Sequence[Seed],
    objective: Objective,
    who: Participation,
    epsilons: Sequence[float],
    rounds: int,
    metric: str,
    naive: np.ndarray | None = None,
) -> dict[str, Any]:
    """The test score at each epsilon, at the setting that is best on validation records.

    With ``naive`` (one per seed) the score is the root of the metric over the naive one.
    """
    private = method.delta is not None
    labels, points = [], []
    for label in [str(epsilon) for epsilon in epsilons] if private else ["none"]:
        noise = {"noise_multiplier": method.noise_at(float(label))} if private else {}
        for point in grid_of(**method.grid):
            labels.append(label)
            points.append({**point, **noise})
    found = train(method.build, points, seeds, objective, who=who, rounds=rounds)
    chosen = best_by(labels, found[f"validation_{metric}"])
    scores = found[f"test_{metric}"] if naive is None else np.sqrt(found[f"test_{metric}"] / naive[:, None])
    return {
        label: {
            "score": interval(scores[:, i]),
            "scores": [round(float(v), 6) for v in scores[:, i]],
            "setting": {k: float(v) for k, v in points[i].items() if k != "noise_multiplier"},
        }
        for label, i in chosen.items()
    }


def verdict(curves: Mapping[str, Any], ours: str, other: str) -> str:
    """In how many budgets one method beats another, with paired differences."""
    wins, words = 0, []
    for epsilon, cell in curves[ours].items():
        gap = np.asarray(curves[other][epsilon]["scores"]) - np.asarray(cell["scores"])
        found = interval(gap)
        wins += found["mean"] > 0
        words.append(f"{found['mean']:+.3f} ± {found['half90']:.3f} at {epsilon}")
    return (
        f"{ours} is better than {other} on average at {wins} of {len(words)} values of epsilon (paired differences, "
        f"90% intervals: {', '.join(words)})."
    )


def claim_of(panels: Mapping[str, Mapping[str, Any]], ours: str, other: str) -> str:
    """Whether one method beats another at every epsilon, as measured: where it does, does not, and cannot be told."""
    kinds: dict[str, list[str]] = {"ahead": [], "behind": [], "level": []}
    for panel, curves in panels.items():
        for epsilon, cell in curves[ours].items():
            found = interval(np.asarray(curves[other][epsilon]["scores"]) - np.asarray(cell["scores"]))
            clear = abs(found["mean"]) > found["half90"]
            kinds[("ahead" if found["mean"] > 0 else "behind") if clear else "level"].append(f"{epsilon} ({panel})")
    total = sum(map(len, kinds.values()))
    if len(kinds["ahead"]) == total:
        return f"So the paper's claim holds here: {ours} is clearly ahead in all {total} cases."
    words = [f"{ours} is clearly ahead in {len(kinds['ahead'])} of {total} cases"]
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
    figure.savefig(path, dpi=150)
    plt.close(figure)
