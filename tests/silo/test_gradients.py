"""Clipped sums: two paths that agree, and a bound that holds in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.objectives import (
    GradientQuery,
    Loss,
    Model,
    Objective,
    cnn,
    gradient_at,
    gradient_difference,
    hinge,
    linear,
    logistic,
    mlp,
    softmax,
)
from tacit.objectives import squared as squared_loss
from tacit.silo import SLACK, clipped_sum
from tacit.silo.gradients import _general_sum, _tapped_width, is_formed, is_tapped, plain_sum


def positions(width, *, bias=True):
    """A layer applied at each of three positions, then a dense one: few positions make a wide layer stay in factors."""

    def init(key):
        each, last = jax.random.split(key)
        layer = {"w": jax.random.normal(each, (6, width)), "b": jnp.zeros(width)}
        if not bias:
            del layer["b"]
        return {"each": layer, "last": {"w": 0.3 * jax.random.normal(last, (width, 3))}}

    def apply(params, x, tap):
        each = params["each"]
        hidden = jnp.tanh(tap("each", x, x @ each["w"] + each.get("b", 0.0))).sum(axis=1)
        return tap("last", hidden, hidden @ params["last"]["w"])

    return Model(init, apply, ("each", "last"))


MODELS = {
    "logistic": Objective(linear(6, 1), logistic()),
    "no bias": Objective(linear(6, 1, bias=False), logistic()),
    "softmax": Objective(linear(6, 3), softmax()),
    "least squares": Objective(linear(6, 1), squared_loss()),
    "mlp": Objective(mlp((6, 8, 3)), softmax()),
    "deep": Objective(mlp((6, 8, 5, 3)), softmax()),
    "smoothed": Objective(linear(6, 1), hinge(smoothness=2.0)),
    "cnn": Objective(cnn((6, 6, 1), channels=(2,), hidden=(), outputs=3, kernel=3), softmax()),
    "positions, in factors": Objective(positions(20), softmax()),
    "positions, no bias": Objective(positions(20, bias=False), softmax()),
    "positions, formed": Objective(positions(2), softmax()),
}
SHAPES = {"cnn": (6, 6, 1)} | {name: (3, 6) for name in MODELS if "positions" in name}


def records(objective, n=11, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n).astype(np.float32)
    if "error" in objective.cost.metrics:
        y = rng.integers(0, 2, n)
    shape = next((SHAPES[name] for name in SHAPES if MODELS[name] is objective), (6,))
    return {"x": jnp.asarray(scale * rng.normal(size=(n, *shape)), jnp.float32), "y": jnp.asarray(y)}


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
def test_tapped_equals_general(name):
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
        fast, slow = (jax.jit(partial(path, query)) for path in (clipped_sum, _general_sum))
        for bound in (0.05, 1.0, 1e6):
            # Where points cancel, the tapped norm is rounded up further, so that it clips a little more.
            loose = 5e-3 if bound < 1e6 else 2e-4
            near = {"rtol": loose, "atol": loose * bound if bound < 1e6 else 2e-5}
            assert_close(fast(work, data, present, bound), slow(work, data, present, bound), **near)


def test_layers_with_positions_take_the_cheaper_way():
    for name, formed in (("positions, in factors", False), ("positions, formed", True)):
        objective = MODELS[name]
        width = point(objective)["each"]["w"].shape[1]
        assert is_formed(objective.model, "each", jnp.zeros((1, 3, 6)), jnp.zeros((1, 3, width))) is formed
        assert not is_formed(objective.model, "last", jnp.zeros((1, width)), jnp.zeros((1, 3)))
    # A layer that is unfolded shares its parameters between the columns of its matrix: only formed can it be folded.
    assert is_formed(MODELS["cnn"].model, "conv_1", jnp.zeros((1, 1, 16)), jnp.zeros((1, 1, 8)))


@pytest.mark.parametrize("name", ["cnn", "positions, in factors", "positions, formed"])
def test_tapped_path_in_micro_batches_equals_one_batch(name, monkeypatch):
    objective = MODELS[name]
    data, present, w = records(objective), jnp.arange(11) != 4, point(objective)
    query = gradient_at(objective)

    def compiled():
        traced = jax.jit(partial(clipped_sum, query)).trace(w, data, present, 0.3)
        return str(traced.jaxpr), traced.lower().compile()(w, data, present, 0.3)

    program, whole = compiled()
    assert "scan[" not in program
    monkeypatch.setattr("tacit.silo.gradients.MICRO_BATCH_FLOATS_TAPPED", 3 * _tapped_width(query, w, data))
    program, summed = compiled()
    assert "scan[" in program
    assert "length=4" in program
    assert_close(summed, whole)


def test_general_path_in_micro_batches_equals_one_batch(monkeypatch):
    objective = MODELS["mlp"]
    data, present, w = records(objective), jnp.arange(11) != 4, point(objective)
    whole = _general_sum(gradient_at(objective), w, data, present, 0.3)
    monkeypatch.setattr("tacit.silo.gradients.MICRO_BATCH_FLOATS", 200)
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


@pytest.mark.parametrize("tapped", [True, False])
def test_plain_sum_in_micro_batches_equals_one_batch(tapped, monkeypatch):
    objective = MODELS["cnn"]
    if not tapped:
        objective = Objective(Model(objective.model.init, objective.model.apply), objective.cost)
    data, present, w = records(MODELS["cnn"]), jnp.arange(11) != 4, point(MODELS["cnn"])
    query = gradient_at(objective)
    assert is_tapped(query) is tapped

    def compiled(query):
        traced = jax.jit(partial(plain_sum, query)).trace(w, data, present)
        return str(traced.jaxpr), traced.lower().compile()(w, data, present)

    program, whole = compiled(query)
    assert "scan[" not in program
    width = _tapped_width(query, w, data) if tapped else sum(leaf.size for leaf in jax.tree.leaves(w))
    monkeypatch.setattr(f"tacit.silo.gradients.MICRO_BATCH_FLOATS{'_TAPPED' * tapped}", 3 * width)
    for some in (query, lambda work, record: query(work, record)):
        monkeypatch.setattr("tacit.silo.gradients.MICRO_BATCH_FLOATS", 3 * sum(x.size for x in jax.tree.leaves(w)))
        program, summed = compiled(some)
        assert "length=4" in program
        assert_close(summed, whole, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("name", ["cnn", "positions, in factors", "positions, formed", "mlp"])
@pytest.mark.parametrize("path", ["tapped", "general"])
def test_no_record_adds_more_than_the_bound_for_nearby_points_and_weights_of_the_broadcast(name, path):
    objective = MODELS[name]
    query = GradientQuery(objective, lambda w: w[0], lambda w: (w[1], w[2] - w[1]))
    function = clipped_sum if path == "tapped" else _general_sum

    @jax.jit
    def one(new, direction, distance, weights, data, i, bound):
        old = jax.tree.map(lambda a, b: a + distance * b, new, direction)
        return function(query, ((new, old), *weights), data, jnp.arange(10) == i, bound)

    new, direction = point(objective, 1), point(objective, 2)
    clipped = 0
    for scale in (1e-6, 1.0, 1e4):
        data = records(objective, n=10, scale=scale)
        for distance in (1e-7, 1e-5, 1e-3, 1.0):
            for weights in ((0.7, 0.0), (3.7, 1e-3)):
                bound = np.float32(0.1 * distance)
                for i in range(10):
                    norm = norm64(one(new, direction, distance, weights, data, i, bound))
                    assert norm <= bound * (1 + SLACK)
                    clipped += norm > 0.9 * bound
    assert clipped > 100


def test_cancelling_positions_are_not_taken_for_nothing():
    """Positions whose gradients cancel: the squared norm is lost in the rounding of what was added up."""
    objective = MODELS["positions, no bias"]
    w = jax.tree.map(lambda leaf: 1e-3 * leaf, point(objective))
    x = np.random.default_rng(0).normal(size=(30, 1, 6)).astype(np.float32)
    signs = np.asarray([1.0, -1.0, 1e-4], np.float32)[None, :, None]
    data = {"x": jnp.asarray(x * signs), "y": jnp.zeros(30, jnp.int32)}

    @jax.jit
    def one(i, bound):
        return clipped_sum(gradient_at(objective), w, data, jnp.arange(30) == i, bound)

    bound = 1e-8
    assert min(norm64(one(i, 1e6)) for i in range(30)) > 10 * bound
    norms = [norm64(one(i, bound)) for i in range(30)]
    assert 0 < max(norms) <= bound * (1 + SLACK)


def test_rounding_is_not_let_up_to_the_bound():
    """Weights that cancel leave nothing but rounding, whose norm no one knows: it goes out far below the bound."""

    def apply(params, x, tap):
        return tap("each", x, x @ params["each"]["w"]).sum(axis=1)

    model = Model(lambda key: {"each": {"w": jax.random.normal(key, (6, 2))}}, apply, ("each",))
    objective = Objective(model, Loss(lambda outputs, targets: 0.5 * outputs[:, 0] ** 2))
    w = point(objective)
    other = jax.tree.map(lambda leaf: 3.3 * leaf, w)  # the gradient is linear in the parameters
    query = GradientQuery(objective, lambda w: w[:2], lambda w: w[2:])
    data = records(MODELS["positions, formed"])
    function = jax.jit(partial(clipped_sum, query))
    rounding = [norm64(function((w, other, 3.3, -1.0), data, jnp.arange(11) == i, 1e-12)) for i in range(11)]
    assert 0 < max(rounding) < 1e-14
    assert norm64(function((w, other, 3.3, 0.0), data, jnp.ones(11, bool), 1e6)) > 1.0


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


@pytest.mark.parametrize("name", ["mlp", "cnn", "positions, in factors"])
@pytest.mark.parametrize("path", ["tapped", "general"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_record_that_is_not_finite_adds_nothing_and_spoils_nothing(name, path, poison):
    """Broadcasts can overflow a record's statistic; the others must come out as if it were not there."""
    objective = MODELS[name]
    data = records(objective)
    work = point(objective)
    query = gradient_at(objective)
    bad = {**data, "x": data["x"].at[4].set(1e30)}
    if path == "general":
        bad["x"] = data["x"].at[4].set(poison)
    function = jax.jit(partial(clipped_sum if path == "tapped" else _general_sum, query))
    everyone = jnp.ones(11, bool)
    with_bad = function(work, bad, everyone, 0.4)
    without = function(work, data, everyone & (jnp.arange(11) != 4), 0.4)
    if path == "tapped" or np.isfinite(poison):
        assert norm64(jax.tree.map(jnp.subtract, with_bad, without)) <= 0.4 * (1 + SLACK)
    else:
        assert_close(with_bad, without)


@pytest.mark.parametrize("name", ["mlp", "cnn", "positions, in factors"])
@pytest.mark.parametrize("hostile", [np.nan, np.inf, -1.0])
def test_a_hostile_broadcast_or_bound_says_nothing(name, hostile):
    objective = MODELS[name]
    data = records(objective)
    broken = jax.tree.map(lambda leaf: leaf.at[0].set(hostile), point(objective))
    query = gradient_at(objective)
    present = jnp.ones(11, bool)
    function = jax.jit(partial(clipped_sum, query))
    nothing = function(point(objective), data, present, hostile)
    assert norm64(nothing) == 0
    said = function(broken, data, present, 1.0)
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


def test_tiny_cotangents_of_huge_inputs_are_clipped():
    """The square of a cotangent vanishes in float32; the gradient that it belongs to does not."""
    objective = Objective(linear(1, 1, bias=False), logistic())
    data = {"x": jnp.asarray([[1e15]]), "y": jnp.asarray([0])}
    bound = 1e-9
    added = clipped_sum(
        gradient_at(objective), {"linear": {"w": jnp.asarray([[-44e-15]])}}, data, jnp.ones(1, bool), bound
    )
    assert norm64(added) <= bound * (1 + SLACK)


def test_tiny_cotangents_behind_a_hostile_layer_are_clipped():
    objective = Objective(mlp((2, 1, 1)), logistic())
    data = {"x": jnp.asarray([[0.5, 0.5]]), "y": jnp.asarray([0])}
    for weight in (1e15, 1e18, 1.5e19):
        first = {"w": jnp.full((2, 1), weight), "b": jnp.zeros(1)}
        work = {"layer_1": first, "layer_2": {"w": jnp.asarray([[-44.0 / weight]]), "b": jnp.zeros(1)}}
        added = clipped_sum(gradient_at(objective), work, data, jnp.ones(1, bool), 1e-6)
        assert norm64(added) <= 1e-6 * (1 + SLACK)
