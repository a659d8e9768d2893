"""No swap of one record moves a statistic further than is priced, and the search comes close to that."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Release, Silo
from tacit.algorithms import find
from tacit.audit.sensitivity import audit_extremes, audit_sensitivity
from tacit.audit.table import Setting, parameters_for
from tacit.objectives import Loss, Objective, Problem, gradient_at, linear, logistic, mlp, squared
from tacit.silo import answer, view_of
from tacit.silo.clipping import SLACK
from tacit.silo.secure_answer import Responder

FULL = Setting("full batch", "full", 4, 3, None, None)
LOGISTIC, SQUARES = Objective(linear(3, 1), logistic()), Objective(linear(3, 1, bias=False), squared())
NETWORK = Objective(mlp((3, 4, 1)), logistic())


def built(name, objective):
    entry = find(name)
    problem = Problem(objective, smoothness=1.0, lipschitz=1.0, radius=1.0)
    return entry.build(problem, **parameters_for(entry, FULL), noise_multiplier=2.0)


@pytest.mark.parametrize(("name", "objective"), [("prox-spider", SQUARES), ("mu2-sgd", SQUARES), ("mb-sgd", NETWORK)])
def test_climbing_comes_close_to_the_price_and_not_beyond(name, objective):
    results = audit_sensitivity(built(name, objective), objective, 3, key=jax.random.key(0), starts=16, steps=30)
    for result in results:
        assert not result.violated
        assert result.largest > 0.95


def test_the_search_sees_a_sensitivity_that_is_priced_too_low(monkeypatch):
    answering = importlib.import_module("tacit.silo.simulated")
    right = answering.standard_deviation
    monkeypatch.setattr(answering, "standard_deviation", lambda *terms: 0.9 * right(*terms))
    [result] = audit_sensitivity(built("mb-sgd", SQUARES), SQUARES, 3, key=jax.random.key(0), starts=16, steps=20)
    assert result.violated


@pytest.mark.parametrize(("name", "objective"), [("mb-sgd", LOGISTIC), ("prox-spider", SQUARES), ("mb-sgd", NETWORK)])
def test_no_magnitude_of_float32_gets_past_the_clip(name, objective):
    for result in audit_extremes(built(name, objective), objective, 3, key=jax.random.key(0)):
        assert not result.violated, result


def test_a_tiny_clip_is_not_answered_without_noise():
    """A hostile server may make a clip that follows its points as small as it likes."""
    silo = Silo(lambda work, record: record["x"], Release(lambda work: work, 4.0, None, "full"))
    said = []
    for sign in (1.0, -1.0):
        records = {"x": jnp.ones((1000, 1)).at[0].set(sign)}
        desk = view_of(records, 1000, None, 0)
        keys = jax.random.split(jax.random.key(0), 4)
        act = jax.jit(jax.vmap(lambda k, desk=desk: answer(silo, jnp.float32(1.2e-37), (), desk, key=k, position=0)[0]))
        said.append(np.asarray(act(keys)))
    silent = all(np.all(part == 0) for part in said)
    noisy = all(len(np.unique(part)) == 4 for part in said)
    assert silent or noisy


@pytest.mark.parametrize("records", [2_000, 100_000])
def test_rounding_of_a_long_sum_is_priced_at_the_door_of_a_silo(records):
    """The statistic that secure noise is added to, through a responder whose noise is off."""
    objective = Objective(linear(1, 1, bias=False), Loss(lambda outputs, targets: outputs[:, 0] * targets))
    point, bound = {"linear": {"w": jnp.ones((1, 1))}}, 0.7
    release = Release(clip=lambda work: bound, noise_multiplier=1.0, batch_size=None, sampling="full")
    silo = Silo(gradient_at(objective), release)

    def total(x, y):
        responder = Responder(silo, {"x": x, "y": y}, place=0, grid_sigma=None)
        mean, _ = responder.statistic(point, order=None, key=jax.random.key(0), position=0)
        return float(mean["linear"]["w"][0, 0]) * records

    rng = np.random.default_rng(0)
    for _ in range(5):
        x = rng.uniform(0.5, 3.0, (records, 1)).astype(np.float32)
        y = rng.uniform(0.5, 3.0, records).astype(np.float32)
        place = rng.integers(records)
        worlds = [y.copy(), y.copy()]
        worlds[0][place], worlds[1][place] = 5.0, -5.0
        one, zero = (total(x, world) for world in worlds)
        assert abs(one - zero) <= 2 * bound * (1 + SLACK / 2)
        assert abs(one - zero) >= 2 * bound * (1 - 1e-5)
