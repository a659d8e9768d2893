"""DP-mu^2 on MNIST: Tables 1 and 2 of Reshef and Levy, then the same budgets with bounded features.

``python -m experiments.mnist_mu2`` writes ``results/mnist-mu2``; it goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Runner, interval, together, train
from experiments.folder import PROTOCOL, Data, Experiment, Finding, Parts, save, table
from experiments.search import EVALUATION_SEEDS, TUNING_SEEDS, Point, Space, Trials, refuse_edges, search
from tacit import data
from tacit.algorithm import Terms
from tacit.algorithms.mu2_sgd import mu2_sgd
from tacit.data import Federation
from tacit.geometry import l2_ball
from tacit.objectives import Objective, Problem, linear, softmax
from tacit.plans.catalogue import find
from tacit.privacy import gdp_epsilon, gdp_mu
from tacit.silo import enrol
from tacit.simulate.compiled import Seed
from tacit.theory import ConvexSetting, mu2_sgd_from_theory

OBJECTIVE = Objective(linear(784, 10), softmax())
DELTA = 1e-5
RHOS = (4.0, 8.0, 16.0)
EPSILONS = (1.0, 3.0, 8.0)
SILOS = (1, 10, 100)
PRINTED = {
    ("direct", 1): ((2.256, 69.9), (2.253, 70.2), (2.252, 70.4)),
    ("direct", 10): ((2.267, 69.4), (2.259, 70.0), (2.255, 70.1)),
    ("direct", 100): ((2.285, 65.4), (2.274, 69.8), (2.264, 70.0)),
    ("trusted", 1): ((2.256, 69.9), (2.253, 70.2), (2.252, 70.4)),
    ("trusted", 10): ((2.256, 69.7), (2.253, 70.1), (2.252, 70.3)),
    ("trusted", 100): ((2.258, 69.5), (2.257, 69.6), (2.256, 69.7)),
}
"""Loss and accuracy as the paper prints them, for rho = 4, 8, 16."""

CLIP, RADIUS = 1.0, 100.0
"""Fixed after a look at clips of 0.5 to 2 and radii of 10 to 1000 on validation images, M = 100."""
STEPS = (10.0, 30.0, 100.0)
"""Step size x rounds: tuned for each cell."""


def compute(given: argparse.Namespace) -> Data:
    """What is missing of both settings at every size."""
    parts = Parts(given.out / "parts.json", [RHOS, EPSILONS, SILOS, STEPS, CLIP, RADIUS])
    cells = [(channel, m) for m in SILOS for channel in _channels(m)]
    paper = {f"{c} {m}": parts.get(f"paper, {c} {m}", partial(_paper, c, m)) for c, m in cells}
    chosen = _tuned(Trials(given.out / "trials.jsonl", [STEPS, CLIP, RADIUS]), cells)
    ours = {f"{c} {m}": parts.get(f"ours, {c} {m}", partial(_ours, c, m, chosen[f"{c} {m}"])) for c, m in cells}
    paper["trusted 1"], ours["trusted 1"] = paper["direct 1"], ours["direct 1"]
    printed = {f"{channel} {m}": cells for (channel, m), cells in PRINTED.items()}
    made = {"protocol": PROTOCOL, "delta": DELTA, "seeds": EVALUATION_SEEDS, "tuned": chosen}
    return {**made, "paper_setting": paper, "ours": ours, "printed": printed}


def _channels(silos: int) -> tuple[str, ...]:
    """With one silo the two channels are the same."""
    return ("direct",) if silos == 1 else ("direct", "trusted")


def _federation(features: str, validation: float) -> Federation:
    return data.load(
        "mnist", partition="iid", silos=100, validation=validation, holdout="official", features=features, seed=0
    )


def _seed(federation: Federation, silos: int, part: str, number: int) -> Seed:
    """The hundred parts dealt to so many silos; ``part`` is what is measured."""
    parts = [silo.train for silo in federation.silos]
    merged = [{k: np.concatenate([p[k] for p in parts[i::silos]]) for k in ("x", "y")} for i in range(silos)]
    start, measured = OBJECTIVE.init(jax.random.key(0)), together(federation, [part])
    return Seed(jax.random.key(number), start, enrol(merged), measured)


def _paper(channel: str, silos: int) -> list[dict[str, float]]:
    """The paper's constants, noise and step, with raw pixels and a set of diameter 0.1; no tuning."""
    rounds = 60_000 // silos
    setting = ConvexSetting(
        lipschitz=(2 * 785) ** 0.5,
        smoothness=785 / 2,
        radius=0.05,
        records=rounds,
        silos=silos,
        dimension=7850,
        epsilon=1.0,
        delta=DELTA,
    )
    terms = [mu2_sgd_from_theory(setting, rho=rho, channel=channel).parameters for rho in RHOS]  # type: ignore[arg-type]
    points = [{name: t[name] for name in ("step_size", "noise_multiplier")} for t in terms]
    problem = Problem(OBJECTIVE, l2_ball(0.05))

    def build(**point: Any) -> Any:
        return find("mu2-sgd").build(problem, **{**terms[0], **point})

    federation = _federation("pixels", 0.0)
    found = train(build, points, [_seed(federation, silos, "test", 0)], OBJECTIVE, rounds=rounds)
    return [
        {"rho": rho, "loss": float(loss), "accuracy": 100 * (1 - float(error))}
        for rho, loss, error in zip(RHOS, found["test_loss"][0], found["test_error"][0], strict=True)
    ]


def _budgets() -> dict[str, float]:
    """Label of a budget: its rho."""
    return {f"rho={rho:g}": rho for rho in RHOS} | {f"epsilon={e:g}": gdp_mu(e, DELTA) for e in EPSILONS}


def _builder(channel: str, rounds: int) -> Any:
    def build(step: Any, rho: Any) -> Any:
        terms = Terms(CLIP, rounds**0.5 / rho, 1, "one-pass", channel=channel)  # type: ignore[arg-type]
        recipe = mu2_sgd(step_size=step / rounds, num_rounds=rounds)
        return recipe(Problem(OBJECTIVE, l2_ball(RADIUS)), terms)

    return build


def _tuned(trials: Trials, cells: Sequence[tuple[str, int]]) -> dict[str, dict[str, Any]]:
    """The step for each channel, number of silos and budget, by the error on 10,000 validation images."""
    federation = _federation("unit-pixels", 1 / 6)
    chosen: dict[str, dict[str, Any]] = {}
    for channel, silos in cells:
        runner = Runner(_builder(channel, 50_000 // silos), OBJECTIVE, None, (3, 12))

        def run(points: list[Point], seed: int, runner: Runner = runner, silos: int = silos) -> Any:
            return runner(points, _seed(federation, silos, "validation", seed))

        cell = f"{channel} {silos}"
        chosen[cell] = {
            label: search(
                Space(f"{cell} {label}", {"step": STEPS}, derived=partial(_with, rho)),
                trials,
                run,
                "validation_error",
            )
            for label, rho in _budgets().items()
        }
    return chosen


def _with(rho: float, point: Point) -> Point:
    """What follows from a point: its budget."""
    return {"rho": rho}


def _ours(channel: str, silos: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """The chosen settings, trained once over all 60,000 images, on the official test images."""
    rounds = 60_000 // silos
    federation = _federation("unit-pixels", 0.0)
    seeds = [_seed(federation, silos, "test", TUNING_SEEDS + i) for i in range(EVALUATION_SEEDS)]
    labels = list(_budgets())
    points = [chosen[label]["point"] for label in labels]
    found = train(_builder(channel, rounds), points, seeds, OBJECTIVE, rounds=rounds)
    return {
        label: {
            "epsilon": gdp_epsilon(point["rho"], DELTA),
            "loss": interval(found["test_loss"][:, i]),
            "accuracy": interval(100 * (1 - found["test_error"][:, i])),
            **point,
        }
        for i, (label, point) in enumerate(zip(labels, points, strict=True))
    }


def draw(folder: Path, data: Data) -> None:
    """Accuracy against epsilon through both channels, beside what is printed."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axis, channel in zip(axes, ("direct", "trusted"), strict=True):
        for silos, colour in zip(SILOS, ("tab:blue", "tab:orange", "tab:green"), strict=True):
            cells = data["ours"][f"{channel} {silos}"].values()
            dots = sorted((cell["epsilon"], cell["accuracy"]["mean"]) for cell in cells)
            axis.plot(*zip(*dots, strict=True), "o-", color=colour, label=f"M = {silos}, clipped increments")
            printed = PRINTED[channel, silos]
            at = [gdp_epsilon(rho, DELTA) for rho in RHOS]
            axis.plot(at, [a for _, a in printed], "x:", color=colour, label=f"M = {silos}, as printed")
        axis.set(xscale="log", xlabel=r"$\epsilon$ at $\delta = 10^{-5}$", title=f"{channel} channel")
    axes[0].set_ylabel("test accuracy, %")
    axes[0].legend(fontsize=7)
    save(figure, folder / "figure.png", 150)


def words(data: Data) -> Data:
    """The paper's cells beside ours, and the accuracy of each budget."""
    paper, ours = data["paper_setting"], data["ours"]
    if "seeds" in data:
        refuse_edges({f"{c}, {label}": one for c, own in data["tuned"].items() for label, one in own.items()})
    cells = [(c, m) for c in ("direct", "trusted") for m in SILOS]
    gaps = [
        (abs(cell["loss"] - loss), abs(cell["accuracy"] - accuracy))
        for c, m in cells
        for cell, (loss, accuracy) in zip(paper[f"{c} {m}"], PRINTED[c, m], strict=True)
    ]
    reproduced = [
        [
            f"{rho:g} ({gdp_epsilon(rho, DELTA):.0f})",
            *("{:.3f} / {:.1f}".format(*PRINTED[c, m][i]) for c, m in cells),
            *("{loss:.3f} / {accuracy:.1f}".format(**paper[f"{c} {m}"][i]) for c, m in cells),
        ]
        for i, rho in enumerate(RHOS)
    ]
    budgets = [
        [label, f"{ours['direct 1'][label]['epsilon']:.1f}", *(_accuracy(ours[f"{c} {m}"][label]) for c, m in cells)]
        for label in _budgets()
    ]
    header = ["rho (epsilon)", *(f"{c}, M={m}: {whose}" for whose in ("printed", "ours") for c, m in cells)]
    return {
        "loss_gap": max(loss for loss, _ in gaps),
        "accuracy_gap": max(accuracy for _, accuracy in gaps),
        "meaning": ", ".join(f"{gdp_epsilon(rho, DELTA):.0f}" for rho in RHOS),
        "clip": CLIP,
        "radius": RADIUS,
        "repeated": data.get("seeds"),
        "reproduced": table(header, reproduced),
        "accuracies": table(["budget", "epsilon", *(f"{c}, M={m}" for c, m in cells)], budgets),
    }


def _accuracy(cell: Data) -> str:
    return f"{cell['accuracy']['mean']:.1f} ± {cell['accuracy']['std']:.1f}"


def finding(data: Data) -> Finding:
    """How near the printed tables are, and what budgets that mean something give."""
    told, ours = words(data), data["ours"]
    one = [ours[f"{c} {m}"]["epsilon=1"]["accuracy"]["mean"] for c in ("direct", "trusted") for m in SILOS]
    near = told["loss_gap"] < 0.01 and told["accuracy_gap"] < 2
    said = f"within {told['loss_gap']:.3f} in loss and {told['accuracy_gap']:.1f} points in accuracy of both tables"
    low, high = min(one), max(one)
    more = f"its rho are epsilon {told['meaning']}; at epsilon 1 bounded features give {low:.0f} to {high:.0f}%"
    return Finding(f"{said}; {more}", "reproduced" if near else "differs")


EXPERIMENT = Experiment("mnist-mu2", compute, draw, words, finding=finding, since=PROTOCOL)

if __name__ == "__main__":
    EXPERIMENT.main()
