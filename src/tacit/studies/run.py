"""Run a study: the private training, the same rounds without noise, and what all records and each silo's can give."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Params
from tacit.data import Federation
from tacit.data.schema import Schema
from tacit.models.scores import classes_of, scores_by_silo
from tacit.objectives import Objective, untapped
from tacit.objectives.server import RULES
from tacit.plans.assemble import Builder, Facts, builder_of, problem_of, record_shape
from tacit.plans.catalogue import find
from tacit.plans.spec import Study, StudyError, study_from
from tacit.privacy import Event, SiloPlan, spent
from tacit.silo import enrol
from tacit.simulate.compiled import Outcome, Program, Seed, grid_program, simulate_grid
from tacit.simulate.participation import Participation, participation, roster
from tacit.simulate.program import Measure, split_keys
from tacit.simulate.reuse import Programs, compiled
from tacit.studies.constant import constant_metrics
from tacit.studies.fair import fair_measure
from tacit.studies.federation import federation_of
from tacit.studies.plan import Plan, plan_of
from tacit.studies.reference import Reached, Reference
from tacit.studies.stages import CONVERGED, NO_NOISE, PRIVATE, Progress, Stages
from tacit.studies.standardise import standardised, statistics_events
from tacit.theory import gradient_mapping, proximal_descent, risk

_DESCENT = 5000  # steps of proximal descent to an optimum
_PARTS = ("train", "validation", "test")
_PROGRAMS: Programs[Program] = Programs()
ALL_SILOS = ""
"""Who trains on the pooled records: no silo is called so."""


@dataclass(frozen=True)
class Prepared:
    """A study, checked, assembled and priced: everything before the first round.

    ``record`` is the shape of one record. There are no federations where a study was priced without its records.
    """

    study: Study
    federations: tuple[Federation, ...]
    builder: Builder
    plan: Plan
    who: Participation
    record: Any

    @property
    def names(self) -> list[str]:
        """The silos' names."""
        return [silo.name for silo in self.plan.silos]

    @property
    def records(self) -> list[int]:
        """How many training records each silo has."""
        return [silo.records for silo in self.plan.silos]


class Score(NamedTuple):
    """The scores of a model on the test records of one silo, or of all where ``silo`` is empty, in one seed."""

    model: str
    seed: int
    silo: str
    values: dict[str, Any]


@dataclass
class Result:
    """The result of a run. Traces have axes (seeds, measured rounds).

    ``non_private`` are the same rounds, with clip and without noise; ``converged`` is what the objective reaches on the
    pooled records without privacy, and ``alone`` what it reaches on the records of one silo. ``gains`` has, by
    silo, the main metric on its own test records: of the model of all silos, and of its own.

    ``personal`` has the silos' models of their own, with axes (seeds, silos), where the algorithm makes such. Metrics
    and scores are then of these, each on the records of its silo; traces are of the model for everybody else.
    """

    prepared: Prepared
    params: Params
    personal: Params | None
    metrics: dict[str, np.ndarray]
    non_private: dict[str, np.ndarray]
    converged: dict[str, np.ndarray]
    alone: dict[str, dict[str, np.ndarray]]
    gains: dict[str, dict[str, np.ndarray]]
    reference: dict[str, Any]
    scores: list[Score]
    rounds: np.ndarray
    trace: dict[str, np.ndarray]
    open_trace: dict[str, np.ndarray]
    epsilon_spent: list[float | None]
    seconds: float
    grid: list[dict[str, Any]] = field(default_factory=list)
    constant: dict[str, np.ndarray] = field(default_factory=dict)


def prepare(study: Study) -> Prepared:
    """Load, assemble and price a study; every mistake in it is found here."""
    if study.algorithm.name == "statistics":
        raise StudyError(f"algorithm.name: statistics train nothing; ask for them with: tacit statistics {study.name}")
    federations = tuple(federation_of(study, seed) for seed in study.run.seed_list)
    first = federations[0]
    if find(study.algorithm.name).reads_attribute and not first.group_names:
        raise StudyError(f"data.name: {first.name} has no sensitive attribute, which {study.algorithm.name} needs.")
    names, records = [silo.name for silo in first.silos], [len(silo.train["y"]) for silo in first.silos]
    before = statistics_events(study, first)
    prepared = _priced(study, first, names, records, _record(first), before)
    noise = [events[0].noise_multiplier for events in before]
    federations = tuple(
        standardised(study, federation, noise, prepared.who, seed)
        for federation, seed in zip(federations, study.run.seed_list, strict=True)
    )
    return dataclasses.replace(prepared, federations=federations)


def prepare_counted(study: Study, schema: Schema, records: Sequence[int]) -> Prepared:
    """Assemble and price a study for silos that train on so many records of a schema; no record is read."""
    if study.preprocessing is not None:
        raise StudyError("preprocessing: private statistics are priced with the records at hand; leave them out.")
    if find(study.algorithm.name).reads_attribute:
        raise StudyError(f"data.name: a schema has no sensitive attribute, which {study.algorithm.name} needs.")
    return prepare_facts(study, facts_of(schema), records)


def prepare_facts(study: Study, facts: Facts, records: Sequence[int], names: Sequence[str] = ()) -> Prepared:
    """The same for silos of which no more is known than these facts."""
    called = list(names) or [f"silo {number + 1}" for number in range(len(records))]
    return _priced(study, facts, called, list(records), record_shape(facts.feature_shape, facts.task))


class Declared(NamedTuple):
    """What a schema says of records, as a federation would."""

    task: str
    num_classes: int | None
    feature_shape: tuple[int, ...]
    feature_norm: float | None
    name: str = "the schema"


def facts_of(schema: Schema) -> Declared:
    """What a schema says of records."""
    classes = schema.target.classes
    return Declared(schema.target.task, None if classes is None else len(classes), (schema.width,), schema.bound)


def _priced(
    study: Study, facts: Facts, names: list[str], records: list[int], record: Any, before: Sequence[Any] = ()
) -> Prepared:
    """A study that is ready but for its records: one price, whoever asks for it."""
    who = participation(
        len(records),
        study.run.participants,
        weights=records if study.run.weights == "records" else None,
        cap=study.privacy.max_participations,
        honest=study.run.honest,
        colluding=study.pairwise.colluding,
    )
    builder = builder_of(study, problem_of(study, facts), records)
    plan = plan_of(study, builder, names, records, record, before)
    _check_grid(study)
    return Prepared(study, (), builder, plan, who, record)


def _record(federation: Federation) -> Any:
    """The shape of one record."""
    return jax.tree.map(lambda rows: jax.ShapeDtypeStruct(rows.shape[1:], rows.dtype), federation.silos[0].train)


def run(study: Study, progress: Progress | None = None) -> Result:
    """Run a study and its baselines. Deterministic for the study's seeds."""
    return run_prepared(prepare(study), progress)


def run_prepared(prepared: Prepared, progress: Progress | None = None, stages: Path | None = None) -> Result:
    """Run a study that is ready.

    ``stages`` is a folder that keeps how far the run is: the same study goes on from there, to the same result.
    """
    started, study, build, seeds = time.perf_counter(), prepared.study, prepared.builder.build, starts_of(prepared)

    def dearest(rounds: int) -> float | None:
        return max((epsilon for epsilon in _spent(prepared, seeds, rounds) if epsilon is not None), default=None)

    watched = Stages(stages, progress, dearest)

    def train(label: str, build: Callable[..., Any], grid: dict[str, Any], seeds: list[Seed], who: Any) -> Outcome:
        measure, every = watch(prepared), study.run.measure_every or max(1, study.algorithm.num_rounds // 50)
        how: dict[str, Any] = {"measure": measure, "measure_every": every, "keeper": watched.keeper(label)}
        return simulate_grid(build, grid, seeds, who=who, program=_program(build, grid, who, measure), **how)

    label = PRIVATE if (private := study.privacy.private) else "training, not private"
    chosen = train(label, partial(build, **prepared.plan.parameters), {}, seeds, prepared.who)
    # The clip stays: steps that are right for clipped gradients can be far too long for others.
    plain = partial(build, **{"channel": "direct", "noise_multiplier": 0.0, **study.baseline})
    public = train(NO_NOISE, plain, {}, seeds, prepared.who) if private else chosen
    found = _converged(prepared, seeds, watched)
    trained, opened = (_first_point((one.params, one.personal)) for one in (chosen, public))
    models = {"private": trained, "non_private": opened} if private else {"not private": trained}
    models |= {"converged": (found.params[ALL_SILOS], None)} if ALL_SILOS in found.params else {}
    return Result(
        prepared=prepared,
        params=trained[0],
        personal=trained[1],
        metrics=_first_point(_last(prepared, chosen)),
        non_private=_first_point(_last(prepared, public)),
        converged=found.metrics.get(ALL_SILOS, {}),
        alone={name: found.metrics[name] for name in prepared.names if name in found.metrics},
        gains=_gains(prepared, trained[0], trained[1], found.params),
        reference=found.facts,
        scores=_scores(prepared, models),
        rounds=chosen.rounds,
        trace=_first_point(chosen.trace),
        open_trace=_first_point(public.trace),
        epsilon_spent=_spent(prepared, seeds),
        grid=_grid(prepared, seeds, train) if study.run.grid else [],
        constant=_constant(prepared),
        seconds=time.perf_counter() - started,
    )


def _program(build: Callable[..., Any], grid: Mapping[str, Any], who: Participation, measure: Measure) -> Program:
    """The program of a grid, or that of an earlier one which computes the same."""
    count = len(next(iter(grid.values()), (None,)))
    own = {"build": build, "grid": tuple(grid), "points": count, "who": who, "measure": measure}
    return _PROGRAMS.get(own, lambda: grid_program(build, count, who, measure))


def _first_point(tree: Any) -> Any:
    """What has axes (seeds, points, ...), of the only point."""
    return jax.tree.map(lambda leaf: np.asarray(leaf[:, 0]), tree)


def _constant(prepared: Prepared) -> dict[str, np.ndarray]:
    """One prediction for every record: what a model must beat."""
    seeds = [{part: pooled(federation, part) for part in _PARTS} for federation in prepared.federations]
    objective, x = prepared.builder.problem.objective, jnp.asarray(seeds[0]["train"]["x"][:1])
    shape = jax.eval_shape(lambda key: objective.model.apply(objective.init(key), x, untapped), jax.random.key(0))
    cost = objective.cost
    return constant_metrics(list(cost.metrics), seeds, cost.value, shape.shape[1], cost.constant)


def starts_of(prepared: Prepared) -> list[Seed]:
    """What each repetition of a study starts from."""
    # Other algorithms are not handed the sensitive attribute.
    with_groups = prepared.builder.entry.reads_attribute
    starts = []
    for seed, federation in zip(prepared.study.run.seed_list, prepared.federations, strict=True):
        key_run, key_init = jax.random.split(jax.random.key(seed))
        silos = enrol([_fields(silo.train, with_groups) for silo in federation.silos], prepared.names)
        parts = {part: pooled(federation, part, with_groups) for part in _PARTS}
        params = prepared.builder.problem.objective.init(key_init)
        least = _least_risk(prepared, params, parts["train"])
        starts.append(Seed(key_run, params, silos, {"parts": parts, "least": least}))
    return starts


def _fields(records: dict[str, np.ndarray], with_groups: bool) -> dict[str, np.ndarray]:
    return {name: column for name, column in records.items() if name != "s" or with_groups}


def pooled(federation: Federation, part: str, with_groups: bool = False) -> dict[str, np.ndarray]:
    """The records of all silos together."""
    tables = [_fields(getattr(silo, part), with_groups) for silo in federation.silos]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def _least_risk(prepared: Prepared, params: Params, records: Any) -> Any:
    """The least risk, if asked for; ``None`` where losses are not convex and smooth, and descent may not find it."""
    problem = prepared.builder.problem
    convex = problem.objective.model.linear is not None and problem.smoothness is not None
    if not prepared.study.run.stationarity or not convex:
        return None

    def least(params: Params, records: Any) -> Any:
        optimum = proximal_descent(problem, params, records, 1.0 / (problem.smoothness or 1.0), _DESCENT)
        return risk(problem, optimum, records)

    return compiled(least)(params, records)


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
    """Loss and metrics on each part of the records; if asked for, how near training records are to stationary.

    It holds no record: a program that is kept has it.
    """
    study, problem, groups = prepared.study, prepared.builder.problem, prepared.federations[0].group_names
    plain, asked, smoothness = measured(problem.objective), study.run.stationarity, problem.smoothness
    step = float(np.mean(study.algorithm.step_size)) if smoothness is None else 1.0 / smoothness
    fair = fair_measure(prepared.builder, len(groups)) if prepared.builder.entry.reads_attribute else None

    def measure(params: Params, evaluation: Any) -> dict[str, Any]:
        parts, least = evaluation["parts"], evaluation["least"]
        values = plain(params, parts)
        if fair is not None:
            for part, records in parts.items():
                values |= {f"{part}_{name}": value for name, value in fair(params, records).items()}
        if asked:
            values["train_gradient_mapping"] = gradient_mapping(problem, params, parts["train"], step)
            if least is not None:
                values["train_excess_risk"] = risk(problem, params, parts["train"]) - least
        return values

    return measure


def _last(prepared: Prepared, outcome: Outcome) -> dict[str, np.ndarray]:
    """The last measurements, with axes (seeds, points); of silos' own models on their records, where there are such."""
    last = {name: values[:, :, -1] for name, values in outcome.trace.items()}
    if outcome.personal is None:
        return last
    measure_own = prepared.builder.problem.objective.measure_own
    measure = compiled(
        lambda own, records, counts: jax.vmap(measure_own, in_axes=(0, None, None))(own, records, counts)
    )
    for part in _PARTS:
        rows = []
        for s, federation in enumerate(prepared.federations):
            tables = [{name: getattr(silo, part)[name] for name in ("x", "y")} for silo in federation.silos]
            counts = np.asarray([len(table["y"]) for table in tables])
            padded = {name: _padded([table[name] for table in tables]) for name in ("x", "y")}
            rows.append(measure(_seed(outcome.personal, s), padded, counts))
        last |= {f"{part}_{name}": values for name, values in _stacked(rows).items()}
    return last


def _padded(columns: Sequence[np.ndarray]) -> np.ndarray:
    longest = max(len(column) for column in columns)
    return np.stack([np.pad(c, [(0, longest - len(c))] + [(0, 0)] * (c.ndim - 1)) for c in columns])


class Converged(NamedTuple):
    """Models trained to convergence without privacy, by who trains: all silos together, or one of them.

    Parameters and metrics have a leading axis of seeds.
    """

    params: dict[str, Params]
    metrics: dict[str, dict[str, np.ndarray]]
    facts: dict[str, Any]


def _converged(prepared: Prepared, seeds: list[Seed], watched: Stages) -> Converged:
    """Train on the pooled records and on each silo's own; everything is measured on the records of all silos."""
    study = prepared.study
    who = [ALL_SILOS] * study.run.converged + prepared.names * study.run.alone
    if not who:
        return Converged({}, {}, {})
    longest = max(len(silo.train["y"]) for federation in prepared.federations for silo in federation.silos)
    reference = Reference(study, prepared.builder, prepared.federations[0], longest)
    with_groups, measure = prepared.builder.entry.reads_attribute, compiled(watch(prepared))
    reached: dict[str, list[Reached]] = {name: [] for name in who}
    for i, (seed, federation) in enumerate(zip(seeds, prepared.federations, strict=True)):
        own = {silo.name: _fields(silo.train, with_groups) for silo in federation.silos}
        for j, name in enumerate(who):
            records = seed.evaluation["parts"]["train"] if name == ALL_SILOS else own[name]
            reached[name].append(reference.train(seed.params, records, jax.random.fold_in(seed.key, j)))
            watched.tell(CONVERGED, i * len(who) + j + 1, len(seeds) * len(who))
    params = {name: _stacked([one.params for one in rows]) for name, rows in reached.items()}
    metrics = {
        name: _stacked([measure(one.params, seed.evaluation) for one, seed in zip(rows, seeds, strict=True)])
        for name, rows in reached.items()
    }
    together = reached.get(ALL_SILOS, [])
    slopes = [one.gradient for one in together if one.gradient is not None]
    facts = {"rule": reference.rule, "objective": reference.objective, "gradient": max(slopes, default=None)}
    return Converged(params, metrics, {**facts, "steps": max((one.steps for one in together), default=None)})


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *trees)


def _gains(
    prepared: Prepared, params: Params, personal: Params | None, alone: Mapping[str, Params]
) -> dict[str, dict[str, np.ndarray]]:
    """By silo that has test records: the error on these of the model that it gets, and of one made alone, by seed."""
    measure, objective = compiled(prepared.builder.problem.objective.measure), prepared.builder.problem.objective
    metric = next((name for name in ("error", "mse") if name in objective.cost.metrics), "loss")
    gains = {}
    for i, name in enumerate(prepared.names):
        tests = [federation.silos[i].test for federation in prepared.federations]
        if name not in alone or not all(len(test["y"]) for test in tests):
            continue
        got = params if personal is None else jax.tree.map(lambda leaf, i=i: leaf[:, i], personal)
        models = {"together": got, "alone": alone[name]}
        gains[name] = {
            who: np.asarray([measure(_seed(model, s), test)[metric] for s, test in enumerate(tests)], float)
            for who, model in models.items()
        }
    return gains


def _scores(prepared: Prepared, models: Mapping[str, tuple[Params, Params | None]]) -> list[Score]:
    """Every model, and silos' own beside it, on the test records of all silos; the first also on each silo's."""
    objective, rows = prepared.builder.problem.objective, []
    for s, (seed, federation) in enumerate(zip(prepared.study.run.seed_list, prepared.federations, strict=True)):
        scale = None if federation.target is None else federation.target.range
        told: dict[str, Any] = {"classes": classes_of(federation), "scale": scale}
        parts = {silo.name: silo.test for silo in federation.silos}
        for i, (model, (params, personal)) in enumerate(models.items()):
            own = {n: _seed(_seed(personal, s), k) for k, n in enumerate(parts if personal is not None else ())}
            found = scores_by_silo(objective, _seed(params, s), parts, personal=own, **told)
            rows.append(Score(model, seed, ALL_SILOS, found["all"]))
            rows += [Score(model, seed, silo, values) for silo, values in found["silos"].items() if i == 0]
    return rows


def _seed(tree: Params, s: int) -> Params:
    """The model of one seed."""
    return jax.tree.map(lambda leaf: leaf[s], tree)


def _grid(prepared: Prepared, seeds: list[Seed], train: Callable[..., Outcome]) -> list[dict[str, Any]]:
    """Every point of the study's grid in one program; the noise of each point is calibrated to its budget."""
    points = points_of(prepared.study.run.grid)
    rows = [changes_of(point) for point in points]
    if prepared.study.privacy.private:
        rows = [{**row, "noise_multiplier": noise_at(prepared, point)} for row, point in zip(rows, points, strict=True)]
    grid = {name: jnp.asarray(np.asarray([row[name] for row in rows])) for name in rows[0]}
    outcome = train("grid", prepared.builder.build, grid, seeds, prepared.who)
    last = _last(prepared, outcome)
    return [
        {"point": point, "metrics": {name: summary(values[:, i]) for name, values in last.items()}}
        for i, point in enumerate(points)
    ]


def points_of(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid, in the order of its result.

    >>> points_of({"algorithm.step_size": [1, 2]})
    [{'algorithm.step_size': 1}, {'algorithm.step_size': 2}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def changes_of(point: Mapping[str, Any]) -> dict[str, Any]:
    """What a point changes of the algorithm; a server by its place among the rules, as a number."""
    changes = {key.removeprefix("algorithm."): value for key, value in point.items() if key != "privacy.epsilon"}
    return changes | ({"server": RULES.index(changes["server"])} if "server" in changes else {})


def grid_keys(study: Study) -> list[str]:
    """The algorithm's numbers that a grid may vary in one program, and its server."""
    own = [name for name, value in study.algorithm.own.items() if isinstance(value, float)]
    return sorted(f"algorithm.{name}" for name in {"step_size", "clip_norm", "server", *own})


def _check_grid(study: Study) -> None:
    known = [*grid_keys(study), "privacy.epsilon"]
    strange = sorted(set(study.run.grid) - set(known))
    if strange:
        raise StudyError(f"run.grid: expected keys among {known}, got {strange}.")
    if "privacy.epsilon" in study.run.grid and study.privacy.epsilon is None:
        raise StudyError("run.grid.privacy.epsilon: the study itself has no epsilon; set privacy.epsilon too.")
    check_values(study, study.run.grid, "run.grid.")


def check_values(study: Study, grid: Mapping[str, Sequence[Any]], label: str) -> None:
    """Raise, with the key after a label, unless the study could have each of the values there by itself."""
    for key, values in grid.items():
        for value in values:
            _check_value(study, key, value, f"{label}{key}: expected values that {key} may have")


def _check_value(study: Study, key: str, value: Any, where: str) -> None:
    rows = value if isinstance(value, list | tuple) else (value,)
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in rows)
    if key == "algorithm.server":
        if value not in RULES:
            raise StudyError(f"{where}, among {', '.join(RULES)}, got {value!r}.")
    elif not rows or not plain:
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
    first = [tuple(e for e in silo.events if e.kind == "statistics") for silo in prepared.plan.silos]
    before = first if study.preprocessing is not None else ()
    # The algorithm's own numbers may change what is released (the noise of differences, say), and with it the price.
    builder = dataclasses.replace(prepared.builder, fixed={**prepared.builder.fixed, **changes_of(point)})
    noise = plan_of(study, builder, prepared.names, prepared.records, prepared.record, before).noise
    if noise is None:
        raise StudyError("run.grid: expected a private study for a grid over noise.")
    return noise


def _spent(prepared: Prepared, seeds: list[Seed], rounds: int | None = None) -> list[float | None]:
    """What each silo's answers cost, in the seed in which it answered most; of the first ``rounds``, or of all."""
    algorithm = prepared.builder.build(**prepared.plan.parameters)
    silos, who = len(prepared.names), prepared.who
    rosters = [roster(split_keys(seed.key).choice, algorithm, who, silos) for seed in seeds]
    answers = np.max([one.answers(silos, rounds) for one in rosters], axis=0)
    played = Counter(algorithm.schedule[:rounds])

    def releases(event: Event, count: int) -> int:
        if event.kind not in algorithm.rounds:
            return event.count
        # With several kinds of round a silo may have answered any of them: each is charged up to its own count.
        steps = algorithm.rounds[event.kind].silo.local_steps
        return min(event.count, min(count, played[event.kind]) * steps)

    def cost(silo: SiloPlan, count: int) -> float | None:
        if silo.price is None:
            return None
        made = {event.kind: releases(event, count) for event in silo.events}
        return spent(silo.events, made, delta=silo.price.delta - silo.kept).epsilon

    return [cost(silo, int(count)) for silo, count in zip(prepared.plan.silos, answers, strict=True)]


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    values = np.asarray(values, float)
    return {"mean": float(values.mean()), "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0}
