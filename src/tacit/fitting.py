"""Training in five lines: records and a budget in, a model and its price out."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.algorithm import Algorithm, Channel, Number, Params, Protects, Recipe, Sampling, Terms
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.checking import Given, Silos, check_problem, check_settings, silos_of
from tacit.continuing import Earlier, continued, earlier_of, priced_beside
from tacit.data import Federation
from tacit.models.description import Features
from tacit.models.scores import scores_by_silo
from tacit.models.trained import (
    TrainedModel,
    privacy_of,
    silo_prices,
    trained,
    trained_on,
    training_of,
    with_personal,
)
from tacit.objectives import Problem
from tacit.plans.assemble import capacity_for, shapes_of
from tacit.plans.catalogue import ALGORITHMS, known_algorithms
from tacit.plans.defaults import defaults_of
from tacit.privacy.plan import Budget, SiloPlan, doubts, idle, scarce
from tacit.silo import Silos as Enrolled
from tacit.silo import enrol
from tacit.simulate.compiled import Outcome, Program, Progress, Seed, grid_program, simulate_grid
from tacit.simulate.participation import Participation, participation
from tacit.simulate.reuse import Programs

_MEASUREMENTS = 50  # of a run, unless somebody asks for more
_PROGRAMS: Programs[Program] = Programs()


class Reads(NamedTuple):
    """How records were read: the column to predict, and the labels in order, where they were given."""

    target: str | None = None
    classes: tuple[Any, ...] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A trained model, what each silo paid for it, and how training went; printed, it says so in ten lines.

    ``trace`` holds an array for each measurement, with one entry for each of the rounds in ``trace["round"]``: the loss
    and its metrics on the training records of all silos, and what the algorithm says of itself. Measurements are exact,
    which a simulation can afford: no price covers them, so they are not for those whom the records are hidden from.
    Where silos have models of their own (`of`), ``params`` and ``trace`` are of the one for everybody else.
    """

    params: Params
    silos: tuple[SiloPlan, ...]
    trace: dict[str, np.ndarray]
    problem: Problem
    model: TrainedModel
    reads: Reads = field(default_factory=Reads)

    def of(self, silo: str) -> TrainedModel:
        """The model of one silo's own, where the algorithm makes such (`tacit.mr_mtl`)."""
        return self.model.of(silo)

    def predict(self, rows: Any) -> np.ndarray:
        """`TrainedModel.predict`: one prediction per row, in the target's own words or unit."""
        return self.model.predict(rows)

    def predict_proba(self, rows: Any) -> np.ndarray:
        """`TrainedModel.predict_proba`: the probability of each class."""
        return self.model.predict_proba(rows)

    def evaluate(self, rows: Any, labels: Sequence[Any] | None = None) -> dict[str, Any]:
        """`TrainedModel.evaluate`: exact scores on labelled rows, which no epsilon covers."""
        return self.model.evaluate(rows, labels)

    def save(self, folder: str | Path) -> Path:
        """`TrainedModel.save`: a bundle, which `tacit.load_model` reads."""
        return self.model.save(folder)

    def __repr__(self) -> str:
        lines = repr(self.model).splitlines()
        measured = {name: float(values[-1]) for name, values in self.trace.items() if name != "round"}
        last = ", ".join(f"{name} {value:.4g}" for name, value in measured.items())
        return "\n".join(
            [lines[0].replace("TrainedModel", "Fit"), *lines[1:], f"  last       {last or 'not measured'}"]
        )

    def scores(self, silos: Silos) -> dict[str, Any]:
        """What people read of the model on labelled records, of all silos together and by silo.

        Records of a silo that has a model of its own are read by that.
        Silos are given as to `fit`. Of a federation these are its test records. For classes: accuracy, AUC, log loss,
        calibration error, numbers by class and the confusion matrix; for numbers RMSE, MAE and R^2, in the target's own
        unit where it is known. They are exact, and no epsilon covers them.
        """
        told = self.model.description.target
        if isinstance(silos, Federation):
            parts: dict[str, Mapping[str, np.ndarray]] = {silo.name: silo.test for silo in silos.silos}
        else:
            own = self.reads
            given = check_problem(self.problem, silos_of(silos, target=own.target, classes=own.classes))
            parts = dict(zip(given.names, given.tables, strict=True))
        personal = self.model.personal
        return scores_by_silo(self.problem.objective, self.params, parts, told.classes, told.range, personal)


def fit(
    problem: Problem,
    silos: Silos,
    algorithm: Callable[[Problem, Terms], Algorithm] | None = None,
    *,
    budget: Budget | None,
    clip_norm: Number | None = None,
    batch_size: Number | None = None,
    sampling: Sampling | None = None,
    capacity: Number | None = None,
    channel: Channel = "direct",
    protects: Protects = "record",
    target: str | None = None,
    classes: Sequence[Any] | None = None,
    init: Fit | TrainedModel | Params | None = None,
    seed: int = 0,
    participants: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    measure_every: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train ``problem`` on silos in this process, each silo's messages within ``budget`` for each of its records.

    ``silos`` is a federation (its training records are used), or silos by name, or a list of them. A silo is a table
    ``{"x": features, "y": targets}``, or columns by name (a data frame, a mapping) of which ``target`` names the one to
    predict. ``classes`` are all labels in order, where they are not 0, 1, ...; both are public knowledge.

    ``algorithm`` is a recipe such as ``tacit.mb_sgd(...)``, or any function of a problem and `Terms` that returns an
    `Algorithm`; by default noisy minibatch SGD with the settings of `tacit.plans.defaults`, which `tacit init` has too.
    ``budget=None`` trains without privacy, clip and noise, and says so by plans without a price; a budget
    that promises little warns. ``clip_norm`` bounds each record's part, and is needed with a budget and an algorithm of
    yours. ``sampling`` is
    ``"full"``, or ``"poisson"`` where there is a ``batch_size``, unless it is given. ``capacity`` limits Poisson
    batches, four deviations above their mean unless it is given. The trace has about fifty entries, or one for every
    ``measure_every``-th round (0: none) and the last.

    ``init`` goes on from a fit or a trained model of the same silos. The budget is then for both: prices are those of
    all releases together, and the noise is what the rest of the budget needs. Releases of a fit are composed tightly;
    of a trained model only its price is known, and is added. Parameters by themselves count as public and cost nothing.

    >>> import tacit
    >>> from tacit.data import load
    >>> from tacit.objectives import Objective, linear, logistic
    >>> hospitals = load("heart-disease")
    >>> problem = Problem(Objective(linear(*hospitals.feature_shape, 1), logistic()))
    >>> result = fit(problem, hospitals, tacit.mb_sgd(step_size=4.0, num_rounds=30),
    ...              budget=Budget(epsilon=1.0, delta=1e-5), clip_norm=0.35)
    >>> [round(silo.price.epsilon, 2) for silo in result.silos]
    [1.0, 1.0, 1.0, 1.0]
    >>> bool(result.trace["loss"][-1] < result.trace["loss"][0])
    True
    >>> sorted(result.scores(hospitals)["silos"])
    ['cleveland', 'hungarian', 'switzerland', 'va']
    """
    given = silos_of(silos, target=target, classes=classes, with_attribute=_reads_attribute(algorithm))
    if algorithm is None:
        norm = silos.feature_norm if isinstance(silos, Federation) else None
        how = {"feature_norm": norm, "channel": channel, "weights": weights, "participants": participants}
        algorithm, clip_norm = _defaults(problem, given, budget, clip_norm, how)
    numbers = {"clip_norm": clip_norm, "batch_size": batch_size, "capacity": capacity}
    counts = {"seed": seed, "measure_every": measure_every}
    check_settings(algorithm, budget, given, protects=protects, channel=channel, sampling=sampling, **numbers, **counts)
    given = check_problem(problem, given)
    scheme: Sampling = sampling or ("full" if batch_size is None else "poisson")
    limit = capacity_for(scheme, batch_size, given.records) if capacity is None else capacity
    through = "open" if budget is None else channel
    unit = Terms(clip_norm, 1.0, batch_size, scheme, limit, through, protects, silos=len(given.names))
    cap, honest = (None, None) if budget is None else (budget.max_participations, budget.honest)
    # Pricing refuses a channel that counts on honest silos where the budget does not say how many there are.
    honesty = {"honest": 1.0 if honest is None else honest, "colluding": 1 if budget is None else budget.colluding}
    who = participation(len(given.names), participants, weights, cap, **honesty)  # type: ignore[arg-type]
    earlier = earlier_of(init, problem, given, unit, budget)
    job = _Job(problem, algorithm, unit, who, enrol(given.tables, given.names), given)
    plans, noise = _priced(job, budget, earlier)
    params, personal, trace = _trained(job, noise, earlier, seed, measure_every, progress)
    model = _model(job, params, silos, plans, len(job.build(noise).schedule), seed)
    model = with_personal(model, given.names, personal)
    read = Reads(target, None if classes is None else tuple(classes))
    return Fit(params, plans, trace, problem, continued(model, earlier), read)


def _defaults(problem: Problem, given: Given, budget: Any, clip_norm: Any, how: dict[str, Any]) -> tuple[Recipe, Any]:
    """The algorithm to start from, and its clip unless one is given."""
    if not isinstance(how["participants"], int | None):
        how = {**how, "participants": how["participants"][0]}
    own = clip_norm if isinstance(clip_norm, int | float) and clip_norm > 0 else None
    told = budget if isinstance(budget, Budget) else None
    found = defaults_of(problem, given.records, told, clip_norm=own, **how)
    sgd = mb_sgd(step_size=found.step_size, num_rounds=found.num_rounds, output=found.output)
    return sgd.with_server(found.server), found.clip_norm if clip_norm is None else clip_norm


class _Job(NamedTuple):
    """A training that is about to run."""

    problem: Problem
    algorithm: Callable[[Problem, Terms], Algorithm]
    terms: Terms
    who: Participation
    enrolled: Enrolled
    given: Given

    def build(self, noise_multiplier: Any = None, clip_norm: Any = None, **numbers: Any) -> Algorithm:
        """The algorithm with this noise, and with this clip and these numbers of its own where they are given."""
        clip = self.terms.clip_norm if clip_norm is None else clip_norm
        algorithm = self.algorithm
        if numbers:
            assert isinstance(algorithm, Recipe)
            algorithm = dataclasses.replace(algorithm, parameters={**algorithm.parameters, **numbers})
        return algorithm(
            self.problem, dataclasses.replace(self.terms, noise_multiplier=noise_multiplier, clip_norm=clip)
        )

    @property
    def numbers(self) -> dict[str, float]:
        """What goes into a program instead of being part of it: step and clip of an algorithm that ships."""
        if not isinstance(self.algorithm, Recipe) or self.algorithm.name not in ALGORITHMS:
            return {}
        own = {"clip_norm": self.terms.clip_norm, "step_size": self.algorithm.parameters.get("step_size")}
        plain = {name: value for name, value in own.items() if isinstance(value, int | float)}
        return {name: float(value) for name, value in plain.items()}


def _priced(job: _Job, budget: Budget | None, earlier: Earlier) -> tuple[tuple[SiloPlan, ...], np.ndarray | None]:
    """What each silo pays, for earlier releases too, and the noise of each; doubts are warned about."""
    names, records = job.given.names, job.given.records
    record = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[2:], column.dtype), job.enrolled.records)
    dimensions = shapes_of(job.build(1.0), job.problem, record).dimensions
    # Shuffled channels are priced for the crowd that is sure to come.
    counted = budget and dataclasses.replace(budget, min_silos=job.who.min_silos)
    plans, noise = priced_beside(job.build, names, records, counted, earlier, dimensions)
    prices = [p.price.epsilon for p in plans if p.price is not None]
    said = doubts(prices, 0.0 if budget is None else budget.delta, records)
    for doubt in [*said, *scarce(names, records), *idle(plans[0].events)]:
        warnings.warn(doubt, stacklevel=3)
    return plans, noise


def _trained(
    job: _Job,
    noise: np.ndarray | None,
    earlier: Earlier,
    seed: int,
    measure_every: int | None,
    progress: Progress | None,
) -> tuple[Params, Params | None, dict[str, np.ndarray]]:
    """The parameters after training, those of silos' own, and its trace."""
    # Noise is fresh where training goes on, with whatever seed.
    key = jax.random.key(seed)
    key_run, key_init = jax.random.split(jax.random.fold_in(key, earlier.rounds) if earlier.rounds else key)
    first = job.problem.objective.init(key_init) if earlier.params is None else earlier.params
    pooled = {name: np.concatenate([table[name] for table in job.given.tables]) for name in ("x", "y")}
    start = Seed(key_run, first, job.enrolled, pooled)
    numbers = job.numbers
    grid = {name: np.asarray([value], np.float32) for name, value in numbers.items()}
    if noise is not None:
        grid["noise_multiplier"] = np.asarray(noise)[None]
    own = {
        "problem": job.problem,
        "algorithm": _without(job.algorithm, numbers),
        "terms": dataclasses.replace(job.terms, clip_norm=None) if "clip_norm" in numbers else job.terms,
        "who": job.who,
        "grid": tuple(grid),
    }
    outcome = _simulate(job.problem, job.build, grid, start, measure_every, own, progress=progress)
    (params, _), personal = jax.tree.map(lambda leaf: leaf[0, 0], (outcome.params, outcome.personal))
    trace = {name: values[0, 0] for name, values in outcome.trace.items()}
    return params, personal, {"round": outcome.rounds, **trace} if trace else {}


def _without(algorithm: Any, numbers: Mapping[str, float]) -> Any:
    """An algorithm but for the numbers that go into its program."""
    if not isinstance(algorithm, Recipe):
        return algorithm
    kept = {name: value for name, value in algorithm.parameters.items() if name not in numbers}
    return dataclasses.replace(algorithm, parameters=kept)


def _model(job: _Job, params: Params, silos: Any, plans: Sequence[SiloPlan], rounds: int, seed: int) -> TrainedModel:
    """The model with what is known of records, training and price."""
    algorithm, terms, given, objective = job.algorithm, job.terms, job.given, job.problem.objective
    training = training_of(
        study=None,
        algorithm=str(getattr(algorithm, "name", getattr(algorithm, "__name__", "own"))),
        rounds=rounds,
        seed=seed,
        simulated=True,
    )
    prices = silo_prices(plans)
    if isinstance(silos, Federation):
        return trained_on(silos, objective, params, training, terms.channel, terms.protects, prices)
    whole = np.issubdtype(given.tables[0]["y"].dtype, np.integer)
    return trained(
        objective,
        params,
        features=Features(shape=given.tables[0]["x"].shape[1:], names=given.features),
        training=training,
        privacy=privacy_of(terms.channel, terms.protects, prices),
        target=given.target,
        # A loss of one's own does not say what its targets are.
        task="regression" if objective.cost.name is None and not whole else None,
    )


def _simulate(
    problem: Problem,
    build: Callable[..., Algorithm],
    grid: Mapping[str, Any],
    start: Seed,
    measure_every: int | None,
    own: Mapping[str, Any],
    **how: Any,
) -> Outcome:
    """The run; its output is the model beside what the algorithm says of itself.

    ``own`` is all that the program follows from, but for what goes into it: a run like an earlier one has its program.
    """

    def watched(**point: Any) -> Algorithm:
        algorithm = build(**point)
        return dataclasses.replace(
            algorithm, output=lambda state: (algorithm.output(state), dict(algorithm.info(state)))
        )

    def measure(found: Any, evaluation: Any) -> dict[str, Any]:
        params, info = found
        return {**problem.objective.measure(params, evaluation), **info}

    rounds = len(build(**{name: values[0] for name, values in grid.items()}).schedule)
    every = max(1, rounds // _MEASUREMENTS) if measure_every is None else measure_every
    look, who = measure if every else None, own["who"]
    program = _PROGRAMS.get({**own, "measured": bool(every)}, lambda: grid_program(watched, 1, who, look))
    return simulate_grid(
        watched, grid, [start], who=who, measure=look, measure_every=every or 1, program=program, **how
    )


def _reads_attribute(algorithm: Any) -> bool:
    """Whether an algorithm of the table reads the sensitive attribute; one of somebody's own may."""
    entry = known_algorithms().get(algorithm.name) if isinstance(algorithm, Recipe) else None
    return entry is None or entry.reads_attribute
