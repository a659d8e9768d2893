"""The Lagrangian-dual baseline: how far an attribute can move a gradient follows the multipliers, which are public."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithms.sgda import SgdaPoint
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find

NORM = 2.0


def built(**changes):
    objective = Objective(linear(3, 1), logistic())
    problem = Problem(objective, lipschitz=(NORM**2 + 1) ** 0.5, smoothness=(NORM**2 + 1) / 4)
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": 100.0, "noise_multiplier": 1.0, "batch_size": None}
    terms |= {"sampling": "full", "frequencies": (0.3, 0.7), "multiplier_step": 1.0, "protects": "sensitive-attribute"}
    return find("lagrangian-dual").build(problem, **{**terms, **changes}).rounds["step"].silo


def moved(silo, point, x, y):
    """Half of how far the attribute moves the gradient of one record."""
    ends = [silo.query(point, {"x": x, "y": y, "s": jnp.asarray(s)})["params"] for s in (0, 1)]
    gaps = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), *ends))
    return 0.5 * float(jnp.sqrt(sum(gaps)))


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0])
def test_the_bound_holds_and_is_met(scale):
    silo, draw = built(), np.random.default_rng(0)
    signed = jnp.asarray(scale * draw.standard_normal((1, 2)), jnp.float32)
    largest = 0.0
    for _ in range(20):
        x = draw.standard_normal(3)
        x = jnp.asarray(NORM * x / np.linalg.norm(x), jnp.float32)
        params = {"linear": {"w": jnp.asarray(draw.standard_normal((3, 1)), jnp.float32), "b": jnp.zeros(1)}}
        largest = max(largest, moved(silo, SgdaPoint(params, signed), x, jnp.asarray(1)))
    flat = {"linear": {"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)}}
    point = SgdaPoint(flat, signed)
    bound = float(silo.release.clip(point)["params"])
    assert largest <= bound * (1 + 1e-5)
    assert moved(silo, point, x, jnp.asarray(1)) == pytest.approx(bound, rel=1e-4)


def test_without_multipliers_there_is_nothing_to_hide_and_a_clip_is_never_exceeded():
    params = {"linear": {"w": jnp.zeros((3, 1)), "b": jnp.zeros(1)}}
    assert float(built().release.clip(SgdaPoint(params, jnp.zeros((1, 2))))["params"]) == 0.0
    tight = built(clip_norm=0.01).release.clip(SgdaPoint(params, jnp.ones((1, 2))))
    assert float(tight["params"]) == pytest.approx(0.01)
    whole = built(clip_norm=0.3, protects="record").release.clip(SgdaPoint(params, jnp.zeros((1, 2))))
    assert float(whole["params"]) == pytest.approx(0.3)
