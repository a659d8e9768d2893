"""Localised minibatch SGD beside its rivals: population risk of silos that differ, at equal epsilon and equal rounds.

``python -m experiments.localised_rates`` writes ``results/localised-rates``. Records are drawn: every silo has its own
features and its own answers, so that no silo speaks for the others. All methods are logistic regression through direct
messages, and median regression, whose absolute loss has a kink: all run on its Moreau envelope, of the smoothness that
the theorem asks for, and are judged by the absolute loss itself. Each method has its step (and strength) by the excess
risk of three seeds, away from the edges of its grid, and is reported on five others. Every trial is kept as soon as it
is there: the same command goes on where an earlier stopped.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
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
from tacit.objectives import Objective, Problem, absolute, linear, logistic
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Program, Seed, grid_program, simulate_grid
from tacit.simulate.participation import participation
from tacit.theory import ConvexSetting, localised_mb_sgd_from_theory, proximal_descent
from tacit.theory.convex import one_pass_rate, rate

SILOS, DIMENSION, EPSILON, DELTA = 20, 10, 1.0, 1e-6
RECORDS, ROUNDS = (512, 4096), (6, 24, 96)
KINK_ROUNDS, TAIL, RADIUS = 24, 2, 4.0  # of median regression: rounds, degrees of freedom of its noise, a ball
SMOOTHNESS, CURVATURE = 0.25, 0.01  # of the logistic loss, and a curvature for the theory of curved risks
POPULATION = 2000  # records of each silo that stand for its population
PHASES, RESTARTS = 3, 2
METHODS: dict[str, dict[str, tuple[float, ...]]] = {
    "localised-mb-sgd": {"step_size": (0.25, 1.0, 4.0), "strength": (0.0025, 0.01, 0.04)},
    "one-pass-accelerated": {"step_size": (0.05, 0.2, 0.8)},
    "mb-sgd": {"step_size": (0.5, 2.0, 8.0)},
    "accelerated-mb-sgd": {"step_size": (0.25, 1.0, 4.0)},
}
POPULATION_THEOREMS = ("localised-mb-sgd", "one-pass-accelerated")
"""Methods with a promise about new records of silos that differ."""


def setting(records: int, **curvature: float) -> ConvexSetting:
    """What the theorems are told of the problem with so many records."""
    shape: dict[str, Any] = {"lipschitz": 1.0, "radius": RADIUS, "silos": SILOS, "dimension": DIMENSION, **curvature}
    return ConvexSetting(records=records, epsilon=EPSILON, delta=DELTA, **shape)


@cache
def problem(loss: str, records: int) -> Problem:
    """Logistic regression, or median regression by the Moreau envelope that the theorem asks for."""
    bend = localised_mb_sgd_from_theory(setting(records)).smoothing if loss == "absolute" else None
    return Problem(Objective(linear(DIMENSION, 1, bias=False), absolute(bend) if bend else logistic()))


def drawn(loss: str, seed: int, count: int) -> list[dict[str, np.ndarray]]:
    """Records of every silo; seeds share the silos' distributions."""
    public = np.random.default_rng(0)
    common, centres = public.normal(size=DIMENSION), public.normal(size=(SILOS, DIMENSION))
    rules = common + public.normal(size=(SILOS, DIMENSION))
    rng, made = np.random.default_rng(seed + 1), []
    for i in range(SILOS):
        x = rng.normal(size=(count, DIMENSION)) + 0.5 * centres[i]
        x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        if loss == "absolute":
            y = (x @ rules[i] + 0.1 * rng.standard_t(TAIL, size=count)).astype(np.float32)
        else:
            y = (rng.uniform(size=count) < 1 / (1 + np.exp(-4 * x @ rules[i]))).astype(np.int32)
        made.append({"x": x.astype(np.float32), "y": y})
    return made


@cache
def population(loss: str) -> tuple[dict[str, Any], float]:
    """The records that stand for all silos' populations, and the least risk there (of an envelope of least error)."""
    tables = drawn(loss, 10**6, POPULATION)
    records = {name: jnp.asarray(np.concatenate([t[name] for t in tables])) for name in ("x", "y")}
    own = problem(loss, 10**8 if loss == "absolute" else 1)
    first = jax.tree.map(jnp.zeros_like, own.objective.init(jax.random.key(0)))
    best = jax.jit(lambda p: proximal_descent(own, p, records, 4.0, 4000))(first)
    return records, float(own.objective.measure(best, records)["loss"])


def build(method: str, loss: str, records: int, rounds: int, **point: Any) -> Algorithm:
    """A method with these numbers; a pass is divided among all rounds."""
    terms: dict[str, Any] = {"clip_norm": 1.0, "batch_size": None, "sampling": "full", "num_rounds": rounds}
    if method == "one-pass-accelerated":
        terms |= {"sampling": "one-pass", "batch_size": records // rounds}
    if method == "localised-mb-sgd":
        terms |= {"sampling": "one-pass", "batch_size": records // 2, "phases": PHASES, "restarts": RESTARTS}
    defaults = {"step_size": 1.0} | ({"strength": 0.01} if method == "localised-mb-sgd" else {})
    return find(method).build(problem(loss, records), **{**terms, **defaults, **point})


@dataclass
class Runs:
    """Runs points of a method at one size and number of rounds, in grids that are compiled once."""

    method: str
    loss: str
    records: int
    rounds: int
    widths: tuple[int, ...] = (9,)
    programs: dict[int, Program] = field(default_factory=dict)

    @cached_property
    def made(self) -> Any:
        """The method at its budget."""
        of = partial(build, self.method, self.loss, self.records, self.rounds)
        noise = noise_for(lambda noise_multiplier: of(noise_multiplier=noise_multiplier), [self.records] * SILOS,
                          EPSILON, DELTA)  # fmt: skip
        return partial(of, noise_multiplier=noise)

    def __call__(self, points: list[Point], seed: int) -> Mapping[str, np.ndarray]:
        """The excess risk of each point."""
        width, who = min(w for w in self.widths if w >= len(points)), participation(SILOS)
        if width not in self.programs:
            self.programs[width] = grid_program(self.made, width, who, None)
        objective = problem(self.loss, self.records).objective
        first = jax.tree.map(jnp.zeros_like, objective.init(jax.random.key(0)))
        start = Seed(jax.random.key(seed), first, enrol(drawn(self.loss, seed, self.records)))
        filled = columns([*points, *[points[-1]] * (width - len(points))])
        outcome = simulate_grid(self.made, filled, [start], who=who, program=self.programs[width])
        records, least = population(self.loss)
        losses = jax.vmap(lambda p: objective.measure(p, records)["loss"])(
            jax.tree.map(lambda leaf: leaf[0], outcome.params)
        )
        return {"excess": np.asarray(losses, float)[: len(points)] - least}


def compute(given: argparse.Namespace) -> Data:
    """Every method, size and number of rounds; of median regression one number of rounds."""
    sizes, lengths = ((RECORDS[0],), ROUNDS[:1]) if given.tiny else (RECORDS, ROUNDS)
    tuning = tuple(range(1 if given.tiny else TUNING_SEEDS))
    seeds = tuple(range(len(tuning), len(tuning) + (2 if given.tiny else EVALUATION_SEEDS)))
    trials = Trials(given.out / "trials.jsonl", [SILOS, DIMENSION, EPSILON, DELTA, PHASES, RESTARTS], chunk=9)

    def cell(loss: str, method: str, records: int, rounds: int) -> Data:
        space = Space(f"{loss} {method} {records} {rounds}", METHODS[method])
        run = Runs(method, loss, records, rounds)
        choice = search(space, trials, run, "excess", seeds=tuning)
        errors = trials.get(space.label, [choice["point"]], seeds, run)["excess"][:, 0]
        return {**choice, "by_seed": [float(error) for error in errors]}

    def rows(loss: str, lengths: Sequence[int]) -> Data:
        cells = itertools.product(sizes, lengths, METHODS)
        return {f"{m} {records} {rounds}": cell(loss, m, records, rounds) for records, rounds, m in cells}

    facts: Data = {"silos": SILOS, "dimension": DIMENSION, "epsilon": EPSILON, "delta": DELTA, "phases": PHASES}
    facts |= {"restarts": RESTARTS, "seeds": list(seeds)}
    found = {"rows": rows("logistic", lengths), "kink": rows("absolute", (ROUNDS[0] if given.tiny else KINK_ROUNDS,))}
    return {"protocol": PROTOCOL, **facts, **found}


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
    """Tables of errors, slopes beside the theory's, rounds, and how localisation stands beside each rival."""
    sizes, lengths = _cells(data)
    rows, kink = data["rows"], data.get("kink", {})
    refuse_edges({**rows, **{f"absolute {label}": row for label, row in kink.items()}})
    said = [
        f"{rival}: below in {counts['below']}, level in {counts['level']}, above in {counts['above']} of "
        f"{len(sizes) * len(lengths)} cells."
        for rival, counts in _standing(rows, sizes, lengths).items()
    ]
    return {
        "table": _errors_table(rows, sizes, lengths),
        "kinked": _errors_table(kink, *_cells({"rows": kink})) if kink else "",
        "kink_said": _kink_said(kink) if kink else "",
        "said": " ".join(said),
        "slopes": _slopes_table(rows, sizes, lengths) if len(sizes) > 1 else "",
        "reached": _reached_table(rows, sizes, lengths),
        "noises": ", ".join(f"{2 ** (i + 1) / math.sqrt(data['phases']):.1f}" for i in range(data["phases"])),
        "seeds_text": f"{data['seeds'][0]} to {data['seeds'][-1]}",
        "bends": ", ".join(f"{_bend(records):.0f}" for records in sizes),
    }


def _bend(records: int) -> float:
    return float(localised_mb_sgd_from_theory(setting(records)).smoothing or 0.0)


def _errors_table(rows: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]) -> str:
    cells = []
    for records, rounds in itertools.product(sizes, lengths):
        own = [interval(_errors(rows, method, records, rounds)) for method in METHODS]
        cells.append([records, rounds, *[f"{o['mean']:.2g} ± {o['half90']:.1g}" for o in own]])
    return table(["records", "rounds", *METHODS], cells)


def _standing(rows: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]) -> dict[str, dict[str, int]]:
    """In how many cells localised SGD is below, level with and above each rival, by paired differences."""
    found = {}
    for rival in list(METHODS)[1:]:
        gains = [
            verdict(interval(np.subtract(_errors(rows, "localised-mb-sgd", n, r), _errors(rows, rival, n, r))))
            for n in sizes
            for r in lengths
        ]
        found[rival] = {word: gains.count(word) for word in ("below", "level", "above")}
    return found


def _kink_said(kink: Mapping[str, Any]) -> str:
    sizes, lengths = _cells({"rows": kink})
    cells = len(sizes) * len(lengths)
    said = [
        f"{rival}: below in {counts['below']}, level in {counts['level']}, above in {counts['above']} of {cells}."
        for rival, counts in _standing(kink, sizes, lengths).items()
    ]
    return " ".join(said)


def _promised(method: str, records: int, **curvature: float) -> float:
    """What the theory promises silos that differ, up to constants: of the risk on new records, where it does."""
    own = setting(records, smoothness=SMOOTHNESS, **curvature)
    if method == "one-pass-accelerated":
        return one_pass_rate(own)
    return rate(own, "population" if method == "localised-mb-sgd" else "empirical")


def _slopes_table(rows: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]) -> str:
    """The slope of each method's least error in records, and those of its theory between the same sizes."""
    cells = []
    for method in METHODS:
        best = [min(np.mean(_errors(rows, method, n, r)) for r in lengths) for n in sizes]
        convex = slope(sizes, [_promised(method, n) for n in sizes])
        curved = slope(sizes, [_promised(method, n, strong_convexity=CURVATURE) for n in sizes])
        about = "new records" if method in POPULATION_THEOREMS else "the records at hand"
        proved = "none" if method == "localised-mb-sgd" else f"{curved:.2f}"
        cells.append([method, f"{slope(sizes, best):.2f}", f"{convex:.2f}", proved, about])
    heads = ["method", "measured", "theory, convex", "theory, strongly convex", "theory speaks of"]
    return table(heads, cells)


def _fewest(rows: Mapping[str, Any], method: str, records: int, lengths: Sequence[int], level: float) -> int | None:
    """The fewest measured rounds in which a method comes to this error."""
    return next((r for r in lengths if np.mean(_errors(rows, method, records, r)) <= level), None)


def _reached_table(rows: Mapping[str, Any], sizes: Sequence[int], lengths: Sequence[int]) -> str:
    """The fewest measured rounds of the others to what one pass reaches."""
    cells = []
    for records, rounds in itertools.product(sizes, lengths):
        level = float(np.mean(_errors(rows, "one-pass-accelerated", records, rounds)))
        needed = [_fewest(rows, m, records, lengths, level) for m in METHODS if m != "one-pass-accelerated"]
        cells.append([records, rounds, f"{level:.2g}", *("not reached" if r is None else r for r in needed)])
    others = [method for method in METHODS if method != "one-pass-accelerated"]
    return table(["records", "rounds of one pass", "its error", *(f"rounds of {m}" for m in others)], cells)


def _errors(rows: Mapping[str, Any], method: str, records: int, rounds: int) -> list[float]:
    return list(rows[f"{method} {records} {rounds}"]["by_seed"])


def finding(data: Data) -> Finding:
    """How localisation stands beside one pass, of whom the paper speaks, and beside the others."""
    sizes, lengths = _cells(data)
    standing = _standing(data["rows"], sizes, lengths)
    once, cells = standing["one-pass-accelerated"], len(sizes) * len(lengths)
    ahead = once["above"] == 0 and 2 * once["below"] > cells
    beaten = any(own["above"] for rival, own in standing.items() if rival not in POPULATION_THEOREMS)
    level = once["above"] == once["below"] == 0
    said = "reproduced" if ahead and not beaten else "partly" if ahead else "level" if level else "differs"
    return Finding("beside " + words(data)["said"].rstrip("."), said)


EXPERIMENT = Experiment("localised-rates", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
