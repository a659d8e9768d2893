"""Three statements of the convex paper with privacy: acceleration, population risk of silos that differ, and bends.

``python -m experiments.convex_private`` writes ``results/convex-private``. Lowy and Razaviyayn, arXiv:2106.09779: fewer
rounds at equal error (Theorem 2.3), one pass for the population risk of silos that are not alike (Theorem 2.2), and
losses that are not smooth. Every run has the parameters of its theorem; nothing is tuned.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import minimize

from experiments.common import interval, slope, verdict
from experiments.folder import PROTOCOL, Data, Experiment, Finding, Parts, save, table
from tacit.geometry import l2_ball
from tacit.objectives import Loss, Objective, Problem, absolute, linear, squared
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import ConvexSetting, Statement

Tables = list[dict[str, np.ndarray]]

SILOS, DIMENSION, DELTA = 8, 8, 1e-6
ROUNDS = (5, 10, 20, 40, 80, 160)
RECORDS = (250, 500, 1000, 2000, 4000)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
FLOWER_SECONDS = 8.0
"""Of one round between machines: 6 to 10 seconds were measured."""


def sphere(rng: np.random.Generator, number: int) -> np.ndarray:
    """Features of norm one."""
    x = rng.normal(size=(number, DIMENSION))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def models(said: Statement, loss: Loss, tables: Tables, seeds: int) -> np.ndarray:
    """The models of so many runs with the theorem's parameters on the unit ball."""
    problem = Problem(Objective(linear(DIMENSION, 1, bias=False), loss), l2_ball(1.0))
    start, silos = problem.objective.init(jax.random.key(0)), enrol(tables)
    starts = [Seed(jax.random.key(s), start, silos) for s in range(seeds)]
    found = simulate_grid(lambda: find(said.algorithm).build(problem, **said.parameters), {}, starts)
    return np.asarray(found.params["linear"]["w"], float)[:, 0, :, 0]


def regression(rng: np.random.Generator, records: int, apart: float) -> tuple[Tables, np.ndarray]:
    """Least squares at silos whose best models are so far from their mean, and that mean, the population's optimum."""
    truth = np.full(DIMENSION, 0.5 / DIMENSION**0.5)
    shifts = sphere(rng, SILOS) * apart
    own = truth + shifts - shifts.mean(axis=0)
    tables = []
    for w in own:
        x = sphere(rng, records)
        tables.append({"x": x, "y": x @ w + rng.uniform(-0.1, 0.1, records)})
    return tables, truth


def setting(records: int, epsilon: float, smoothness: float | None = 1.0) -> ConvexSetting:
    """Slopes are at most 2 for least squares here (outputs and targets within one) and 1 for absolute errors."""
    lipschitz = 2.0 if smoothness else 1.0
    sizes: dict[str, Any] = {"records": records, "silos": SILOS, "dimension": DIMENSION}
    return ConvexSetting(lipschitz=lipschitz, smoothness=smoothness, radius=1.0, epsilon=epsilon, delta=DELTA, **sizes)


def accelerated(seeds: int, rounds: tuple[int, ...]) -> Data:
    """Excess empirical risk after few and many rounds at epsilon 2, accelerated and not."""
    tables, _ = regression(np.random.default_rng(0), 2000, 0.1)
    x, y = (np.concatenate([part[k] for part in tables]) for k in ("x", "y"))

    def risk(found: np.ndarray) -> np.ndarray:
        return 0.5 * np.mean((x @ found.T - y[:, None]) ** 2, axis=0)

    best = np.linalg.lstsq(x, y, rcond=None)[0]
    assert np.linalg.norm(best) < 1
    least = risk(best[None])[0]
    found: Data = {}
    for name, options in (("mb-sgd", {"risk": "empirical"}), ("accelerated-mb-sgd", {})):
        theorem = find(name).theory
        assert theorem is not None
        for count in rounds:
            said = theorem(setting(2000, 2.0), num_rounds=count, **options)
            excess = risk(models(said, squared(), tables, seeds)) - least
            found.setdefault(name, []).append({"rounds": count, "excess": excess.tolist(), "bound": said.bound})
    return found


def population(seeds: int, sizes: tuple[int, ...]) -> Data:
    """Excess population risk of silos that differ, in one pass and in several, by records of a silo, at epsilon 4."""
    found: Data = {}
    for records in sizes:
        tables, truth = regression(np.random.default_rng(records), records, 0.3)
        for name, options in (("one-pass-accelerated", {}), ("mb-sgd", {"risk": "empirical", "num_rounds": 50})):
            theorem = find(name).theory
            assert theorem is not None
            own = {"batch_size": max(1, records // 50)} if name == "one-pass-accelerated" else {}
            said = theorem(setting(records, 4.0), **options, **own)
            # Features are uniform on the sphere, so that the risk is that of the truth plus |w - truth|^2 / (2 d).
            far = models(said, squared(), tables, seeds) - truth
            excess = (far**2).sum(axis=1) / (2 * DIMENSION)
            row = {"records": records, "excess": excess.tolist(), "bound": said.bound, "rate": said.rate}
            found.setdefault(name, []).append(row)
    return found


def bends(seeds: int, epsilons: tuple[float, ...]) -> Data:
    """Excess risk of median regression with the envelope, with a convolution, and with the loss as it is."""
    rng = np.random.default_rng(1)
    tables = []
    for _ in range(SILOS):
        x = sphere(rng, 1000)
        tables.append({"x": x, "y": np.clip(x @ np.full(DIMENSION, 0.2) + 0.1 * rng.standard_t(2, 1000), -1, 1)})
    x, y = (np.concatenate([part[k] for part in tables]) for k in ("x", "y"))
    least = _median(x, y)
    theorem = find("accelerated-mb-sgd").theory
    assert theorem is not None
    found: Data = {}
    for epsilon in epsilons:
        said = theorem(setting(1000, epsilon, None))
        losses = {"envelope": absolute(said.smoothing), "convolution": absolute(said.smoothing, "convolution")}
        for how, loss in {**losses, "as it is": absolute()}.items():
            excess = np.abs(x @ models(said, loss, tables, seeds).T - y[:, None]).mean(axis=0) - least
            row = {"epsilon": epsilon, "rounds": said.parameters["num_rounds"], "excess": excess.tolist()}
            found.setdefault(how, []).append({**row, "bound": said.bound})
    return found


def _median(x: np.ndarray, y: np.ndarray) -> float:
    """The least mean absolute error, by smoothing that vanishes: never below the truth by more than its last width."""
    w = np.zeros(x.shape[1])
    for width in np.geomspace(1.0, 1e-6, 13):

        def smooth(w: np.ndarray, width: float = width) -> tuple[float, np.ndarray]:
            r = x @ w - y
            size = np.sqrt(r**2 + width**2)
            return float(size.mean()), x.T @ (r / size) / len(y)

        w = minimize(smooth, w, jac=True, method="L-BFGS-B").x
    return float(np.abs(x @ w - y).mean())


def compute(given: argparse.Namespace) -> Data:
    """All three."""
    tiny = given.tiny
    seeds = 2 if tiny else 20
    parts = Parts(given.out / "parts.json", [seeds, ROUNDS, RECORDS, EPSILONS])
    return {
        "protocol": PROTOCOL,
        "seeds": seeds,
        "rounds": parts.get("acceleration", lambda: accelerated(seeds, ROUNDS[:2] if tiny else ROUNDS)),
        "population": parts.get("population", lambda: population(seeds, RECORDS[:2] if tiny else RECORDS)),
        "bends": parts.get("bends", lambda: bends(seeds, EPSILONS[1:3] if tiny else EPSILONS)),
    }


def draw(folder: Path, data: Data) -> None:
    """Excess risk against rounds, records and epsilon; bounds are dotted."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for axis, key, at in zip(axes, ("rounds", "population", "bends"), ("rounds", "records", "epsilon"), strict=True):
        for place, (label, rows) in enumerate(data[key].items()):
            spots = [interval(row["excess"]) for row in rows]
            where, means, bars = [row[at] for row in rows], [s["mean"] for s in spots], [s["half90"] for s in spots]
            axis.errorbar(where, means, bars, marker="o", ms=3, capsize=2, color=f"C{place}", label=label)
            axis.plot(where, [row["bound"] for row in rows], ":", color=f"C{place}", label=f"{label}, bound")
        axis.set(xscale="log", yscale="log", xlabel=at, ylabel="excess risk", title=key)
        axis.legend(fontsize=6)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Tables, slopes, and how many rounds acceleration saves."""
    slow, fast = data["rounds"]["mb-sgd"], data["rounds"]["accelerated-mb-sgd"]
    aim = float(np.mean(slow[-1]["excess"]))
    reached = [row["rounds"] for row in fast if np.mean(row["excess"]) <= aim]
    both = {k: [np.asarray(row["excess"]) for row in rows] for k, rows in data["bends"].items()}
    gaps = [interval(a - b) for a, b in zip(both["convolution"], both["envelope"], strict=True)]
    held = all(np.mean(row["excess"]) <= row["bound"] for key in ("rounds", "population", "bends")
               for rows in data[key].values() for row in rows)  # fmt: skip
    return {
        "slow_rounds": slow[-1]["rounds"],
        "fast_rounds": min(reached) if reached else None,
        "seconds": FLOWER_SECONDS,
        "slopes": {
            name: slope([row["records"] for row in rows], [np.mean(row["excess"]) for row in rows])
            for name, rows in data["population"].items()
        },
        "held": held,
        "verdicts": [verdict(gap) for gap in gaps],
        "tables": [
            _table(data["rounds"], "rounds"),
            _table(data["population"], "records"),
            _table(data["bends"], "epsilon"),
        ],
    }


def _table(curves: Data, at: str) -> str:
    rows = []
    for label, cells in curves.items():
        spots = [interval(cell["excess"]) for cell in cells]
        rows.append([label, *(f"{s['mean']:.2e} ± {s['half90']:.0e}" for s in spots)])
        rows.append([f"{label}, bound", *(f"{cell['bound']:.2e}" for cell in cells)])
    return table([at, *(f"{cell[at]:g}" for cell in next(iter(curves.values())))], rows)


def finding(data: Data) -> Finding:
    """How many rounds acceleration saves, and whether bounds hold."""
    told = words(data)
    fast, slow = told["fast_rounds"], told["slow_rounds"]
    said = f"what MB-SGD reaches in {slow} rounds at epsilon 2 the accelerated method reaches in {fast or 'no fewer'}"
    held = f"measured excess is {'never' if told['held'] else 'sometimes'} above its bound"
    return Finding(f"{said}; {held}", "reproduced" if fast and fast < slow and told["held"] else "differs")


EXPERIMENT = Experiment("convex-private", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
