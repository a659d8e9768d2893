"""Noise that remembers: what is left of it in sums over rounds, and what that does to error on MNIST at equal epsilon.

``python -m experiments.correlated_noise`` writes ``results/correlated-noise``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Runner, epsilon_axis, interval, noise_for, records_of, together, verdict
from experiments.folder import Data, Experiment, Finding, Parts, save, table
from experiments.search import Point, Space, Trials, refuse_edges, search
from tacit import data
from tacit.data import Federation
from tacit.objectives import Objective, Problem, linear, softmax
from tacit.plans.catalogue import find
from tacit.privacy.strategy import correlated
from tacit.silo import enrol
from tacit.silo.noise import no_buffers, remembered
from tacit.silo.sampler import discrete_gaussian
from tacit.simulate.compiled import Seed

PROBLEM = Problem(Objective(linear(784, 10), softmax()))
SILOS, BATCHES, CLIP, DELTA = 10, 100, 1.0, 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
STEPS = (30.0, 100.0, 300.0, 1000.0, 3000.0)
"""Step size x rounds to begin with: chosen for each method and epsilon by the error on validation images."""
TUNING, SEEDS = 3, 5
WIDTH = 6
"""How many points are trained in one program."""
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "fresh, one pass": ("mb-sgd", BATCHES, {"sampling": "one-pass", "output": "last"}),
    "remembers, one pass": ("dp-ftrl", BATCHES, {"sampling": "one-pass"}),
    "fresh, four passes": ("mb-sgd", 4 * BATCHES, {"sampling": "one-pass", "output": "last", "passes": 4}),
    "remembers, four passes": ("dp-ftrl", 4 * BATCHES, {"sampling": "one-pass", "passes": 4}),
    "fresh, Poisson": ("mb-sgd", 4 * BATCHES, {"sampling": "poisson", "output": "last"}),
    "fresh, full batches": ("mb-sgd", 20, {"sampling": "full", "output": "last"}),
}
SHAPES = ((100, 100), (1000, 1000), (400, 100), (100, 10))
"""Rounds, and after how many of them a record comes again."""


def compute(given: Any) -> Data:
    """The noise of sums as a door draws it, and the error of every method at every epsilon."""
    settings = {"epsilons": EPSILONS, "steps": STEPS, "seeds": SEEDS, "tuning": TUNING, "tiny": given.tiny}
    parts = Parts(given.out / "parts.json", settings)
    noise = parts.get("noise", lambda: [_noise(*shape) for shape in SHAPES])
    federation, found = _federation(given.tiny), {}
    for name in METHODS:
        method = Tuned(name, federation, Trials(given.out / "trials.jsonl", settings, chunk=WIDTH))
        for epsilon in EPSILONS[1:2] if given.tiny else EPSILONS:
            label = f"{name}, epsilon {epsilon:g}"
            found[label] = parts.get(label, partial(method.cell, epsilon))
    parted = {part: {label: row[part] for label, row in found.items()} for part in ("choice", "error")}
    told = {"delta": DELTA, "silos": SILOS, "noise": noise}
    return {**settings, **told, "choices": parted["choice"], "errors": parted["error"]}


def _noise(rounds: int, apart: int) -> dict[str, float]:
    """The noise of the sum over all rounds, over that of one full batch at the same price: promised and measured."""
    strategy, sigma, coordinates = correlated(rounds, apart), 2.0**30, 2000
    buffers, total = no_buffers(strategy, coordinates), np.zeros(coordinates)
    for _ in range(rounds):
        noise, buffers = remembered(strategy, buffers, discrete_gaussian(coordinates, sigma))
        total += noise
    price = math.sqrt(strategy.square(range(0, rounds, apart)))
    fresh = math.sqrt(len(range(0, rounds, apart)) * rounds)
    found = {"promised": price * float(strategy.sums[-1]), "measured": price * float(total.std()) / sigma}
    return {"rounds": rounds, "apart": apart, "fresh": fresh, **found}


def _federation(tiny: bool) -> Federation:
    made = data.load(
        "mnist", partition="iid", silos=SILOS, validation=1 / 6, holdout="official", features="unit-pixels", seed=0
    )
    if not tiny:
        return made
    silos = tuple(replace(s, train={k: v[:400] for k, v in s.train.items()}) for s in made.silos)
    return replace(made, silos=silos)


class Tuned:
    """One method, its program and its trials at all budgets."""

    def __init__(self, name: str, federation: Federation, trials: Trials) -> None:
        self.name, self.federation, self.trials = name, federation, trials
        self.runner = Runner(self.build, PROBLEM.objective, None, (WIDTH,))

    def build(self, noise_multiplier: Any, step: Any = 1.0) -> Any:
        """The algorithm; ``step`` is step size x rounds."""
        algorithm, rounds, own = METHODS[self.name]
        batch = min(records_of(self.federation)) // BATCHES
        terms = {"clip_norm": CLIP, "batch_size": None if own["sampling"] == "full" else batch, "num_rounds": rounds}
        if own["sampling"] == "poisson":
            terms["capacity"] = 2 * batch
        given = {"step_size": step / rounds, "noise_multiplier": noise_multiplier, **terms, **own}
        return find(algorithm).build(PROBLEM, **given)

    def cell(self, epsilon: float) -> dict[str, Any]:
        """The step that errs least on validation images, and the test error of each of other seeds with it."""
        noise = float(noise_for(self.build, records_of(self.federation)[:1], epsilon, DELTA)[0])
        space = Space(f"{self.name}, {epsilon:g}", {"step": STEPS}, derived=lambda _: {"noise_multiplier": noise})
        choice = search(space, self.trials, self.run, "validation_error", seeds=range(TUNING))
        reported = range(TUNING, TUNING + SEEDS)
        found = self.trials.get(space.label, [choice["point"]], reported, self.run)["test_error"][:, 0]
        return {"choice": choice, "error": [float(error) for error in found]}

    def run(self, points: list[Point], number: int) -> Any:
        """Trials on one seed."""
        return self.runner(points, _seed(self.federation, number))


def _seed(federation: Federation, number: int) -> Seed:
    silos = enrol([silo.train for silo in federation.silos], [silo.name for silo in federation.silos])
    measured = together(federation, ["validation", "test"])
    return Seed(jax.random.key(number), PROBLEM.objective.init(jax.random.key(0)), silos, measured)


def draw(folder: Path, data: Data) -> None:
    """Test error against epsilon."""
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    epsilons = [e for e in data["epsilons"] if f"{next(iter(METHODS))}, epsilon {e:g}" in data["errors"]]
    for name in METHODS:
        rows = [interval(data["errors"][f"{name}, epsilon {e:g}"]) for e in epsilons]
        axis.errorbar(epsilons, [r["mean"] for r in rows], [r["half90"] for r in rows], label=name, capsize=2)
    epsilon_axis(axis, epsilons)
    axis.set(ylabel="test error")
    axis.legend(fontsize=8)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Tables, and what they say."""
    epsilons = [e for e in data["epsilons"] if f"{next(iter(METHODS))}, epsilon {e:g}" in data["errors"]]
    means = {n: [interval(data["errors"][f"{n}, epsilon {e:g}"]) for e in epsilons] for n in METHODS}
    rows = [[n, *[f"{100 * r['mean']:.1f} ± {100 * r['half90']:.1f}" for r in own]] for n, own in means.items()]
    best = [min((own[i]["mean"], name) for name, own in means.items())[1] for i in range(len(epsilons))]
    pairs = [("fresh, one pass", "remembers, one pass"), ("fresh, four passes", "remembers, four passes")]
    errors = {(n, e): np.asarray(data["errors"][f"{n}, epsilon {e:g}"]) for n in METHODS for e in epsilons}
    said = [[verdict(interval(errors[b, e] - errors[a, e])) for e in epsilons] for a, b in pairs]
    if not data["tiny"]:
        refuse_edges(data["choices"])
    noise = [[r["rounds"], -(-r["rounds"] // r["apart"]), f"{r['fresh']:.1f}", *_shown(r)] for r in data["noise"]]
    return {
        "sums": table(["rounds", "passes", "fresh", "promised", "measured"], noise),
        "accuracies": table(["test error, %", *[f"epsilon {e:g}" for e in epsilons]], rows),
        "best": _by_name(best, epsilons),
        "counts": [{word: own.count(word) for word in ("below", "level", "above")} for own in said],
        "of": len(epsilons),
        "clip": CLIP,
    }


def _by_name(best: list[str], epsilons: list[float]) -> str:
    """Who is best, and where.

    >>> _by_name(["a", "b", "b"], [0.5, 1.0, 2.0])
    'a (at epsilon 0.5), b (at epsilon 1, 2)'
    """
    where = {n: [f"{e:g}" for e, own in zip(epsilons, best, strict=True) if own == n] for n in dict.fromkeys(best)}
    if len(where) == 1:
        return f"{best[0]} (at every epsilon)"
    return ", ".join(f"{name} (at epsilon {', '.join(own)})" for name, own in where.items())


def _shown(row: Data) -> list[str]:
    return [f"{row[name]:.2f}" for name in ("promised", "measured")]


def finding(data: Data) -> Finding:
    """What is left of the noise of a pass, and at how many budgets it helps."""
    passes = [row for row in data["noise"] if row["apart"] == row["rounds"]]
    sums = ", ".join(f"{row['measured']:.2f} times (fresh: {row['fresh']:.1f})" for row in passes)
    told = words(data)
    one, of = told["counts"][0], told["of"]
    batches = " and ".join(str(row["rounds"]) for row in passes)
    said = f"the sum of a pass of {batches} batches has {sums} the noise of a full batch; on MNIST in one pass it "
    errs = f"errs less at {one['below']} of {of} budgets, more at {one['above']}"
    holds = all(row["measured"] < row["fresh"] for row in passes) and one["above"] == 0
    return Finding(said + errs, "reproduced" if holds else "partly")


EXPERIMENT = Experiment("correlated-noise", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
