"""The bound of ridge in one round, beside what comes out, and where `tacit choose` takes it."""

import jax
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.ridge import ridge
from tacit.choosing import Situation, candidates, winner
from tacit.objectives import Objective, Problem, linear, squared
from tacit.privacy.gaussian import gdp_mu
from tacit.theory import ridge_bound

SETTING = {"features": 3, "feature_norm": 1.0, "radius": 1.0, "silos": 4, "delta": 1e-6}


@pytest.mark.parametrize(("records", "epsilon"), [(500, 1.0), (5000, 1.0), (5000, 4.0)])
def test_what_comes_out_is_within_the_bound(records, epsilon):
    """Means of all silos with the noise that the release adds, solved as the server does, over 200 draws."""
    found = ridge_bound(records=records, epsilon=epsilon, **SETTING)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * records, 3))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.clip(0.5 + x @ [0.3, -0.2, 0.1] + rng.normal(0, 0.1, 4 * records), 0, 1)
    problem = Problem(Objective(linear(3, 1), squared()))
    terms = Terms(clip_norm=1.0, noise_multiplier=1 / gdp_mu(epsilon, 1e-6), batch_size=None, sampling="full")
    once = ridge(strength=found.strength)(problem, terms).rounds["moments"]
    rows = jax.vmap(lambda x, y: once.silo.query((), {"x": x, "y": y}))(x.astype(np.float32), y.astype(np.float32))
    mean, release = np.asarray(rows["square"]["w"], np.float64).mean(axis=0), once.silo.release
    # Of a mean over four silos.
    noise = release.sensitivity * release.noise_multiplier * release.clip(()) / records / 2
    extended = np.column_stack([x, np.ones(len(x))])
    best = np.linalg.lstsq(extended, y, rcond=None)[0]
    least = 0.5 * np.mean((extended @ best - y) ** 2)
    solve, risks = jax.jit(once.server.tell), []
    for _ in range(200):
        told = solve(None, {"square": {"w": mean + rng.normal(0, noise, mean.shape)}})["linear"]
        risks.append(0.5 * np.mean((x @ np.asarray(told["w"])[:, 0] + float(told["b"][0]) - y) ** 2) - least)
    assert np.quantile(risks, 0.95) <= found.bound
    assert min(risks) >= -1e-6


def test_ridge_is_chosen_where_its_bound_is_least():
    """With many records and few rounds: thirty go less far than one solution. For other losses it is no choice."""
    terms = {"convex": True, "smoothness": 2.0, "dimension": 6, "epsilon": 2.0, "squared": True, "gap": 0.5}
    terms |= {"max_rounds": 30}
    best = winner(candidates(Situation(sizes=(100_000,) * 10, **terms)))
    assert (best.algorithm, best.rounds, best.failed) == ("ridge", 1, ())
    few = next(c for c in candidates(Situation(sizes=(100,) * 10, **terms)) if c.algorithm == "ridge")
    assert few.failed
    patient = winner(candidates(Situation(sizes=(100_000,) * 10, **terms | {"max_rounds": 1000})))
    assert patient.algorithm == "accelerated-mb-sgd"
    other = candidates(Situation(sizes=(100_000,) * 10, **terms | {"squared": False}))
    assert next(c for c in other if c.algorithm == "ridge").reasons == ("it needs squared losses of a linear model",)
