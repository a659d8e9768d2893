"""Training in five lines: records and a budget in, a model and its price out."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.algorithm import Algorithm, Channel, Number, Params, Protects, Recipe, Sampling, Terms
from tacit.data import Federation
from tacit.errors import TacitError
from tacit.models.description import Features
from tacit.models.scores import scores_by_silo
from tacit.models.trained import TrainedModel, privacy_of, silo_prices, trained, trained_on, training_of
from tacit.objectives import Problem
from tacit.plans.assemble import capacity_for, shapes_of
from tacit.plans.catalogue import ALGORITHMS, find
from tacit.plans.price import plan_silos
from tacit.privacy.plan import Budget, SiloPlan, doubts, scarce
from tacit.silo import enrol
from tacit.simulate.compiled import Outcome, Program, Progress, Seed, grid_program, simulate_grid
from tacit.simulate.participation import participation
from tacit.simulate.reuse import Programs

_MEASUREMENTS = 50  # of a run, unless somebody asks for more
_PROGRAMS: Programs[Program] = Programs()


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A trained model, what each silo paid for it, and how training went; printed, it says so in ten lines.

    ``trace`` holds an array for each measurement, with one entry for each of the rounds in ``trace["round"]``: the loss
    and its metrics on the training records of all silos, and what the algorithm says of itself. Measurements are exact,
    which a simulation can afford: no price covers them, so they are not for those whom the records are hidden from.
    """

    params: Params
    silos: tuple[SiloPlan, ...]
    trace: dict[str, np.ndarray]
    problem: Problem
    model: TrainedModel

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

    def scores(self, silos: Federation | Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """What people read of the model on labelled records, of all silos together and by silo.

        Of a federation these are its test records. For classes: accuracy, AUC, log loss, calibration error, numbers by
        class and the confusion matrix; for numbers RMSE, MAE and R^2, in the target's own unit where it is known. They
        are exact, and no epsilon covers them.
        """
        return scores_by_silo(self.problem.objective, self.params, silos, self.model.description.target)


def fit(
    problem: Problem,
    silos: Federation | Sequence[Mapping[str, np.ndarray]],
    algorithm: Callable[[Problem, Terms], Algorithm],
    *,
    budget: Budget | None,
    clip_norm: Number | None = None,
    batch_size: Number | None = None,
    sampling: Sampling | None = None,
    capacity: Number | None = None,
    channel: Channel = "direct",
    protects: Protects = "record",
    seed: int = 0,
    participants: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    measure_every: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Train ``problem`` on silos in this process, each silo's messages within ``budget`` for each of its records.

    ``silos`` is a federation (its training records are used) or one table ``{"x": features, "y": targets}`` per silo.
    ``algorithm`` is a recipe such as ``tacit.mb_sgd(...)``, or any function of a problem and `Terms` that returns an
    `Algorithm`. ``budget=None`` trains without privacy, clip and noise, and says so by plans without a price; a budget
    that promises little warns. ``clip_norm`` bounds each record's part, and is needed with a budget. ``sampling`` is
    ``"full"``, or ``"poisson"`` where there is a ``batch_size``, unless it is given. ``capacity`` limits Poisson
    batches, four deviations above their mean unless it is given. The trace has about fifty entries, or one for every
    ``measure_every``-th round (0: none) and the last.

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
    _check(algorithm, budget, clip_norm)
    tables, names = _tables(silos, _reads_attribute(algorithm))
    enrolled = enrol(tables, names)
    records = [int(n) for n in enrolled.counts]
    scheme = sampling or ("full" if batch_size is None else "poisson")
    limit = capacity_for(scheme, batch_size, records) if capacity is None else capacity
    unit = Terms(clip_norm, 1.0, batch_size, scheme, limit, "open" if budget is None else channel, protects)
    cap, honest = (None, None) if budget is None else (budget.max_participations, budget.honest)
    # Pricing refuses a channel that counts on honest silos where the budget does not say how many there are.
    who = participation(len(names), participants, weights=weights, cap=cap, honest=1.0 if honest is None else honest)

    def build(noise_multiplier: Any = None) -> Algorithm:
        return algorithm(problem, dataclasses.replace(unit, noise_multiplier=noise_multiplier))

    record = jax.tree.map(lambda column: jax.ShapeDtypeStruct(column.shape[2:], column.dtype), enrolled.records)
    dimensions = shapes_of(build(1.0), problem, record).dimensions
    # Shuffled channels are priced for the crowd that is sure to come.
    counted = budget and dataclasses.replace(budget, min_silos=who.min_silos)
    plans, noise = plan_silos(build, names, records, counted, dimensions=dimensions)
    prices = [p.price.epsilon for p in plans if p.price is not None]
    for doubt in [*doubts(prices, 0.0 if budget is None else budget.delta, records), *scarce(names, records)]:
        warnings.warn(doubt, stacklevel=2)
    key_run, key_init = jax.random.split(jax.random.key(seed))
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in ("x", "y")}
    start = Seed(key_run, problem.objective.init(key_init), enrolled, pooled)
    grid = {} if noise is None else {"noise_multiplier": np.asarray(noise)[None]}
    own = {"problem": problem, "algorithm": algorithm, "terms": unit, "who": who, "noised": noise is not None}
    outcome = _simulate(problem, build, grid, start, measure_every, own, progress=progress)
    trace = {name: values[0, 0] for name, values in outcome.trace.items()}
    params, _ = jax.tree.map(lambda leaf: leaf[0, 0], outcome.params)
    model = _model(problem, params, silos, plans, unit, build(noise), algorithm, seed)
    return Fit(params, plans, {"round": outcome.rounds, **trace} if trace else {}, problem, model)


def _model(
    problem: Problem,
    params: Params,
    silos: Federation | Sequence[Mapping[str, np.ndarray]],
    plans: Sequence[SiloPlan],
    terms: Terms,
    built: Algorithm,
    algorithm: Any,
    seed: int,
) -> TrainedModel:
    """The model with what is known of records, training and price."""
    training = training_of(
        study=None,
        algorithm=str(getattr(algorithm, "name", getattr(algorithm, "__name__", "own"))),
        rounds=len(built.schedule),
        seed=seed,
        simulated=True,
    )
    prices = silo_prices(plans)
    if isinstance(silos, Federation):
        return trained_on(silos, problem.objective, params, training, terms.channel, terms.protects, prices)
    whole = np.issubdtype(np.asarray(silos[0]["y"]).dtype, np.integer)
    return trained(
        problem.objective,
        params,
        features=Features(shape=np.asarray(silos[0]["x"]).shape[1:]),
        training=training,
        privacy=privacy_of(terms.channel, terms.protects, prices),
        # A loss of one's own does not say what its targets are.
        task="regression" if problem.objective.cost.name is None and not whole else None,
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


def _check(algorithm: Any, budget: Budget | None, clip_norm: Number | None) -> None:
    """Raise unless there is an algorithm to train with, and a clip where there is a budget."""
    if isinstance(algorithm, str) or not callable(algorithm):
        known = algorithm if algorithm in ALGORITHMS else "mb-sgd"
        required = [p.name for p in find(known).parameters.values() if p.default is inspect.Parameter.empty]
        call = f"tacit.{known.replace('-', '_')}({', '.join(f'{name}=...' for name in required)})"
        raise TacitError(f"Expected an algorithm such as {call}, got {algorithm!r}; names are for studies.")
    if budget is not None and clip_norm is None:
        raise TacitError("Expected clip_norm, a bound on each record's part in a message, for a budget; none is given.")


def _reads_attribute(algorithm: Any) -> bool:
    """Whether an algorithm of the table reads the sensitive attribute; one of somebody's own may."""
    entry = ALGORITHMS.get(algorithm.name) if isinstance(algorithm, Recipe) else None
    return entry is None or entry.reads_attribute


def _tables(
    silos: Federation | Sequence[Mapping[str, np.ndarray]], with_attribute: bool
) -> tuple[list[Mapping[str, np.ndarray]], list[str]]:
    """Each silo's training records and name; of a federation the sensitive attribute only where it is read."""
    if isinstance(silos, Federation):
        tables = [{k: v for k, v in silo.train.items() if k != "s" or with_attribute} for silo in silos.silos]
        return [*tables], [silo.name for silo in silos.silos]
    return list(silos), [f"silo {i}" for i in range(len(silos))]
