"""Theorem C.2 with constants holds where everything is known, and ||grad Phi|| is what it says."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.objectives import Objective, Problem, ermi, linear, logistic, saddle
from tacit.plans.catalogue import find
from tacit.privacy import events_of, price
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import TheoryError
from tacit.theory.fairness import (
    SaddleSetting,
    fermi_stationarity,
    sgda_from_theory,
    stationarity_bound,
    steffle_setting,
)

SETTING = SaddleSetting(
    params_smoothness=1.0,
    duals_smoothness=2.0,
    cross_smoothness=1.0,
    concavity=1.0,
    params_move=8.0,
    duals_move=8.0,
    gap=2.0,
    diameter=1.0,
    params_dimension=1,
    duals_dimension=1,
    records=200,
    silos=3,
    epsilon=3.0,
    delta=1e-5,
)


def test_the_bound_holds_on_a_saddle_that_is_known():
    """f = p^2/2 + w p - w^2/2, so that Phi = p^2 and its gradient is 2p."""
    game = saddle(lambda p, w, z: 0.5 * p**2 + w * p - 0.5 * w**2 + 0.0 * z["y"], jnp.ones(()), jnp.zeros(()))
    s = dataclasses.replace(SETTING, duals_smoothness=1.0, gap=1.0)
    told = sgda_from_theory(s)
    silos = enrol([{"x": np.ones((s.records, 1)), "y": np.zeros(s.records)} for _ in range(s.silos)])
    algorithm = find("sgda").build(
        Problem(game),
        step_size=told.step_size,
        dual_step_size=told.dual_step_size,
        num_rounds=told.num_rounds,
        clip_norm=s.params_move / 2,
        dual_clip_norm=s.duals_move / 2,
        dual_share=told.dual_share,
        noise_multiplier=told.noise_multiplier,
        batch_size=None,
        sampling="full",
    )
    seeds = [Seed(jax.random.key(i), jnp.ones(()), silos) for i in range(8)]
    seen = simulate_grid(lambda: algorithm, {}, seeds, measure=lambda p, _: {"gradient": 2.0 * p}).trace["gradient"]
    assert np.mean(seen**2) <= told.bound
    [event] = events_of(algorithm, silo_index=0, silos=s.silos, records=s.records)
    assert price([event], delta=s.delta).epsilon == pytest.approx(s.epsilon, rel=1e-6)


def test_rounds_and_shares_are_the_best_for_the_bound():
    told = sgda_from_theory(SETTING)
    per_round = told.noise_multiplier / math.sqrt(told.num_rounds)
    for rounds in (told.num_rounds // 2, told.num_rounds * 2):
        assert stationarity_bound(SETTING, rounds, per_round * math.sqrt(rounds), told.dual_share) >= told.bound
    for share in (told.dual_share * 0.8, min(0.99, told.dual_share * 1.2)):
        assert stationarity_bound(SETTING, told.num_rounds, told.noise_multiplier, share) >= told.bound * (1 - 1e-9)


def test_the_bound_falls_with_records_silos_and_budget_as_the_rate_does():
    base = sgda_from_theory(SETTING)
    for change, power in (({"records": 800}, 1.0), ({"silos": 48}, 0.5)):
        other = sgda_from_theory(dataclasses.replace(SETTING, **change))
        factor = (next(iter(change.values())) / getattr(SETTING, next(iter(change)))) ** power
        assert base.rate / other.rate == pytest.approx(factor, rel=1e-6)
        assert base.bound / other.bound == pytest.approx(factor, rel=0.1)


def test_stationarity_is_the_gradient_of_loss_plus_divergence():
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        n = 60
        s = np.concatenate([np.zeros(20, int), np.ones(40, int)])
        records = {"x": jnp.asarray(rng.normal(size=(n, 3)) + s[:, None]), "y": jnp.asarray(rng.integers(0, 2, n))}
        records["s"] = jnp.asarray(s)
        model = linear(3, 1)
        term = ermi(model, 2, (1 / 3, 2 / 3))
        params = {"linear": {"w": jnp.asarray(rng.normal(size=(3, 1))), "b": jnp.asarray([0.2])}}
        objective, strength = Objective(model, logistic()), 1.7

        def fermi(params):
            chances = term.probabilities(params, records["x"])
            joint = jnp.stack([chances[s == r].sum(axis=0) for r in range(2)]) / n
            product = joint.sum(axis=0, keepdims=True) * joint.sum(axis=1, keepdims=True)
            return objective.losses(params, records).mean() + strength * ((joint**2 / product).sum() - 1)

        gradient = jax.grad(fermi)(params)
        norm = float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))))
        assert float(fermi_stationarity(objective, term, params, records, strength)) == pytest.approx(norm, rel=1e-9)


def test_the_constants_of_the_fair_saddle_are_bounds():
    """Random points: every second derivative that Assumption C.1 speaks of stays below its constant."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        model, strength, radius, norm = linear(3, 1), 0.8, 1.5, 2.0
        term = ermi(model, 2, (0.3, 0.7), floor=0.01)
        terms = {"records": 100, "silos": 1, "epsilon": 1.0, "delta": 1e-5}
        known = steffle_setting(
            term, strength=strength, feature_norm=norm, loss_smoothness=1e-9, radius=radius, gap=1.0, **terms
        )

        def f(theta, w, x, s):
            record = {"x": x, "y": jnp.asarray(0), "s": s}
            params = {"linear": {"w": theta[:3, None], "b": theta[3:]}}
            return strength * term.value(params, w.reshape(1, 2, 2), record)

        second = jax.jit(jax.vmap(jax.hessian(f, argnums=(0, 1))))
        x = rng.normal(size=(400, 3))
        x *= norm / np.linalg.norm(x, axis=1, keepdims=True)
        w = rng.normal(size=(400, 4))
        w *= radius / np.linalg.norm(w, axis=1, keepdims=True)
        theta = rng.normal(size=(400, 4)) * rng.choice([0.1, 1.0, 5.0], (400, 1))
        (tt, tw), (_, ww) = second(*map(jnp.asarray, (theta, w, x, rng.integers(0, 2, 400))))
        assert np.linalg.norm(tt, ord=2, axis=(1, 2)).max() <= known.params_smoothness
        assert np.linalg.norm(tw, ord=2, axis=(1, 2)).max() <= known.cross_smoothness
        curve = -np.linalg.eigvalsh(np.asarray(ww))
        assert curve.max() <= known.duals_smoothness * (1 + 1e-9)
        assert curve.min() >= known.concavity * (1 - 1e-9)


def test_what_is_refused():
    with pytest.raises(TheoryError, match="concavity"):
        dataclasses.replace(SETTING, concavity=3.0)
    with pytest.raises(TheoryError, match="strength"):
        steffle_setting(
            ermi(linear(2, 1), 2, (0.5, 0.5)),
            strength=0.0,
            feature_norm=1.0,
            loss_smoothness=1.0,
            radius=1.0,
            gap=1.0,
            records=10,
            silos=1,
            epsilon=1.0,
            delta=1e-5,
        )
