"""Noisy minibatch SGD: silos that differ in everything, steps and weights by round."""

import jax
import numpy as np
import pytest

from tacit.plans.catalogue import find
from tacit.plans.price import plan_silos
from tacit.privacy import price
from tacit.privacy.plan import Budget, events_of
from tacit.silo import enrol, rows_of
from tacit.simulate.compiled import simulate
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tacit.theory.convex import stich_schedule
from tests.algorithms.table import LOGISTIC, largest_difference, least_squares, start, tables

UNEQUAL = {
    "step_size": 0.3,
    "num_rounds": 6,
    "clip_norm": np.asarray([0.4, 1.0, 0.7], np.float32),
    "batch_size": (10, 5, 8),
    "sampling": "wor",
}


def test_silos_may_differ_in_records_budget_clip_batch_and_weight():
    """n_i, epsilon_i, L_i, K_i and p_i by silo, a random number of silos each round: both runtimes agree."""
    budget = Budget(epsilon=(0.5, 2.0, 8.0), delta=1e-4)

    def build(noise):
        return find("mb-sgd").build(LOGISTIC, noise_multiplier=noise, **UNEQUAL)

    plans, noise = plan_silos(build, "abc", (30, 17, 24), budget, dimensions={})
    algorithm = build(noise)
    for silo_index, (plan, epsilon) in enumerate(zip(plans, (0.5, 2.0, 8.0), strict=True)):
        events = events_of(algorithm, silo_index=silo_index, silos=3, records=plan.records)
        assert 0.99 * epsilon < price(events, delta=1e-4).epsilon <= epsilon
    silos, key = enrol(tables()), jax.random.key(1)
    who = participation(3, (1, 3), weights=(0.6, 0.1, 0.3))
    fast = simulate(algorithm, start(LOGISTIC), silos, key=key, who=who, noise="each")
    slow = debug(algorithm, start(LOGISTIC), [rows_of(silos, i) for i in range(3)], key=key, who=who)
    assert largest_difference(fast.params, slow.params) < 1e-5


def test_the_output_is_the_weighted_mean_of_the_iterates_before_the_last():
    """Two phases of steps and weights, as the theorem for smooth strongly convex losses has them, in numpy."""
    made, problem, _ = least_squares(sizes=(20,))
    x, y = (np.asarray(made[0][k], float) for k in ("x", "y"))
    steps, weights = stich_schedule(20, 0.3, 1.5)
    assert len(set(weights)) > 5
    w, iterates = np.zeros(4), []
    for step in steps:
        iterates.append(w)
        w = w - step * x.T @ (x @ w - y) / 20
    algorithm = find("mb-sgd").build(
        problem,
        step_size=steps,
        output=weights,
        num_rounds=20,
        clip_norm=1e3,
        noise_multiplier=0.0,
        batch_size=None,
        sampling="full",
    )
    found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params
    expected = np.average(iterates, axis=0, weights=weights)
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], expected, rtol=1e-4)


def test_weights_must_be_usable():
    with pytest.raises(ValueError, match="6 non-negative weights"):
        find("mb-sgd").build(LOGISTIC, noise_multiplier=1.0, output=[1.0, 2.0], **UNEQUAL)


def test_the_tail_is_the_mean_of_the_second_half():
    made, problem, _ = least_squares(sizes=(20,))
    given = {"step_size": 0.3, "num_rounds": 7, "clip_norm": 1e3, "noise_multiplier": 0.0, "batch_size": None}
    tail, weighted = (
        simulate(
            find("mb-sgd").build(problem, sampling="full", output=output, **given),
            start(problem),
            enrol(made),
            key=jax.random.key(0),
        ).params
        for output in ("tail", [0, 0, 0, 1, 1, 1, 1])
    )
    np.testing.assert_allclose(tail["linear"]["w"], weighted["linear"]["w"], rtol=1e-5)
