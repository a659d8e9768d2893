"""Printed claims that are exceeded, one training run, and the picture."""

import jax
import numpy as np
import pytest

from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.audit.mechanism import AuditError
from tacit.audit.papers import printed_claim
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.audit.suite import violations
from tacit.audit.training import audit_training
from tacit.privacy import price
from tacit.privacy.plan import events_of
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import multi_pass_experiments
from tacit.runtime.participation import participation, roster
from tacit.studies.spec import load_study


@pytest.mark.parametrize("epsilon", [12.0, 18.0])
def test_printed_noise_with_replacement_exceeds_its_claim(epsilon):
    found = printed_claim(epsilon, trials=20_000, seed=0)
    assert found.violated
    assert found.epsilon_lower_bound > 1.5 * epsilon


def test_enough_noise_is_not_refuted():
    """At a small epsilon the printed formula holds; the bound stays below what the accountant certifies."""
    found = printed_claim(1.5, trials=20_000, seed=0)
    assert not found.violated


def test_the_proof_stays_below_the_certified_price():
    noise = multi_pass_experiments(
        Setting(records=1234, rounds=50, batch=370, epsilon=12.0, delta=1 / 1234**2, sampling="wr")
    )
    assert (
        printed_claim(12.0, trials=20_000, seed=1).epsilon_lower_bound < price(noise.events, delta=noise.delta).epsilon
    )


def test_one_run_of_a_real_study_proves_something_and_stays_below_its_claim():
    """Every silo answers through its door; at so large an epsilon some coins are told in any run."""
    found = audit_training(load_study("heart-disease", ["privacy.epsilon=40", "algorithm.num_rounds=5"]), seed=0)
    assert found.canaries > 50
    assert 0.5 < found.epsilon_lower_bound < found.epsilon_claimed == pytest.approx(40.0, rel=1e-3)


def test_one_run_needs_messages_that_are_releases():
    overrides = ["algorithm.name=local-sgd", "algorithm.local_steps=2", "algorithm.output=none"]
    with pytest.raises(AuditError, match="audit the mechanism"):
        audit_training(load_study("heart-disease", overrides), seed=0)


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
    for place in range(2):
        priced = {event.kind: event.count for event in events_of(algorithm, place=place, silos=2, records=5)}
        assert int(np.sum((chosen.places == place)[turns] & chosen.taken[turns])) <= priced.get("turn", 0)


def test_violations_are_told():
    row = {"label": "x", "canary": "opposite", "epsilon_claimed": 1.0, "epsilon_lower_bound": 2.0, "violated": True}
    loose = {**row, "violated": False, "required": 0.85, "tightness": 0.5}
    swap = {"algorithm": "a", "model": "m", "kind": "k", "search": "s", "largest_share": 1.2, "violated": True}
    told = violations({"mechanisms": [row, loose], "sensitivity": [swap], "one_run": []})
    assert len(told) == 3
    assert "proven 2.000" in told[0]
    assert "tightness 0.50" in told[1]
    assert "1.2" in told[2]
