"""Which algorithm to use: general-purpose methods on real records, all tuned alike by rehearsal.

``python -m experiments.which_to_use`` writes ``results/which-to-use``. It can be stopped and goes on where it was.

A *rehearsal* trains on records that are made up from public facts alone: how many records each silo has, how many
features, the bound of their norm, the task and its classes. Step, clip and rounds that err least there are used on the
real records, so that tuning costs no privacy. Every method has the same grid, of which every second step and clip is
tried first, and then all neighbours of the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Runner, grid_of, interval, noise_for, records_of, seeds_of, train
from experiments.folder import Data, Experiment, Finding, Parts, save, table
from tacit.algorithm import Algorithm
from tacit.data import Federation
from tacit.data.federation import SiloData
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.plans.catalogue import find
from tacit.plans.spec import load_study
from tacit.simulate.compiled import Seed
from tacit.studies.federation import federation_of

STUDIES = ("heart-disease", "insurance-linear", "adult-fair", "credit-card-fair", "california-housing-mlp",
           "mnist-logistic-parity")  # fmt: skip
"""Shipped studies whose records and silos are used, with a linear model."""
EPSILONS, DELTA, SEEDS = (0.5, 1.0, 2.0, 4.0, 8.0), 1e-5, 5
ROUNDS = (10, 40)
TRAVELS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Step times clip: how far one round may move a model."""
CLIPS = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Below the least of them all gradients are clipped and only the travel counts; above the largest none is."""
REHEARSED, SCORED = 20_000, 5_000
"""A rehearsal is repeated until so many records were made up, and scored on at least so many others."""
WIDTH = 40
"""How many points are trained in one program."""

_FULL: dict[str, Any] = {"sampling": "full"}
_PHASES: dict[str, Any] = {**_FULL, "phase_length": 2}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mb-sgd": ("mb-sgd", {**_FULL, "output": "last"}),
    "mb-sgd, momentum": ("mb-sgd", {**_FULL, "output": "last", "server": "momentum"}),
    "mb-sgd, adam": ("mb-sgd", {**_FULL, "output": "last", "server": "adam"}),
    "mb-sgd, Poisson": ("mb-sgd", {"sampling": "poisson", "output": "last"}),
    "mb-sgd, allocation": ("mb-sgd", {"sampling": "allocation", "output": "last"}),
    "mb-sgd, one pass": ("mb-sgd", {"sampling": "one-pass", "output": "last"}),
    "dp-ftrl": ("dp-ftrl", {"sampling": "one-pass"}),
    "mu2-sgd": ("mu2-sgd", {"sampling": "one-pass"}),
    "prox-sgd": ("prox-sgd", {"sampling": "one-pass"}),
    "accelerated-mb-sgd": ("accelerated-mb-sgd", _FULL),
    "one-pass-accelerated": ("one-pass-accelerated", {"sampling": "one-pass"}),
    "localised-mb-sgd": ("localised-mb-sgd", {"sampling": "one-pass"}),
    "quantile-clip": ("quantile-clip", _FULL),
    "preconditioned-sgd": ("preconditioned-sgd", _FULL),
    "prox-svrg": ("prox-svrg", _PHASES),
    "pl-svrg": ("pl-svrg", {**_PHASES, "restarts": 2}),
    "prox-spider": ("prox-spider", _PHASES),
    "alternate-spider": ("alternate-spider", _FULL),
    "warm-spider": ("warm-spider", {**_PHASES, "warm_rounds": 2}),
    "diff2-gd": ("diff2-gd", _PHASES),
    "diff2-bvr-lsgd": ("diff2-bvr-lsgd", {**_PHASES, "local_steps": 2}),
    "mb-psgm": ("mb-psgm", _PHASES),
    "mb-psgm-fg": ("mb-psgm-fg", _PHASES),
    "ce-psgm": ("ce-psgm", {**_PHASES, "local_steps": 2}),
    "ce-psgm-fg": ("ce-psgm-fg", {**_PHASES, "local_steps": 2}),
    "local-sgd": ("local-sgd", {**_FULL, "local_steps": 2}),
}
AXES: dict[str, dict[str, tuple[float, ...]]] = {"localised-mb-sgd": {"strength": (0.01, 0.1, 1.0)}}
"""What a method needs beyond step and clip, and no fact that is public gives."""
_MOST_BEHIND = 50.0
DIRECT_ONLY = ("dp-ftrl", "local-sgd")
"""What has no price through pairwise sums."""


def compute(given: Any) -> Data:
    """Every study, channel and method, at all budgets."""
    settings = {"epsilons": EPSILONS, "rounds": ROUNDS, "travels": TRAVELS, "clips": CLIPS, "seeds": SEEDS}
    parts = Parts(given.out / "parts.json", {**settings, "tiny": given.tiny})
    found: dict[str, Any] = {}
    for study in STUDIES[:1] if given.tiny else STUDIES:
        for channel in ("direct", "pairwise"):
            for name in (n for n in METHODS if channel == "direct" or n not in DIRECT_ONLY):
                label = f"{study} | {channel} | {name}"
                found[label] = parts.get(label, partial(_one, study, channel, name, given.tiny))
    return {**settings, "delta": DELTA, "found": found}


def _one(study: str, channel: str, name: str, tiny: bool) -> dict[str, Any]:
    """By epsilon: the point that errs least in rehearsal, and its test errors on the real records."""
    federations = [federation_of(load_study(study), seed) for seed in range(2 if tiny else SEEDS)]
    problem, records = _problem(federations[0]), records_of(federations[0])
    times = 1 if tiny else max(1, min(SEEDS, REHEARSED // sum(records)))
    rehearsed = seeds_of([rehearsal(federations[0], i) for i in range(times)], problem.objective, ("test",))
    metric, epsilons = _metric(federations[0]), EPSILONS[1:2] if tiny else EPSILONS
    real = seeds_of(federations, problem.objective, ("test",))
    best: dict[float, tuple[float, int, dict[str, Any]]] = dict.fromkeys(epsilons, (np.inf, 0, {}))
    for rounds in ROUNDS[:1] if tiny else ROUNDS:
        build, noise = _builder(problem, records, channel, name, epsilons, rounds)
        runner = Runner(build, problem.objective, None, (WIDTH,))
        for epsilon, (error, point) in _rehearsed(
            partial(_errors, runner, rehearsed, metric), name, noise, tiny
        ).items():
            if error < best[epsilon][0]:
                best[epsilon] = (error, rounds, point)
    found: dict[str, Any] = {}
    for rounds in {rounds for _, rounds, _ in best.values()}:
        build, _ = _builder(problem, records, channel, name, epsilons, rounds)
        chosen = {epsilon: point for epsilon, (_, own, point) in best.items() if own == rounds}
        errors = train(build, list(chosen.values()), real, problem.objective, rounds=10**9)[metric]
        for column, (epsilon, point) in enumerate(chosen.items()):
            plain = {key: value for key, value in point.items() if key not in ("epsilon", "noise_multiplier")}
            axes = {"travel": TRAVELS, **AXES.get(name, {})}
            edge = any(point[axis] in (values[0], values[-1]) for axis, values in axes.items())
            row = {"error": [float(error) for error in errors[:, column]], "rounds": rounds, **plain, "edge": edge}
            found[f"{epsilon:g}"] = row
    return found


def _errors(runner: Runner, rehearsed: Sequence[Seed], metric: str, points: list[dict[str, Any]]) -> np.ndarray:
    """The mean error of every point over the rehearsals; a run that diverged is infinitely bad."""
    parts = [points[i : i + WIDTH] for i in range(0, len(points), WIDTH)]
    found = [np.concatenate([runner(part, seed)[metric] for part in parts]) for seed in rehearsed]
    return np.nan_to_num(np.mean(found, axis=0), nan=np.inf)


def _rehearsed(
    errors: Callable[[list[dict[str, Any]]], np.ndarray], name: str, noise: dict[float, np.ndarray], tiny: bool
) -> dict[float, tuple[float, dict[str, Any]]]:
    """The best point at every budget: every second travel and clip is tried, then the neighbours of the best."""
    travels, clips = (TRAVELS[4:7], CLIPS[2:4]) if tiny else (TRAVELS, CLIPS)
    best: dict[float, tuple[float, dict[str, Any]]] = dict.fromkeys(noise, (np.inf, {}))

    def trying(points: list[dict[str, Any]]) -> None:
        for point, error in zip(points, errors(points), strict=True):
            if error < best[point["epsilon"]][0]:
                best[point["epsilon"]] = (float(error), point)

    own = AXES.get(name, {})
    points = grid_of(epsilon=list(noise), travel=travels[::2], clip_norm=clips[::2], **own)
    trying([{**point, "noise_multiplier": noise[point["epsilon"]]} for point in points])
    near = []
    for _, point in best.values():
        beside = grid_of(travel=_around(travels, point["travel"]), clip_norm=_around(clips, point["clip_norm"]))
        near += [{**point, **other} for other in beside if {**point, **other} != point]
    trying(near)
    return best


def _around(values: Sequence[float], value: float) -> Sequence[float]:
    """A value and its neighbours."""
    at = values.index(value)
    return values[max(0, at - 1) : at + 2]


def _builder(
    problem: Problem, records: list[int], channel: str, name: str, epsilons: Sequence[float], rounds: int
) -> tuple[Callable[..., Algorithm], dict[float, np.ndarray]]:
    """The method as a function of a point, and the noise of each silo at each budget."""
    algorithm, own = METHODS[name]
    batch = None if own["sampling"] == "full" else max(1, min(records) // rounds)
    terms = {"batch_size": batch, "num_rounds": rounds, "channel": channel, **own}
    if "phase_length" in own:
        terms["difference_slope"] = problem.smoothness
    if own["sampling"] == "poisson":
        terms["capacity"] = min(min(records), 2 * (batch or 1) + 10)
    usual = {name: values[0] for name, values in AXES.get(name, {}).items()}

    def build(travel: Any = 1.0, clip_norm: Any = 1.0, epsilon: Any = None, **given: Any) -> Algorithm:
        return find(algorithm).build(
            problem, step_size=travel / clip_norm, clip_norm=clip_norm, **terms, **{**usual, **given}
        )

    return build, {epsilon: noise_for(build, records, epsilon, DELTA) for epsilon in epsilons}


def _problem(federation: Federation) -> Problem:
    """A linear model with the loss of the task, and the smoothness that follows from the bound of features' norms."""
    width, classes = int(np.prod(federation.feature_shape)), federation.num_classes or 1
    square = (federation.feature_norm or 1.0) ** 2 + 1.0
    if federation.task == "regression":
        return Problem(Objective(linear(width, 1), squared()), smoothness=square)
    if classes == 2:
        return Problem(Objective(linear(width, 1), logistic()), smoothness=square / 4)
    return Problem(Objective(linear(width, classes), softmax()), smoothness=square / 2)


def _metric(federation: Federation) -> str:
    return "test_loss" if federation.task == "regression" else "test_error"


def rehearsal(federation: Federation, seed: int) -> Federation:
    """Records in place of the real ones, drawn from public facts alone: sizes, widths, the bound of norms, the task."""
    generator, scored = np.random.default_rng(seed), -(-SCORED // len(federation.silos))
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
        test = drawn(max(scored, len(silo.test["y"])))
        return replace(silo, train=drawn(len(silo.train["y"])), validation=drawn(len(silo.validation["y"])), test=test)

    return replace(federation, silos=tuple(map(instead, federation.silos)))


def rows_of(data: Data) -> list[tuple[str, str, str, float, dict[str, Any]]]:
    """Study, channel, method, epsilon and what was found."""
    return [
        (*label.split(" | "), float(epsilon), found)
        for label, own in data["found"].items()
        for epsilon, found in own.items()
    ]


def draw(folder: Path, data: Data) -> None:
    """How far each method is behind the best of its case: a row for each method, a column for each case."""
    means = {(*label, e): interval(found["error"])["mean"] for *label, e, found in rows_of(data)}
    panels = list(dict.fromkeys((study, channel) for study, channel, *_ in rows_of(data)))
    epsilons = sorted({e for *_, e, _ in rows_of(data)})
    cases = [(*panel, e) for panel in panels for e in epsilons]
    behind = np.full((len(METHODS), len(cases)), np.nan)
    for column, (study, channel, epsilon) in enumerate(cases):
        own = [means.get((study, channel, name, epsilon), np.nan) for name in METHODS]
        behind[:, column] = 100 * (np.asarray(own) / np.nanmin(own) - 1)
    order = np.argsort(np.nanmean(np.minimum(behind, _MOST_BEHIND), axis=1))
    figure, axis = plt.subplots(figsize=(13, 7), layout="constrained")
    image = axis.imshow(behind[order], aspect="auto", cmap="viridis_r", vmin=0, vmax=_MOST_BEHIND)
    axis.set_yticks(range(len(METHODS)), [list(METHODS)[i] for i in order], fontsize=8)
    axis.set_xticks(range(len(cases)), [f"{e:g}" for *_, e in cases], fontsize=6)
    axis.set_xlabel("epsilon, for each study and channel (white: no price in this channel)")
    for number, (study, channel) in enumerate(panels):
        middle, title = (number + 0.5) * len(epsilons) - 0.5, study.replace("-", "-\n", 1)
        axis.text(middle, -0.8, f"{title}\n{channel}", ha="center", va="bottom", fontsize=7)
        axis.axvline((number + 1) * len(epsilons) - 0.5, color="white", lw=2)
    figure.colorbar(image, label=f"percent above the best of the case ({_MOST_BEHIND:g} and more)", pad=0.01)
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
    edges = sum(found["edge"] for *_, found in rows)
    ranked = sorted(level.items(), key=lambda row: -row[1])
    return {
        "tables": "\n\n".join(tables),
        "level": table(["method", "level with the best"], ranked),
        "ranked": ranked,
        "cases": len(panels) * len(epsilons),
        "edges": edges,
        "runs": len(rows),
        "points": len(data["travels"]) * len(data["clips"]) * len(data["rounds"]),
    }


def _cell(found: dict[str, float], rounds: int) -> str:
    return f"{found['mean']:.3f} ± {found['half90']:.3f} ({rounds})"


def finding(data: Data) -> Finding:
    """The methods that are most often level with the best."""
    told = words(data)
    most = ", ".join(f"{name} ({count})" for name, count in told["ranked"][:3])
    return Finding(f"most often level with the best of {told['cases']} cases: {most}", "none")


EXPERIMENT = Experiment("which-to-use", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
