"""Run a study: the private training, the same without privacy, and every silo alone."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Params
from tacit.algorithms import find
from tacit.data import Federation
from tacit.objectives import Objective, untapped
from tacit.plans.assemble import Builder, builder_of, problem_of
from tacit.plans.spec import Study, StudyError, study_from
from tacit.privacy import spent
from tacit.silo import enrol
from tacit.simulate.compiled import Outcome, Seed, simulate_grid
from tacit.simulate.participation import Participation, participation, roster
from tacit.simulate.program import split_keys
from tacit.studies.constant import constant_metrics
from tacit.studies.fair import fair_measure
from tacit.studies.federation import federation_of
from tacit.studies.plan import Plan, plan_of
from tacit.studies.stages import PRIVATE, Progress, Stages
from tacit.studies.standardise import standardised, statistics_events
from tacit.theory import gradient_mapping, proximal_descent, risk

_DESCENT = 5000  # steps of proximal descent to an optimum


@dataclass(frozen=True)
class Prepared:
    """A study, checked, assembled and priced: everything before the first round."""

    study: Study
    federations: tuple[Federation, ...]
    builder: Builder
    plan: Plan
    who: Participation

    @property
    def reads_groups(self) -> bool:
        """Whether the algorithm reads the sensitive attribute, which other algorithms are not handed."""
        return self.builder.entry.reads_attribute

    @property
    def names(self) -> list[str]:
        """The silos' names."""
        return [silo.name for silo in self.federations[0].silos]


@dataclass
class Result:
    """What a run found. Traces have axes (seeds, measured rounds)."""

    prepared: Prepared
    params: Params
    metrics: dict[str, np.ndarray]
    non_private: dict[str, np.ndarray]
    alone: dict[str, dict[str, np.ndarray]]
    rounds: np.ndarray
    trace: dict[str, np.ndarray]
    open_trace: dict[str, np.ndarray]
    epsilon_spent: list[float | None]
    seconds: float
    grid: list[dict[str, Any]] = field(default_factory=list)
    constant: dict[str, np.ndarray] = field(default_factory=dict)


def prepare(study: Study) -> Prepared:
    """Load, assemble and price a study; every mistake in it is found here."""
    federations = tuple(federation_of(study, seed) for seed in study.run.seed_list)
    first = federations[0]
    if find(study.algorithm.name).reads_attribute and not first.group_names:
        raise StudyError(f"data.name: {first.name} has no sensitive attribute, which {study.algorithm.name} needs.")
    records = [len(silo.train["y"]) for silo in first.silos]
    weights = records if study.run.weights == "records" else None
    who = participation(
        len(records),
        study.run.participants,
        weights=weights,
        cap=study.privacy.max_participations,
        honest=study.run.honest,
    )
    builder = builder_of(study, problem_of(study, first), records)
    before = statistics_events(study, first)
    plan = plan_of(study, builder, [silo.name for silo in first.silos], records, _record(first), before)
    _check_grid(study)
    noise = [events[0].noise_multiplier for events in before]
    federations = tuple(
        standardised(study, federation, noise, who, seed)
        for federation, seed in zip(federations, study.run.seed_list, strict=True)
    )
    return Prepared(study, federations, builder, plan, who)


def _record(federation: Federation) -> Any:
    """The shape of one record."""
    return jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), federation.silos[0].train)


def run(study: Study, progress: Progress | None = None) -> Result:
    """Run a study and its baselines. Deterministic for the study's seeds."""
    return run_prepared(prepare(study), progress)


def run_prepared(prepared: Prepared, progress: Progress | None = None, stages: Path | None = None) -> Result:
    """Run a study that is ready.

    ``stages`` is a folder that keeps how far it is: the same study goes on from there, to the same result.
    """
    started, study = time.perf_counter(), prepared.study
    seeds = starts_of(prepared)
    every = study.run.measure_every or max(1, study.algorithm.num_rounds // 50)

    watched = Stages(stages, progress, lambda rounds: max(_priced(_spent(prepared, seeds, rounds)), default=None))

    def train(label: str, build: Callable[..., Any], grid: dict[str, Any], seeds: list[Seed], who: Any) -> Outcome:
        keeper, measure = watched.keeper(label), watch(prepared)
        return simulate_grid(build, grid, seeds, who=who, measure=measure, measure_every=every, keeper=keeper)

    def private(**point: Any) -> Any:
        return prepared.builder.build(**{**prepared.plan.parameters, **point})

    chosen = train(PRIVATE if study.privacy.private else "training, not private", private, {}, seeds, prepared.who)
    plain = _plain(prepared)
    public = train("without privacy", plain, {}, seeds, prepared.who) if study.privacy.private else chosen
    alone = _alone(prepared, seeds, train, plain) if study.run.alone else {}
    grid = _grid(prepared, seeds, train) if study.run.grid else []
    return Result(
        prepared=prepared,
        params=jax.tree.map(lambda leaf: np.asarray(leaf[:, 0]), chosen.params),
        metrics=_final(chosen),
        non_private=_final(public),
        alone=alone,
        rounds=chosen.rounds,
        trace={name: values[:, 0] for name, values in chosen.trace.items()},
        open_trace={name: values[:, 0] for name, values in public.trace.items()},
        epsilon_spent=_spent(prepared, seeds),
        seconds=time.perf_counter() - started,
        grid=grid,
        constant=_constant(prepared),
    )


def _constant(prepared: Prepared) -> dict[str, np.ndarray]:
    """One prediction for every record: what a model must beat."""
    parts = ("train", "validation", "test")
    seeds = [{part: pooled(federation, part) for part in parts} for federation in prepared.federations]
    objective, x = prepared.builder.problem.objective, jnp.asarray(seeds[0]["train"]["x"][:1])
    shape = jax.eval_shape(lambda key: objective.model.apply(objective.init(key), x, untapped), jax.random.key(0))
    return constant_metrics(list(objective.cost.metrics), seeds, objective.cost.value, shape.shape[1])


def starts_of(prepared: Prepared) -> list[Seed]:
    """What each repetition of a study starts from."""
    return list(_seeds(prepared))


def _seeds(prepared: Prepared) -> Iterator[Seed]:
    names = prepared.names
    with_groups = prepared.reads_groups
    for seed, federation in zip(prepared.study.run.seed_list, prepared.federations, strict=True):
        key_run, key_init = jax.random.split(jax.random.key(seed))
        silos = enrol([_flat(silo.train, with_groups) for silo in federation.silos], names)
        parts = {part: pooled(federation, part, with_groups) for part in ("train", "validation", "test")}
        params = prepared.builder.problem.objective.init(key_init)
        least = _least_risk(prepared, params, parts["train"])
        yield Seed(key_run, params, silos, {"parts": parts, "least": least})


def _flat(records: dict[str, np.ndarray], with_groups: bool = False) -> dict[str, np.ndarray]:
    return {name: column for name, column in records.items() if name != "s" or with_groups}


def pooled(federation: Federation, part: str, with_groups: bool = False) -> dict[str, np.ndarray]:
    """The records of all silos together."""
    tables = [_flat(getattr(silo, part), with_groups) for silo in federation.silos]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _least_risk(prepared: Prepared, params: Params, records: Any) -> Any:
    """The risk at the optimum, where one is asked for and proximal descent finds it: losses that are convex and smooth.

    ``None`` elsewhere.
    """
    problem = prepared.builder.problem
    convex = problem.objective.model.linear is not None and problem.smoothness is not None
    if not prepared.study.run.stationarity or not convex:
        return None

    def least(params: Params, records: Any) -> Any:
        found = proximal_descent(problem, params, records, 1.0 / (problem.smoothness or 1.0), _DESCENT)
        return risk(problem, found, records)

    return jax.jit(least)(params, records)


def measured(objective: Objective) -> Callable[[Params, Any], dict[str, Any]]:
    """Loss and metrics on each part of the records, as ``part_name``."""

    def measure(params: Params, evaluation: Any) -> dict[str, Any]:
        return {
            f"{part}_{name}": value
            for part, records in evaluation.items()
            for name, value in objective.measure(params, records).items()
        }

    return measure


def watch(prepared: Prepared) -> Callable[[Params, Any], dict[str, Any]]:
    """Loss and metrics on each part of the records; if asked for, how near training records are to stationary."""
    study, problem = prepared.study, prepared.builder.problem
    plain = measured(problem.objective)
    fair = fair_measure(prepared.builder, len(prepared.federations[0].group_names)) if prepared.reads_groups else None

    def measure(params: Params, evaluation: Any) -> dict[str, Any]:
        found = plain(params, evaluation["parts"])
        if fair is not None:
            for part, records in evaluation["parts"].items():
                found |= {f"{part}_{name}": value for name, value in fair(params, records).items()}
        if study.run.stationarity:
            train = evaluation["parts"]["train"]
            own = float(np.mean(study.algorithm.step_size))
            step = own if problem.smoothness is None else 1.0 / problem.smoothness
            found["train_gradient_mapping"] = gradient_mapping(problem, params, train, step)
            if evaluation["least"] is not None:
                found["train_excess_risk"] = risk(problem, params, train) - evaluation["least"]
        return found

    return measure


def _final(outcome: Outcome) -> dict[str, np.ndarray]:
    return {name: values[:, 0, -1] for name, values in outcome.trace.items()}


def _plain(prepared: Prepared) -> Callable[..., Any]:
    """The same algorithm without clip and noise, with the study's own settings for the baseline."""
    changes = {"channel": "open", "noise_multiplier": None, **prepared.study.baseline}
    return lambda **point: prepared.builder.build(**{**changes, **point})


def _alone(
    prepared: Prepared, seeds: list[Seed], train: Callable[..., Outcome], plain: Callable[..., Any]
) -> dict[str, dict[str, np.ndarray]]:
    """Every silo trains by itself, without privacy (nothing leaves it); measured on the records of all silos."""
    names = prepared.names
    pairs = [
        seed._replace(silos=jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], seed.silos))
        for seed in seeds
        for i in range(len(names))
    ]
    final = _final(train("each silo alone", plain, {}, pairs, participation(1)))
    by_silo = {name: values.reshape(len(seeds), len(names)) for name, values in final.items()}
    return {silo: {name: values[:, i] for name, values in by_silo.items()} for i, silo in enumerate(names)}


def _grid(prepared: Prepared, seeds: list[Seed], train: Callable[..., Outcome]) -> list[dict[str, Any]]:
    """Every point of the study's grid in one program; the noise of each point is calibrated to its budget."""
    study, points = prepared.study, grid_points(prepared.study)
    rows: dict[str, list[Any]] = {}
    for point in points:
        for key, value in point.items():
            if key != "privacy.epsilon":
                rows.setdefault(key.removeprefix("algorithm."), []).append(value)
        if study.privacy.private:
            rows.setdefault("noise_multiplier", []).append(noise_at(prepared, point))
    outcome = train(
        "grid",
        prepared.builder.build,
        {k: jnp.asarray(np.asarray(v)) for k, v in rows.items()},
        seeds,
        prepared.who,
    )
    last = {name: values[:, :, -1] for name, values in outcome.trace.items()}
    return [
        {"point": point, "metrics": {name: summary(values[:, i]) for name, values in last.items()}}
        for i, point in enumerate(points)
    ]


def grid_points(study: Study) -> list[dict[str, Any]]:
    """The points of the study's grid, in the order of its result."""
    keys = list(study.run.grid)
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*study.run.grid.values())]


def _check_grid(study: Study) -> None:
    known = {"privacy.epsilon", *(f"algorithm.{name}" for name in ("step_size", "clip_norm"))}
    known |= {f"algorithm.{name}" for name, value in study.algorithm.own.items() if isinstance(value, float)}
    strange = sorted(set(study.run.grid) - known)
    if strange:
        raise StudyError(f"run.grid: expected keys among {sorted(known)}, got {strange}.")
    if "privacy.epsilon" in study.run.grid and study.privacy.epsilon is None:
        raise StudyError("run.grid.privacy.epsilon: the study itself has no epsilon; set privacy.epsilon too.")
    check_values(study, study.run.grid, "run.grid.")


def check_values(study: Study, grid: Mapping[str, Sequence[Any]], label: str) -> None:
    """Raise, with the key after a label, unless the study could have each of the values there by itself."""
    for key, values in grid.items():
        for value in values:
            _check_value(study, key, value, f"{label}{key}: expected values that {key} may have")


def _check_value(study: Study, key: str, value: Any, where: str) -> None:
    parts = value if isinstance(value, list | tuple) else (value,)
    if not parts or not all(isinstance(p, int | float) and not isinstance(p, bool) and math.isfinite(p) for p in parts):
        raise StudyError(f"{where}, numbers such as [1, 4], got {value!r}.")
    tree = study.model_dump(exclude_none=True)
    section, name = key.split(".", 1)
    tree[section] |= {name: value}
    try:
        study_from(tree | {"run": {}})
    except StudyError as error:
        raise StudyError(f"{where}, got {value!r}; {str(error).partition(chr(10))[2].strip()}") from None


def noise_at(prepared: Prepared, point: dict[str, Any]) -> np.ndarray:
    """The noise multiplier of each silo at one point of the grid."""
    epsilon = point.get("privacy.epsilon", prepared.study.privacy.epsilon)
    privacy = prepared.study.privacy.model_copy(update={"epsilon": epsilon})
    study = prepared.study.model_copy(update={"privacy": privacy})
    records = [silo.records for silo in prepared.plan.silos]
    first = [tuple(e for e in silo.events if e.kind == "statistics") for silo in prepared.plan.silos]
    before = first if study.preprocessing is not None else ()
    # Numbers of the algorithm's own may change what is released (the noise of differences, say), and with it the price.
    own = {key.removeprefix("algorithm."): value for key, value in point.items() if key != "privacy.epsilon"}
    builder = dataclasses.replace(prepared.builder, fixed={**prepared.builder.fixed, **own})
    noise = plan_of(study, builder, prepared.names, records, _record(prepared.federations[0]), before).noise
    if noise is None:
        raise StudyError("run.grid: expected a private study for a grid over noise.")
    return noise


def _priced(values: list[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _spent(prepared: Prepared, seeds: list[Seed], rounds: int | None = None) -> list[float | None]:
    """What the realised participations cost each silo, in the seed in which it answered most.

    Of the first ``rounds`` only, where a number is given.
    """
    algorithm = prepared.builder.build(**prepared.plan.parameters)
    silos = len(prepared.names)
    answers = np.max(
        [roster(split_keys(seed.key).choice, algorithm, prepared.who, silos).answers(silos, rounds) for seed in seeds],
        axis=0,
    )
    played = Counter(algorithm.schedule[:rounds])
    found: list[float | None] = []
    for silo, count in zip(prepared.plan.silos, answers, strict=True):
        if silo.price is None:
            found.append(None)
            continue
        # With several kinds of round a silo may have answered any of them: each is charged up to its own count.
        made = {
            event.kind: min(event.count, _releases(algorithm, event.kind, min(int(count), played[event.kind])))
            if event.kind in algorithm.rounds
            else event.count
            for event in silo.events
        }
        found.append(spent(silo.events, made, delta=silo.price.delta - silo.kept).epsilon)
    return found


def _releases(algorithm: Algorithm, kind: str, answers: int) -> int:
    return answers * algorithm.rounds[kind].silo.local_steps


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    values = np.asarray(values, float)
    return {"mean": float(values.mean()), "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0}
