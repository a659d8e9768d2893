"""The reference of a study: the same features, model and objective, on pooled records, trained to convergence.

Nothing here is private. A linear model is trained by L-BFGS until the gradient is small, or by accelerated proximal
gradient steps where there is a regulariser; a fairness term of the study's algorithm is part of the objective. Any
other model is trained by Adam until the loss on records that it holds back from training stops falling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from threadpoolctl import threadpool_limits

from tacit.algorithm import Params
from tacit.data import Federation
from tacit.objectives import Ermi, Problem, ermi
from tacit.plans.assemble import Builder, problem_of
from tacit.plans.spec import Study
from tacit.simulate.reuse import compiled

GRADIENT = 1e-5  # the largest entry of a gradient that counts as small
RIDGE = 1e-6  # so that there is an optimum where classes can be separated: too small to move any other
_STEPS = 1000  # of L-BFGS at most
_PROXIMAL_STEPS, _STRIDE = 20_000, 50  # with a regulariser: at most, and between two looks
_BENDS = (10.0, 100.0, 1000.0)  # smoothness of the envelopes that stand in for a loss with kinks
_HELD_BACK = 0.1  # of the training records, to tell when a network is trained
_BATCH = 128
_RATES = (1e-2, 1e-3)  # of Adam, one after the other
_PATIENCE = 10  # looks at the held-back loss without a fall of one part in a thousand
_LOOKS = 300
_LEAST_STEPS = 20  # between two looks

Records = Mapping[str, Any]
Risk = Callable[[Params, Records, Array], Array]  # (parameters, records, weight of each record) -> the smooth part


class Reached(NamedTuple):
    """Where training ended: the parameters, after how many steps, and the largest entry of the gradient there."""

    params: Params
    steps: int
    gradient: float | None


class Reference:
    """Trains a study's model to convergence on any records of the study's form; programs are compiled once."""

    def __init__(self, study: Study, builder: Builder, federation: Federation, longest: int) -> None:
        self.problem, self._longest = builder.problem, longest
        self.convex = study.objective.model == "linear"
        self._regularised = study.objective.regulariser != "zero"
        self._fair = builder.entry.reads_attribute and builder.fixed.get("strength") is not None
        risks = [_risk(problem, _fairness(builder, federation)) for problem in _smooth(study, builder, federation)]
        self._slopes = [_slope(risk) for risk in risks]
        self._losses = compiled(_risk(builder.problem, None))
        self._proceed = _proximal(builder.problem, risks[-1])
        self._adam = _adam(builder.problem, risks[-1])

    @property
    def rule(self) -> str:
        """When training ends, in words."""
        if self.convex:
            return f"until no entry of the gradient is above {GRADIENT:g} or no step lowers the loss"
        return "until the loss on a tenth of the training records, held back, stops falling"

    @property
    def objective(self) -> str:
        """What training minimises, in words."""
        return "the study's loss and regulariser" + ", with its fairness term" * self._fair

    def train(self, params: Params, records: Records, key: Array) -> Reached:
        """The parameters that training ends at, from ``params``."""
        return self._descend(params, records) if self.convex else self._learn(params, records, key)

    def _descend(self, params: Params, records: Records) -> Reached:
        """L-BFGS; proximal steps where there is a regulariser."""
        # Records of one length share a program; a fairness term counts what pads them.
        padded, weights = (dict(records), np.ones(len(records["y"]))) if self._fair else _padded(records, self._longest)
        padded, weights = jax.tree.map(jnp.asarray, (padded, weights.astype(np.float32)))
        if self._regularised:
            return _proximal_descent(self._proceed, params, padded, weights)
        steps, gradient = 0, 0.0
        for slope in self._slopes:
            params, taken, gradient = _lbfgs(slope, params, padded, weights)
            steps += taken
        return Reached(params, steps, gradient)

    def _learn(self, params: Params, records: Records, key: Array) -> Reached:
        """Adam, at one rate after another, each until the loss on what is held back stops falling."""
        key_split, key_train = jax.random.split(key)
        count = len(records["y"])
        held = max(1, round(_HELD_BACK * count)) if count > 1 else 0
        order = np.asarray(jax.random.permutation(key_split, count))
        rows = {name: np.asarray(column) for name, column in records.items()}
        back = {name: column[order[:held]] if held else column for name, column in rows.items()}
        train, weights = _padded({name: column[order[held:]] for name, column in rows.items()}, self._longest)
        train, back, ones = jax.tree.map(jnp.asarray, (train, back, np.ones(len(back["y"]), np.float32)))
        batches = max(_LEAST_STEPS, -(-count // _BATCH))
        best, least, steps = params, float(self._losses(params, back, ones)), 0
        for rate in _RATES:
            state, since = _begun(best), 0
            for _ in range(_LOOKS):
                key_look = jax.random.fold_in(key_train, steps)
                state = self._adam(state, train, int(weights.sum()), key_look, rate, batches)
                loss, steps = float(self._losses(state.params, back, ones)), steps + batches
                since = 0 if loss < least * (1 - 1e-3) else since + 1
                best, least = (state.params, loss) if loss < least else (best, least)
                if since >= _PATIENCE:
                    break
        return Reached(best, steps, None)


def _smooth(study: Study, builder: Builder, federation: Federation) -> list[Problem]:
    """The study's problem; of a loss with kinks its envelopes, the last so close that they differ by a thousandth."""
    section = study.objective
    if section.loss not in ("hinge", "absolute", "pinball") or section.smoothness or section.model != "linear":
        return [builder.problem]
    bent = [section.model_copy(update={"smoothness": bend}) for bend in _BENDS]
    return [problem_of(study.model_copy(update={"objective": one}), federation) for one in bent]


def _fairness(builder: Builder, federation: Federation) -> tuple[Ermi, float] | None:
    """The fairness term that the study's algorithm adds to the loss, and its strength."""
    fixed = builder.fixed
    if not builder.entry.reads_attribute or fixed.get("strength") is None:
        return None
    notion, classes = fixed.get("notion", "demographic-parity"), int(fixed.get("classes", 2))
    favourable, declared = int(fixed.get("favourable", 1)), fixed.get("frequencies")
    if declared is None:
        declared = _frequencies(federation, notion, classes, favourable)
    own = {name: fixed[name] for name in ("floor",) if name in fixed}
    term = ermi(builder.problem.objective.model, classes, declared, notion=notion, favourable=favourable, **own)
    return term, float(fixed["strength"])


def _frequencies(federation: Federation, notion: str, classes: int, favourable: int) -> list[list[float]]:
    """How often each group is among training records, in each condition; a group that is missing counts as one."""
    y, s = (np.concatenate([silo.train[name] for silo in federation.silos]) for name in ("y", "s"))
    conditions = {"equalized-odds": [y == c for c in range(classes)], "equal-opportunity": [y == favourable]}
    chosen = conditions.get(notion, [np.ones(len(y), bool)])
    counts = [np.maximum(np.bincount(s[rows], minlength=len(federation.group_names)), 1) for rows in chosen]
    return [[float(n) for n in row / row.sum()] for row in counts]


def _risk(problem: Problem, fair: tuple[Ermi, float] | None) -> Risk:
    """The mean loss, and the fairness term at its best duals: by Danskin's theorem their slope does not count."""

    def risk(params: Params, records: Records, weights: Array) -> Array:
        losses = problem.objective.losses(params, dict(records))
        if fair is not None:
            term, strength = fair
            best = jax.lax.stop_gradient(term.best(params, dict(records)))
            losses = losses + strength * term.values(params, best, dict(records))
        return jnp.sum(losses * weights) / jnp.sum(weights)

    return risk


def _slope(risk: Risk) -> Callable[..., tuple[Array, Array]]:
    """Value and gradient of the risk and a ridge in flat parameters, compiled."""

    def slope(flat: Array, params: Params, records: Records, weights: Array) -> tuple[Array, Array]:
        restore = ravel_pytree(params)[1]
        return jax.value_and_grad(lambda v: risk(restore(v), records, weights) + RIDGE / 2 * v @ v)(flat)

    return compiled(slope)


def _lbfgs(slope: Callable[..., Any], params: Params, records: Records, weights: Array) -> tuple[Params, int, float]:
    """The end of L-BFGS, its steps, and the largest entry of the gradient."""
    from scipy.optimize import minimize  # slow to import

    flat, restore = ravel_pytree(params)

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = slope(jnp.asarray(point, flat.dtype), params, records, weights)
        return float(value), np.asarray(gradient, np.float64)

    # Of a function in single precision, no fall that shows: the loss is at its least.
    options: Any = {"maxiter": _STEPS, "maxcor": 20, "gtol": GRADIENT, "ftol": 1e-10}
    # The vectors are short: threads would wait for one another longer than they work.
    with threadpool_limits(1, "blas"):
        found = minimize(at, np.asarray(flat, np.float64), jac=True, method="L-BFGS-B", options=options)
    return restore(jnp.asarray(found.x, flat.dtype)), int(found.nit), float(np.max(np.abs(found.jac)))


class _At(NamedTuple):
    """A point of accelerated descent, the point to step from, momentum, curvature, steps, and what ends it."""

    now: Array
    ahead: Array
    momentum: Array
    curvature: Array
    steps: Array
    mapping: Array
    value: Array


def _proximal(problem: Problem, risk: Risk) -> Callable[..., _At]:
    """Accelerated proximal gradient steps (Beck and Teboulle 2009), restarted where they overshoot.

    The curvature is searched for. The mapping is the largest entry of a step over its length.
    """

    def run(at: _At, params: Params, records: Records, weights: Array) -> _At:
        restore = ravel_pytree(params)[1]

        def value(v: Array) -> Array:
            return risk(restore(v), records, weights)

        def tried(ahead: Array, gradient: Array, curvature: Array) -> Array:
            moved = restore(ahead - gradient / curvature)
            return ravel_pytree(problem.regulariser.prox(moved, 1.0 / curvature))[0]

        def body(_: int, at: _At) -> _At:
            here, gradient = jax.value_and_grad(value)(at.ahead)

            def too_flat(curvature: Array) -> Array:
                away = tried(at.ahead, gradient, curvature) - at.ahead
                bound = here + gradient @ away + curvature / 2 * away @ away
                return (value(at.ahead + away) > bound + 1e-6 * jnp.abs(here)) & (curvature < 1e9)

            curvature = jax.lax.while_loop(too_flat, lambda c: 2.0 * c, 0.95 * at.curvature)
            after = tried(at.ahead, gradient, curvature)
            overshot = (at.ahead - after) @ (after - at.now) > 0
            momentum = jnp.where(overshot, 1.0, (1 + jnp.sqrt(1 + 4 * at.momentum**2)) / 2)
            ahead = after + jnp.where(overshot, 0.0, (at.momentum - 1) / momentum) * (after - at.now)
            mapping = curvature * jnp.max(jnp.abs(after - at.ahead))
            return _At(after, ahead, momentum, curvature, at.steps + 1, mapping, here)

        return jax.lax.fori_loop(0, _STRIDE, body, at)

    return compiled(run)


def _proximal_descent(proceed: Callable[..., _At], params: Params, records: Records, weights: Array) -> Reached:
    """Proximal steps until the mapping is small, or a stride of them lowers the objective no more."""
    flat, restore = ravel_pytree(params)
    one = jnp.ones((), flat.dtype)
    at = _At(flat, flat, one, one, jnp.zeros((), jnp.int32), one * jnp.inf, one * jnp.inf)
    while int(at.steps) < _PROXIMAL_STEPS:
        before, at = float(at.value), proceed(at, params, records, weights)
        if float(at.mapping) <= GRADIENT or abs(before - float(at.value)) <= 1e-5 * abs(float(at.value)):
            break
    return Reached(restore(at.now), int(at.steps), float(at.mapping))


class _Adam(NamedTuple):
    """Parameters, running means of the gradient and of its square, and the steps so far."""

    params: Params
    first: Params
    second: Params
    steps: Array


def _begun(params: Params) -> _Adam:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return _Adam(params, zeros, zeros, jnp.zeros((), jnp.int32))


def _adam(problem: Problem, risk: Risk) -> Callable[..., _Adam]:
    """Some steps of Adam (Kingma and Ba 2015) on batches drawn at random, each followed by the regulariser's operator.

    Rates of the means are the paper's.
    """

    def run(state: _Adam, records: Records, count: Array, key: Array, rate: Array, batches: int) -> _Adam:
        def step(at: _Adam, key: Array) -> tuple[_Adam, None]:
            rows = jax.random.randint(key, (_BATCH,), 0, count)
            batch = {name: column[rows] for name, column in records.items()}
            gradient, taken = jax.grad(risk)(at.params, batch, jnp.ones(_BATCH)), at.steps + 1
            first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, at.first, gradient)
            second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, at.second, gradient)
            direction = jax.tree.map(
                lambda m, v: m / (1 - 0.9**taken) / (jnp.sqrt(v / (1 - 0.999**taken)) + 1e-8), first, second
            )
            return _Adam(problem.descend(at.params, direction, rate), first, second, taken), None

        return jax.lax.scan(step, state, jax.random.split(key, batches))[0]

    return compiled(run, static_argnums=5)


def _padded(records: Records, longest: int) -> tuple[dict[str, Any], np.ndarray]:
    """Records with rows of zeros up to a length, and the weight of each row."""
    count = len(records["y"])
    missing = max(longest - count, 0)
    rows = {
        name: np.pad(np.asarray(column), [(0, missing)] + [(0, 0)] * (np.ndim(column) - 1))
        for name, column in records.items()
    }
    return rows, (np.arange(count + missing) < count).astype(np.float32)
