"""L, beta and mu: never exceeded by samples, and nearly attained."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from tacit.errors import TacitError
from tacit.geometry import squared_l2
from tacit.objectives import (
    Constants,
    Objective,
    absolute,
    constants,
    hinge,
    linear,
    logistic,
    mlp,
    pinball,
    softmax,
    squared,
)

NORM, RADIUS, TARGET = 1.7, 6.0, 2.0
COSTS = {
    "logistic": (logistic(), 1),
    "softmax": (softmax(), 3),
    "squared": (squared(), 1),
    "hinge": (hinge(), 1),
    "absolute": (absolute(), 1),
    "pinball": (pinball(0.3), 1),
    "smoothed hinge": (hinge(2.5), 1),
    "smoothed absolute": (absolute(0.4), 1),
    "smoothed pinball": (pinball(0.8, 1.1), 1),
}


def sample(objective, name, n=4000):
    """Features on the sphere or inside, parameters along and across them, targets at their bounds and inside."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    x *= NORM / np.linalg.norm(x, axis=1, keepdims=True) * rng.choice([1.0, 1.0, rng.uniform()], size=(n, 1))
    if "error" in objective.cost.metrics:
        y = rng.integers(0, objective.model.linear.outputs if name == "softmax" else 2, n)
    else:
        y = rng.choice([-TARGET, TARGET, 0.3], n)
    layer = objective.init(jax.random.key(0))["linear"]
    features = np.concatenate([x, np.ones((n, 1))], axis=1) if "b" in layer else x
    direction = rng.normal(size=(n, objective.model.linear.outputs))
    w = features[:, :, None] * direction[:, None, :] + rng.choice([0.0, 0.2], size=(n, 1, 1)) * rng.normal(
        size=(n, features.shape[1], direction.shape[1])
    )
    sizes = rng.choice([1e-3, 0.3, 1.0], size=(n, 1, 1)) * RADIUS
    w *= sizes / np.linalg.norm(w, axis=(1, 2), keepdims=True)
    params = {"linear": {"w": w[:, :3], "b": w[:, 3]} if "b" in layer else {"w": w}}
    return jax.tree.map(lambda leaf: jnp.asarray(leaf), params), {"x": jnp.asarray(x), "y": jnp.asarray(y)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", COSTS)
def test_constants_hold_and_are_nearly_attained(name, bias):
    cost, outputs = COSTS[name]
    objective = Objective(linear(3, outputs, bias=bias), cost)
    known = constants(objective, feature_norm=NORM, radius=RADIUS, target_bound=TARGET)
    with jax.enable_x64(True):
        params, records = sample(objective, name)

        def flat_loss(vector, record, restore):
            return objective.loss(restore(vector), record)

        def slope(params, record):
            return jnp.linalg.norm(ravel_pytree(jax.grad(objective.loss)(params, record))[0])

        def bend(params, record):
            vector, restore = ravel_pytree(params)
            return jnp.linalg.eigvalsh(jax.hessian(flat_loss)(vector, record, restore)).max()

        slopes = np.asarray(jax.jit(jax.vmap(slope))(params, records))
        assert known.lipschitz * 0.97 < slopes.max() <= known.lipschitz * (1 + 1e-9)
        if known.smoothness is None:
            assert name in ("hinge", "absolute", "pinball")
        else:
            bends = np.asarray(jax.jit(jax.vmap(bend))(params, records))
            assert known.smoothness * 0.97 < bends.max() <= known.smoothness * (1 + 1e-9)
    assert known.strong_convexity is None


def test_what_is_not_known_is_none():
    assert constants(Objective(mlp((3, 2, 1)), logistic()), feature_norm=1.0) == Constants()
    assert constants(Objective(linear(3, 1), logistic()), feature_norm=None, strength=0.1) == Constants(None, None, 0.1)
    least = constants(Objective(linear(3, 1, bias=False), squared()), feature_norm=2.0)
    assert least == Constants(None, 4.0, None)
    with pytest.raises(TacitError, match="feature_norm=-1"):
        constants(Objective(linear(3, 1), logistic()), feature_norm=-1.0)


def test_ridge_knows_everything():
    """The optimum lies in the ball of radius target_bound / sqrt(strength), as its value is at most that of zero."""
    radius = 2.0 / math.sqrt(0.05)
    objective = Objective(linear(3, 1), squared())
    known = constants(objective, feature_norm=1.0, radius=radius, target_bound=2.0, strength=0.05)
    penalty = squared_l2(0.05)
    rng = np.random.default_rng(1)
    for n in (1, 5, 50):
        x = rng.normal(size=(n, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = rng.choice([-2.0, 2.0], n)
        a = np.concatenate([x, np.ones((n, 1))], axis=1)
        hessian = a.T @ a / n + 0.05 * np.eye(4)
        best = np.linalg.solve(hessian, a.T @ y / n)
        assert np.linalg.norm(best) <= radius
        slopes = np.abs(a @ best - y) * np.linalg.norm(a, axis=1)
        assert slopes.max() <= known.lipschitz
        assert np.linalg.eigvalsh(hessian).min() >= known.strong_convexity * (1 - 1e-9)
        if n == 1:
            assert np.linalg.eigvalsh(hessian).min() <= known.strong_convexity * (1 + 1e-9)
            assert abs(np.linalg.eigvalsh(hessian - 0.05 * np.eye(4)).max() - known.smoothness) < 1e-9
        value = float(penalty.value({"linear": {"w": jnp.asarray(best[:3]), "b": jnp.asarray(best[3:])}}))
        assert abs(value - 0.025 * best @ best) < 1e-6
