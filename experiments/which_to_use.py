"""Which algorithm to use: general-purpose methods on real records, all tuned alike by rehearsal.

``python -m experiments.which_to_use`` writes ``results/which-to-use``. It can be stopped and goes on where it was.

A *rehearsal* trains on records that are made up from public facts alone: how many records each silo has, how many
features, the bound of their norm, the task and its classes. Step, clip and rounds that err least there are used on the
real records, so that tuning costs no privacy. Every method has the same grid.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import epsilon_axis, grid_of, interval, noise_for, records_of, seeds_of, train
from experiments.folder import Data, Experiment, Parts, save, table
from tacit.data import Federation
from tacit.data.federation import SiloData
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.plans.catalogue import find
from tacit.plans.spec import load_study
from tacit.studies.federation import federation_of

STUDIES = ("heart-disease", "insurance-linear", "adult-fair", "credit-card-fair", "california-housing-mlp",
           "mnist-logistic-parity")  # fmt: skip
"""Shipped studies whose records and silos are used, with a linear model."""
EPSILONS, DELTA, SEEDS = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5, 5
ROUNDS, STEPS, CLIPS = (10, 40), (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0), (0.1, 0.5, 2.0)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mb-sgd, full": ("mb-sgd", {"sampling": "full", "output": "last"}),
    "mb-sgd, Poisson": ("mb-sgd", {"sampling": "poisson", "output": "last"}),
    "mb-sgd, one pass": ("mb-sgd", {"sampling": "one-pass", "output": "last"}),
    "dp-ftrl, one pass": ("dp-ftrl", {"sampling": "one-pass"}),
    "accelerated-mb-sgd": ("accelerated-mb-sgd", {"sampling": "full"}),
    "one-pass-accelerated": ("one-pass-accelerated", {"sampling": "one-pass"}),
    "quantile-clip": ("quantile-clip", {"sampling": "full"}),
    "alternate-spider": ("alternate-spider", {"sampling": "full"}),
    "local-sgd": ("local-sgd", {"sampling": "full", "local_steps": 2}),
}
DIRECT_ONLY = ("dp-ftrl, one pass", "local-sgd")
"""What has no price through pairwise sums."""


def compute(given: Any) -> Data:
    """Every study, channel, budget and method."""
    settings = {"epsilons": EPSILONS, "rounds": ROUNDS, "steps": STEPS, "clips": CLIPS, "seeds": SEEDS}
    parts = Parts(given.out / "parts.json", {**settings, "tiny": given.tiny})
    found: dict[str, Any] = {}
    for study in STUDIES[:1] if given.tiny else STUDIES:
        for channel in ("direct", "pairwise"):
            for name in (n for n in METHODS if channel == "direct" or n not in DIRECT_ONLY):
                for epsilon in EPSILONS[1:2] if given.tiny else EPSILONS:
                    label = f"{study} | {channel} | {name} | {epsilon:g}"
                    found[label] = parts.get(label, partial(_one, study, channel, name, epsilon, given.tiny))
    return {**settings, "delta": DELTA, "found": found}


def _one(study: str, channel: str, name: str, epsilon: float, tiny: bool) -> dict[str, Any]:
    """The point that errs least in rehearsal, and its test errors on the real records."""
    federations = [federation_of(load_study(study), seed) for seed in range(2 if tiny else SEEDS)]
    problem, records = _problem(federations[0]), records_of(federations[0])
    rehearsed = seeds_of([rehearsal(federations[0])], problem.objective, ("test",))
    best: tuple[float, int, dict[str, float]] = (np.inf, 0, {})
    for rounds in ROUNDS[:1] if tiny else ROUNDS:
        build = _builder(problem, records, channel, name, epsilon, rounds)
        points = grid_of(step_size=STEPS, clip_norm=CLIPS)
        errors = train(build, points, rehearsed, problem.objective, rounds=rounds)[_metric(federations[0])][0]
        least = int(np.argmin(np.where(np.isfinite(errors), errors, np.inf)))
        best = min(best, (float(errors[least]), rounds, points[least]), key=lambda row: row[0])
    _, rounds, point = best
    build = _builder(problem, records, channel, name, epsilon, rounds)
    found = train(build, [point], seeds_of(federations, problem.objective, ("test",)), problem.objective, rounds=rounds)
    grid = {"step_size": STEPS, "clip_norm": CLIPS}
    edges = [key for key, values in grid.items() if point[key] in (values[0], values[-1])]
    errors = [float(error) for error in found[_metric(federations[0])][:, 0]]
    return {"error": errors, "rounds": rounds, **point, "edges": edges}


def _builder(problem: Problem, records: list[int], channel: str, name: str, epsilon: float, rounds: int) -> Any:
    """The method at this budget, as a function of step and clip."""
    algorithm, own = METHODS[name]
    batch = None if own["sampling"] == "full" else max(1, min(records) // rounds)
    terms = {"batch_size": batch, "num_rounds": rounds, "channel": channel, **own}
    if own["sampling"] == "poisson":
        terms["capacity"] = min(min(records), 2 * (batch or 1) + 10)

    def priced(noise_multiplier: Any) -> Any:
        return find(algorithm).build(problem, step_size=1.0, clip_norm=1.0, noise_multiplier=noise_multiplier, **terms)

    noise = noise_for(priced, records, epsilon, DELTA)
    return lambda **point: find(algorithm).build(problem, noise_multiplier=noise, **terms, **point)


def _problem(federation: Federation) -> Problem:
    """A linear model with the loss of the task."""
    width, classes = int(np.prod(federation.feature_shape)), federation.num_classes or 1
    if federation.task == "regression":
        return Problem(Objective(linear(width, 1), squared()))
    if classes == 2:
        return Problem(Objective(linear(width, 1), logistic()))
    return Problem(Objective(linear(width, classes), softmax()))


def _metric(federation: Federation) -> str:
    return "test_loss" if federation.task == "regression" else "test_error"


def rehearsal(federation: Federation) -> Federation:
    """Records in place of the real ones, drawn from public facts alone: sizes, widths, the bound of norms, the task."""
    generator = np.random.default_rng(0)
    width, classes = int(np.prod(federation.feature_shape)), federation.num_classes or 1
    rule = generator.normal(size=(width, max(classes, 2)))
    bound = federation.feature_norm or 1.0

    def drawn(count: int) -> dict[str, np.ndarray]:
        x = generator.normal(size=(count, width))
        x *= bound * generator.uniform(size=(count, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
        scores = x @ rule / bound + 0.3 * generator.normal(size=(count, rule.shape[1]))
        y = np.tanh(scores[:, 0]) if federation.task == "regression" else scores.argmax(axis=1)
        shape = (count, *federation.feature_shape)
        return {"x": x.reshape(shape).astype(np.float32), "y": y.astype(federation.silos[0].train["y"].dtype)}

    def instead(silo: SiloData) -> SiloData:
        train, validation, test = (drawn(len(part["y"])) for part in (silo.train, silo.validation, silo.test))
        return replace(silo, train=train, validation=validation, test=test)

    return replace(federation, silos=tuple(map(instead, federation.silos)))


def rows_of(data: Data) -> list[tuple[str, str, str, float, dict[str, Any]]]:
    """Study, channel, method, epsilon and what was found."""
    split = [(*label.split(" | "), found) for label, found in data["found"].items()]
    return [(study, channel, name, float(epsilon), found) for study, channel, name, epsilon, found in split]


def draw(folder: Path, data: Data) -> None:
    """Error against epsilon, a panel for each study and channel."""
    rows = rows_of(data)
    panels = list(dict.fromkeys((study, channel) for study, channel, *_ in rows))
    figure, axes = plt.subplots(-(-len(panels) // 2), 2, figsize=(11, 3.4 * -(-len(panels) // 2)), squeeze=False,
                                layout="constrained")  # fmt: skip
    for axis, panel in zip(axes.ravel(), panels, strict=False):
        for name in METHODS:
            own = [(e, interval(f["error"])) for study, c, n, e, f in rows if (study, c, n) == (*panel, name)]
            if own:
                means, halves = ([row[key] for _, row in own] for key in ("mean", "half90"))
                axis.errorbar([e for e, _ in own], means, halves, label=name, capsize=2)
        epsilon_axis(axis, sorted({e for *_, e, _ in rows}))
        axis.set(title=", ".join(panel), ylabel="test error or loss")
    axes[0, 0].legend(fontsize=6)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """A table for each study and channel, how often each method is best or within the best one's interval."""
    rows, tables, level = rows_of(data), [], dict.fromkeys(METHODS, 0)
    epsilons = sorted({e for *_, e, _ in rows})
    panels = list(dict.fromkeys((study, channel) for study, channel, *_ in rows))
    for panel in panels:
        own = {(n, e): (interval(f["error"]), f["rounds"]) for study, c, n, e, f in rows if (study, c) == panel}
        shown = [n for n in METHODS if any(key[0] == n for key in own)]
        for epsilon in epsilons:
            best = min((own[n, epsilon][0] for n in shown), key=lambda row: row["mean"])
            for name in shown:
                level[name] += own[name, epsilon][0]["mean"] <= best["mean"] + best["half90"]
        cells = [[n, *[_cell(*own[n, e]) for e in epsilons]] for n in shown]
        header = ["method", *[f"epsilon {e:g}" for e in epsilons]]
        tables.append(f"## {panel[0]}, {panel[1]}\n\n" + table(header, cells))
    edges = sum(bool(found["edges"]) for *_, found in rows)
    return {
        "tables": "\n\n".join(tables),
        "level": table(["method", "level with the best"], sorted(level.items(), key=lambda row: -row[1])),
        "cases": len(panels) * len(epsilons),
        "edges": edges,
        "runs": len(rows),
        "points": len(STEPS) * len(CLIPS) * len(ROUNDS),
    }


def _cell(found: dict[str, float], rounds: int) -> str:
    return f"{found['mean']:.3f} ± {found['half90']:.3f} ({rounds})"


EXPERIMENT = Experiment("which-to-use", compute, draw, words, tiny=True)

if __name__ == "__main__":
    EXPERIMENT.main()
