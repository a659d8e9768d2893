"""Projections keep their promise in float32, whatever the size, scale and structure of the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit import geometry


def tree(size, scale, seed):
    generator = np.random.default_rng(seed)
    entries = (generator.normal(size=size) * scale).astype(np.float32)
    return {"w": jnp.asarray(entries[: size // 2]), "b": [jnp.asarray(entries[size // 2 :])]}


@jax.jit
def onto_l2_ball(params, radius):
    return geometry.l2_ball(radius).prox(params, 1.0)


@jax.jit
def onto_l1_ball(params, radius):
    return geometry.l1_ball(radius).prox(params, 1.0)


@jax.jit
def onto_simplex(params, radius):
    return geometry.simplex(radius).prox(params, 1.0)


def flat64(params):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])


@settings(max_examples=20, deadline=None)
@given(
    size=st.sampled_from([2, 7, 1000]),
    exponent=st.integers(-30, 37),
    radius=st.sampled_from([1e-6, 0.3, 1.0, 1e4]),
    seed=st.integers(0, 9),
)
def test_norms_in_float64(size, exponent, radius, seed):
    params = tree(size, 10.0**exponent, seed)
    onto = flat64(onto_l2_ball(params, radius))
    assert np.linalg.norm(onto) <= radius * (1 + 1e-6)
    onto = flat64(onto_l1_ball(params, radius))
    assert np.abs(onto).sum() <= radius * (1 + 1e-6)
    onto = flat64(onto_simplex(params, radius))
    assert onto.min() >= 0
    assert abs(onto.sum() - radius) <= radius * 1e-6


@pytest.mark.parametrize("kind", ["normal", "equal", "decreasing"])
def test_a_million_parameters(kind):
    size = 1_000_000
    entries = {
        "normal": np.random.default_rng(0).normal(size=size),
        "equal": np.full(size, 0.1),
        "decreasing": 1 / np.arange(1, size + 1),
    }[kind]
    params = jnp.asarray(entries, jnp.float32)
    for radius in (0.5, 3.0):
        assert np.linalg.norm(flat64(onto_l2_ball(params, radius))) == pytest.approx(
            min(radius, np.linalg.norm(flat64(params))), rel=1e-6
        )
        assert np.abs(flat64(onto_l1_ball(params, radius))).sum() == pytest.approx(radius, rel=1e-6)


def test_norm_runs_over_all_leaves():
    params = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    onto = geometry.frobenius_ball(1.0).prox(params, 1.0)
    assert float(onto["a"][0]) == pytest.approx(0.6)
    assert float(onto["b"][0, 0]) == pytest.approx(0.8)
    apart = geometry.frobenius_ball(3.5, per_leaf=True).prox(params, 1.0)
    assert float(apart["a"][0]) == 3.0
    assert float(apart["b"][0, 0]) == pytest.approx(3.5)


@pytest.mark.parametrize("factory", [geometry.l1, geometry.squared_l2, geometry.l2_ball, geometry.l1_ball])
def test_strengths_and_radii_may_be_traced(factory):
    grid = jnp.array([0.1, 1.0, 5.0])
    w = jnp.array([2.0, -1.0, 0.3])
    together = jax.jit(jax.vmap(lambda strength: factory(strength).prox(w, 0.5)))(grid)
    for row, strength in zip(together, [0.1, 1.0, 5.0], strict=True):
        np.testing.assert_allclose(row, factory(strength).prox(w, 0.5), rtol=1e-6)


@pytest.mark.parametrize("name", ["l2-ball:1", "l1-ball:1", "simplex", "group-lasso:1", "l1:1", "squared-l2:1"])
def test_zero_parameters_give_no_nan(name):
    regulariser = geometry.regulariser(name)
    zeros = {"w": jnp.zeros((2, 3)), "b": jnp.zeros(2)}
    assert np.all(np.isfinite(flat64(regulariser.prox(zeros, 1.0))))


def test_box_with_bounds_for_each_entry():
    params = {"w": jnp.array([5.0, -5.0]), "b": jnp.array([0.5])}
    low = {"w": jnp.array([0.0, -1.0]), "b": jnp.array([1.0])}
    high = {"w": jnp.array([1.0, 0.0]), "b": jnp.array([2.0])}
    onto = geometry.box(low, high).prox(params, 1.0)
    assert onto["w"].tolist() == [1.0, -1.0]
    assert onto["b"].tolist() == [1.0]
