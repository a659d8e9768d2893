"""Losses that are not smooth, run on the envelope that the theorem asks for, or a convolution."""

import jax
import numpy as np
import pytest
from scipy.optimize import linprog

from tacit.geometry import l2_ball
from tacit.objectives import Objective, Problem, absolute, linear
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import ConvexSetting

SETTING = ConvexSetting(lipschitz=1.0, radius=2.0, records=300, silos=3, dimension=4, epsilon=4.0, delta=1e-4)


def median_regression():
    """Features of norm one, targets with outliers; least absolute deviations solved as a linear program."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(900, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ [1.0, -0.5, 0.3, 0.0] + 0.1 * rng.standard_t(2, size=900)
    rows, size = np.eye(900), 4
    found = linprog(
        np.r_[np.zeros(size), np.ones(900) / 900],
        A_ub=np.block([[x, -rows], [-x, -rows]]),
        b_ub=np.r_[y, -y],
        bounds=[(None, None)] * size + [(0, None)] * 900,
    )
    assert np.linalg.norm(found.x[:size]) < 2
    return [{"x": x[i::3], "y": y[i::3]} for i in range(3)], (x, y, found.fun)


@pytest.mark.parametrize("how", ["moreau", "convolution"])
@pytest.mark.parametrize("name", ["mb-sgd", "accelerated-mb-sgd"])
def test_the_bound_holds_for_the_loss_that_was_smoothed(name, how):
    options = {"risk": "empirical"} if name == "mb-sgd" else {}
    found = find(name).theory(SETTING, num_rounds=100, **options)
    tables, (x, y, best) = median_regression()
    problem = Problem(Objective(linear(4, 1, bias=False), absolute(found.smoothing, how)), l2_ball(2.0))
    start = problem.objective.init(jax.random.key(0))
    seeds = [Seed(jax.random.key(s), start, enrol(tables)) for s in range(8)]
    outcome = simulate_grid(lambda: find(name).build(problem, **found.parameters), {}, seeds)
    models = np.asarray(outcome.params["linear"]["w"], float)[:, 0, :, 0]
    excess = np.abs(x @ models.T - y[:, None]).mean(axis=0) - best
    assert 0 < excess.mean() <= found.bound < 2.0
