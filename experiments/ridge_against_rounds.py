"""Ridge regression in one round against thirty rounds of minibatch SGD, at equal epsilon.

``python -m experiments.ridge_against_rounds`` writes ``results/ridge-against-rounds``. Both are tuned alike: every
point of a grid runs on three seeds, and the one with the least error on validation records is told on the test records
of five others.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.folder import Data, Experiment, Finding, Parts, save, table
from tacit.plans.spec import study_from
from tacit.simulate.compiled import simulate_grid
from tacit.studies.run import Prepared, noise_at, prepare, starts_of, watch

EPSILONS = (1.0, 4.0)
SEEDS, TOLD, DELTA, ROUNDS = 3, 5, 1e-5, 30
DATA = {"insurance": "USD", "california-housing": "USD", "school": "points"}
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "ridge": {"strength": 1.0, "clip_norm": 1.0},
    "mb-sgd": {"num_rounds": ROUNDS, "step_size": 0.5, "clip_norm": 0.3, "sampling": "full"},
}
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "ridge": {
        "strength": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        "clip_norm": (0.25, 0.5, 1.0, 2.0, 4.0),
    },
    "mb-sgd": {
        "step_size": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
        "clip_norm": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    },
}


def compute(given: Any) -> Iterator[Data]:
    """The chosen point of each algorithm, data set and epsilon, after each data set."""
    (seeds, told), names = ((1, 1), ["insurance"]) if given.tiny else ((SEEDS, TOLD), list(DATA))
    epsilons = EPSILONS[-1:] if given.tiny else EPSILONS
    parts = Parts(given.out / "parts.json", [seeds, told, DELTA, ROUNDS, epsilons, GRIDS])
    sizes = {"seeds": seeds, "told": told, "rounds": ROUNDS, "delta": DELTA, "epsilons": list(epsilons)}
    found: dict[str, Any] = {}
    for data in names:
        found[data] = {}
        for algorithm in ALGORITHMS:
            make = partial(_case, data, algorithm, (seeds, told), epsilons)
            found[data][algorithm] = parts.get(f"{data}, {algorithm}", make)
        yield {**sizes, "data": found, "cpu_minutes": parts.cpu_minutes}


def _prepared(data: str, algorithm: str, seeds: int) -> Prepared:
    tree = {
        "name": "ridge-against-rounds",
        "data": {"name": data},
        "objective": {"model": "linear", "loss": "squared"},
        "algorithm": {"name": algorithm, **ALGORITHMS[algorithm]},
        "privacy": {"epsilon": 1.0, "delta": DELTA},
        "run": {"seeds": seeds, "alone": False, "converged": False, "weights": "records"},
    }
    return prepare(study_from(tree))


def _case(data: str, algorithm: str, seeds: tuple[int, int], epsilons: Sequence[float]) -> Data:
    """By epsilon: the point chosen on some seeds, its errors on others, and whether it lies at an edge of the grid."""
    prepared = _prepared(data, algorithm, sum(seeds))
    starts, grid, federation = starts_of(prepared), GRIDS[algorithm], prepared.federations[0]
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    low, high = federation.target.range or (0.0, 1.0) if federation.target is not None else (0.0, 1.0)
    rows = []
    for epsilon in epsilons:
        # Neither step, clip nor strength is any part of the price.
        noise = noise_at(prepared, {"privacy.epsilon": epsilon})
        errors = _errors(prepared, points, noise, starts[: seeds[0]], "validation")
        best = int(np.nanargmin(errors.mean(axis=0)))
        rmse = (high - low) * np.sqrt(_errors(prepared, [points[best]], noise, starts[seeds[0] :], "test")[:, 0])
        rows.append(
            {
                "epsilon": epsilon,
                "point": points[best],
                "edge": [n for n, own in grid.items() if points[best][n] in (own[0], own[-1])],
                "rmse": float(rmse.mean()),
                "std": float(rmse.std(ddof=1)) if len(rmse) > 1 else 0.0,
            }
        )
    sizes = [len(silo.train["y"]) for silo in federation.silos]
    spread = float((high - low) * np.mean([np.std(start.evaluation["parts"]["test"]["y"]) for start in starts]))
    facts = {"silos": len(sizes), "records": sizes, "features": int(federation.feature_shape[0]), "mean_rmse": spread}
    return {"rows": rows, **facts}


def _errors(
    prepared: Prepared, points: Sequence[Mapping[str, float]], noise: np.ndarray, starts: Sequence[Any], part: str
) -> np.ndarray:
    """The mean squared error of some points after the last round, by seed."""
    columns = {name: jnp.asarray([point[name] for point in points]) for name in points[0]}
    columns["noise_multiplier"] = jnp.asarray(np.tile(noise, (len(points), 1)))
    every = prepared.study.algorithm.num_rounds
    terms: Data = {"who": prepared.who, "measure": watch(prepared), "measure_every": every}
    return simulate_grid(prepared.builder.build, columns, starts, **terms).trace[f"{part}_mse"][:, :, -1]


def draw(folder: Path, data: Data) -> None:
    """Test error by epsilon, a panel for each data set."""
    figure, axes = plt.subplots(
        1, len(data["data"]), figsize=(4.2 * len(data["data"]), 3.4), layout="constrained", squeeze=False
    )
    for axis, (name, found) in zip(axes[0], data["data"].items(), strict=True):
        for algorithm, own in found.items():
            rows = own["rows"]
            label = "ridge, 1 round" if algorithm == "ridge" else f"MB-SGD, {data['rounds']} rounds"
            axis.errorbar(
                [r["epsilon"] for r in rows],
                [r["rmse"] for r in rows],
                yerr=[r["std"] for r in rows],
                fmt="o-",
                capsize=3,
                label=label,
            )
        axis.axhline(next(iter(found.values()))["mean_rmse"], lw=0.8, color="gray", label="the mean for all")
        axis.set_xscale("log")
        axis.set_title(name)
        axis.set_xlabel("epsilon")
        axis.set_ylabel(f"test RMSE, {DATA[name]}")
    axes[0][0].legend(frameon=False, fontsize=8)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Tables and verdicts, from the numbers alone."""
    tables, wins, edges, level = {}, [], [], 0
    for name, found in data["data"].items():
        rows = []
        for ours, theirs in zip(found["ridge"]["rows"], found["mb-sgd"]["rows"], strict=True):
            apart = theirs["rmse"] - ours["rmse"]
            clear = abs(apart) > max(ours["std"], theirs["std"])
            verdict = "level" if not clear else "ridge" if apart > 0 else "MB-SGD"
            level += not clear
            wins += [f"{name} at epsilon {ours['epsilon']:g}"] if verdict == "ridge" else []
            edges += [
                f"{a} on {name} at {r['epsilon']:g}" for a, r in (("ridge", ours), ("mb-sgd", theirs)) if r["edge"]
            ]
            shown = [f"{r['rmse']:.4g} ± {r['std']:.2g}" for r in (ours, theirs)]
            chosen = [", ".join(f"{k} {v:g}" for k, v in r["point"].items()) for r in (ours, theirs)]
            rows.append([f"{ours['epsilon']:g}", *shown, verdict, *chosen])
        head = ["epsilon", "ridge, 1 round", f"MB-SGD, {data['rounds']} rounds", "ahead", "ridge's choice", "MB-SGD's"]
        tables[name] = table(head, rows)
    cases = sum(len(found["ridge"]["rows"]) for found in data["data"].values())
    return {"tables": tables, "wins": wins, "edges": edges, "level": level, "cases": cases, "units": DATA}


def finding(data: Data) -> Finding:
    """Where one round of ridge is ahead of many rounds of MB-SGD."""
    told = words(data)
    wins, cases = told["wins"], told["cases"]
    ahead = f"ahead of {data['rounds']} rounds of MB-SGD in {len(wins)} of {cases} cases ({', '.join(wins) or 'none'})"
    return Finding(f"ridge, in one round, is {ahead}, and level in {told['level']}", "none")


EXPERIMENT = Experiment("ridge-against-rounds", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
