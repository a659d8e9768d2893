"""Training that goes on: where it starts, what was released before, and the price of both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tacit.algorithm import Algorithm, Params, Terms
from tacit.checking import Given
from tacit.errors import TacitError
from tacit.models.trained import TrainedModel
from tacit.objectives import Problem
from tacit.plans.price import plan_silos
from tacit.privacy import Event
from tacit.privacy.plan import Budget, SiloPlan
from tacit.privacy.schedule import settled


class Earlier(NamedTuple):
    """What a training goes on from: parameters, and what each silo has released for them.

    ``before`` are releases by silo and ``kept`` their part of delta; ``stated`` is the epsilon and delta by silo of
    those that are known by their price alone. ``model`` is the trained model; none where parameters are public.
    """

    params: Params | None = None
    before: tuple[tuple[Event, ...], ...] = ()
    kept: float = 0.0
    stated: tuple[tuple[float, float], ...] = ()
    model: TrainedModel | None = None

    @property
    def rounds(self) -> int:
        """How many rounds were played before."""
        return 0 if self.model is None else self.model.description.training.rounds


def earlier_of(init: Any, problem: Problem, given: Given, terms: Terms, budget: Budget | None) -> Earlier:
    """What ``init`` of `tacit.fit` stands for, if it fits the problem and the silos."""
    if init is None:
        return Earlier()
    model = init if isinstance(init, TrainedModel) else getattr(init, "model", None)
    if not isinstance(model, TrainedModel):
        return Earlier(_fitting(init, problem))
    params = _fitting(model.params, problem)
    _check_silos(model, given)
    if budget is None:
        return Earlier(params, model=model)
    _check_promise(model, terms)
    if isinstance(init, TrainedModel):
        prices = model.description.privacy.silos
        return Earlier(params, stated=tuple((p.epsilon or 0.0, p.delta or 0.0) for p in prices), model=model)
    plans: Sequence[SiloPlan] = init.silos
    before = tuple(settled(plan.events) for plan in plans)
    return Earlier(params, before, max(p.kept for p in plans), tuple(p.stated for p in plans), model)


def _fitting(params: Any, problem: Problem) -> Params:
    """Parameters of the problem's model, or an error that says how they differ."""
    wanted = jax.eval_shape(problem.objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    same = str(jax.tree.structure(params)) == str(jax.tree.structure(wanted))
    if isinstance(params, str) or not same:
        names = ", ".join(jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(wanted))
        raise TacitError(
            f"Expected init to be a Fit, a TrainedModel, or parameters {names} of the model, got "
            f"{type(params).__name__} of another form; give fit.params of the same model."
        )
    found = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    for (path, leaf), shape in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(wanted), strict=True):
        if leaf.shape != shape.shape or not np.isfinite(leaf).all():
            got = leaf.shape if leaf.shape != shape.shape else "values that are not finite"
            raise TacitError(
                f"Expected init{jax.tree_util.keystr(path)} to be finite and of shape {shape.shape}, got {got}; give "
                "parameters of the same model."
            )
    return found


def _check_silos(model: TrainedModel, given: Given) -> None:
    """Raise unless these are the silos of the earlier training: else nobody knows who has paid what."""
    old = {silo.name: silo.records for silo in model.description.privacy.silos}
    new = dict(zip(given.names, given.records, strict=True))
    if list(old.items()) != list(new.items()):
        name = next((n for n in (*old, *new) if old.get(n) != new.get(n)), next(iter(new)))
        raise TacitError(
            f"Expected init to be of the same silos with as many records, in the same order; {name!r} had "
            f"{old.get(name, 'none')} and has {new.get(name, 'none')}. Give the same silos, or init=model.params if "
            "those are public."
        )


def _check_promise(model: TrainedModel, terms: Terms) -> None:
    """Raise unless the earlier training has a price that means the same as the new one's."""
    privacy = model.description.privacy
    if any(silo.epsilon is None for silo in privacy.silos):
        raise TacitError(
            "Expected init with a price, to add to that of this budget; it was trained without privacy. Train it with "
            "a budget, or give init=model.params if those are public."
        )
    if (privacy.channel, privacy.protects) != (terms.channel, terms.protects):
        raise TacitError(
            f"Expected channel={privacy.channel!r} and protects={privacy.protects!r} as in the earlier training, got "
            f"{terms.channel!r} and {terms.protects!r}: the two promises are not the same. Use those."
        )


def priced_beside(
    build: Callable[[Any], Algorithm],
    names: Sequence[str],
    records: Sequence[int],
    budget: Budget | None,
    earlier: Earlier,
    dimensions: Mapping[str, int],
) -> tuple[tuple[SiloPlan, ...], np.ndarray | None]:
    """Plans and noise (see `plan_silos`) that cost each silo, with what it released before, no more than the budget.

    Formal guarantee: all releases of a silo, earlier ones included, are (epsilon, delta)-DP for each record as its
    price says. Known releases are priced with the new ones; of others the epsilon and delta are added.
    """
    own = {"dimensions": dimensions, "before": earlier.before, "aside": earlier.kept}
    if budget is None or not any(epsilon for epsilon, _ in earlier.stated):
        return plan_silos(build, names, records, budget, **own)  # type: ignore[arg-type]
    plans, noise = plan_silos(build, names, records, _rest(budget, earlier.stated), **own)  # type: ignore[arg-type]
    return tuple(_added(plan, stated, budget) for plan, stated in zip(plans, earlier.stated, strict=True)), noise


def _rest(budget: Budget, stated: Sequence[tuple[float, float]]) -> Budget:
    """What earlier prices leave of a budget."""
    delta = budget.delta - max(spent for _, spent in stated)
    if delta <= 0 or budget.user_level:
        raise TacitError(
            f"Expected delta={budget.delta:g} of the budget, for records, to be more than the "
            f"{budget.delta - delta:g} that init has spent; raise it, or train init with a smaller one."
        )
    if budget.epsilon is None:
        return dataclasses.replace(budget, delta=delta)
    goals = budget.epsilon if isinstance(budget.epsilon, tuple) else (budget.epsilon,) * len(stated)
    left = tuple(goal - spent for goal, (spent, _) in zip(goals, stated, strict=True))
    if min(left) <= 0:
        raise TacitError(
            f"Expected epsilon={max(goals):g} of the budget to be more than the {max(s for s, _ in stated):g} that "
            "init has spent: it is for both. Raise it."
        )
    return dataclasses.replace(budget, epsilon=left, delta=delta)


def _added(plan: SiloPlan, stated: tuple[float, float], budget: Budget) -> SiloPlan:
    """A plan whose price has an earlier one added."""
    assert plan.price is not None
    total = dataclasses.replace(
        plan.price, epsilon=plan.price.epsilon + stated[0], delta=budget.delta, mu=None, exact=False
    )
    return dataclasses.replace(plan, price=total, stated=stated)


def continued(model: TrainedModel, earlier: Earlier) -> TrainedModel:
    """The model, with the rounds of the training before it and what no price covers of that."""
    if earlier.model is None:
        return model
    old, new = earlier.model.description, model.description
    names = [old.training.algorithm, new.training.algorithm]
    training = new.training.model_copy(
        update={"rounds": old.training.rounds + new.training.rounds, "algorithm": ", then ".join(dict.fromkeys(names))}
    )
    uncovered = tuple(dict.fromkeys((*old.privacy.not_covered, *new.privacy.not_covered)))
    privacy = new.privacy.model_copy(update={"not_covered": uncovered})
    return dataclasses.replace(model, description=new.model_copy(update={"training": training, "privacy": privacy}))
