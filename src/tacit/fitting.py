"""Training in five lines: records and a budget in, a model and its price out."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.algorithm import Params
from tacit.algorithms import find
from tacit.data import Federation
from tacit.errors import TacitError, unknown
from tacit.objectives import Problem
from tacit.privacy.doubts import doubts
from tacit.privacy.plan import Budget, SiloPlan, plan_silos
from tacit.runtime.participation import participation
from tacit.runtime.simulate import Progress, simulate
from tacit.silo import enrol


class Fit(NamedTuple):
    """A trained model, what each silo paid for it, and measurements on the training records by round."""

    params: Params
    silos: tuple[SiloPlan, ...]
    trace: dict[str, np.ndarray]


def fit(
    problem: Problem,
    silos: Federation | Sequence[Mapping[str, np.ndarray]],
    *,
    algorithm: str,
    budget: Budget | None,
    seed: int = 0,
    participants: int | Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    progress: Progress | None = None,
    **parameters: Any,
) -> Fit:
    """Train ``problem`` on silos in this process, each silo's messages within ``budget`` for each of its records.

    ``silos`` is a federation (its training records are used) or one table ``{"x": features, "y": targets}`` per silo.
    ``budget=None`` trains without privacy, and says so by plans without a price; a budget that promises little warns.
    ``parameters`` are the algorithm's: ``step_size``, ``num_rounds``, ``clip_norm``, and for mini-batches
    ``batch_size`` and ``sampling``.

    >>> from tacit.data import load
    >>> from tacit.objectives import Objective, Problem, linear, logistic
    >>> hospitals = load("heart-disease")
    >>> problem = Problem(Objective(linear(*hospitals.feature_shape, 1), logistic()))
    >>> result = fit(problem, hospitals, algorithm="mb-sgd", budget=Budget(epsilon=1.0, delta=1e-5),
    ...              step_size=4.0, clip_norm=0.35, num_rounds=30)
    >>> [round(silo.price.epsilon, 2) for silo in result.silos]
    [1.0, 1.0, 1.0, 1.0]
    """
    tables, names = _tables(silos)
    enrolled = enrol(tables, names)
    records = [int(n) for n in enrolled.counts]
    entry = find(algorithm)
    strange = sorted(set(parameters) - set(entry.parameters))
    if strange:
        raise TacitError(unknown(f"parameter of {algorithm}", strange[0], set(entry.parameters) - {"noise_multiplier"}))
    defaults = {"batch_size": None, "sampling": "full" if parameters.get("batch_size") is None else "poisson"}
    chosen = {**defaults, **parameters, "channel": "open" if budget is None else parameters.get("channel", "direct")}
    if budget is None:
        chosen = {"clip_norm": None, **chosen}
    try:
        unit = entry.factory(problem, noise_multiplier=1.0, **chosen)
    except TypeError as error:
        raise TacitError(f"{algorithm} cannot be built: {error}.") from None
    cap, honest = (None, None) if budget is None else (budget.max_participations, budget.honest)
    # Pricing refuses a channel that counts on honest silos where the budget does not say how many there are.
    who = participation(len(names), participants, weights=weights, cap=cap, honest=1.0 if honest is None else honest)
    # Shuffled channels are priced for the crowd that is sure to come.
    plans, noise = plan_silos(unit, names, records, budget and dataclasses.replace(budget, fewest=who.fewest))
    if budget is not None:
        for doubt in doubts([p.price.epsilon for p in plans if p.price is not None], budget.delta, records):
            warnings.warn(doubt, stacklevel=2)
    key_run, key_init = jax.random.split(jax.random.key(seed))
    outcome = simulate(
        entry.factory(problem, noise_multiplier=noise, **chosen),
        problem.objective.init(key_init),
        enrolled,
        key=key_run,
        who=who,
        progress=progress,
    )
    return Fit(outcome.params, plans, outcome.trace)


def _tables(silos: Federation | Sequence[Mapping[str, np.ndarray]]) -> tuple[list[Mapping[str, np.ndarray]], list[str]]:
    if isinstance(silos, Federation):
        kept = [{k: v for k, v in silo.train.items() if k != "s"} for silo in silos.silos]
        return [*kept], [silo.name for silo in silos.silos]
    return list(silos), [f"silo {i}" for i in range(len(silos))]
