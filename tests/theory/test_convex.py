"""The theorems with numbers put in: noise that prices back, bounds that hold, conditions that are named."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tacit.geometry import l2_ball
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find
from tacit.privacy import gdp_epsilon, price
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import ConvexSetting, TheoryError, binomial_silos, harmonic
from tacit.theory.convex import acsa_stages, lower_bound, mb_sgd_from_theory, rate, stich_schedule

BASE = ConvexSetting(
    lipschitz=1.0, smoothness=0.25, radius=2.0, records=40, silos=3, dimension=4, epsilon=4.0, delta=1e-4
)
CURVED = dataclasses.replace(BASE, strong_convexity=0.1)


def problem():
    """Logistic loss on features of norm one over a ball: L = 1, beta = 1/4, D = 2."""
    return Problem(Objective(linear(4, 1, bias=False), logistic()), l2_ball(2.0))


def silos(seed=0):
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(3):
        x = rng.normal(size=(40, 4))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        tables.append({"x": x, "y": (x @ [1.0, -1.0, 0.5, 0.0] + 0.3 * rng.normal(size=40) > 0).astype(int)})
    return tables


def excess(params, tables):
    """Excess empirical risk over the ball, of every model in ``params``."""
    x, y = (np.concatenate([t[k] for t in tables]) for k in ("x", "y"))

    def risk(w):
        margin = x @ np.asarray(w, float).T
        return (np.logaddexp(0, margin) - (y * margin.T).T).mean(axis=0)

    best = minimize(risk, np.zeros(4), constraints={"type": "ineq", "fun": lambda w: 4.0 - w @ w}, tol=1e-12)
    return risk(params) - best.fun


@pytest.mark.parametrize("name", ["mb-sgd", "accelerated-mb-sgd", "one-pass-accelerated", "mu2-sgd"])
@pytest.mark.parametrize("setting", [BASE, CURVED], ids=["convex", "strongly convex"])
def test_the_noise_prices_back_to_the_budget(name, setting):
    found = find(name).theory(setting)
    algorithm = find(name).build(problem(), **found.parameters)
    spent = price(events_of(algorithm, silo_index=0, silos=3, records=40), delta=1e-4).epsilon
    assert 3.99 < spent <= 4.0 + 1e-9
    assert found.bound >= found.lower_bound > 0


@pytest.mark.parametrize("name", ["mb-sgd", "accelerated-mb-sgd"])
def test_measured_excess_risk_is_within_the_bound(name):
    """Empirical risk of a logistic regression whose constants are known exactly, at the theorem's own parameters."""
    options = {"risk": "empirical"} if name == "mb-sgd" else {}
    found = find(name).theory(BASE, num_rounds=60, **options)
    assert found.failed == ()
    tables = silos()
    model = problem()
    seeds = [Seed(jax.random.key(s), model.objective.init(jax.random.key(0)), enrol(tables)) for s in range(30)]
    outcome = simulate_grid(lambda: find(name).build(model, **found.parameters), {}, seeds)
    measured = excess(np.asarray(outcome.params["linear"]["w"])[:, 0, :, 0], tables).mean()
    assert 0 < measured <= found.bound
    # Within two orders of magnitude: the bound is not so loose that it could never fail.
    assert found.bound < 100 * measured


@given(
    st.integers(10, 5000),
    st.integers(2, 200),
    st.integers(1, 500),
    st.floats(0.05, 3.0),
    st.sampled_from([0.0, 0.01, 0.2]),
    st.sampled_from(["population", "empirical"]),
)
@settings(max_examples=60, deadline=None)
def test_no_bound_is_below_the_lower_bound(records, silos, dimension, epsilon, mu, risk):
    setting = ConvexSetting(
        lipschitz=1.0,
        smoothness=1.0,
        radius=1.0,
        records=records,
        silos=silos,
        dimension=dimension,
        epsilon=epsilon,
        delta=1e-7,
        strong_convexity=mu,
    )
    found = mb_sgd_from_theory(setting, risk=risk, num_rounds=200)
    assert found.bound >= lower_bound(setting, risk)


@pytest.mark.parametrize(
    ("change", "power"), [({"records": 160}, 4), ({"dimension": 64}, 0.25), ({"epsilon": 16.0}, 4)]
)
def test_the_rate_scales_as_printed(change, power):
    """Empirical risk: sqrt(d)/(eps n), squared for strongly convex losses."""
    convex = rate(BASE, "empirical") / rate(dataclasses.replace(BASE, **change), "empirical")
    curved = rate(CURVED, "empirical") / rate(dataclasses.replace(CURVED, **change), "empirical")
    assert convex == pytest.approx(power)
    assert curved == pytest.approx(power**2)


def test_the_papers_noise_is_the_papers():
    setting = dataclasses.replace(BASE, records=1234, epsilon=1.0, delta=1 / 1234**2)
    found = mb_sgd_from_theory(setting, num_rounds=50, accountant="paper")
    terms = found.parameters
    assert terms["noise_multiplier"] * 2 / terms["batch_size"] == pytest.approx(1.547, rel=1e-3)
    assert terms["sampling"] == "wr"
    tight = mb_sgd_from_theory(setting, num_rounds=50)
    assert tight.bound < found.bound


def test_a_condition_that_fails_is_named_with_its_numbers():
    setting = dataclasses.replace(BASE, epsilon=30.0)
    found = mb_sgd_from_theory(setting, num_rounds=50, accountant="paper")
    assert any("epsilon=30 <= ln(2/delta)=9.9" in text for text in found.failed)
    tiny = dataclasses.replace(BASE, epsilon=0.01)
    assert any(text.startswith("bound=") for text in mb_sgd_from_theory(tiny).failed)


def test_losses_that_are_not_smooth_are_smoothed_to_the_accuracy_aimed_at():
    rough = dataclasses.replace(BASE, smoothness=None, records=4000)
    for name in ("mb-sgd", "accelerated-mb-sgd"):
        found = find(name).theory(rough)
        assert found.smoothing is not None
        assert 1 / (2 * found.smoothing) == pytest.approx(found.rate)
        assert found.bound > 1 / (2 * found.smoothing)


def test_no_step_of_acsa_beats_the_one_chosen():
    """The bound of one stage, as a function of the inverse step, is least where it is put."""
    variance, rounds = 0.3, 50
    _, [step], bound = acsa_stages(BASE, rounds, variance)

    def at(eta):
        return 2 * eta * 4.0 / (rounds * (rounds + 1)) + (2 * rounds + 1) * variance / (6 * eta)

    assert at(1 / step) == pytest.approx(bound)
    assert 1 / step > 2 * 0.25
    assert min(at(1.01 / step), at(0.99 / step)) > bound


def test_stages_of_acsa_halve_the_gap():
    setting = dataclasses.replace(CURVED, strong_convexity=0.25, smoothness=1.0)
    for rounds in (30, 60, 120, 240):
        lengths, steps, bound = acsa_stages(setting, rounds, 0.0)
        assert sum(lengths) == rounds
        assert np.all(steps == 0.5)
        assert bound <= 2.0 * 2.0 ** -len(lengths)
    assert len(acsa_stages(setting, 240, 0.0)[0]) == 240 // math.ceil(4 * math.sqrt(8))


def test_stichs_schedule_has_two_phases():
    steps, weights = stich_schedule(100, 1.0, 4.0)
    assert np.all(steps[:50] == 0.25)
    assert np.all(weights[:50] == 0)
    assert steps[50] == 0.25
    assert np.all(np.diff(steps[50:]) < 0)
    short, flat = stich_schedule(3, 1.0, 4.0)
    assert np.all(short == 0.25)
    assert np.allclose(flat, (4 / 3) ** np.arange(1, 4))


def test_mistakes_are_named():
    with pytest.raises(TheoryError, match="participants=9 <= silos=3"):
        dataclasses.replace(BASE, participants=9)
    with pytest.raises(TheoryError, match="epsilon=-1"):
        dataclasses.replace(BASE, epsilon=-1.0)
    with pytest.raises(TheoryError, match="batch_size=100 <= records=40"):
        find("one-pass-accelerated").theory(BASE, batch_size=100)
    with pytest.raises(TheoryError, match="every silo"):
        find("mu2-sgd").theory(dataclasses.replace(BASE, participants=2))


def test_a_random_number_of_silos_counts_as_its_harmonic_mean():
    """By brute force: the noise of a mean over silos that come by themselves, all who may come in turn."""
    silos, chance = 6, 0.4
    inverse = weight = 0.0
    for who in itertools.product((0, 1), repeat=silos):
        if sum(who) >= 2:
            share = math.prod(chance if one else 1 - chance for one in who)
            inverse, weight = inverse + share / sum(who), weight + share
    assert binomial_silos(silos, chance, at_least=2) == pytest.approx(weight / inverse)
    assert harmonic({2: 0.25, 6: 0.75}) == pytest.approx(1 / (0.25 / 2 + 0.75 / 6))
    with pytest.raises(TheoryError, match="add up to one"):
        harmonic({2: 0.5})
    with pytest.raises(TheoryError, match="chance=0"):
        binomial_silos(3, 0.0)


def test_a_bound_with_random_silos_lies_between_those_of_few_and_many():
    common = {"lipschitz": 1, "radius": 1, "smoothness": 1, "records": 500, "silos": 10, "dimension": 5}
    bounds = [
        mb_sgd_from_theory(ConvexSetting(**common, epsilon=1, delta=1e-5, participants=m), num_rounds=50).bound
        for m in (3, harmonic({3: 0.5, 9: 0.5}), 9)
    ]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > bounds[1] > bounds[2]


def test_the_lower_bound_asks_what_one_round_spends():
    setting = ConvexSetting(
        lipschitz=1, radius=1, smoothness=1, records=100, silos=4, dimension=5, epsilon=1, delta=1e-5
    )
    found = mb_sgd_from_theory(setting, num_rounds=25)
    [said] = [c for c in found.lower_conditions if c.text.startswith("epsilon_r")]
    noise = found.parameters["noise_multiplier"]
    assert f"={gdp_epsilon(1 / noise, 1e-5 / 25):.3g}" in said.text
    assert not said.holds
    calm = mb_sgd_from_theory(dataclasses.replace(setting, epsilon=0.01), num_rounds=25)
    [said] = [c for c in calm.lower_conditions if c.text.startswith("epsilon_r")]
    assert said.holds
