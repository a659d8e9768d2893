"""No swap of one record moves a door's sum further than is priced, and the searches come close to that."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.audit.searches import audit_extremes, audit_hostile_points, audit_sensitivity
from experiments.audit.table import Setting, parameters_for
from tacit.algorithm import Release, Silo
from tacit.objectives import Objective, Problem, linear, mlp, squared
from tacit.plans.catalogue import find
from tacit.silo.door import NO_PAST, Door
from tacit.silo.sampler import discrete_gaussian

FULL = Setting("full batch", "full", 4, 3, None, None)
SUM = Setting("shuffled sum", "full", 4, 3, None, None, "shuffled-sum")
SQUARES, NETWORK = Objective(linear(3, 1, bias=False), squared()), Objective(mlp((3, 4, 1)), squared())


def built(name, objective, setting=FULL):
    entry = find(name)
    problem = Problem(objective, smoothness=1.0, lipschitz=1.0, radius=1.0)
    return entry.build(problem, **parameters_for(entry, setting), noise_multiplier=2.0)


def test_climbing_comes_close_to_the_price_and_not_beyond():
    [result] = audit_sensitivity(built("mu2-sgd", SQUARES), SQUARES, 3, seed=0, starts=8, steps=20)
    assert result.path == "door"
    assert 0.95 < result.largest <= 1.0


def test_no_magnitude_of_float32_gets_past_the_check():
    for result in audit_extremes(built("mb-psgm", NETWORK), NETWORK, 3, seed=0, tries=150):
        assert 0.9 < result.largest <= 1.0, result


def test_no_points_that_are_alike_get_past_the_check_of_a_share():
    for result in audit_hostile_points(built("prox-svrg", NETWORK, SUM), NETWORK, 3, seed=0, tries=150):
        assert 0.8 < result.largest <= 1.0, result


@pytest.mark.parametrize("clip", [1.2e-37, float("nan"), 1e30])
def test_a_clip_that_cannot_be_used_says_nothing(clip):
    """A hostile server may make a clip that follows its points whatever it likes."""
    silo = Silo(lambda work, record: record["x"], Release(lambda work: work, 4.0, None, "full"))
    said = []
    for sign in (1.0, -1.0):
        door = Door(silo, {"x": np.full((10, 1), sign, np.float32)}, silo_index=0, form=False)
        batches = [door.batch(0, None)]
        answered = door.answer(jnp.float32(clip), (), batches=batches, sampler=discrete_gaussian, past=NO_PAST)
        said.append(answered.message)
    assert said[0] == said[1] == 0.0
