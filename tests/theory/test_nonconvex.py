"""Theorems with numbers put in: parameters are private, bounds hold on a known problem, rates are the paper's."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from tacit.objectives import Objective, Problem, linear, squared
from tacit.plans.catalogue import find
from tacit.privacy import events_of, price
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tacit.theory import (
    NonconvexSetting,
    TheoryError,
    gradient_mapping,
    pl_svrg_from_theory,
    prox_sgd_from_theory,
    prox_spider_from_theory,
    proximal_descent,
    risk,
)
from tacit.theory.nonconvex import stationarity_lower_bound

SETTING = NonconvexSetting(
    lipschitz=2.0, smoothness=1.0, pl=0.2, gap=0.5, records=3000, silos=4, dimension=2, epsilon=2.0, delta=1e-6
)
STATEMENTS = {"2.1": prox_sgd_from_theory, "2.2": pl_svrg_from_theory, "3.1": prox_spider_from_theory}


def known_problem():
    """Least squares on the unit disc: L <= 2, beta <= 1, mu about 0.25, and a start whose excess is below 0.5."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(4):
        x = rng.normal(size=(3000, 2))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        made.append({"x": x.astype(np.float32), "y": (x @ [0.6, -0.6]).astype(np.float32)})
    problem = Problem(Objective(linear(2, 1, bias=False), squared()))
    pooled = {k: np.concatenate([t[k] for t in made]) for k in ("x", "y")}
    return problem, enrol(made), pooled


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_parameters_spend_the_budget_and_no_more(name):
    found = STATEMENTS[name](SETTING)
    problem, _, _ = known_problem()
    algorithm = find(found.algorithm).build(problem, **found.parameters)
    paid = price(events_of(algorithm, silo_index=0, silos=4, records=3000), delta=1e-6).epsilon
    assert paid == pytest.approx(2.0, rel=1e-6)


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_bound_holds_where_the_optimum_is_known(name):
    found = STATEMENTS[name](SETTING)
    problem, silos, pooled = known_problem()
    algorithm = find(found.algorithm).build(problem, **found.parameters)
    start = problem.objective.init(jax.random.key(0))
    end = simulate(algorithm, start, silos, key=jax.random.key(1)).params
    if name == "3.1":
        reached = float(gradient_mapping(problem, end, pooled, 0.5)) ** 2
        assert reached < float(gradient_mapping(problem, start, pooled, 0.5)) ** 2
    else:
        best = risk(problem, proximal_descent(problem, start, pooled, 1.0, 200), pooled)
        reached = float(risk(problem, end, pooled) - best)
        assert reached < float(risk(problem, start, pooled) - best)
    assert reached <= found.bound


def test_spider_has_a_faster_rate_than_the_one_over_epsilon_of_sgd():
    """Ten times the records lower the squared norm by a power nearer 4/3 than SGD's 1."""

    def bounds(n):
        found = prox_spider_from_theory(dataclasses.replace(SETTING, records=n, dimension=50))
        return found.bound, found.rate, found.lower_bound

    few, many = bounds(10**4), bounds(10**5)
    assert 10 ** (7 / 6) < few[0] / many[0] < 10 ** (3 / 2)
    assert few[2] / many[2] == pytest.approx(100, rel=1e-6)
    assert all(b[2] <= b[1] for b in (few, many))


def test_the_shuffled_sum_gains_a_factor_of_the_silos():
    direct, shuffled = SETTING, dataclasses.replace(SETTING, channel="shuffled-sum", records=10**5)
    direct = dataclasses.replace(direct, records=10**5)
    assert stationarity_lower_bound(direct) / stationarity_lower_bound(shuffled) == pytest.approx(4.0)
    assert prox_spider_from_theory(shuffled).bound < prox_spider_from_theory(direct).bound


def test_at_user_level_more_records_buy_nothing():
    """The lower bound of appendix G depends on the silos alone; at record level it falls with the records."""

    def at_user_level(n):
        """The record-level budget from which group privacy over n records gives the budget of the setting."""
        delta = SETTING.delta / (n * math.exp((n - 1) * SETTING.epsilon / n))
        return dataclasses.replace(SETTING, silos=10**6, records=n, epsilon=SETTING.epsilon / n, delta=delta)

    bounds = [stationarity_lower_bound(at_user_level(n)) for n in (10, 1000)]
    assert bounds[0] == pytest.approx(bounds[1], rel=0.5)
    few, many = (stationarity_lower_bound(dataclasses.replace(SETTING, records=n)) for n in (1000, 10**5))
    assert few / many == pytest.approx(10**4)


def test_absent_silos_make_the_bound_worse_and_nothing_private_is_gained():
    half = dataclasses.replace(SETTING, participants=2)
    assert prox_spider_from_theory(half).bound > prox_spider_from_theory(SETTING).bound
    assert prox_sgd_from_theory(half).parameters["noise_multiplier"] == pytest.approx(1 / SETTING.mu)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gap": 0.0}, "gap"),
        ({"delta": 1.5}, "delta"),
        ({"participants": 9}, "participants"),
        ({"pl": 3.0}, "pl"),
        ({"channel": "shuffled-sum", "participants": 2}, "every silo"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(TheoryError, match=message):
        dataclasses.replace(SETTING, **change)


def test_the_proximal_pl_theorems_need_the_constant():
    with pytest.raises(TheoryError, match="pl"):
        prox_sgd_from_theory(dataclasses.replace(SETTING, pl=None))
