"""Losses that are not smooth and their Moreau envelopes, in float64."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import TacitError
from tacit.objectives import Objective, absolute, gradient_at, hinge, linear, mlp, pinball, softmax, squared

# The slope in the output, from the residual's sign and the interval of each loss.
LOSSES = {
    "hinge": (hinge, lambda z, y, k: -(2 * y - 1) * np.clip(k * (1 - (2 * y - 1) * z), 0, 1)),
    "absolute": (absolute, lambda z, y, k: np.clip(k * (z - y), -1, 1)),
    "pinball, low": (lambda b=None: pinball(0.2, b), lambda z, y, k: -np.clip(k * (y - z), -0.8, 0.2)),
    "pinball, high": (lambda b=None: pinball(0.9, b), lambda z, y, k: -np.clip(k * (y - z), -0.1, 0.9)),
}
SMOOTHNESS = (0.05, 1.0, 40.0)


@cache
def functions(name, smoothness, bias=True):
    """Values and gradients of many records, each at parameters of its own."""
    objective = Objective(linear(4, 1, bias=bias), LOSSES[name][0](smoothness))
    return jax.jit(jax.vmap(objective.loss)), jax.jit(jax.vmap(jax.grad(objective.loss)))


def sample(name, seed, scale, n=60):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n).astype(float) if name == "hinge" else rng.normal(size=n)
    x = scale * rng.normal(size=(n, 4))
    points = [
        {"linear": {"w": size * rng.normal(size=(n, 4, 1)), "b": size * rng.normal(size=(n, 1))}} for size in (1, 1, 5)
    ]
    return {"x": x, "y": y}, points


def flat(tree):
    return np.concatenate([np.asarray(leaf).reshape(len(leaf), -1) for leaf in jax.tree.leaves(tree)], axis=1)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("smoothness", SMOOTHNESS)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.01, 0.3, 1.0, 10.0]))
def test_envelope(name, smoothness, seed, scale):
    """Definition, sandwich, Lipschitz and smoothness constants, and the closed-form gradient."""
    with jax.enable_x64(True):
        (plain, _), (value, gradient) = functions(name, None), functions(name, smoothness)
        records, (w, v, far) = sample(name, seed, scale)
        norms = (records["x"] ** 2).sum(axis=1) + 1
        lipschitz = LOSSES[name][0]().slope * np.sqrt(norms)
        at, loss, slopes = np.asarray(value(w, records)), np.asarray(plain(w, records)), flat(gradient(w, records))
        tiny = 1e-9 * (1 + np.abs(loss))
        assert (at <= loss + tiny).all()
        assert (loss - lipschitz**2 / (2 * smoothness) <= at + tiny).all()
        for other in (v, far):
            moved = ((flat(w) - flat(other)) ** 2).sum(axis=1)
            assert (at <= np.asarray(plain(other, records)) + smoothness / 2 * moved + tiny).all()
            turned = np.linalg.norm(slopes - flat(gradient(other, records)), axis=1)
            assert (turned <= smoothness * np.sqrt(moved) * (1 + 1e-9)).all()
        assert (np.linalg.norm(slopes, axis=1) <= lipschitz * (1 + 1e-9)).all()
        z = np.einsum("ni,ni->n", records["x"], w["linear"]["w"][..., 0]) + w["linear"]["b"][:, 0]
        s = LOSSES[name][1](z, records["y"], smoothness / norms)
        closed = s[:, None] * np.concatenate([np.ones((len(s), 1)), records["x"]], axis=1)
        np.testing.assert_allclose(slopes, closed, atol=1e-9 * (1 + scale))
        # The envelope is attained: the loss at the proximal point w - s a / b, plus the distance to it.
        prox = {"b": w["linear"]["b"] - closed[:, :1] / smoothness}
        prox["w"] = w["linear"]["w"] - closed[:, 1:, None] / smoothness
        reached = np.asarray(plain({"linear": prox}, records)) + s**2 * norms / (2 * smoothness)
        np.testing.assert_allclose(at, reached, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_the_bounds_are_attained(name):
    """Far from the kink the envelope is L^2/(2b) below the loss; near it, the curvature is b."""
    with jax.enable_x64(True):
        (plain, _), (value, gradient) = functions(name, None), functions(name, 1.0)
        records = {"x": np.full((2, 4), 0.5), "y": np.zeros(2)}
        sign = -1 if "high" in name else 1
        params = {"linear": {"w": np.full((2, 4, 1), 20.0 * sign), "b": np.zeros((2, 1))}}
        gap = float((plain(params, records) - value(params, records))[0])
        slope = LOSSES[name][0]().slope
        assert abs(gap - slope**2 * 2 / 2) < 1e-9  # the squared norm of the features and the bias is 2
        kink = -0.5 if name == "hinge" else 0.0
        near = {"linear": {"w": np.full((2, 4, 1), kink), "b": np.asarray([[0.0], [1e-3 * sign]])}}
        first, second = flat(gradient(near, records))
        assert abs(np.linalg.norm(first - second) - np.sqrt(2) * 1e-3 / 2) < 1e-9
        along = {"linear": {"w": near["linear"]["w"] + 1e-3 * sign * np.asarray([0, 0.5])[:, None, None]}}
        along["linear"]["b"] = np.asarray([[0.0], [1e-3 * sign]])
        first, second = flat(gradient(along, records))
        assert abs(np.linalg.norm(first - second) - np.sqrt(2) * 1e-3) < 1e-9


@pytest.mark.parametrize("name", LOSSES)
def test_as_smoothness_grows_the_loss_itself_comes_back(name):
    with jax.enable_x64(True):
        (plain, steep), (value, gradient) = functions(name, None), functions(name, 1e7)
        records, (w, _, _) = sample(name, 3, 1.0)
        np.testing.assert_allclose(value(w, records), plain(w, records), atol=1e-5)
        np.testing.assert_allclose(flat(gradient(w, records)), flat(steep(w, records)), atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_a_record_without_features_has_a_constant_loss(name):
    value, gradient = functions(name, 0.5, bias=False)
    plain, _ = functions(name, None, bias=False)
    records = {"x": jnp.zeros((3, 4)), "y": jnp.asarray([0.0, 1.0, 0.0])}
    params = {"linear": {"w": jnp.ones((3, 4, 1))}}
    np.testing.assert_allclose(value(params, records), plain(params, records))
    assert (flat(gradient(params, records)) == 0).all()


def test_pinball_is_least_at_its_quantile():
    y = np.random.default_rng(0).exponential(size=2001)
    grid = np.linspace(0, 4, 4001)
    for quantile in (0.1, 0.5, 0.9):
        cost = pinball(quantile)
        least = grid[
            np.argmin([float(cost.value(jnp.full((y.size, 1), g), jnp.asarray(y)).mean()) for g in grid[::20]]) * 20
        ]
        assert abs(least - np.quantile(y, quantile)) < 0.05
        assert (
            abs(float(cost.metrics["coverage"](jnp.full((y.size, 1), least), jnp.asarray(y)).mean()) - quantile) < 0.03
        )


def test_a_smoothed_objective_is_tapped_and_measures_the_loss_itself():
    objective = Objective(linear(2, 1), hinge(0.5))
    records = {"x": jnp.asarray([[1.0, 0.0], [0.0, 2.0]]), "y": jnp.asarray([1, 0])}
    params = objective.init(jax.random.key(0))
    assert gradient_at(objective).objective.model.layers
    assert float(objective.measure(params, records)["loss"]) == 1.0
    assert float(objective.losses(params, records).max()) < 1.0


def test_what_is_refused():
    with pytest.raises(TacitError, match="linear model with one output"):
        Objective(mlp((3, 2, 1)), hinge(1.0))
    with pytest.raises(TacitError, match="2 outputs"):
        Objective(linear(3, 2), absolute(1.0))
    Objective(mlp((3, 2, 1)), hinge())
    for quantile in (0.0, 1.0):
        with pytest.raises(TacitError, match="quantile"):
            pinball(quantile)
    for smoothness in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(TacitError, match="smoothness"):
            absolute(smoothness)


@pytest.mark.parametrize("cost", [softmax(), squared()], ids=["softmax", "squared"])
def test_the_perceptrons_of_the_studies_fit_a_small_set(cost):
    """A hidden layer separates what no linear model can."""
    x = jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    records = {"x": x, "y": jnp.asarray([0, 1, 1, 0])}
    objective = Objective(mlp((2, 16, 2 if "error" in cost.metrics else 1)), cost)
    params = objective.init(jax.random.key(1))

    @jax.jit
    def descend(params):
        def step(params, _):
            slope = jax.grad(lambda p: objective.losses(p, records).mean())(params)
            return jax.tree.map(lambda w, g: w - 0.3 * g, params, slope), None

        return jax.lax.scan(step, params, length=600)[0]

    assert float(objective.measure(descend(params), records)["loss"]) < 0.02


def test_class_weights_weigh_each_class():
    from tacit.objectives import logistic

    outputs, y = jnp.asarray([[0.3], [-1.0], [2.0]]), jnp.asarray([0, 1, 1])
    plain, weighed = logistic().value(outputs, y), logistic((0.5, 3.0)).value(outputs, y)
    np.testing.assert_allclose(weighed, plain * np.array([0.5, 3.0, 3.0]), rtol=1e-6)
    three, classes = jnp.asarray([[0.3, 1.0, -1.0]] * 3), jnp.arange(3)
    np.testing.assert_allclose(
        softmax((1.0, 2.0, 4.0)).value(three, classes), softmax().value(three, classes) * np.array([1, 2, 4]), rtol=1e-6
    )
    assert logistic((0.5, 3.0)).slope == 3.0
    for wrong in ((), (1.0, 0.0), (1.0, 2.0, 3.0)):
        with pytest.raises(TacitError, match="class_weights"):
            logistic(wrong)
    with pytest.raises(TacitError, match="one positive weight for each class, 3 of them"):
        softmax((1.0, 2.0)).value(three, classes)


@pytest.mark.parametrize("bend", [0.3, 2.0])
def test_the_huber_loss_has_the_constants_that_it_says(bend):
    from tacit.objectives import huber

    loss, z = huber(bend), jnp.linspace(-5, 5, 2001)
    slope = jax.vmap(jax.grad(lambda o: loss.value(o[None, None], jnp.zeros(1))[0]))(z)
    assert float(jnp.abs(slope).max()) <= loss.slope * (1 + 1e-6)
    assert float(jnp.abs(jnp.diff(slope) / jnp.diff(z)).max()) <= loss.curvature * (1 + 1e-3)
    np.testing.assert_allclose(slope, np.clip(z, -bend, bend), atol=1e-5)
    with pytest.raises(TacitError, match="bend"):
        huber(0.0)


def test_the_poisson_loss_is_least_at_the_logarithm_of_the_mean():
    from tacit.objectives import poisson

    y = jnp.asarray([0.0, 1.0, 2.0, 7.0])
    slope = jax.grad(lambda o: poisson().value(jnp.full((4, 1), o), y).mean())
    assert abs(float(slope(jnp.log(2.5)))) < 1e-6
    assert float(poisson().constant(y)) == pytest.approx(np.log(2.5))


@pytest.mark.parametrize("loss", [hinge, absolute, partial(pinball, 0.8)])
@pytest.mark.parametrize("bend", [0.3, 4.0])
def test_a_convolution_is_the_mean_over_its_kernel(loss, bend):
    """By brute force: the loss at many points along the features, and how far it is off and bends."""
    with jax.enable_x64(True):
        smooth, plain = loss(bend, "convolution"), loss()
        norm = 2.5
        outputs = jnp.linspace(-4, 4, 161)[:, None]
        targets = jnp.ones(161)
        low, high = {"hinge": (0, 1), "absolute": (-1, 1), "pinball": (-0.2, 0.8)}[plain.name]
        reach = (high - low) * norm / (2 * bend)
        moved = [plain.value(outputs + reach * u, targets) for u in (np.arange(20000) + 0.5) / 10000 - 1]
        found = smooth.smoothing.value(outputs, targets, jnp.full(161, norm))
        np.testing.assert_allclose(found, np.mean(moved, axis=0), atol=1e-7)
        over = np.asarray(found - plain.value(outputs, targets))
        assert over.min() >= -1e-12
        assert over.max() <= (high - low) ** 2 * norm / (8 * bend) + 1e-12
        assert (high - low) ** 2 / 8 <= plain.slope**2 / 2
        slopes = jax.vmap(jax.grad(lambda z: smooth.smoothing.value(z[None, None], targets[:1], jnp.full(1, norm))[0]))
        steps = np.abs(np.diff(slopes(outputs[:, 0]))) / np.diff(outputs[:, 0])
        assert steps.max() * norm <= bend * (1 + 1e-9)


def test_an_unknown_smoothing_is_refused():
    with pytest.raises(TacitError, match='smoothing="moreau" or "convolution"'):
        hinge(1.0, "guess")


def test_a_count_below_zero_is_refused_where_records_are_loaded_and_makes_no_answer_fail():
    import tacit
    from tacit.objectives import poisson

    outputs = jnp.array([[0.5], [0.5]])
    below, zero = poisson().value(outputs, jnp.array([-3.0, 0.0]))
    assert float(below) == float(zero)
    silos = [{"x": np.ones((4, 2), np.float32), "y": np.array([0.0, 1.0, -1.0, 2.0])}]
    with pytest.raises(TacitError, match="Expected counts of at least 0 for loss poisson, got -1 at silo 0"):
        tacit.fit(
            tacit.Problem(Objective(linear(2, 1), poisson())),
            silos,
            tacit.mb_sgd(step_size=0.1, num_rounds=1),
            budget=None,
        )


def test_weights_that_are_not_as_many_as_outputs_are_refused_before_anything_runs():
    import tacit

    problem = tacit.Problem(Objective(linear(2, 3), softmax((1.0, 2.0))))
    silos = [{"x": np.ones((4, 2), np.float32), "y": np.array([0, 1, 2, 0])}]
    with pytest.raises(TacitError, match="3 of them"):
        tacit.fit(problem, silos, tacit.mb_sgd(step_size=0.1, num_rounds=1), budget=None)
