"""What the fairness experiments share: data in silos, methods, and tuned trade-off curves.

Gupta, Poornash, Lowy and Razaviyayn (arXiv:2411.07889): logistic regression, silos by age, error against violation. A
method has a *dial* (strength, multiplier step, ...) that trades one for the other, and settings that are tuned, by one
rule for all: for each budget and heterogeneity, those whose curve dominates the largest area between itself and the
corner of no use (`experiments.fair.compare.dominated`). Settings are chosen on the validation records of seeds
that are not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.common import columns, noise_for, together
from experiments.fair.compare import dominated
from experiments.search import Point, Space, Trials, search
from tacit import data
from tacit.algorithm import Algorithm, Params, Record
from tacit.data import Federation, SiloData
from tacit.fairness import demographic_parity_gap, equalized_odds_gap
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.objectives.fairness import Notion
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Program, Seed, grid_program, simulate_grid
from tacit.simulate.participation import participation
from tacit.studies.fair import predicted
from tacit.studies.run import pooled as all_records

DELTA = 1e-5
DIALS = (0.0, 0.5, 2.0, 10.0, 50.0)
PULLS = (0.0, 0.25, 0.5, 1.0, 2.0)
LOSSES = (0.0, 0.5, 2.0, 5.0)
VALIDATION = 0.15
METRIC: dict[Notion, str] = {"demographic-parity": "parity_gap", "equalized-odds": "odds_gap"}
FIRST_REPORTED = 200


@dataclass(frozen=True)
class Scale:
    """How large an experiment is: seeds to report and (others) to tune with, rounds, how many records are kept.

    Settings are judged by the whole curve that is reported (``every_dial``), not by a few of its points.
    """

    seeds: int = 15
    tuning: int = 3
    rounds: int = 100
    records_per_silo: int | None = None
    every_dial: bool = True

    @property
    def reported(self) -> range:
        """The seeds whose test records are read."""
        return range(FIRST_REPORTED, FIRST_REPORTED + self.seeds)


@lru_cache(maxsize=48)
def _federation(name: str, silos: int, level: float, seed: int, records_per_silo: int | None) -> Federation:
    """A partition, its features centred at their mean: where the attribute alone is protected they count as known."""
    division: dict[str, Any] = {"partition": "attribute", "silos": silos, "level": level, "seed": seed}
    loaded = data.load(name, **division, records_per_silo=records_per_silo, validation=VALIDATION, sensitive="sex")
    middle = all_records(loaded, "train")["x"].mean(axis=0)

    def centred(silo: SiloData) -> SiloData:
        parts = ({**part, "x": part["x"] - middle} for part in (silo.train, silo.validation, silo.test))
        return SiloData(silo.name, *parts)

    return replace(loaded, silos=tuple(centred(silo) for silo in loaded.silos))


@dataclass(frozen=True)
class Arena:
    """One data set in one partition: what every method is run on. The model does not see the attribute."""

    name: str
    level: float
    silos: int
    scale: Scale
    notion: Notion = "demographic-parity"

    def federation(self, seed: int) -> Federation:
        """The records of one seed."""
        return _federation(self.name, self.silos, self.level, seed, self.scale.records_per_silo)

    def problem(self) -> Problem:
        """Logistic regression with its constants."""
        federation = self.federation(0)
        longest = max(float(np.linalg.norm(silo.train["x"], axis=1).max()) for silo in federation.silos)
        norm = longest**2 + 1
        objective = Objective(linear(federation.feature_shape[0], 1), logistic())
        return Problem(objective, lipschitz=norm**0.5, smoothness=norm / 4)

    def frequencies(self) -> Any:
        """P_S, or P_S given the target, in percent: declared public."""
        records = all_records(self.federation(0), "train", True)
        s, y = records["s"], records["y"]
        rows = [np.ones(len(y), bool)] if self.notion == "demographic-parity" else [y == 0, y == 1]
        share = [round(float((s[row] == 0).mean()), 2) for row in rows]
        return tuple((p, 1 - p) for p in share)

    def seed(self, number: int, objective: Objective, pooled: bool) -> Seed:
        """One repetition; ``pooled`` makes one silo of all."""
        federation = self.federation(number)
        tables = [all_records(federation, "train", True)] if pooled else [silo.train for silo in federation.silos]
        rest = together(federation, ("validation", "test"), True)
        rest["test"] |= {k: jnp.asarray(v) for k, v in shuffled({k: np.asarray(rest["test"][k]) for k in "ys"}).items()}
        key_run, key_init = jax.random.split(jax.random.key(number))
        return Seed(key_run, objective.init(key_init), enrol(tables), rest)


def constant_error(federation: Federation, part: str) -> float:
    """The error of the classifier that says the same of everybody."""
    y = all_records(federation, part)["y"]
    return float(min(y.mean(), 1 - y.mean()))


@dataclass(frozen=True)
class Method:
    """A line of the figures. ``pooled``: one holder of all records; ``private``: whether it has a budget.

    ``rule`` says what settings are chosen by: the area that the curve dominates, or the error alone.
    """

    name: str
    build: Callable[..., Algorithm]
    dial: str | None
    dials: Sequence[float]
    tuned: Mapping[str, Sequence[float]]
    guarantee: str
    pooled: bool = False
    private: bool = True
    rule: Literal["area", "error"] = "area"


def methods(problem: Problem, frequencies: Any, notion: Notion, rounds: int) -> list[Method]:
    """SteFFLe, its variants and the baselines, each with its own dial and settings to tune."""
    common: dict[str, Any] = {"num_rounds": rounds, "batch_size": None, "sampling": "full"}
    opened: dict[str, Any] = {"clip_norm": 1e6, "noise_multiplier": None, "channel": "open"}
    fair = {"frequencies": frequencies, "notion": notion, "protects": "sensitive-attribute"}
    # One grid of steps for all, and one of dual steps for all that have duals of their own; a dial is a dual step too.
    wide: dict[str, Sequence[float]] = {"step_size": (2.0, 4.0, 8.0, 16.0)}
    dual = {**wide, "dual_step_size": (0.125, 0.5, 2.0)}

    def ours(**point: Any) -> Algorithm:
        return find("steffle").build(problem, **{**common, **fair, "clip_norm": 100.0, **point})

    def tran(**point: Any) -> Algorithm:
        return find("lagrangian-dual").build(problem, **{**common, **fair, **point})

    def ling(**point: Any) -> Algorithm:
        return find("fedfdp").build(problem, **{**common, "loss_clip": 2.0, **point})

    def with_(build: Callable[..., Algorithm], **changes: Any) -> Callable[..., Algorithm]:
        return lambda **point: build(**{**changes, **point})

    clipped = {**wide, "clip_norm": (0.1, 0.5, 2.5)}
    bounded = {**wide, "clip_norm": (0.5, 2.0, 8.0)}
    averaged = with_(lambda **p: find("local-sgd").build(problem, **{**common, **p}), local_steps=5, **opened)
    central = with_(lambda **p: find("mb-sgd").build(problem, **{**common, "output": "last", **p}), **opened)
    attribute, whole = "sensitive attribute", "ISRL-DP, whole record"
    return [
        Method("central ERM", central, None, (0.0,), wide, "none", pooled=True, private=False),
        Method("SteFFLe", ours, "strength", DIALS, dual, f"ISRL-DP, {attribute}"),
        Method("FedFDP", ling, "fairness", LOSSES, clipped, whole),
        Method("FedFDP, least error", ling, "fairness", LOSSES, clipped, whole, rule="error"),
        Method("Tran et al.", tran, "multiplier_step", PULLS, bounded, f"central DP, {attribute}", pooled=True),
        Method("central DP-FERMI", ours, "strength", DIALS, dual, f"central DP, {attribute}", pooled=True),
        Method("SteFFLe, not private", with_(ours, **opened), "strength", DIALS, dual, "none", private=False),
        Method("FERMI, central", with_(ours, **opened), "strength", DIALS, dual, "none", pooled=True, private=False),
        Method("FedAvg", averaged, None, (0.0,), {"step_size": (0.5, 1.0, 2.0, 4.0)}, "none", private=False),
    ]


def shuffled(records: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Attributes in another order, among all records and among those of the same target: independent by making."""
    luck, y, s = np.random.default_rng(0).random(len(records["y"])), records["y"], records["s"]
    alike = np.zeros_like(s)
    alike[np.argsort(y, kind="stable")] = s[np.lexsort((luck, y))]
    return {"parity_gap": s[np.argsort(luck)], "odds_gap": alike}


def measured(objective: Objective) -> Callable[[Params, Any], dict[str, Any]]:
    """Error and violations on validation and test records, and what violations are for shuffled attributes."""

    def one(params: Params, records: Record) -> dict[str, Any]:
        guess = predicted(objective.model, params, records["x"])
        found: dict[str, Any] = {"error": (guess != records["y"]).mean()}
        for name in METRIC.values():
            found[name] = _violation(name, guess, records["s"], records["y"])
            if name in records:
                found[f"{name}_by_chance"] = _violation(name, guess, records[name], records["y"])
        return found

    def measure(params: Params, evaluation: Any) -> dict[str, Any]:
        return {f"{p}_{k}": v for p, records in evaluation.items() for k, v in one(params, records).items()}

    return measure


def _violation(name: str, guess: Array, groups: Array, targets: Array) -> Array:
    if name == "parity_gap":
        return demographic_parity_gap(guess, groups, classes=2, group_count=2)
    return equalized_odds_gap(guess, groups, targets, classes=2, group_count=2)


def noise_at(method: Method, records: Sequence[int], epsilon: float) -> np.ndarray:
    """The least noise of each silo at this budget; the settings of a point do not change it."""
    point = {name: values[0] for name, values in method.tuned.items()}
    if method.dial is not None:
        point[method.dial] = 1.0
    return noise_for(lambda **terms: method.build(**{**point, **terms}), records, epsilon, DELTA)


@dataclass
class Trainer:
    """Final measurements of many points, in compiled grids of one size: one program serves tuning and all seeds."""

    method: Method
    arena: Arena
    objective: Objective
    width: int
    program: Program | None = None

    def run(self, points: Sequence[Mapping[str, Any]], numbers: Sequence[int], level: float) -> dict[str, np.ndarray]:
        """Measurements with axes (seeds, points) at one level of heterogeneity."""
        arena = replace(self.arena, level=level)
        rows = []
        for number in numbers:
            seed = arena.seed(number, self.objective, self.method.pooled)
            parts = [self._part(points[i : i + self.width], seed) for i in range(0, len(points), self.width)]
            rows.append({k: np.concatenate([part[k] for part in parts])[: len(points)] for k in parts[0]})
        return {k: np.stack([row[k] for row in rows]) for k in rows[0]}

    def _part(self, points: Sequence[Mapping[str, Any]], seed: Seed) -> dict[str, np.ndarray]:
        filled = [*points, *[points[-1]] * (self.width - len(points))]
        measure, build = measured(self.objective), self.method.build
        if self.program is None:
            self.program = grid_program(build, self.width, participation(seed.silos.number), measure)
        once: dict[str, Any] = {"measure": measure, "measure_every": 10**9, "program": self.program}
        outcome = simulate_grid(build, columns(filled), [seed], **once)
        return {name: values[0, :, -1] for name, values in outcome.trace.items()}


def curve(
    who: Trainer, level: float, epsilons: Sequence[float | None], corner: Sequence[float], trials: Trials
) -> dict[str, Any]:
    """For each budget the tuned trade-off: test error and violation along the dial, seed by seed."""
    method, scale, metric = who.method, who.arena.scale, METRIC[who.arena.notion]
    records = [int(n) for n in who.arena.seed(0, who.objective, method.pooled).silos.counts]
    dials = [{} if method.dial is None else {method.dial: value} for value in method.dials]
    noise = {e: {} if e is None else {"noise_multiplier": noise_at(method, records, e)} for e in epsilons}
    choices, points = {}, []
    for e in epsilons:
        own = noise[e]

        def run(some: list[Point], seed: int, own: Any = own) -> dict[str, np.ndarray]:
            ran = who.run([{**point, **dial, **own} for point in some for dial in dials], [seed], level)
            return _scored(ran, metric, len(dials), method.rule, corner)

        space = Space(f"{who.arena.notion}, h={level:g}, {method.name}, {e}", method.tuned)
        choices[e] = search(space, trials, run, "score", seeds=range(scale.tuning))
        points += [{**choices[e]["point"], **dial, **own} for dial in dials]
    found = who.run(points, scale.reported, level)
    return {
        str(e): {**_cell(method, choices[e]["point"], found, metric, n * len(dials)), "choice": choices[e]}
        for n, e in enumerate(epsilons)
    }


def _scored(
    ran: Mapping[str, np.ndarray], metric: str, width: int, rule: str, corner: Sequence[float]
) -> dict[str, np.ndarray]:
    """For each setting, less its area (or its error), and the violation at its first dial, on one seed."""
    errors, violations = (
        np.nan_to_num(ran[f"validation_{k}"][0], nan=9.0).reshape(-1, width) for k in ("error", metric)
    )
    areas = [dominated(list(zip(e, v, strict=True)), corner) for e, v in zip(errors, violations, strict=True)]
    score = -np.asarray(areas) if rule == "area" else errors.mean(axis=1)
    return {"score": score, "violation": violations[:, 0]}


def _cell(method: Method, setting: Any, found: Mapping[str, np.ndarray], metric: str, first: int) -> dict[str, Any]:
    names = {"error": "test_error", "violation": f"test_{metric}", "by_chance": f"test_{metric}_by_chance"}
    own = range(first, first + len(method.dials))
    values = {k: [[round(float(v), 5) for v in found[name][:, j]] for j in own] for k, name in names.items()}
    return {"setting": setting, "guarantee": method.guarantee, "dials": list(method.dials), **values}
