"""Acceleration: the update against a plain reference, rates at zero noise, stages, one pass."""

import jax
import numpy as np
import pytest

from tacit.objectives import Objective, Problem, linear, squared
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tests.algorithms.table import largest_difference, least_squares, start

OPEN = {"clip_norm": None, "noise_multiplier": None, "channel": "open", "batch_size": None, "sampling": "full"}


def quadratic(eigenvalues):
    """Least squares with this spectrum and all-ones optimum: risk is half the sum of eigenvalue x error^2."""
    size = len(eigenvalues)
    x = np.diag(np.sqrt(np.asarray(eigenvalues) * size))
    problem = Problem(Objective(linear(size, 1, bias=False), squared()))
    return [{"x": x, "y": x @ np.ones(size)}], problem


def gaps(build, eigenvalues, rounds):
    """Excess empirical risk after every round."""
    tables, problem = quadratic(eigenvalues)
    values = np.asarray(eigenvalues, np.float32)
    outcome = simulate(
        build(problem),
        start(problem),
        enrol(tables),
        key=jax.random.key(0),
        measure=lambda params: {"gap": 0.5 * (values * (params["linear"]["w"][:, 0] - 1.0) ** 2).sum()},
    )
    assert len(outcome.trace["gap"]) == rounds
    return outcome.trace["gap"]


def slope(values, first, last):
    """Of a log-log line through rounds first to last."""
    number = np.geomspace(first, last, 20).astype(int)
    return np.polyfit(np.log(number), np.log(values[number - 1]), 1)[0]


LOG_UNIFORM = np.geomspace(1e-6, 1.0, 60)


@pytest.fixture(scope="module")
def smooth_convex():
    """A spectrum over six decades: no strong convexity to speak of within the rounds, so rates are sublinear."""
    rounds = 500
    common = {"num_rounds": rounds, **OPEN}
    return {
        "last": gaps(lambda p: find("mb-sgd").build(p, step_size=0.5, output="last", **common), LOG_UNIFORM, rounds),
        "average": gaps(
            lambda p: find("mb-sgd").build(p, step_size=0.5, output="average", **common), LOG_UNIFORM, rounds
        ),
        "accelerated": gaps(
            lambda p: find("accelerated-mb-sgd").build(p, step_size=0.5, **common), LOG_UNIFORM, rounds
        ),
    }


def test_smooth_convex_rates(smooth_convex):
    """The theorems: 1/R for SGD, 1/R^2 accelerated."""
    assert slope(smooth_convex["last"], 20, 500) == pytest.approx(-1.0, abs=0.1)
    assert slope(smooth_convex["average"], 20, 500) == pytest.approx(-1.0, abs=0.1)
    assert slope(smooth_convex["accelerated"], 20, 500) == pytest.approx(-2.0, abs=0.15)


def test_acceleration_reaches_the_same_risk_in_at_most_half_the_rounds(smooth_convex):
    for target in (smooth_convex["last"][199], smooth_convex["last"][499]):
        plain, fast = (int(np.argmax(smooth_convex[k] <= target)) + 1 for k in ("last", "accelerated"))
        assert fast <= plain / 2


def test_strongly_convex_stages_halve_the_gap():
    """Each stage of 4 sqrt(2 beta/mu) rounds at least halves it: linear convergence, at the square root's rate."""
    eigenvalues = np.geomspace(0.01, 1.0, 30)
    length = int(np.ceil(4 * np.sqrt(2 / 0.01)))
    stages = (length,) * 6
    found = gaps(
        lambda p: find("accelerated-mb-sgd").build(
            p, step_size=[0.5] * 6, stages=stages, num_rounds=6 * length, **OPEN
        ),
        eigenvalues,
        6 * length,
    )
    ends = found[length - 1 :: length][:4]  # then float32 ends
    assert np.all(ends[1:] <= ends[:-1] / 2)


def test_strongly_convex_sgd_falls_as_one_over_rounds():
    """Minibatches, steps 2/(mu (r+2)), weights r+1: excess risk 2G^2/(mu (R+1))."""
    made, problem, solution = least_squares(sizes=(60, 60))
    x = np.concatenate([t["x"] for t in made]).astype(float)
    hessian = x.T @ x / len(x)
    mu = np.linalg.eigvalsh(hessian)[0]
    rounds = 4000
    algorithm = find("mb-sgd").build(
        problem,
        step_size=2 / (mu * (np.arange(rounds) + 20)),
        output=np.arange(rounds) + 1.0,
        num_rounds=rounds,
        clip_norm=1e3,
        noise_multiplier=0.0,
        batch_size=4,
        sampling="wr",
    )

    def measure(params, _):
        error = params["linear"]["w"][:, 0] - solution.astype(np.float32)
        return {"gap": 0.5 * error @ hessian.astype(np.float32) @ error}

    seeds = [Seed(jax.random.key(s), start(problem), enrol(made)) for s in range(6)]
    traces = simulate_grid(lambda: algorithm, {}, seeds, measure=measure).trace["gap"][:, 0]
    assert slope(traces.mean(axis=0), 200, rounds) == pytest.approx(-1.0, abs=0.25)


def test_three_rounds_by_hand():
    """AC-SA with strong convexity, written out in numpy."""
    eigenvalues = np.array([0.3, 1.0])
    mu, step = 0.2, 0.4
    w = ag = np.zeros(2)
    for r in (1, 2, 3):
        a, c = 2 / (r + 1), 4 / (step * r * (r + 1))
        md = ((1 - a) * (mu + c) * ag + a * ((1 - a) * mu + c) * w) / (c + (1 - a**2) * mu)
        w = (a * mu * md + ((1 - a) * mu + c) * w - a * eigenvalues * (md - 1)) / (mu + c)
        ag = a * w + (1 - a) * ag
    tables, problem = quadratic(eigenvalues)
    algorithm = find("accelerated-mb-sgd").build(problem, step_size=step, num_rounds=3, strong_convexity=mu, **OPEN)
    found = simulate(algorithm, start(problem), enrol(tables), key=jax.random.key(0)).params
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], ag, rtol=1e-5)


def test_a_stage_starts_afresh_from_the_aggregate():
    tables, problem = quadratic([0.1, 1.0])
    both = find("accelerated-mb-sgd").build(problem, step_size=[0.5, 0.25], stages=(4, 3), num_rounds=7, **OPEN)
    found = simulate(both, start(problem), enrol(tables), key=jax.random.key(0)).params
    params = start(problem)
    for rounds, step in ((4, 0.5), (3, 0.25)):
        stage = find("accelerated-mb-sgd").build(problem, step_size=step, num_rounds=rounds, **OPEN)
        params = simulate(stage, params, enrol(tables), key=jax.random.key(0)).params
    assert largest_difference(found, params) < 1e-6


def test_stages_must_add_up():
    _, problem = quadratic([1.0])
    with pytest.raises(ValueError, match="add up to num_rounds=5"):
        find("accelerated-mb-sgd").build(problem, step_size=0.5, stages=(2, 2), num_rounds=5, **OPEN)


def test_one_pass_comes_near_the_optimum_and_takes_no_second_look():
    made, problem, solution = least_squares(sizes=(1200, 1200))
    terms = {"clip_norm": 1e3, "noise_multiplier": 0.0, "batch_size": 20, "num_rounds": 60, "step_size": 0.8}
    algorithm = find("one-pass-accelerated").build(problem, **terms, sampling="one-pass")
    found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params
    error = np.linalg.norm(np.asarray(found["linear"]["w"])[:, 0] - solution)
    assert error < 0.05 * np.linalg.norm(solution)
    with pytest.raises(ValueError, match="accelerated-mb-sgd"):
        find("one-pass-accelerated").build(problem, **terms, sampling="wor")
