"""Convolution and pooling as one matrix product, against XLA's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.objectives import Model, Objective, cnn, softmax, untapped

SHAPES = {
    "one pixel apart": {"image": (6, 5, 2), "channels": (3,), "hidden": (), "outputs": 2, "kernel": 3, "pool": 1},
    "no overlap": {"image": (6, 4, 1), "channels": (2,), "hidden": (3,), "outputs": 2, "kernel": 1, "pool": 2},
    "pool of three": {"image": (9, 12, 2), "channels": (2,), "hidden": (), "outputs": 3, "kernel": 4, "pool": 3},
    "two layers": {"image": (10, 14, 1), "channels": (2, 3), "hidden": (4,), "outputs": 3, "kernel": 3, "pool": 2},
}


def reference(options):
    """The same network with XLA's convolution and windows."""

    def apply(params, x, tap):
        kernel, pool = options.get("kernel", 5), options.get("pool", 2)
        for name in sorted(name for name in params if "conv" in name):
            weights = params[name]["w"].reshape(kernel, kernel, x.shape[-1], -1)
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, weights, (1, 1), "VALID", dimension_numbers=layout) + params[name]["b"]
            window = (1, pool, pool, 1)
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "VALID")
        x = x.reshape(x.shape[0], -1)
        names = sorted(name for name in params if "dense" in name)
        for name in names:
            x = x @ params[name]["w"] + params[name]["b"]
            x = x if name == names[-1] else jax.nn.relu(x)
        return x

    return apply


@pytest.mark.parametrize("options", [*SHAPES.values(), {}], ids=[*SHAPES, "of the paper"])
def test_outputs_and_gradients_equal_those_of_xla(options):
    model = cnn(**options)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), model.init(jax.random.key(0))
    )
    records = {
        "x": jnp.asarray(rng.normal(size=(3, *options.get("image", (32, 32, 3)))), jnp.float32),
        "y": jnp.asarray([0, 1, 1]),
    }
    ours, theirs = Objective(model, softmax()), Objective(Model(model.init, reference(options)), softmax())

    def both(objective):
        return jax.jit(jax.value_and_grad(lambda p: objective.losses(p, records).sum()))(params)

    (loss, slope), (loss_xla, slope_xla) = both(ours), both(theirs)
    assert abs(float(loss - loss_xla)) < 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), slope, slope_xla)
    outputs = jax.eval_shape(lambda x: model.apply(params, x, untapped), records["x"])
    assert outputs.shape == (3, options.get("outputs", 10))


def test_every_layer_is_tapped_with_what_it_multiplies():
    model = cnn((10, 10, 1), channels=(2, 3), hidden=(4,), outputs=3, kernel=3)
    params = model.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 10, 10, 1)), jnp.float32)
    seen = {}

    def tap(name, inputs, outputs):
        layer = model.unfold[name](params[name]) if name in model.unfold else params[name]
        np.testing.assert_allclose(outputs, inputs @ layer["w"] + layer["b"], rtol=1e-5, atol=1e-5)
        seen[name] = inputs.shape, outputs.shape
        return outputs

    model.apply(params, x, tap)
    assert tuple(seen) == model.layers
    assert set(seen) == set(params)
    assert seen["conv_1"] == ((2, 16, 16), (2, 16, 8))  # 4 x 4 windows; patches of 4 x 4; 2 channels at 4 places
    assert seen["conv_2"] == ((2, 1, 32), (2, 1, 12))


def test_images_that_do_not_divide_are_refused():
    with pytest.raises(TacitError, match=r"convolution 2 .* \(3, 3\) of \(5, 5\)"):
        cnn((12, 12, 1), channels=(2, 2), kernel=3)
    with pytest.raises(TacitError, match="convolution 1"):
        cnn((4, 4, 3))
    with pytest.raises(TacitError, match="kernel=0"):
        cnn(kernel=0)


def test_many_records_are_measured_in_parts(monkeypatch):
    objective = Objective(cnn((6, 6, 1), channels=(2,), hidden=(), outputs=3, kernel=3), softmax())
    params = objective.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    records = {"x": jnp.asarray(rng.normal(size=(11, 6, 6, 1)), jnp.float32), "y": jnp.asarray(rng.integers(0, 3, 11))}
    whole = objective.measure(params, records)
    monkeypatch.setattr("tacit.objectives.objective._MEASURED_FLOATS", 36 * 3)
    assert "length=4" in str(jax.make_jaxpr(objective.measure)(params, records))
    for name, value in objective.measure(params, records).items():
        np.testing.assert_allclose(value, whole[name], rtol=1e-5)
