"""Descent-ascent finds saddle points that are known, its two messages are one release, and its output is as told."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.geometry import l2_ball
from tacit.objectives import Objective, Problem, lifted, linear, saddle, squared, untapped
from tacit.plans.catalogue import find
from tacit.privacy import events_of, price
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate, simulate_grid

NOISELESS = {"noise_multiplier": 0.0, "clip_norm": 1e4, "batch_size": None, "sampling": "full"}


def bilinear(seed=0, p=3, q=2, silos=3, n=30):
    """f = |p|^2/2 + <w, A p> - |w|^2/2 + <x, p> + <u, w>, whose saddle point solves a linear system."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(q, p))
    tables = [{"x": rng.normal(size=(n, p + q)) + i, "y": np.zeros(n)} for i in range(silos)]

    def value(params, duals, record):
        linear = record["x"][:p] @ params + record["x"][p:] @ duals
        return (
            0.5 * params @ params + duals @ (jnp.asarray(matrix, jnp.float32) @ params) - 0.5 * duals @ duals + linear
        )

    mean = np.mean([t["x"].mean(axis=0) for t in tables], axis=0)
    system = np.block([[np.eye(p), matrix.T], [matrix, -np.eye(q)]])
    solution = np.linalg.solve(system, -mean)
    return saddle(value, jnp.zeros(p), jnp.zeros(q)), enrol(tables), solution[:p], solution[p:]


def test_it_finds_the_saddle_point_of_a_quadratic():
    game, silos, params, duals = bilinear()
    algorithm = find("sgda").build(Problem(game), step_size=0.1, dual_step_size=0.2, num_rounds=600, **NOISELESS)
    found = simulate(algorithm, jnp.zeros(3), silos, key=jax.random.key(0))
    np.testing.assert_allclose(found.params, params, atol=1e-4)
    np.testing.assert_allclose(found.state.duals, duals, atol=1e-4)


def test_it_finds_a_stationary_point_of_a_problem_that_is_not_convex():
    """Phi(p) = max_w w (p^2 - 1) - w^2/2 = (p^2 - 1)^2 / 2: two valleys at -1 and 1 and a hill between them."""
    game = saddle(lambda p, w, z: w * (p**2 - 1.0) - 0.5 * w**2 + 0.0 * z["y"], jnp.zeros(()), jnp.zeros(()))
    silos = enrol([{"x": np.ones((4, 1)), "y": np.zeros(4)}])
    algorithm = find("sgda").build(Problem(game), step_size=0.02, dual_step_size=0.5, num_rounds=800, **NOISELESS)
    for start in (-0.3, 0.2, 2.0):
        found = simulate(algorithm, jnp.asarray(start), silos, key=jax.random.key(0)).params
        assert abs(float(found) - np.sign(start)) < 1e-3


def test_projections_hold_both_players_inside_their_sets():
    """The saddle value of <w, p> over balls: p stays in its ball, w in its own, and both end at zero."""
    game = saddle(
        lambda p, w, z: 5.0 * w @ p + 0.5 * p @ p - 0.05 * w @ w + 0.0 * z["y"], jnp.ones(2), jnp.full(2, 9.0)
    )
    silos = enrol([{"x": np.ones((4, 1)), "y": np.zeros(4)}])
    common = {"step_size": 0.05, "dual_step_size": 0.05, "radius": 0.7, **NOISELESS}
    seen = simulate(
        find("sgda").build(Problem(game, l2_ball(0.4)), num_rounds=400, **common),
        jnp.ones(2),
        silos,
        key=jax.random.key(0),
        measure=lambda p: {"norm": jnp.linalg.norm(p)},
    )
    assert seen.trace["norm"].max() <= 0.4 + 1e-6
    assert float(jnp.linalg.norm(seen.state.duals)) <= 0.7 + 1e-6
    short = simulate(
        find("sgda").build(Problem(game), num_rounds=1, **common), jnp.ones(2), silos, key=jax.random.key(0)
    )
    assert float(jnp.linalg.norm(short.state.duals)) == pytest.approx(0.7, abs=1e-5)


def test_the_step_decays_as_told():
    """With a constant gradient the path is the sum of the steps."""
    game = saddle(lambda p, w, z: p + 0.0 * w + 0.0 * z["y"], jnp.zeros(()), jnp.zeros(()))
    silos = enrol([{"x": np.ones((2, 1)), "y": np.zeros(2)}])
    algorithm = find("sgda").build(Problem(game), step_size=0.5, num_rounds=5, decay=0.8, decay_every=2, **NOISELESS)
    found = simulate(algorithm, jnp.zeros(()), silos, key=jax.random.key(0)).params
    assert float(found) == pytest.approx(-0.5 * (1 + 1 + 0.8 + 0.8 + 0.64), rel=1e-5)


def test_outputs_are_the_last_the_mean_and_a_uniformly_random_iterate():
    game = saddle(lambda p, w, z: -p + 0.0 * w + 0.0 * z["y"], jnp.zeros(()), jnp.zeros(()))
    silos = enrol([{"x": np.ones((2, 1)), "y": np.zeros(2)}])
    common = {"step_size": 1.0, "num_rounds": 4, **NOISELESS}

    def run(**changes):
        algorithm = find("sgda").build(Problem(game), **common, **changes)
        return float(simulate(algorithm, jnp.zeros(()), silos, key=jax.random.key(0)).params)

    assert (run(output="last"), run(output="average")) == pytest.approx((4.0, 1.5), rel=1e-5)
    seed = Seed(jax.random.key(0), jnp.zeros(()), silos)
    many = simulate_grid(
        lambda output_seed: find("sgda").build(Problem(game), output="random", output_seed=output_seed, **common),
        {"output_seed": np.arange(400, dtype=np.int32)},
        [seed],
    ).params
    counts = np.bincount(np.rint(np.asarray(many[0])).astype(int), minlength=4)
    assert counts.sum() == 400
    assert len(counts) == 4
    assert counts.min() > 70


def test_both_messages_are_one_release():
    game, *_ = bilinear()
    algorithm = find("sgda").build(
        Problem(game),
        step_size=0.1,
        num_rounds=10,
        clip_norm=1.0,
        dual_clip_norm=2.0,
        dual_share=0.3,
        noise_multiplier=7.0,
        batch_size=None,
        sampling="full",
    )
    [event] = events_of(algorithm, silo_index=0, silos=1, records=30)
    assert event.noise_multiplier == pytest.approx(7.0, rel=1e-12)
    assert price([event], delta=1e-5).mu == pytest.approx(10**0.5 / 7.0)


def test_noise_of_both_blocks_has_the_deviation_that_is_priced():
    game, silos, *_ = bilinear()
    share, z, clips = 0.3, 5.0, {"params": 1.0, "duals": 2.0}
    algorithm = find("sgda").build(
        Problem(game),
        step_size=1.0,
        num_rounds=1,
        clip_norm=clips["params"],
        dual_clip_norm=clips["duals"],
        dual_share=share,
        noise_multiplier=z,
        batch_size=None,
        sampling="full",
    )
    seeds = [Seed(jax.random.key(s), jnp.zeros(3), silos) for s in range(300)]
    state = simulate_grid(lambda: algorithm, {}, seeds, noise="each").state
    for name, part in (("params", 1 - share), ("duals", share)):
        values = np.asarray(getattr(state, name))[:, 0]
        expected = z / part**0.5 * 2 * clips[name] / 30 / 3**0.5
        assert values.std(axis=0, ddof=1).mean() == pytest.approx(expected, rel=0.08)


def test_a_plain_objective_is_lifted_without_moving_its_minimum():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    y = x @ np.asarray([1.0, -2.0]) + 0.5 * rng.normal(size=50)
    objective = Objective(linear(2, 1, bias=False), squared())
    game, records = lifted(objective), {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    params = {"linear": {"w": jnp.asarray([[0.3], [0.4]])}}
    loss = objective.losses(params, records).mean()
    best = game.values(params, loss, records, untapped).mean()
    assert float(best) == pytest.approx(float(loss + loss**2 / 2), rel=1e-5)
    found = simulate(
        find("sgda").build(Problem(objective), step_size=0.1, num_rounds=500, **NOISELESS),
        objective.init(jax.random.key(0)),
        enrol([{"x": x, "y": y}]),
        key=jax.random.key(0),
    ).params
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"output": "first"}, "output"), ({"decay_every": 0}, "decay_every"), ({"dual_share": 1.0}, "dual_share")],
)
def test_what_is_refused(changes, message):
    game, *_ = bilinear()
    with pytest.raises(ValueError, match=message):
        find("sgda").build(Problem(game), step_size=0.1, num_rounds=2, **{**NOISELESS, **changes})
