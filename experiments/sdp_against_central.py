"""The shuffled sum beside a trusted server, at equal epsilon: excess risk of every algorithm that has a shuffled form.

``python -m experiments.sdp_against_central`` writes ``results/sdp-against-central``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import epsilon_axis, interval, slope
from experiments.folder import Data, Experiment, Finding, save, table
from experiments.sparse_regression import DELTA, Sizes, builder, regression, trained
from tacit import geometry
from tacit.algorithm import Channel, Params
from tacit.geometry import Regulariser
from tacit.objectives import Problem
from tacit.simulate.compiled import Seed
from tacit.theory import gradient_mapping, proximal_descent, risk

SIZES, DRAWS, EPSILONS = Sizes(), 40, (0.5, 1.0, 4.0)
STYLES: dict[Channel, tuple[str, str]] = {
    "shuffled-sum": ("SDP", "o-"),
    "trusted": ("central DP", "s--"),
    "direct": ("ISRL-DP", "^:"),
}
STRENGTH, WITHIN = 0.001, 0.15
PAPERS = {"prox-sgd": "7", "prox-svrg": "8", "pl-svrg": "9", "prox-spider": "10"}
"""Which algorithm of arXiv:2203.06735 each is through the shuffled sum."""


def arms(sizes: Sizes) -> dict[str, dict[str, Any]]:
    """Terms of each algorithm, fixed in advance: half the inverse of the mean loss's smoothness for single steps."""
    step, rounds = sizes.features / 3, 15
    full = {"num_rounds": rounds, "step_size": step, "clip_norm": 0.5}
    reduced = {**full, "phase_length": 3, "difference_slope": 1.0}
    batch = sizes.records // 5
    return {
        "mb-sgd": {**full, "output": "last"},
        "prox-sgd": {
            "num_rounds": 5,
            "step_size": 1.5 * step,
            "clip_norm": 0.5,
            "batch_size": batch,
            "sampling": "one-pass",
        },
        "prox-svrg": reduced,
        "pl-svrg": {**reduced, "restarts": 3},
        "prox-spider": reduced,
    }


def compute(_: Any) -> Data:
    """Ridge for every algorithm, lasso for the first."""
    terms = arms(SIZES)
    ridge = compare(SIZES, geometry.squared_l2(STRENGTH), range(DRAWS), EPSILONS, terms)
    lasso = compare(SIZES, geometry.l1(STRENGTH), range(DRAWS), EPSILONS, {"mb-sgd": terms["mb-sgd"]})
    extra = {"delta": DELTA, "sizes": vars(SIZES), "draws": DRAWS, "strength": STRENGTH, "terms": terms}
    return {**extra, "ridge": ridge, "lasso": lasso}


def compare(
    sizes: Sizes,
    penalty: Regulariser,
    draws: Sequence[int],
    epsilons: Sequence[float],
    terms: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Excess risk and gradient mapping of each algorithm through each channel, and the ratio of SDP to central DP."""
    problem, seeds = regression(sizes, penalty, draws)
    measure = _measure(problem, seeds)
    found: dict[str, Any] = {"epsilon": list(epsilons), "algorithms": {}}
    for name, own in terms.items():
        measured = {}
        for channel in STYLES:
            build = builder(name, problem, channel, **own)
            measured[channel] = measure(trained(build, seeds, sizes, epsilons))
        found["algorithms"][name] = {
            "excess": {c: [interval(v) for v in excess.T] for c, (excess, _) in measured.items()},
            "gradient_mapping": {c: [interval(v) for v in norms.T] for c, (_, norms) in measured.items()},
            "sdp_over_central": [
                ratio(a, b) for a, b in zip(measured["shuffled-sum"][0].T, measured["trusted"][0].T, strict=True)
            ],
        }
        print(name, found["algorithms"][name]["sdp_over_central"], flush=True)
    return found


def _measure(problem: Problem, seeds: Sequence[Seed]) -> Callable[[Params], tuple[np.ndarray, np.ndarray]]:
    """Excess risk and norm of the gradient mapping of models, with axes (seeds, epsilons)."""
    step = 30.0

    @jax.jit
    def of(params: Params, start: Params, records: Any) -> Any:
        least = risk(problem, proximal_descent(problem, start, records, step, 300), records)
        return jax.vmap(lambda w: (risk(problem, w, records) - least, gradient_mapping(problem, w, records, step)))(
            params
        )

    def measure(params: Params) -> tuple[np.ndarray, np.ndarray]:
        rows = [
            of(jax.tree.map(lambda leaf, s=s: leaf[s], params), seed.params, seed.evaluation)
            for s, seed in enumerate(seeds)
        ]
        return np.asarray([row[0] for row in rows], float), np.asarray([row[1] for row in rows], float)

    return measure


def ratio(one: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """The ratio of two means over paired seeds, and the half-width of its 90% interval (to first order)."""
    value = float(one.mean() / other.mean())
    spread = interval(one - value * other)
    return {"mean": value, "half90": spread["half90"] / float(other.mean())}


def draw(folder: Path, data: Data) -> None:
    """Excess risk against epsilon by channel, one panel for each algorithm and problem."""
    panels = [(problem, name) for problem in ("ridge", "lasso") for name in data[problem]["algorithms"]]
    figure, axes = plt.subplots(1, len(panels), figsize=(2.4 * len(panels), 3.2), layout="constrained")
    for axis, (problem, name) in zip(axes, panels, strict=True):
        found = data[problem]
        for channel, (label, style) in STYLES.items():
            rows = found["algorithms"][name]["excess"][channel]
            means, bars = [row["mean"] for row in rows], [row["half90"] for row in rows]
            axis.errorbar(found["epsilon"], means, bars, fmt=style, ms=3, capsize=2, label=label)
        axis.set(yscale="log", title=f"{problem}, {name}")
        epsilon_axis(axis, found["epsilon"])
    axes[0].set_ylabel("excess risk")
    axes[0].legend(fontsize=7)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Ratios, verdicts and values of both problems."""
    problems = {name: data[name] for name in ("ridge", "lasso")}
    powers = [power for own in data["ridge"]["algorithms"].values() for power in _powers(data["ridge"]["epsilon"], own)]
    ends = min(powers), max(powers)
    return {
        "powers": ends,
        "costs": [1.04**power - 1 for power in ends],
        "within": WITHIN,
        "ratios": {name: _ratios(found) for name, found in problems.items()},
        "near": {name: _near(found) for name, found in problems.items()},
        "excess": {name: _values(found, "excess") for name, found in problems.items()},
        "mapping": _values(data["ridge"], "gradient_mapping"),
    }


def _powers(epsilons: Sequence[float], own: Data) -> list[float]:
    """With which power of epsilon the excess risk of central DP falls, between neighbouring budgets."""
    means = [row["mean"] for row in own["excess"]["trusted"]]
    return [-slope(epsilons[i : i + 2], means[i : i + 2]) for i in range(len(means) - 1)]


def _ratios(found: Data) -> str:
    return table(
        ["algorithm", "of the paper", *(f"epsilon {e:g}" for e in found["epsilon"])],
        [
            [name, PAPERS.get(name, ""), *(f"{r['mean']:.3f} +- {r['half90']:.3f}" for r in own["sdp_over_central"])]
            for name, own in found["algorithms"].items()
        ],
    )


def _values(found: Data, kind: str) -> str:
    cells = [
        [name, channel, *(f"{row['mean']:.3g} +- {row['half90']:.1g}" for row in values)]
        for name, own in found["algorithms"].items()
        for channel, values in own[kind].items()
    ]
    return table(["algorithm", "channel", *(f"epsilon {e:g}" for e in found["epsilon"])], cells)


def _near(found: Data) -> Data:
    """In how many cells the error through the shuffled sum is near enough to that of central DP."""
    cells = [r for own in found["algorithms"].values() for r in own["sdp_over_central"]]
    return {
        "cells": len(cells),
        "mean": sum(r["mean"] <= 1 + WITHIN for r in cells),
        "surely": sum(r["mean"] + r["half90"] <= 1 + WITHIN for r in cells),
        "largest": max(r["mean"] for r in cells),
    }


def finding(data: Data) -> Finding:
    """How near the shuffled sum comes to central DP; near enough in all cells, or in most."""
    near = {name: _near(data[name]) for name in ("ridge", "lasso")}
    said = [
        f"on {name} within {WITHIN:.0%} of central DP's error in {own['mean']} of {own['cells']} cells, at most "
        f"{own['largest']:.2f} times it"
        for name, own in near.items()
    ]
    holds = all(own["mean"] == own["cells"] for own in near.values())
    return Finding("; ".join(said), "reproduced" if holds else "partly")


EXPERIMENT = Experiment("sdp-against-central", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
