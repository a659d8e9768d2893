"""Measured excess risk against the theorems: in rounds without noise, and in n, N, d and epsilon with it.

``python -m experiments.convex_rates`` writes ``results/convex-rates``. Synthetic problems, so that the optimum
is known exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import slope
from experiments.folder import Data, Experiment, Finding, save, table
from tacit.algorithm import Algorithm
from tacit.geometry import l2_ball
from tacit.objectives import Loss, Model, Objective, Problem, linear, squared
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import ConvexSetting, Statement, accelerated_mb_sgd_from_theory, mb_sgd_from_theory

BASE = {"records": 400, "silos": 8, "dimension": 16, "epsilon": 1.0}
SWEEPS: dict[str, tuple[float, ...]] = {
    "records": (200, 400, 800, 1600),
    "silos": (4, 8, 16, 32),
    "dimension": (8, 16, 32, 64),
    "epsilon": (0.5, 1.0, 2.0, 4.0),
}
EXPECTED = {"records": -2.0, "silos": -1.0, "dimension": 1.0, "epsilon": -2.0}
"""Slopes of the strongly convex bound d/(mu N n^2 eps^2); half of each for the convex bound."""
SEEDS, DELTA = 20, 1e-6
NEAR = 0.2
"""How far a slope may be from the theorem's."""
SIZES = tuple(2.0**-k for k in range(1, 8))
"""Norms of the mean of linear losses, of which the hardest counts."""


def compute(_: Any) -> Data:
    """All rates."""
    rounds = _rounds()
    print("rounds done", flush=True)
    sweeps = {
        name: {
            case: [_noisy(case, {**BASE, name: value}) for value in values] for case in ("convex", "strongly convex")
        }
        for name, values in SWEEPS.items()
    }
    slopes = {
        name: {case: slope(SWEEPS[name], [c["measured"] for c in cells]) for case, cells in cases.items()}
        for name, cases in sweeps.items()
    }
    return {"rounds": rounds, "sweeps": sweeps, "slopes": slopes, "seeds": SEEDS, "base": BASE, "delta": DELTA}


def _rounds() -> dict[str, Any]:
    """Excess risk of a quadratic with eigenvalues over six decades after 1, 2, ... rounds without noise."""
    size, total = 60, 1000
    eigenvalues = np.geomspace(1e-6, 1.0, size).astype(np.float32)
    x = np.diag(np.sqrt(eigenvalues * size))
    problem = Problem(Objective(linear(size, 1, bias=False), squared()))
    terms: dict[str, Any] = {
        "step_size": 0.5,
        "num_rounds": total,
        "clip_norm": None,
        "noise_multiplier": None,
        "batch_size": None,
        "sampling": "full",
        "channel": "open",
    }
    seed = Seed(jax.random.key(0), problem.objective.init(jax.random.key(0)), enrol([{"x": x, "y": x.sum(axis=1)}]))

    def gap(params: Any, _: Any) -> dict[str, Any]:
        return {"gap": 0.5 * (eigenvalues * (params["linear"]["w"][:, 0] - 1.0) ** 2).sum()}

    built = {
        "MB-SGD": find("mb-sgd").build(problem, output="last", **terms),
        "accelerated": find("accelerated-mb-sgd").build(problem, **terms),
    }
    traces = {
        name: simulate_grid(lambda a=algorithm: a, {}, [seed], measure=gap).trace["gap"][0, 0]
        for name, algorithm in built.items()
    }
    number = np.unique(np.geomspace(20, total, 40).astype(int))
    target = traces["MB-SGD"][-1]
    return {
        name: {
            "round": number.tolist(),
            "gap": trace[number - 1].tolist(),
            "slope": slope(number, trace[number - 1]),
            "rounds_to_target": int(np.argmax(trace <= target)) + 1,
        }
        for name, trace in traces.items()
    }


def _noisy(case: str, at: dict[str, Any]) -> dict[str, float]:
    """Mean excess empirical risk at the theorem's own parameters, beside its bound."""
    size = {name: int(at[name]) for name in ("records", "silos", "dimension")}
    epsilon = float(at["epsilon"])
    if case == "convex":
        setting = ConvexSetting(
            **size, epsilon=epsilon, delta=DELTA, radius=1.0, lipschitz=1.0, smoothness=0.01, strong_convexity=0.0
        )
        said = accelerated_mb_sgd_from_theory(setting, num_rounds=30)
        excess = _linear_losses(said, **size)
    else:
        setting = ConvexSetting(
            **size, epsilon=epsilon, delta=DELTA, radius=1.0, lipschitz=1.5, smoothness=1.0, strong_convexity=1.0
        )
        said = mb_sgd_from_theory(setting, risk="empirical", num_rounds=50)
        excess = _mean_estimation(said, **size)
    spread = float(excess.std(ddof=1) / len(excess) ** 0.5)
    return {"measured": float(excess.mean()), "error": spread, "bound": said.bound, "lower": said.lower_bound}


def _linear_losses(said: Statement, records: int, silos: int, dimension: int) -> np.ndarray:
    """f(w; x) = -<x, w> over the unit ball, x = +e_1 or -e_1: hard without curvature. The hardest mean counts."""
    objective = Objective(linear(dimension, 1, bias=False), Loss(lambda outputs, targets: -outputs[:, 0]))
    tables, means = [], []
    for norm in SIZES:
        x = np.zeros((records, dimension), np.float32)
        x[:, 0] = np.where(np.arange(records) < round(records * (1 + norm) / 2), 1.0, -1.0)
        tables.append({"x": x, "y": np.zeros(records)})
        means.append(float(x[:, 0].astype(float).mean()))
    found = _trained(said, objective, tables, silos)["linear"]["w"]
    along = np.asarray(found, float)[:, 0, 0, 0].reshape(len(SIZES), SEEDS)
    excess = np.asarray(means)[:, None] * (1 - along)
    return excess[excess.mean(axis=1).argmax()]


def _mean_estimation(said: Statement, records: int, silos: int, dimension: int) -> np.ndarray:
    """f(w; x) = |w - x|^2 / 2 over the unit ball, x in a ball of radius 1/2: mu = beta = 1 in any dimension."""

    def apply(params: Any, x: Any, tap: Any) -> Any:
        return params["w"] - x

    model = Model(lambda key: {"w": jnp.zeros(dimension)}, apply)
    objective = Objective(model, Loss(lambda outputs, targets: 0.5 * (outputs**2).sum(axis=1)))
    x = np.random.default_rng(0).normal(size=(records, dimension))
    x = 0.5 * x / np.linalg.norm(x, axis=1, keepdims=True)
    found = _trained(said, objective, [{"x": x, "y": np.zeros(records)}], silos)["w"]
    return 0.5 * ((np.asarray(found, float)[:, 0] - x.mean(axis=0)) ** 2).sum(axis=1)


def _trained(said: Statement, objective: Objective, tables: list[Any], silos: int) -> Any:
    """The models for each table (which all silos hold) and seed, in one program."""
    problem = Problem(objective, l2_ball(1.0))

    def build() -> Algorithm:
        return find(said.algorithm).build(problem, **said.parameters)

    start = objective.init(jax.random.key(0))
    seeds = [
        Seed(jax.random.key(s), start, silos_)
        for silos_ in (enrol([table_] * silos) for table_ in tables)
        for s in range(SEEDS)
    ]
    return simulate_grid(build, {}, seeds).params


def draw(folder: Path, data: Data) -> None:
    """Excess risk against rounds and against every size; bounds are dotted."""
    figure, axes = plt.subplots(1, 5, figsize=(17, 3.4), layout="constrained")
    for name, trace in data["rounds"].items():
        axes[0].loglog(trace["round"], trace["gap"], label=f"{name}: slope {trace['slope']:.2f}")
    axes[0].set(xlabel="rounds, no noise", ylabel="excess risk")
    axes[0].legend(fontsize=7)
    for axis, (name, cases) in zip(axes[1:], data["sweeps"].items(), strict=True):
        for colour, (case, cells) in enumerate(cases.items()):
            measured = [cell["measured"] for cell in cells]
            bars = [2 * cell["error"] for cell in cells]
            label = f"{case}: slope {data['slopes'][name][case]:.2f}"
            axis.errorbar(SWEEPS[name], measured, bars, marker="o", color=f"C{colour}", label=label)
            axis.plot(SWEEPS[name], [cell["bound"] for cell in cells], ":", color=f"C{colour}")
        axis.set(xscale="log", yscale="log", xlabel=name)
        axis.legend(fontsize=7)
    save(figure, folder / "figure.png", 150)


def words(data: Data) -> Data:
    """Slopes beside the theorems', and how far the bounds are above what is measured."""
    rows = []
    for name, found in data["slopes"].items():
        convex = (f"{EXPECTED[name] / 2:g}", f"{found['convex']:.2f}")
        rows.append([name, *convex, f"{EXPECTED[name]:g}", f"{found['strongly convex']:.2f}"])
    cells = [cell for cases in data["sweeps"].values() for own in cases.values() for cell in own]
    header = ["in", "convex, theorem", "measured", "strongly convex, theorem", "measured"]
    return {
        "plain": data["rounds"]["MB-SGD"],
        "fast": data["rounds"]["accelerated"],
        "norms": len(SIZES),
        "found": table(header, rows),
        "ratios": [cell["bound"] / cell["measured"] for cell in cells],
    }


def finding(data: Data) -> Finding:
    """Slopes in rounds, and how far the others are from the theorems'."""
    told = words(data)
    rounds = abs(told["plain"]["slope"] + 1), abs(told["fast"]["slope"] + 2)
    away = max(
        abs(found[kind] - EXPECTED[name] / part)
        for name, found in data["slopes"].items()
        for kind, part in (("convex", 2), ("strongly convex", 1))
    )
    said = f"{told['plain']['slope']:.2f} and {told['fast']['slope']:.2f} in rounds (theory -1 and -2)"
    near = max(*rounds, away) <= NEAR
    return Finding(f"{said}, and within {away:.2f} of theory in the others", "reproduced" if near else "differs")


EXPERIMENT = Experiment("convex-rates", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
