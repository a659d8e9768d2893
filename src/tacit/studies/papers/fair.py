"""What the fairness experiments share: methods, tuned trade-off curves, and comparisons at equal error.

Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889): logistic regression, silos by age, error against violation. A
method has a *dial* (strength, multiplier step, ...) that trades one for the other, and settings that are tuned: for
each method, budget and heterogeneity, those whose validation error, averaged over the dial, is least. (A rule that
counted the violation too would choose settings that predict the same of everybody.)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import data
from tacit.algorithm import Algorithm, Params, Record
from tacit.algorithms import fedfdp, lagrangian_dual, local_sgd, mb_sgd, steffle
from tacit.data import Federation
from tacit.fairness import violations
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.objectives.fairness import Notion
from tacit.runtime.simulate import Seed, simulate_grid
from tacit.silo import enrol
from tacit.studies.fair import predicted
from tacit.studies.papers.common import grid_of, interval, noise_for

DELTA = 1e-5
DIALS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
METRIC: dict[Notion, str] = {"demographic-parity": "parity_gap", "equalized-odds": "odds_gap"}


@dataclass(frozen=True)
class Scale:
    """How large an experiment is: seeds to report and to tune with, rounds, and how many records are kept."""

    seeds: int = 15
    tuning: int = 2
    rounds: int = 80
    records_per_silo: int | None = None


@lru_cache(maxsize=16)
def _federation(name: str, silos: int, level: float, seed: int, records_per_silo: int | None) -> Federation:
    return data.load(
        name,
        partition="attribute",
        silos=silos,
        level=level,
        seed=seed,
        records_per_silo=records_per_silo,
        sensitive="sex",
        sensitive_in_features=True,
    )


@dataclass(frozen=True)
class Arena:
    """One data set in one partition: what every method is run on."""

    name: str
    level: float
    silos: int
    scale: Scale
    notion: Notion = "demographic-parity"

    def federation(self, seed: int) -> Federation:
        """The records of one seed; the model may see the attribute, as in the paper."""
        return _federation(self.name, self.silos, self.level, seed, self.scale.records_per_silo)

    def constant_error(self, federation: Federation) -> float:
        """The error of the classifier that says the same of everybody."""
        y = np.concatenate([silo.test["y"] for silo in federation.silos])
        return float(min(y.mean(), 1 - y.mean()))

    def problem(self, federation: Federation) -> Problem:
        """Logistic regression with its constants."""
        norm = (federation.feature_norm or 1.0) ** 2 + 1
        objective = Objective(linear(federation.feature_shape[0], 1), logistic())
        return Problem(objective, lipschitz=norm**0.5, smoothness=norm / 4)

    def frequencies(self, federation: Federation) -> Any:
        """P_S, or P_S given the target, in percent: declared public."""
        s, y = (np.concatenate([silo.train[k] for silo in federation.silos]) for k in ("s", "y"))
        rows = [np.ones(len(y), bool)] if self.notion == "demographic-parity" else [y == 0, y == 1]
        share = [round(float((s[row] == 0).mean()), 2) for row in rows]
        return tuple((p, 1 - p) for p in share)


@dataclass(frozen=True)
class Method:
    """A line of the figures. ``pooled``: one holder of all records; ``private``: whether it has a budget."""

    name: str
    build: Callable[..., Algorithm]
    dial: str | None
    dials: Sequence[float]
    tuned: Mapping[str, Sequence[float]]
    guarantee: str
    pooled: bool = False
    private: bool = True


def methods(problem: Problem, frequencies: Any, notion: Notion, rounds: int) -> list[Method]:
    """SteFFLe, its variants and the baselines, each with its own dial and settings to tune."""
    common: dict[str, Any] = {"num_rounds": rounds, "batch_size": None, "sampling": "full"}
    opened: dict[str, Any] = {"clip_norm": 1e6, "noise_multiplier": None, "channel": "open"}
    fair = {"frequencies": frequencies, "notion": notion}
    wide = {"step_size": (1.0, 2.0, 4.0)}

    def ours(**point: Any) -> Algorithm:
        return steffle(problem, **{**common, **fair, "clip_norm": 100.0, **point})

    def tran(**point: Any) -> Algorithm:
        return lagrangian_dual(problem, **{**common, **fair, **point})

    def ling(**point: Any) -> Algorithm:
        return fedfdp(problem, **{**common, "loss_clip": 2.0, **point})

    def with_(build: Callable[..., Algorithm], **changes: Any) -> Callable[..., Algorithm]:
        return lambda **point: build(**{**changes, **point})

    clipped = {"step_size": (0.5, 2.0, 8.0), "clip_norm": (0.1, 0.5)}
    averaged = with_(lambda **p: local_sgd(problem, **{**common, **p}), local_steps=5, **opened)
    central = with_(lambda **p: mb_sgd(problem, **{**common, "output": "last", **p}), **opened)
    attribute = "sensitive attribute"
    return [
        Method("SteFFLe", ours, "strength", DIALS, wide, f"ISRL-DP, {attribute}"),
        Method("FedFDP", ling, "fairness", (0.0, 0.5, 2.0, 5.0), clipped, "ISRL-DP, whole record"),
        Method("Tran et al.", tran, "multiplier_step", DIALS, clipped, f"central DP, {attribute}", pooled=True),
        Method("central DP-FERMI", ours, "strength", DIALS, wide, f"central DP, {attribute}", pooled=True),
        Method("SteFFLe, not private", with_(ours, **opened), "strength", DIALS, wide, "none", private=False),
        Method("FERMI, central", with_(ours, **opened), "strength", DIALS, wide, "none", pooled=True, private=False),
        Method("FedAvg", averaged, None, (0.0,), {"step_size": (0.5, 2.0)}, "none", private=False),
        Method("central ERM", central, None, (0.0,), wide, "none", pooled=True, private=False),
    ]


def seeds_for(federations: Sequence[Federation], objective: Objective, pooled: bool, first: int = 0) -> list[Seed]:
    """One repetition for each federation, with groups; ``pooled`` makes one silo of all."""
    found = []
    for number, federation in enumerate(federations, first):
        tables = [silo.train for silo in federation.silos]
        if pooled:
            tables = [{k: np.concatenate([t[k] for t in tables]) for k in tables[0]}]
        rest = {
            part: {k: jnp.asarray(np.concatenate([getattr(s, part)[k] for s in federation.silos])) for k in tables[0]}
            for part in ("validation", "test")
        }
        key_run, key_init = jax.random.split(jax.random.key(number))
        found.append(Seed(key_run, objective.init(key_init), enrol(tables), rest))
    return found


def measured(objective: Objective) -> Callable[[Params, Any], dict[str, Any]]:
    """Error and violations on validation and test records."""

    def one(params: Params, records: Record) -> dict[str, Any]:
        guess = predicted(objective.model, params, records["x"])
        found = violations(guess, records["s"], records["y"], classes=2, number=2)
        return {"error": (guess != records["y"]).mean(), **found}

    def measure(params: Params, evaluation: Any) -> dict[str, Any]:
        return {f"{p}_{k}": v for p, records in evaluation.items() for k, v in one(params, records).items()}

    return measure


def noise_at(method: Method, records: Sequence[int], epsilon: float) -> np.ndarray:
    """The least noise of each silo at this budget; the settings of a point do not change it."""
    point = {name: values[0] for name, values in method.tuned.items()}
    if method.dial is not None:
        point[method.dial] = 1.0
    return noise_for(lambda **terms: method.build(**{**point, **terms}), records, epsilon, DELTA)


def trained(
    build: Callable[..., Algorithm], points: Sequence[Mapping[str, Any]], seeds: Sequence[Seed], objective: Objective
) -> dict[str, np.ndarray]:
    """Final measurements with axes (seeds, points), all points in one program."""
    grid = {name: np.asarray([point[name] for point in points], np.float32) for name in points[0]}
    outcome = simulate_grid(build, grid, seeds, measure=measured(objective), measure_every=10**9)
    return {name: values[:, :, -1] for name, values in outcome.trace.items()}


def curve(method: Method, arena: Arena, epsilons: Sequence[float | None]) -> dict[str, Any]:
    """For each budget the tuned trade-off: test error and violation along the dial, seed by seed."""
    scale, metric = arena.scale, METRIC[arena.notion]
    federations = [arena.federation(seed) for seed in range(scale.seeds)]
    problem = arena.problem(federations[0])
    seeds = seeds_for(federations, problem.objective, method.pooled)
    records = [int(n) for n in seeds[0].silos.counts]
    settings = grid_of(**method.tuned)
    dials = [{} if method.dial is None else {method.dial: value} for value in method.dials]
    noise = {e: {} if e is None else {"noise_multiplier": noise_at(method, records, e)} for e in epsilons}

    def run(chosen: Mapping[Any, Sequence[Mapping[str, Any]]], some: Sequence[Seed], along: Sequence[Any]) -> Any:
        keys = [(e, i, d) for e in epsilons for i in range(len(chosen[e])) for d in range(len(along))]
        points = [{**chosen[e][i], **along[d], **noise[e]} for e, i, d in keys]
        return keys, trained(method.build, points, some, problem.objective)

    few = dials if len(dials) < 3 else [dials[0], dials[len(dials) // 2], dials[-1]]
    keys, tuning = run(dict.fromkeys(epsilons, settings), seeds[: scale.tuning], few)
    loss = np.nan_to_num(tuning["validation_error"], nan=9.0).mean(axis=0)
    best: dict[Any, int] = {}
    for e in epsilons:
        best[e] = min(range(len(settings)), key=lambda i, e=e: _mean(loss, keys, e, i))  # type: ignore[misc]
    keys, found = run({e: [settings[best[e]]] for e in epsilons}, seeds, dials)
    return {
        str(e): {
            "setting": settings[best[e]],
            "guarantee": method.guarantee,
            "dials": list(method.dials),
            "error": [_list(found["test_error"][:, j]) for j, key in enumerate(keys) if key[0] == e],
            "violation": [_list(found[f"test_{metric}"][:, j]) for j, key in enumerate(keys) if key[0] == e],
        }
        for e in epsilons
    }


def _mean(loss: np.ndarray, keys: Sequence[Any], epsilon: Any, setting: int) -> float:
    return float(np.mean([loss[j] for j, (e, i, _) in enumerate(keys) if e == epsilon and i == setting]))


def _list(values: np.ndarray) -> list[float]:
    return [round(float(v), 5) for v in values]


def remembered(path: Path, key: str, make: Callable[[], Any]) -> Any:
    """A cell of an experiment, made once: a run that was interrupted goes on where it was."""
    cells = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if key not in cells:
        cells[key] = make()
        path.write_text(json.dumps(cells) + "\n", encoding="utf-8")
        print("done", key, flush=True)
    return cells[key]


def points_of(cell: Mapping[str, Any]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Mean and interval of error and violation at each dial."""
    return [
        (interval(np.asarray(e)), interval(np.asarray(v)))
        for e, v in zip(cell["error"], cell["violation"], strict=True)
    ]


def least_violation(cell: Mapping[str, Any], error: float) -> float | None:
    """The least mean violation of a curve at an error of at most this, on the straight lines between its points.

    ``None`` where the curve has no point at so small an error.
    """
    spots = sorted((e["mean"], v["mean"]) for e, v in points_of(cell))
    reached = [v for e, v in spots if e <= error]
    for (e0, v0), (e1, v1) in itertools.pairwise(spots):
        if e0 <= error < e1:
            reached.append(v0 + (v1 - v0) * (error - e0) / (e1 - e0))
    return min(reached) if reached else None


def reduction(ours: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[float], int]:
    """By how much our violation lies below each point of another curve at equal error, and how many have no equal."""
    found, missing = [], 0
    for error, violation in points_of(other):
        least = least_violation(ours, error["mean"])
        if least is None:
            missing += 1
        elif violation["mean"] > 0:
            found.append(1 - least / violation["mean"])
    return found, missing
