"""Clipped sums: two paths that agree, and a bound that holds in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.objectives import GradientQuery, Objective, gradient_at, gradient_difference, linear, logistic, mlp, softmax
from tacit.objectives import squared as squared_loss
from tacit.silo import SLACK, clipped_sum, is_tapped, plain_sum
from tacit.silo.gradients import _general_sum

MODELS = {
    "logistic": Objective(linear(6, 1), logistic()),
    "no bias": Objective(linear(6, 1, bias=False), logistic()),
    "softmax": Objective(linear(6, 3), softmax()),
    "least squares": Objective(linear(6, 1), squared_loss()),
    "mlp": Objective(mlp((6, 8, 3)), softmax()),
    "deep": Objective(mlp((6, 8, 5, 3)), softmax()),
}


def records(objective, n=11, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n).astype(np.float32)
    if "error" in objective.cost.metrics:
        y = rng.integers(0, 2, n)
    return {"x": jnp.asarray(scale * rng.normal(size=(n, 6)), jnp.float32), "y": jnp.asarray(y)}


def point(objective, seed=0, scale=0.5):
    params = objective.init(jax.random.key(seed))
    leaves, layout = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    return layout.unflatten([leaf + scale * jnp.asarray(rng.normal(size=leaf.shape), jnp.float32) for leaf in leaves])


def norm64(tree):
    return np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree)))


def assert_close(a, b, rtol=1e-5, atol=1e-6):
    jax.tree.map(lambda u, v: np.testing.assert_allclose(u, v, rtol=rtol, atol=atol), a, b)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("bound", [0.05, 1.0, 1e6])
def test_tapped_equals_general(name, bound):
    objective = MODELS[name]
    data, present = records(objective), jnp.arange(11) < 9
    work = (point(objective, 1), point(objective, 2), point(objective, 3))
    queries = [
        gradient_at(objective, lambda w: w[0]),
        gradient_difference(objective, lambda w: w[0], lambda w: w[1]),
        GradientQuery(objective, lambda w: w, lambda w: (3.0, -2.0, 0.5)),
    ]
    for query in queries:
        assert is_tapped(query)
        fast = clipped_sum(query, work, data, present, bound)
        slow = _general_sum(query, work, data, present, bound)
        # Where points cancel, the tapped norm is rounded up further, so that it clips a little more.
        loose = 5e-3 if bound < 1e6 else 2e-4
        assert_close(fast, slow, rtol=loose, atol=loose * bound if bound < 1e6 else 2e-5)


def test_general_path_in_micro_batches_equals_one_batch(monkeypatch):
    objective = MODELS["mlp"]
    data, present, w = records(objective), jnp.arange(11) != 4, point(objective)
    whole = _general_sum(gradient_at(objective), w, data, present, 0.3)
    monkeypatch.setattr("tacit.silo.gradients._MICRO_BATCH_FLOATS", 200)
    assert_close(_general_sum(gradient_at(objective), w, data, present, 0.3), whole)


def test_plain_sum_is_the_sum_of_gradients():
    objective = MODELS["mlp"]
    data, present = records(objective), jnp.arange(11) < 7
    work = (point(objective, 1), point(objective, 2))
    query = gradient_difference(objective, lambda w: w[0], lambda w: w[1])
    unclipped = _general_sum(query, work, data, present, 1e9)
    assert_close(plain_sum(query, work, data, present), unclipped, rtol=1e-4, atol=1e-5)
    plain_function = lambda work, record: query(work, record)  # noqa: E731
    assert_close(plain_sum(plain_function, work, data, present), unclipped, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["logistic", "least squares", "mlp", "deep"])
@pytest.mark.parametrize("distance", [1e-6, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_no_record_adds_more_than_the_bound_for_nearby_points(name, distance, scale):
    """The clip of a difference of gradients at nearby points, measured in float64 on what is summed."""
    objective = MODELS[name]
    new = point(objective, 1)
    old = jax.tree.map(lambda a, b: a + distance * b, new, point(objective, 2))
    query = gradient_difference(objective, lambda w: w[0], lambda w: w[1])
    data = records(objective, n=40, scale=scale)
    bound = jnp.float32(0.3 * distance)

    @jax.jit
    def one(i):
        return clipped_sum(query, (new, old), data, jnp.arange(40) == i, bound)

    norms = np.asarray([norm64(one(i)) for i in range(40)])
    assert norms.max() <= float(bound) * (1 + SLACK)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-12, 1e6), st.floats(1e-18, 1e15), st.floats(1e-3, 1e3))
def test_no_record_adds_more_than_the_bound(seed, bound, scale, weight):
    objective = MODELS["mlp"]
    data = records(objective, n=3, seed=seed, scale=scale)
    query = GradientQuery(objective, lambda w: w, lambda w: (weight, 1.0 - weight))
    work = (point(objective, seed), point(objective, seed + 1))
    for i in range(3):
        added = clipped_sum(query, work, data, jnp.arange(3) == i, bound)
        assert norm64(added) <= float(np.float32(bound)) * (1 + SLACK)


@pytest.mark.parametrize("path", ["tapped", "general"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_record_that_is_not_finite_adds_nothing_and_spoils_nothing(path, poison):
    """Broadcasts can overflow a record's statistic; the others must come out as if it were not there."""
    objective = MODELS["mlp"]
    data = records(objective)
    work = point(objective)
    query = gradient_at(objective)
    bad = {**data, "x": data["x"].at[4].set(1e30)}
    if path == "general":
        bad["x"] = data["x"].at[4].set(poison)
    function = clipped_sum if path == "tapped" else _general_sum
    everyone = jnp.ones(11, bool)
    with_bad = function(query, work, bad, everyone, 0.4)
    without = function(query, work, data, everyone & (jnp.arange(11) != 4), 0.4)
    if path == "tapped" or np.isfinite(poison):
        assert norm64(jax.tree.map(jnp.subtract, with_bad, without)) <= 0.4 * (1 + SLACK)
    else:
        assert_close(with_bad, without)


@pytest.mark.parametrize("hostile", [np.nan, np.inf, -1.0])
def test_a_hostile_broadcast_or_bound_says_nothing(hostile):
    objective = MODELS["mlp"]
    data = records(objective)
    broken = jax.tree.map(lambda leaf: leaf.at[0].set(hostile), point(objective))
    query = gradient_at(objective)
    present = jnp.ones(11, bool)
    nothing = clipped_sum(query, point(objective), data, present, hostile)
    assert norm64(nothing) == 0
    said = clipped_sum(query, broken, data, present, 1.0)
    assert np.isfinite(norm64(said))


def test_blocks_are_clipped_apart():
    def query(work, record):
        return {"a": record["x"] * work, "b": record["y"].astype(jnp.float32)[None] * 10}

    data = {"x": jnp.ones((4, 3)) * 5, "y": jnp.ones(4)}
    total = clipped_sum(query, 1.0, data, jnp.ones(4, bool), {"a": 1.0, "b": 2.0})
    assert abs(norm64(total["a"]) - 4.0) < 1e-3
    assert abs(norm64(total["b"]) - 8.0) < 1e-3
    with pytest.raises(ValueError, match="each block"):
        clipped_sum(query, 1.0, data, jnp.ones(4, bool), {"a": 1.0})
