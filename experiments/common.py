"""What the experiments share: repetitions from silos, noise from a budget, grids in one program, and statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from tacit.algorithm import Algorithm
from tacit.data import Federation
from tacit.objectives import Objective
from tacit.plans.price import plan_silos
from tacit.privacy.plan import Budget
from tacit.silo import enrol
from tacit.simulate.compiled import Program, Seed, grid_program, simulate_grid
from tacit.simulate.participation import Participation, participation
from tacit.studies.run import measured, pooled

Rows = list[dict[str, Any]]


def together(federation: Federation, parts: Sequence[str], with_groups: bool = False) -> dict[str, Any]:
    """The records of all silos, by part."""
    return {part: jax.tree.map(jnp.asarray, pooled(federation, part, with_groups)) for part in parts}


def seeds_of(
    federations: Sequence[Federation], objective: Objective, parts: Sequence[str] = ("validation", "test")
) -> list[Seed]:
    """One repetition for each federation, measured on these parts of the records of all its silos."""
    found = []
    for number, federation in enumerate(federations):
        key_run, key_init = jax.random.split(jax.random.key(number))
        silos = enrol([silo.train for silo in federation.silos], [silo.name for silo in federation.silos])
        found.append(Seed(key_run, objective.init(key_init), silos, together(federation, parts)))
    return found


def records_of(federation: Federation) -> list[int]:
    """How many training records each silo has."""
    return [len(silo.train["y"]) for silo in federation.silos]


def noise_for(
    build: Callable[..., Algorithm], records: Sequence[int], epsilon: float, delta: float, cap: int | None = None
) -> np.ndarray:
    """The noise multiplier of each silo at this budget, every silo priced by itself for every round it may answer.

    ``cap`` is how often a silo answers at most (``None``: in every round).
    """
    names = [str(i) for i in range(len(records))]
    anonymity: dict[str, Any] = {"honest": 1.0, "min_silos": len(records)}  # through shuffled channels
    budget = Budget(epsilon=epsilon, delta=delta, max_participations=cap, **anonymity)
    _, noise = plan_silos(lambda noise: build(noise_multiplier=noise), names, records, budget, dimensions={})
    if noise is None:
        raise ValueError(f"Expected a budget of epsilon={epsilon} to ask for noise.")
    return noise


def grid_of(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the axes' values."""
    points: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def columns(points: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Points as one array for each parameter."""
    return {name: np.asarray([point[name] for point in points], np.float32) for name in points[0]}


def train(
    build: Callable[..., Algorithm],
    points: Sequence[Mapping[str, Any]],
    seeds: Sequence[Seed],
    objective: Objective,
    *,
    who: Participation | None = None,
    rounds: int,
) -> dict[str, np.ndarray]:
    """Final measurements with axes (seeds, points), all points in one program."""
    measure = measured(objective)
    outcome = simulate_grid(build, columns(points), seeds, who=who, measure=measure, measure_every=rounds)
    return {name: values[:, :, -1] for name, values in outcome.trace.items()}


@dataclass
class Runner:
    """Final measurements of points of one algorithm, in grids of few sizes: a size is compiled once for all seeds."""

    build: Callable[..., Algorithm]
    objective: Objective
    who: Participation | None = None
    widths: tuple[int, ...] = (3, 12)
    programs: dict[int, Program] = field(default_factory=dict)

    def __call__(self, points: Sequence[Mapping[str, Any]], seed: Seed) -> dict[str, np.ndarray]:
        """One value for each point; there are at most as many as the largest width."""
        width = min(w for w in self.widths if w >= len(points))
        who = participation(seed.silos.number) if self.who is None else self.who
        measure = measured(self.objective)
        if width not in self.programs:
            self.programs[width] = grid_program(self.build, width, who, measure)
        filled = columns([*points, *[points[-1]] * (width - len(points))])
        once: dict[str, Any] = {"who": who, "measure": measure, "measure_every": 10**9}
        outcome = simulate_grid(self.build, filled, [seed], **once, program=self.programs[width])
        return {name: values[0, : len(points), -1] for name, values in outcome.trace.items()}


def best_by(labels: Sequence[Any], scores: np.ndarray) -> dict[Any, int]:
    """For each label, the point of the smallest mean score (a run that diverged counts as infinite)."""
    means = np.where(np.isfinite(scores), scores, np.inf).mean(axis=0)
    return {
        label: min((i for i, own in enumerate(labels) if own == label), key=lambda i: means[i])
        for label in dict.fromkeys(labels)
    }


def interval(values: Any) -> dict[str, float]:
    """Mean, standard deviation, and the half-width of a 90% interval for the mean, by Student's t.

    >>> round(interval([1.0, 2.0, 3.0, 4.0, 5.0])["half90"], 3)
    1.507
    """
    values = np.asarray(values, float)
    count, spread = len(values), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    wide = float(stats.t.ppf(0.95, count - 1)) if count > 1 else 0.0
    return {"mean": float(values.mean()), "std": spread, "half90": wide * spread / count**0.5}


def verdict(gain: Mapping[str, float], better: str = "below", worse: str = "above") -> str:
    """What a paired difference says: a difference inside its 90% interval is level.

    >>> verdict({"mean": -0.2, "half90": 0.1}), verdict({"mean": 0.05, "half90": 0.1})
    ('below', 'level')
    """
    if abs(gain["mean"]) <= gain["half90"]:
        return "level"
    return better if gain["mean"] < 0 else worse


def improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The mean improvement in percent over experiments: 100 (theirs - ours)/theirs in each, as arXiv:2203.06735 has it.

    >>> improvement([9.0, 5.0], [10.0, 5.0])
    5.0
    """
    return float(np.mean([100 * (b - a) / b for a, b in zip(ours, theirs, strict=True)]))


def slope(at: Any, values: Any) -> float:
    """The slope of a line through points on logarithmic axes."""
    return float(np.polyfit(np.log(np.asarray(at, float)), np.log(np.asarray(values, float)), 1)[0])


def epsilon_axis(axis: Axes, epsilons: Sequence[float]) -> None:
    """A logarithmic axis of budgets with a tick for each."""
    axis.set(xlabel="epsilon", xscale="log")
    axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axis.minorticks_off()
