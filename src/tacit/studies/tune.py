"""Choosing hyperparameters inside the budget: candidates are trained, scored with noise, and the best is kept.

A candidate is one training of a study at one point of a grid and one release of its error on validation records. A
record is either trained on or validated on, so that it pays for the dearer of the two, not for their sum.

Who sees the losers decides the price. Every silo sees all candidates in what the server broadcasts, and a server that
is not trusted sees all messages besides. There are two prices:

- against the *silos*, and whoever else watches training: all points of the grid are tried once and exactly composed.
  This is what the budget covers unless somebody says otherwise.
- against the *public*, who sees nothing but the chosen model (``against="public"``, which needs a trusted server): the
  number of tries is drawn at random, each at a random point, and the price is that of Papernot and Steinke for the best
  of them. The price against the silos is larger and told beside it; a single silo with a trusted server has none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Channel, Terms
from tacit.algorithms.validation_score import validation_score
from tacit.plans.price import Seat, peers_of
from tacit.plans.spec import Study, StudyError
from tacit.privacy import Event, calibrate, gdp_epsilon, gdp_mu, price
from tacit.privacy.pairwise import noise_of_mean
from tacit.privacy.plan import AnonymitySet
from tacit.privacy.schedule import gaussian_mu, has_reports, is_subsampled
from tacit.privacy.selection import NegativeBinomial, selection_epsilon, selection_mu, watched_epsilon
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, grid_program, simulate_grid
from tacit.simulate.participation import participation
from tacit.studies.plan import budget_of, min_silos_of
from tacit.studies.run import (
    Prepared,
    changes_of,
    check_values,
    grid_keys,
    points_of,
    prepare,
    starts_of,
    summary,
    watch,
)

Against = Literal["silos", "public"]
AGAINST: Mapping[Against, str] = {
    "silos": "the other silos, the server unless it is trusted, and anyone who watches training",
    "public": "whoever sees only the chosen model",
}
"""Whom a price holds against."""
MEASURED = "the held-out test records, without noise: they count as public and are not priced"
SIMULATED = (
    "simulated: the number of candidates follows from the study's seed, so that a seed gives the same result again; it "
    "is a secret only from those who do not have the seed"
)
Point = Mapping[str, Any]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class SiloPrice:
    """What tuning costs each record of a silo, trained on or validated on.

    ``public`` holds against whoever sees only the chosen model; ``silos`` against those who watch training, ``None``
    where there are none. ``epsilon_of_one`` is the price of one candidate by itself.
    """

    name: str
    records: int
    validation: int
    public: float
    silos: float | None
    epsilon_of_one: float
    factor: float

    @property
    def epsilon(self) -> float:
        """The larger of the two prices: it holds against everyone."""
        return self.public if self.silos is None else max(self.public, self.silos)


@dataclass(frozen=True)
class TunePlan:
    """The price of tuning, before anything runs; ``separation`` is the mu of the score of one candidate.

    The study's epsilon covers the price ``against`` these. ``tries`` is the distribution of the number of candidates,
    where that is random.
    """

    prepared: Prepared
    points: tuple[Point, ...]
    against: Against
    tries: NegativeBinomial | None
    delta: float
    silos: tuple[SiloPrice, ...]
    separation: float

    @property
    def noise(self) -> np.ndarray:
        """The noise multiplier of each silo's training, rounded up to float32."""
        return np.nextafter(np.asarray([silo.factor for silo in self.silos], np.float32), np.float32(np.inf))

    @property
    def score_deviation(self) -> float:
        """The standard deviation of the noise in a candidate's released error, which is one of all silos together."""
        held, silos = sum(silo.validation for silo in self.silos), len(self.silos)
        channel = _score_channel(self.prepared)
        shared = 1.0 if channel == "trusted" else math.sqrt(silos)
        if channel == "pairwise":
            shared = noise_of_mean(silos, self.prepared.who.colluding)
        return shared / self.separation / held


@dataclass(frozen=True)
class Tuned:
    """The error of each candidate as it was released, and the best one's model and metrics.

    All of it, for those who simulate; `tuned_json` is what may be published.
    """

    plan: TunePlan
    tried: tuple[Point, ...]
    scores: tuple[float, ...]
    best: int
    params: Any
    metrics: dict[str, float]


def plan_tuning(
    study: Study,
    grid: Mapping[str, Sequence[Any]],
    *,
    against: Against | None = None,
    mean_tries: float | None = None,
) -> TunePlan:
    """Price a tuning: the noise of every candidate, so that choosing among all of them fits the study's epsilon.

    The epsilon covers everyone who watches training; with ``against="public"``, only those who see nothing but the
    chosen model.
    """
    epsilon = _checked(study, grid)
    once = study.run.model_copy(update={"seeds": (study.run.seed_list[0],), "grid": {}})
    prepared, points = prepare(study.model_copy(update={"run": once})), tuple(points_of(grid))
    if prepared.builder.entry.personal:
        raise StudyError(
            f"algorithm.name: candidates are scored by one model for all silos; {study.algorithm.name} makes one for "
            "each. Tune mb-sgd, or run a grid over records that are public."
        )
    delta, count = study.privacy.delta, len(points)
    against = _against(prepared, against, mean_tries, count)
    _check_points(prepared, points)
    tries = NegativeBinomial.of_mean(mean_tries or float(max(count, 2))) if against == "public" else None
    target = selection_mu(epsilon, tries, delta=delta) if tries else gdp_mu(epsilon, delta) / math.sqrt(count)
    silos = tuple(
        _silo_price(prepared, silo_index, tries=tries, count=count, epsilon=epsilon, target=target)
        for silo_index in range(len(prepared.names))
    )
    return TunePlan(prepared, points, against, tries, delta, silos, target)


def _against(prepared: Prepared, against: Against | None, mean_tries: float | None, count: int) -> Against:
    """Whom the budget covers: all who watch training, unless ``against`` says otherwise or there is nobody."""
    trusted, silos = prepared.study.algorithm.channel == "trusted", len(prepared.names)
    if not trusted and (against == "public" or mean_tries is not None):
        raise StudyError(
            f"--against public, --tries: a server that is not trusted sees all {count} candidates; leave them out, or "
            'use a study with algorithm.channel = "trusted".'
        )
    against = against or ("public" if trusted and silos == 1 else "silos")
    if against == "silos" and mean_tries is not None:
        raise StudyError(
            f"--tries: the {silos} silos see every candidate, so that a random number of them hides nothing; leave it "
            "out, or say --against public if the price need only hold against those who see nothing but the chosen "
            "model."
        )
    return against


def _checked(study: Study, grid: Mapping[str, Sequence[Any]]) -> float:
    epsilon = study.privacy.epsilon
    if not isinstance(epsilon, float | int) or study.privacy.user_level or study.privacy.accountant != "tight":
        raise StudyError('privacy: tuning needs one epsilon for records and accountant = "tight"; set them.')
    if study.privacy.protects != "record" or study.preprocessing is not None:
        raise StudyError(
            'privacy: tuning is priced for whole records and without preprocessing; set protects = "record", declare '
            "public ranges, and leave preprocessing out."
        )
    known = grid_keys(study)
    strange = sorted(set(grid) - set(known))
    if strange or not grid or not all(grid.values()):
        raise StudyError(
            f"--grid: expected values for keys among {', '.join(known)}, got {', '.join(strange) or 'none'}. "
            "All candidates must make the same releases: rounds, batches and shares of noise change them, and no price "
            "is known for a choice among such candidates (docs/private-preprocessing.md); set those in the study."
        )
    check_values(study, grid, "--grid ")
    return float(epsilon)


def _check_points(prepared: Prepared, points: Sequence[Point]) -> None:
    """Raise if a point would release something else than the study does: one price serves all candidates."""
    usual = _unit_events(prepared, 0, {})
    for point in points:
        if _unit_events(prepared, 0, point) != usual:
            raise StudyError(f"--grid: {dict(point)} changes what is released, and with it the price; keep it fixed.")
    lacking = [s.name for s in prepared.federations[0].silos if not len(s.validation["y"])]
    if lacking:
        raise StudyError(f"partition.validation: {lacking[0]} has no validation records; set it to 0.2, say.")


def _unit_events(prepared: Prepared, silo_index: int, point: Point) -> tuple[Event, ...]:
    study, records = prepared.study, prepared.records
    anonymity_set = AnonymitySet(tuple(records), study.run.honest, min_silos_of(study, len(records)))
    unit = prepared.builder.build(noise_multiplier=1.0, **changes_of(point))
    others = anonymity_set, peers_of(unit, tuple(records), budget_of(study, len(records)))
    seat = Seat(silo_index, len(records), records[silo_index], study.privacy.max_participations, *others)
    return seat.events(unit)


def _silo_price(
    prepared: Prepared, silo_index: int, *, tries: NegativeBinomial | None, count: int, epsilon: float, target: float
) -> SiloPrice:
    """The noise of one candidate at one silo, and what all of them cost there."""
    events, delta = _unit_events(prepared, silo_index, {}), prepared.study.privacy.delta
    silo, held = prepared.plan.silos[silo_index], len(prepared.federations[0].silos[silo_index].validation["y"])
    sampled = any(is_subsampled(e) for e in events)
    if has_reports(events) or (tries is not None and sampled):
        raise StudyError(
            "algorithm.sampling: this tuning is priced for Gaussian releases of whole batches; use sampling = "
            f'"full" or "one-pass"{"" if tries else ", and no shuffled reports"}.'
        )
    # A validation record pays for the scores, which are not sampled: all of the target.
    scores = gdp_epsilon(target * count**0.5, delta)
    if not sampled:
        factor = gaussian_mu(events) / target * (1 + 1e-9)
        public = selection_epsilon(target, tries, delta=delta) if tries else scores
        watched: float | None = scores
        if tries:
            watched = watched_epsilon(target, tries, delta=delta) if len(prepared.names) > 1 else None
        return SiloPrice(silo.name, silo.records, held, public, watched, gdp_epsilon(target, delta), factor)
    if any(e.mechanism != "gaussian" or e.sampling == "one-pass" for e in events):
        raise StudyError("algorithm: sampled rounds beside one-pass or running ones cannot be priced for tuning.")
    paid = calibrate([_repeated(event, count) for event in events], epsilon=epsilon, delta=delta)
    factor = paid[0].noise_multiplier / events[0].noise_multiplier
    alone = max(price([e.scaled(factor) for e in events], delta=delta).epsilon, gdp_epsilon(target, delta))
    total = max(price(paid, delta=delta).epsilon, scores)
    return SiloPrice(silo.name, silo.records, held, total, total, alone, factor)


def _repeated(event: Event, count: int) -> Event:
    """The releases of so many candidates, each with batches and noise of its own."""
    participations = None if event.participations is None else event.participations * count
    return dataclasses.replace(event, count=event.count * count, participations=participations)


def tune(plan: TunePlan, progress: Progress | None = None) -> Tuned:
    """Train the candidates, release their scores, and keep the best; everything follows from the study's seed."""
    prepared = plan.prepared
    seed = prepared.study.run.seed_list[0]
    generator = np.random.default_rng([seed, 1])
    tried: tuple[Point, ...] = plan.points
    if plan.tries is not None:
        count = plan.tries.draw(generator)
        tried = tuple(plan.points[int(i)] for i in generator.integers(0, len(plan.points), count))
    params, trace = _train(plan, tried, seed, progress)
    scores = _scores(plan, params, len(tried), seed)
    best = int(np.argmin(scores))
    return Tuned(
        plan,
        tried,
        tuple(float(score) for score in scores),
        best,
        jax.tree.map(lambda leaf: np.asarray(leaf[best]), params),
        {name: float(values[best]) for name, values in trace.items()},
    )


def _train(plan: TunePlan, tried: Sequence[Point], seed: int, progress: Progress | None) -> Any:
    """Every candidate with noise of its own, one after the other through one compiled program."""
    prepared = plan.prepared
    [start] = starts_of(prepared)
    build = partial(prepared.builder.build, noise_multiplier=jnp.asarray(plan.noise))
    measure, rounds = watch(prepared), prepared.study.algorithm.num_rounds
    program = grid_program(build, 1, prepared.who, measure)
    terms: dict[str, Any] = {"who": prepared.who, "measure": measure, "measure_every": rounds, "program": program}
    outcomes = []
    if progress is not None and plan.tries is not None:
        progress("candidates, a number that is not told", 0, None)
    for i, point in enumerate(tried):
        grid = {name: jnp.asarray([float(value)]) for name, value in changes_of(point).items()}
        own = start._replace(key=jax.random.fold_in(jax.random.key(seed), 1 + i))
        outcomes.append(simulate_grid(build, grid, [own], **terms))
        if progress is not None and plan.tries is None:
            progress("candidates", i + 1, len(tried))
    params = jax.tree.map(lambda *leaves: jnp.stack([leaf[0, 0] for leaf in leaves]), *(one.params for one in outcomes))
    return params, {name: np.stack([one.trace[name][0, 0, -1] for one in outcomes]) for name in outcomes[0].trace}


def _score_channel(prepared: Prepared) -> Channel:
    """How scores leave: as the study's messages do, and directly where those are shuffled."""
    channel = prepared.study.algorithm.channel
    return channel if channel in ("trusted", "pairwise") else "direct"


def _scores(plan: TunePlan, params: Any, count: int, seed: int) -> np.ndarray:
    """Each candidate's validation error, released by every silo with noise."""
    prepared = plan.prepared
    terms = Terms(None, 1 / plan.separation, None, "full", channel=_score_channel(prepared))
    algorithm = validation_score(prepared.builder.problem.objective, terms)
    federation = prepared.federations[0]
    silos = enrol([{k: silo.validation[k] for k in ("x", "y")} for silo in federation.silos], prepared.names)
    key = jax.random.fold_in(jax.random.key(seed), 0)
    seeds = [
        Seed(jax.random.fold_in(key, i), jax.tree.map(lambda leaf, i=i: leaf[i], params), silos) for i in range(count)
    ]
    weights, colluding = [silo.validation for silo in plan.silos], prepared.who.colluding
    who = participation(len(federation.silos), weights=weights, colluding=colluding)
    outcome = simulate_grid(lambda: algorithm, {}, seeds, who=who, noise="each")
    return np.asarray(outcome.params)[:, 0]


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """What may be published, as plain data: losers only where they are paid for, and nothing exact but test metrics.

    No price covers exact errors and losses on training and validation records.
    """
    plan = tuned.plan
    shown = range(len(tuned.tried)) if plan.tries is None else [tuned.best]
    tests = {name: value for name, value in tuned.metrics.items() if name.startswith("test_")}
    return {
        **plan_json(plan),
        "candidates": [{"point": dict(tuned.tried[i]), "private_validation_error": tuned.scores[i]} for i in shown],
        "chosen": dict(tuned.tried[tuned.best]),
        "private_validation_error": tuned.scores[tuned.best],
        "metrics": {name: summary(np.asarray([value])) for name, value in tests.items()},
        "metrics_measured_on": MEASURED,
    }


def plan_json(plan: TunePlan) -> dict[str, Any]:
    """The price as plain data: for every silo, and against whom."""
    return {
        "study": plan.prepared.study.name,
        "budget": plan.prepared.study.privacy.epsilon,
        "budget_covers": AGAINST[plan.against],
        "points": [dict(point) for point in plan.points],
        "tries": None if plan.tries is None else {"mean": plan.tries.mean, "eta": plan.tries.eta, "drawn": SIMULATED},
        "delta": plan.delta,
        "preprocessing_private": plan.prepared.federations[0].touches_private_data,
        "silos": [_silo_json(silo) for silo in plan.silos],
        "score_noise": 1 / plan.separation,
        "score_deviation": plan.score_deviation,
    }


def _silo_json(silo: SiloPrice) -> dict[str, Any]:
    prices: dict[Against, float | None] = {"silos": silo.silos, "public": silo.public}
    return {
        "name": silo.name,
        "records": silo.records,
        "validation": silo.validation,
        "epsilon": silo.epsilon,
        "epsilon_against": {AGAINST[who]: value for who, value in prices.items() if value is not None},
        "epsilon_of_one": silo.epsilon_of_one,
        "factor": silo.factor,
    }
