"""What the defaults lose against the best of many settings, on public data sets.

``python -m experiments.defaults`` writes ``results/defaults``; stopped, it goes on where it was.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.common import grid_of, records_of, seeds_of
from experiments.defaults_page import draw, words
from experiments.defaults_regret import PLAIN, Explored, left_out
from experiments.folder import Data, Experiment, Finding, Parts
from tacit import data, geometry
from tacit.algorithm import Algorithm, Server, Terms
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.data import Federation
from tacit.data.build import Division, build
from tacit.data.tabular import fixed_table
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.objectives.server import RULES
from tacit.plans.assemble import Facts
from tacit.plans.defaults import CALM, LINEAR, Settings, defaults_of
from tacit.plans.spec import study_from
from tacit.privacy import Budget, gdp_mu
from tacit.simulate.compiled import simulate_grid
from tacit.simulate.participation import participation
from tacit.studies.rehearse import rehearse
from tacit.studies.run import Declared, Prepared, prepare_facts

EPSILONS, DELTA, TEST = (1.0, 4.0, 8.0), 1e-6, 0.3
ROUNDS = (30, 100)
CLIPS = (0.01, 0.03, 0.1, 0.3, 1.0)
MOVES = {"binary": range(-4, 7), "multiclass": range(-4, 7), "regression": range(-7, 4)}
"""Powers of two: how far a plain step goes where the mean gradient is as long as the clip; its step is that over it."""
ADAM_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
OUTPUTS = ("last", "average", "tail")
NORMS = (1.0, 4.0)
"""What rows are shrunk to: the first loses what features say about size, the last keeps nearly all of it."""
EARLIER = {
    "binary": {"step_size": 8.0, "clip_norm": 0.71},
    "multiclass": {"step_size": 4.0, "clip_norm": 0.5},
    "regression": {"step_size": 1.0, "clip_norm": 0.5},
}
BALL = 10.0
"""What `tacit init` wrote before: 30 rounds of plain steps, the mean of all iterates, and parameters within a ball."""


class Source(NamedTuple):
    """A data set: by what name the page has it, how many splits there are, and how it is divided."""

    label: str
    name: str
    splits: int
    options: Mapping[str, Any] = MappingProxyType({})


DIGITS = {"partition": "iid", "silos": 10, "task": "digits", "features": "pca-50"}
SOURCES = (
    Source("iris", "iris", 24),
    Source("wine", "wine", 16),
    Source("digits", "digits", 4),
    Source("MNIST, digits", "mnist", 2, {**DIGITS, "records_per_silo": 300}),
    Source("MNIST, digits, large", "mnist", 1, {**DIGITS, "records_per_silo": 1500}),
    Source("heart disease", "heart-disease", 12),
    Source("breast cancer", "breast-cancer", 8),
    Source("credit card", "credit-card", 3, {"records_per_silo": 600}),
    Source("ACS income", "acs-income", 3, {"records_per_silo": 600}),
    Source("MNIST, parity", "mnist", 3, {"records_per_silo": 80}),
    Source("adult", "adult", 2, {"records_per_silo": 1500}),
    Source("adult, large", "adult", 1, {"records_per_silo": 8000}),
    Source("diabetes", "diabetes", 12),
    Source("insurance", "insurance", 8),
    Source("California housing", "california-housing", 3, {"records_per_silo": 250}),
    Source("school", "school", 2),
)
BUNDLED = tomllib.loads((Path(__file__).parent / "defaults_tables.toml").read_text(encoding="utf-8"))
"""Data sets that come with scikit-learn and are not in the catalogue, with ranges that are known without them."""


def federation_of(source: Source, seed: int) -> Federation:
    """One division and split of a data set; seven tenths of each silo train."""
    if source.name not in BUNDLED:
        return data.load(source.name, seed=seed, validation=0.0, test=TEST, **source.options)
    tree = BUNDLED[source.name]
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{source.name}")(**tree.get("load", {}))
    names = [name for feature in tree["features"] for name in feature["columns"]]
    low, high = (tree["target"].get(key, 0.0) for key in ("low", "high"))
    y = bunch.target if "classes" in tree else np.clip((bunch.target - low) / (high - low), 0.0, 1.0)
    table = fixed_table(tree, dict(zip(names, bunch.data.T.astype(float), strict=True)), y)
    table = dataclasses.replace(table, task="multiclass") if "classes" in tree else table
    shares: dict[str, Any] = {"validation": 0.0, "test": TEST, "seed": seed}
    how = {"level": None, "attribute": None, "records": None, **tree["division"]}
    return build(source.name, table, Division(**how, **shares))


def shrunk(federation: Federation, norm: float = 1.0) -> Federation:
    """Every row shrunk to a norm by itself, if it is longer; `tacit init` has norm one unless it is told another."""

    def of(records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        x = np.asarray(records["x"], np.float64)
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True) / norm, 1.0)
        return {"x": x.astype(np.float32), "y": records["y"]}

    silos = [dataclasses.replace(silo, train=of(silo.train), test=of(silo.test)) for silo in federation.silos]
    return dataclasses.replace(federation, silos=tuple(silos), feature_norm=norm)


def problem_for(federation: Federation, ball: float | None = None) -> Problem:
    """A linear model, as in the studies of `tacit init`."""
    loss = {"binary": logistic, "multiclass": softmax, "regression": squared}[federation.task]()
    outputs = federation.num_classes if federation.task == "multiclass" and federation.num_classes else 1
    return Problem(
        Objective(linear(federation.feature_shape[0], outputs), loss),
        geometry.zero() if ball is None else geometry.l2_ball(ball),
    )


def every_output(algorithm: Algorithm, rounds: int) -> Algorithm:
    """The same rounds with all three outputs at once: the last iterate, the mean of all, and of the second half."""
    [(kind, part)] = algorithm.rounds.items()

    def tell(state: Any, message: Any) -> Any:
        inner, average, tail = state
        after, r = part.server.tell(inner, message), inner_of(inner).round_index
        kept = jnp.where(r >= rounds // 2, 1.0 / (r - rounds // 2 + 1.0), 0.0)

        def moved(mean: Any, share: Any) -> Any:
            return jax.tree.map(lambda m, w: m + share * (w - m), mean, inner_of(inner).params)

        return after, moved(average, 1.0 / (r + 1.0)), moved(tail, kept)

    server = Server(lambda state: part.server.ask(state[0]), tell)
    return Algorithm(
        lambda params: (algorithm.init(params), params, params),
        {kind: dataclasses.replace(part, server=server)},
        algorithm.schedule,
        lambda state: dict(zip(OUTPUTS, (inner_of(state[0]).params, state[1], state[2]), strict=True)),
    )


def inner_of(state: Any) -> Any:
    """The algorithm's state within that of its server."""
    return getattr(state, "state", state)


def settings_of(task: str) -> list[dict[str, Any]]:
    """The settings of one number of rounds, each of which has all outputs."""
    plain = grid_of(server=["sgd", "momentum"], move=[2.0**power for power in MOVES[task]], clip_norm=CLIPS)
    return [
        *({"step_size": point.pop("move") / point["clip_norm"], **point} for point in plain),
        *grid_of(server=["adam"], step_size=ADAM_STEPS, clip_norm=CLIPS),
    ]


def errors_of(
    federations: list[Federation], points: list[dict[str, Any]], rounds: int, ball: float | None = None
) -> dict[str, np.ndarray]:
    """For each output, the test error of each split at each point; of regression, over that of predicting the mean.

    A point has an epsilon besides its setting.
    """
    problem, who = (
        problem_for(federations[0], ball),
        participation(len(federations[0].silos), weights=records_of(federations[0])),
    )
    seeds = seeds_of(federations, problem.objective, ("test",))
    grid = {
        "server": np.asarray([RULES.index(point["server"]) for point in points]),
        "noise_multiplier": np.asarray([rounds**0.5 / gdp_mu(point["epsilon"], DELTA) for point in points], np.float32),
        **{name: np.asarray([point[name] for point in points], np.float32) for name in ("step_size", "clip_norm")},
    }

    def build(server: Any, step_size: Any, **own: Any) -> Algorithm:
        terms = Terms(batch_size=None, sampling="full", **own)
        recipe = mb_sgd(step_size=step_size, num_rounds=rounds, output="last").with_server(server)
        return every_output(recipe(problem, terms), rounds)

    def measure(found: Any, parts: Any) -> dict[str, Any]:
        metric = "mse" if federations[0].task == "regression" else "error"
        return {name: problem.objective.measure(params, parts["test"])[metric] for name, params in found.items()}

    outcome = simulate_grid(build, grid, seeds, who=who, measure=measure, measure_every=rounds)
    scale = np.ones(len(seeds))
    if federations[0].task == "regression":
        means = [np.concatenate([silo.train["y"] for silo in one.silos]).mean() for one in federations]
        tests = [np.concatenate([silo.test["y"] for silo in one.silos]) for one in federations]
        scale = np.asarray([((test - mean) ** 2).mean() for test, mean in zip(tests, means, strict=True)])
    found = {name: values[:, :, -1] / scale[:, None] for name, values in outcome.trace.items()}
    return {name: np.sqrt(v) if federations[0].task == "regression" else v for name, v in found.items()}


def explored(given: argparse.Namespace) -> Parts:
    """The grid on every data set: mean test errors by output, epsilon and setting."""
    parts = Parts(
        given.out / "parts.json",
        [
            SOURCES,
            BUNDLED,
            EPSILONS,
            DELTA,
            TEST,
            ROUNDS,
            CLIPS,
            MOVES,
            ADAM_STEPS,
            BALL,
            NORMS,
            LINEAR,
            CALM,
        ],
    )
    for source in SOURCES:
        federations: list[Federation] = []
        for rounds in ROUNDS:
            parts.get(f"{source.label}, {rounds} rounds", partial(_explore, source, federations, rounds))
        parts.get(f"{source.label}, defaults", partial(settled, source))
        parts.get(f"{source.label}, rehearsed", partial(rehearsed, source))
    return parts


def _explore(source: Source, federations: list[Federation], rounds: int) -> Data:
    if not federations:
        federations += [shrunk(federation_of(source, seed)) for seed in range(source.splits)]
    first = federations[0]
    settings = settings_of(first.task)
    errors = errors_of(federations, [{**point, "epsilon": e} for e in EPSILONS for point in settings], rounds)
    means = {name: values.mean(0).reshape(len(EPSILONS), -1).round(4).tolist() for name, values in errors.items()}
    facts = {"task": first.task, "records": records_of(first), "features": first.feature_shape[0],
             "classes": first.num_classes, "splits": len(federations)}  # fmt: skip
    return {**facts, "settings": settings, "errors": means}


def settled(source: Source) -> Data:
    """At every epsilon the defaults that were there before, and those of now with rows shrunk to each of the norms."""
    own = [federation_of(source, seed) for seed in range(source.splits)]
    first, unit = own[0], [shrunk(federation) for federation in own]
    earlier = [{"epsilon": epsilon, "server": "sgd", **EARLIER[first.task]} for epsilon in EPSILONS]
    found = {"earlier": [{"error": error} for error in _means(errors_of(unit, earlier, ROUNDS[0], BALL)["average"])]}
    for norm in NORMS:
        federations = [shrunk(federation, norm) for federation in own]
        found[f"{norm:g}"] = measured(
            federations, [_row(settings_at(federations[0], epsilon), epsilon) for epsilon in EPSILONS]
        )
    return found


def rehearsed(source: Source) -> list[Data]:
    """The settings that a rehearsal chooses at every epsilon, and their mean test error."""
    federations = [shrunk(federation_of(source, seed)) for seed in range(source.splits)]
    rows = []
    for epsilon in EPSILONS:
        ours, started = settings_at(federations[0], epsilon), time.process_time()
        found = rehearse(*study_at(federations[0], epsilon, ours), seed=0)
        seconds = round(time.process_time() - started, 1)
        rows.append({**_row(ours, epsilon), **found.sections["algorithm"], "cpu_seconds": seconds})
    return measured(federations, rows)


def measured(federations: list[Federation], rows: list[Data]) -> list[Data]:
    """Settings with their mean test errors; those of as many rounds are run together."""
    found = []
    for rounds in sorted({row["num_rounds"] for row in rows}):
        own = [row for row in rows if row["num_rounds"] == rounds]
        errors = errors_of(federations, own, rounds)
        found += [{**row, "error": _means(errors[row["output"]])[place]} for place, row in enumerate(own)]
    return sorted(found, key=lambda row: float(row["epsilon"]))


def _means(errors: np.ndarray) -> list[float]:
    return [round(float(value), 4) for value in errors.mean(0)]


def _row(settings: Settings, epsilon: float) -> dict[str, Any]:
    return {"epsilon": epsilon, **settings._asdict()}


def settings_at(federation: Federation, epsilon: float | None) -> Settings:
    """What `tacit init` proposes for these silos."""
    budget = None if epsilon is None else Budget(epsilon=epsilon, delta=DELTA)
    records = records_of(federation)
    return defaults_of(problem_for(federation), records, budget, weights=records, feature_norm=federation.feature_norm)


def study_at(federation: Federation, epsilon: float, start: Settings) -> tuple[Prepared, Facts]:
    """A study of these silos as `tacit init` writes it, priced from their sizes alone."""
    tree = {
        "name": federation.name,
        "data": {"name": "csv"},
        "algorithm": {"name": "mb-sgd", **start._asdict()},
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "run": {"weights": "records"},
    }
    facts = Declared(federation.task, federation.num_classes, federation.feature_shape, 1.0)
    return prepare_facts(study_from(tree), facts, records_of(federation)), facts


def compute(given: argparse.Namespace) -> Data:
    """Every cell: a data set at an epsilon."""
    found = explored(given).found
    rows = {name: part["rows"] for name, part in found.items()}
    sets = [
        Explored(
            s.label,
            {r: rows[f"{s.label}, {r} rounds"] for r in ROUNDS},
            [row["error"] for row in rows[f"{s.label}, defaults"]["earlier"]],
            EPSILONS,
            DELTA,
        )
        for s in SOURCES
    ]
    best = {(one.label, place): one.best(place) for one in sets for place in range(len(EPSILONS))}
    fitted = left_out(sets, {key: row["error"] for key, row in best.items()})
    cells = []
    for one, (place, epsilon) in itertools.product(sets, enumerate(EPSILONS)):
        norms = {norm: rows[f"{one.label}, defaults"][norm][place]["error"] for norm in map("{:g}".format, NORMS)}
        cells.append({
            "data": one.label,
            "epsilon": epsilon,
            "best": best[one.label, place],
            "earlier": one.before[place],
            "default": norms[f"{NORMS[0]:g}"],
            "plain": round(float(one.errors(PLAIN[one.task])[place]), 4),
            "left_out": fitted[one.label][place],
            "rehearsed": rows[f"{one.label}, rehearsed"][place],
            "norms": norms,
        })  # fmt: skip
    facts = {one.label: {**one.facts, "settings": one.count, "errors": None} for one in sets}
    minutes = sum(part["cpu_seconds"] for part in found.values()) / 60
    return {"sets": facts, "cells": cells, "cpu_minutes": round(minutes, 1), "delta": DELTA, "whole": True}


def finding(data: Data) -> Finding:
    """How much the defaults err above the best of many settings."""
    told = words(data)
    mean = told["mean"]
    before = f"{mean['earlier']:.3f} with those before, {mean['left_out']:.3f} left out"
    said = f"mean regret {mean['default']:.3f} against the best of hundreds of settings ({before}), at most "
    return Finding(
        f"{said}{told['largest']:.3f}; at worst {told['worse']['by']:+.3f} beside the defaults before", "none"
    )


EXPERIMENT = Experiment("defaults", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
