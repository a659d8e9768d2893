"""Every proximal operator satisfies the laws that define one; a table drives all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit import geometry

SIZE = 6

# name: (regulariser, a point that its operator must leave alone)
CASES = {
    "zero": (geometry.zero(), np.arange(SIZE) - 2.0),
    "l1": (geometry.l1(0.7), np.zeros(SIZE)),
    "squared_l2": (geometry.squared_l2(0.7), np.zeros(SIZE)),
    "elastic_net": (geometry.elastic_net(0.3, 0.7), np.zeros(SIZE)),
    "group_lasso numbered": (geometry.group_lasso(0.7, np.array([5, 5, 1, 1, 1, 2])), np.zeros(SIZE)),
    "group_lasso leaves": (geometry.group_lasso(0.7), np.zeros(SIZE)),
    "box": (geometry.box(-0.5, 2.0), np.array([-0.5, 2.0, 0.0, 1.0, 1.5, -0.25])),
    "l2_ball": (geometry.l2_ball(1.5), np.array([1.5, 0, 0, 0, 0, 0])),
    "l2_ball off centre": (geometry.l2_ball(1.5, jnp.arange(6.0)), np.arange(SIZE) + 0.5),
    "frobenius_ball": (geometry.frobenius_ball(1.5, per_leaf=True), np.full(SIZE, 0.5)),
    "l1_ball": (geometry.l1_ball(1.5), np.array([0.5, -0.5, 0.25, 0.25, 0, 0])),
    "simplex": (geometry.simplex(2.0), np.array([0.5, 0.5, 0.5, 0.25, 0.25, 0.0])),
    "l1 + box": (geometry.regulariser("l1:0.7+box:-0.5:2"), np.zeros(SIZE)),
    "l1 + l2_ball": (geometry.regulariser("l1:0.7+l2-ball:1.5"), np.zeros(SIZE)),
    "group_lasso + l2_ball": (geometry.regulariser("group-lasso:0.7:columns+l2-ball:1.5"), np.zeros(SIZE)),
    "l1 + group_lasso": (geometry.regulariser("l1:0.4+group-lasso:0.7"), np.zeros(SIZE)),
    "l1 + group_lasso + ball": (
        geometry.add(
            [
                ("l2-ball", geometry.l2_ball(1.5)),
                ("l1", geometry.l1(0.4)),
                ("group-lasso", geometry.group_lasso(0.7, np.array([0, 0, 0, 1, 1, 1]))),
            ]
        ),
        np.zeros(SIZE),
    ),
    "squared_l2 + simplex": (geometry.regulariser("squared-l2:0.7+simplex:2"), np.full(SIZE, 1 / 3)),
    "elastic_net + l2_ball": (geometry.regulariser("elastic-net:0.4:0.7+l2-ball:1.5"), np.zeros(SIZE)),
    "squared_l2 + l1_ball": (geometry.regulariser("squared-l2:0.7+l1-ball:1.5"), np.zeros(SIZE)),
}
BATCH = 64
PROX = {name: jax.jit(jax.vmap(case[0].prox, (0, None))) for name, case in CASES.items()}
VALUE = {name: jax.jit(jax.vmap(case[0].value)) for name, case in CASES.items()}


def prox(name, points, step):
    """The operator on a few points; they are padded to one shape, so that each case compiles once."""
    padded = np.zeros((BATCH, SIZE), np.float32)
    padded[: len(points)] = points
    return np.asarray(PROX[name](padded, np.float32(step)))[: len(points)]


def value(name, points):
    padded = np.zeros((BATCH, SIZE), np.float32)
    padded[: len(points)] = points
    return np.asarray(VALUE[name](padded), np.float64)[: len(points)]


SETS = [name for name in CASES if name in ("box", "frobenius_ball", "l1_ball", "simplex") or "l2_ball" in name[:7]]

POINTS = arrays(np.float32, (2, SIZE), elements=st.floats(-10, 10, width=32))
STEPS = st.sampled_from([0.1, 1.0, 3.0])


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(points=POINTS, step=STEPS)
def test_firmly_non_expansive(name, points, step):
    a, b = prox(name, points, step).astype(np.float64)
    gap = (points[0] - points[1]).astype(np.float64)
    assert (a - b) @ gap >= (a - b) @ (a - b) - 1e-4 * (1 + np.abs(gap).max())


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=15, deadline=None)
@given(points=POINTS, step=STEPS)
def test_result_is_the_minimiser(name, points, step):
    """``(w - v) / step`` is a subgradient at the result ``v``: no other point has a smaller objective."""
    generator = np.random.default_rng(0)
    v = prox(name, points, step)
    others = np.concatenate([generator.normal(size=(30, SIZE)), v[:1] + generator.normal(size=(30, SIZE)) * 0.1])
    others = prox(name, others, step)  # inside the domain
    h, others_h = value(name, v), value(name, others)
    assert np.all(np.isfinite(h)), "the result lies in the domain"
    slope = (points - v).astype(np.float64) / step
    for w in range(2):
        assert np.all(others_h >= h[w] + (others - v[w]) @ slope[w] - 2e-3 / step)


@pytest.mark.parametrize("name", CASES)
def test_minimisers_are_fixed_points(name):
    point = CASES[name][1].astype(np.float32)[None]
    for step in (0.1, 1.0, 100.0):
        np.testing.assert_allclose(prox(name, point, step), point, atol=1e-6)


@pytest.mark.parametrize("name", SETS)
@settings(max_examples=15, deadline=None)
@given(points=POINTS, step=STEPS)
def test_projections_are_idempotent_and_ignore_the_step(name, points, step):
    once = prox(name, points, step)
    np.testing.assert_allclose(prox(name, once, 1.0), once, atol=2e-6)
    np.testing.assert_array_equal(prox(name, points, 1.0), once)
    assert np.all(value(name, once) == 0)


@pytest.mark.parametrize("name", ["l1_ball", "l2_ball", "frobenius_ball", "box"])
def test_points_inside_are_returned_unchanged(name):
    inside = np.random.default_rng(0).normal(size=(5, SIZE)).astype(np.float32) * 0.1
    np.testing.assert_array_equal(prox(name, inside, 1.0), inside)


@pytest.mark.parametrize("name", SETS)
def test_indicator_is_infinite_outside(name):
    assert np.isinf(value(name, np.full((1, SIZE), 50.0))[0])


def test_values_by_hand():
    w = jnp.array([[3.0, -4.0], [0.0, 2.0]])
    assert float(geometry.l1(0.5).value(w)) == 4.5
    assert float(geometry.squared_l2(2.0).value(w)) == pytest.approx(29.0)
    assert float(geometry.elastic_net(1.0, 2.0).value(w)) == pytest.approx(38.0)
    assert float(geometry.group_lasso(1.0, "rows").value(w)) == 7.0
    assert float(geometry.group_lasso(1.0, "columns").value(w)) == pytest.approx(3 + 20**0.5)
    assert float(geometry.group_lasso(1.0, "leaves").value({"w": w, "b": jnp.ones(4)})) == pytest.approx(29**0.5 + 2)
