"""One training run, the picture, and what was once found."""

import jax
import numpy as np
import pytest

from experiments.audit import training
from experiments.audit.training import audit_training, wide_study
from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.audit.mechanism import AuditError
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.deploy.silo.answering import EXACT
from tacit.plans.spec import load_study
from tacit.privacy.plan import events_of
from tacit.silo.sampler import discrete_gaussian
from tacit.simulate.participation import participation, roster


def test_one_run_of_a_real_study_proves_something_and_stays_below_its_claim():
    """Every silo answers through its door; at so large an epsilon some coins are told in any run."""
    found = audit_training(load_study("heart-disease", ["privacy.epsilon=40", "algorithm.num_rounds=5"]), seed=0)
    assert found.canaries == 13
    assert 0.5 < found.epsilon_lower_bound < found.epsilon_claimed == pytest.approx(40.0, rel=1e-3)


def wide(epsilon):
    return audit_training(wide_study(epsilon, features=400), seed=0)


def test_one_run_of_a_wide_model_proves_much_of_its_claim():
    found = wide(8.0)
    assert found.canaries == 400
    assert 0.25 < found.as_json()["tightness"] < 1


def test_one_run_catches_noise_that_is_missing_at_the_door(monkeypatch):
    """A quarter of the noise, with few canaries; half of it is caught with more (`test_bounds`)."""
    less = EXACT._replace(gaussian=lambda size, sigma: discrete_gaussian(size, sigma / 4))
    monkeypatch.setattr(training, "EXACT", less)
    assert wide(4.0).as_json()["violated"]


def test_one_run_needs_messages_that_are_releases():
    plain = ["algorithm.output=none"]
    for overrides in (["algorithm.name=local-sgd", "algorithm.local_steps=2"], ["algorithm.name=quantile-clip"]):
        with pytest.raises(AuditError, match="audit the mechanism"):
            audit_training(load_study("heart-disease", overrides + plain), seed=0)


def test_images_are_taken_from_an_open_silo_and_not_from_a_private_one(tmp_path):
    found = reconstruct(number=48)
    numbers = found.as_json()
    assert numbers["recovered_unprotected"] >= 24
    assert numbers["recovered_protected"] == 0
    assert found.protected.shape == found.originals.shape
    draw_picture(found, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_a_silo_never_answers_more_often_than_it_is_priced_for():
    release = Release(lambda work: 1.0, 1.0, None, "full")
    server = Server(lambda state: state, lambda state, message: state)
    rounds = {
        "all": Round(Silo(lambda work, record: record, release), server, "all"),
        "turn": Round(Silo(lambda work, record: record, release), server, "in turn"),
    }
    algorithm = Algorithm(lambda params: params, rounds, ("all", "turn") * 6, lambda state: state)
    chosen = roster(jax.random.key(0), algorithm, participation(2), 2)
    turns = np.asarray([name == "turn" for name in algorithm.schedule])
    for silo_index in range(2):
        priced = {event.kind: event.count for event in events_of(algorithm, silo_index=silo_index, silos=2, records=5)}
        assert int(np.sum((chosen.silo_indices == silo_index)[turns] & chosen.taken[turns])) <= priced.get("turn", 0)
