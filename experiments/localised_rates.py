"""Localised minibatch SGD beside its rivals: population risk of silos that differ, at equal epsilon and equal rounds.

``python -m experiments.localised_rates`` writes ``results/localised-rates``. Records are drawn: every silo has its own
features and its own answers, so that no silo speaks for the others. All methods are logistic regression through direct
messages; each has its step (and strength) by the excess risk of three seeds, away from the edges of its grid, and is
reported on five others. Every trial is kept as soon as it is there: the same command goes on where an earlier stopped.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import columns, interval, noise_for, slope, verdict
from experiments.folder import PROTOCOL, Data, Experiment, Finding, save, table
from experiments.search import EVALUATION_SEEDS, TUNING_SEEDS, Point, Space, Trials, refuse_edges, search
from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Program, Seed, grid_program, simulate_grid
from tacit.simulate.participation import participation
from tacit.theory import proximal_descent

SILOS, DIMENSION, EPSILON, DELTA = 20, 10, 1.0, 1e-6
RECORDS, ROUNDS = (512, 4096), (24, 96)
POPULATION = 2000  # records of each silo that stand for its population
PHASES, RESTARTS = 3, 2
METHODS: dict[str, dict[str, tuple[float, ...]]] = {
    "localised-mb-sgd": {"step_size": (0.25, 1.0, 4.0), "strength": (0.0025, 0.01, 0.04)},
    "one-pass-accelerated": {"step_size": (0.05, 0.2, 0.8)},
    "mb-sgd": {"step_size": (0.5, 2.0, 8.0)},
    "accelerated-mb-sgd": {"step_size": (0.25, 1.0, 4.0)},
}
PROBLEM = Problem(Objective(linear(DIMENSION, 1, bias=False), logistic()))


def drawn(seed: int, count: int) -> list[dict[str, np.ndarray]]:
    """Records of every silo; seeds share the silos' distributions."""
    public = np.random.default_rng(0)
    common, centres = public.normal(size=DIMENSION), public.normal(size=(SILOS, DIMENSION))
    rules = common + public.normal(size=(SILOS, DIMENSION))
    rng, made = np.random.default_rng(seed + 1), []
    for i in range(SILOS):
        x = rng.normal(size=(count, DIMENSION)) + 0.5 * centres[i]
        x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        chance = 1 / (1 + np.exp(-4 * x @ rules[i]))
        made.append({"x": x.astype(np.float32), "y": (rng.uniform(size=count) < chance).astype(np.int32)})
    return made


@cache
def population() -> tuple[dict[str, Any], float]:
    """The records that stand for all silos' populations, and the least risk there."""
    tables = drawn(10**6, POPULATION)
    records = {name: jnp.asarray(np.concatenate([t[name] for t in tables])) for name in ("x", "y")}
    first = jax.tree.map(jnp.zeros_like, PROBLEM.objective.init(jax.random.key(0)))
    best = jax.jit(lambda p: proximal_descent(PROBLEM, p, records, 4.0, 4000))(first)
    return records, float(PROBLEM.objective.measure(best, records)["loss"])


def build(method: str, records: int, rounds: int, **point: Any) -> Algorithm:
    """A method with these numbers; a pass is divided among all rounds."""
    terms: dict[str, Any] = {"clip_norm": 1.0, "batch_size": None, "sampling": "full", "num_rounds": rounds}
    if method == "one-pass-accelerated":
        terms |= {"sampling": "one-pass", "batch_size": records // rounds}
    if method == "localised-mb-sgd":
        terms |= {"sampling": "one-pass", "batch_size": records // 2, "phases": PHASES, "restarts": RESTARTS}
    defaults = {"step_size": 1.0} | ({"strength": 0.01} if method == "localised-mb-sgd" else {})
    return find(method).build(PROBLEM, **{**terms, **defaults, **point})


@dataclass
class Runs:
    """Runs points of a method at one size and number of rounds, in grids that are compiled once."""

    method: str
    records: int
    rounds: int
    widths: tuple[int, ...] = (9,)
    programs: dict[int, Program] = field(default_factory=dict)

    @cached_property
    def made(self) -> Any:
        """The method at its budget."""
        of = partial(build, self.method, self.records, self.rounds)
        noise = noise_for(lambda noise_multiplier: of(noise_multiplier=noise_multiplier), [self.records] * SILOS,
                          EPSILON, DELTA)  # fmt: skip
        return partial(of, noise_multiplier=noise)

    def __call__(self, points: list[Point], seed: int) -> Mapping[str, np.ndarray]:
        """The excess risk of each point."""
        width, who = min(w for w in self.widths if w >= len(points)), participation(SILOS)
        if width not in self.programs:
            self.programs[width] = grid_program(self.made, width, who, None)
        first = jax.tree.map(jnp.zeros_like, PROBLEM.objective.init(jax.random.key(0)))
        start = Seed(jax.random.key(seed), first, enrol(drawn(seed, self.records)))
        filled = columns([*points, *[points[-1]] * (width - len(points))])
        outcome = simulate_grid(self.made, filled, [start], who=who, program=self.programs[width])
        records, least = population()
        losses = jax.vmap(lambda p: PROBLEM.objective.measure(p, records)["loss"])(
            jax.tree.map(lambda leaf: leaf[0], outcome.params)
        )
        return {"excess": np.asarray(losses, float)[: len(points)] - least}


def compute(given: argparse.Namespace) -> Data:
    """Every method, size and number of rounds."""
    sizes, lengths = ((RECORDS[0],), ROUNDS[:1]) if given.tiny else (RECORDS, ROUNDS)
    tuning = tuple(range(1 if given.tiny else TUNING_SEEDS))
    seeds = tuple(range(len(tuning), len(tuning) + (2 if given.tiny else EVALUATION_SEEDS)))
    trials = Trials(given.out / "trials.jsonl", [SILOS, DIMENSION, EPSILON, DELTA, PHASES, RESTARTS], chunk=9)
    found: dict[str, Any] = {}
    for records in sizes:
        for rounds in lengths:
            for method, axes in METHODS.items():
                space, run = Space(f"{method} {records} {rounds}", axes), Runs(method, records, rounds)
                choice = search(space, trials, run, "excess", seeds=tuning)
                errors = trials.get(space.label, [choice["point"]], seeds, run)["excess"][:, 0]
                found[space.label] = {**choice, "by_seed": [float(error) for error in errors]}
    facts = {"silos": SILOS, "dimension": DIMENSION, "epsilon": EPSILON, "delta": DELTA, "phases": PHASES}
    return {"protocol": PROTOCOL, **facts, "restarts": RESTARTS, "seeds": list(seeds), "rows": found}


def _cells(data: Data) -> tuple[list[int], list[int]]:
    """The sizes and the numbers of rounds of the numbers, in order."""
    keys = [label.split()[1:] for label in data["rows"]]
    return sorted({int(k[0]) for k in keys}), sorted({int(k[1]) for k in keys})


def draw(folder: Path, data: Data) -> None:
    """Excess risk against rounds, a panel for each size."""
    sizes, lengths = _cells(data)
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 3.6), layout="constrained", squeeze=False)
    for axis, records in zip(axes[0], sizes, strict=True):
        for method in METHODS:
            own = [interval(data["rows"][f"{method} {records} {rounds}"]["by_seed"]) for rounds in lengths]
            axis.errorbar(lengths, [o["mean"] for o in own], [o["half90"] for o in own], marker="o", capsize=2,
                          label=method)  # fmt: skip
        axis.set(title=f"{records} records a silo", xlabel="rounds", xscale="log", yscale="log", ylabel="excess risk")
        axis.set_xticks(lengths, [str(r) for r in lengths])
        axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """A table, slopes in records, and how localisation stands beside each rival."""
    sizes, lengths = _cells(data)
    rows = data["rows"]
    refuse_edges(rows)
    cells = []
    for records in sizes:
        for rounds in lengths:
            own = [interval(rows[f"{method} {records} {rounds}"]["by_seed"]) for method in METHODS]
            cells.append([records, rounds, *[f"{o['mean']:.2g} ± {o['half90']:.1g}" for o in own]])
    said = []
    for rival in list(METHODS)[1:]:
        gains = [
            verdict(interval(np.subtract(_errors(rows, "localised-mb-sgd", n, r), _errors(rows, rival, n, r))))
            for n in sizes
            for r in lengths
        ]
        counts = {word: gains.count(word) for word in ("below", "level", "above")}
        said.append(f"{rival}: below in {counts['below']}, level in {counts['level']}, above in {counts['above']} of "
                    f"{len(gains)} cells.")  # fmt: skip
    slopes = {}
    if len(sizes) > 1:
        best = {m: [min(np.mean(_errors(rows, m, n, r)) for r in lengths) for n in sizes] for m in METHODS}
        slopes = {m: slope(sizes, values) for m, values in best.items()}
    return {
        "table": table(["records", "rounds", *METHODS], cells),
        "said": " ".join(said),
        "slopes": table(
            ["method", "slope of the least error in records"], [[m, f"{s:.2f}"] for m, s in slopes.items()]
        ),
        "noises": ", ".join(f"{2 ** (i + 1) / math.sqrt(data['phases']):.1f}" for i in range(data["phases"])),
        "seeds_text": f"{data['seeds'][0]} to {data['seeds'][-1]}",
    }


def _errors(rows: Mapping[str, Any], method: str, records: int, rounds: int) -> list[float]:
    return list(rows[f"{method} {records} {rounds}"]["by_seed"])


def finding(data: Data) -> Finding:
    """How localisation stands beside its rivals."""
    return Finding("beside " + words(data)["said"].rstrip("."), "none")


EXPERIMENT = Experiment("localised-rates", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
