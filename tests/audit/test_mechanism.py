"""Algorithms are attacked at the door, and no claim is exceeded; in full size: `make audit`."""

import dataclasses
import math

import numpy as np
import pytest

from experiments.audit.suite import audit_subject
from experiments.audit.table import SETTINGS, Setting, subject, subjects
from tacit.audit.mechanism import AuditError, audit_mechanism
from tacit.audit.simulated import Seat, rounds_answered
from tacit.plans.catalogue import find
from tests.audit.strict import beyond

# A large epsilon shows in few trials.
EPSILON, DELTA, TRIALS = 4.0, 1e-5, 1000
FULL = Setting("schedule", "full", 2, 4, None, None)
ONE_PASS = Setting("one pass", "one-pass", 2, 8, 2, None)
FOUR, PARTS = Setting("four rounds", "full", 4, 4, None, None), Setting("parts", "one-pass", 4, 8, 4, None)
BY_NAME = {setting.name: setting for setting in SETTINGS}


def of(algorithm, setting):
    return subject(find(algorithm), setting, epsilon=EPSILON, delta=DELTA)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("mu2-sgd", FULL),
        ("ce-psgm-fg", FULL),
        ("local-sgd", FULL),
        ("sgda", FULL),
        ("prox-sgd", ONE_PASS),
        ("warm-spider", FOUR),
        ("localised-mb-sgd", PARTS),
        ("mr-mtl", FULL),
        ("mu2-sgd", BY_NAME["pairwise"]),
        ("prox-sgd", BY_NAME["one pass, pairwise"]),
        ("one-pass-accelerated", BY_NAME["one pass, shuffled sum"]),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_no_algorithm_says_more_than_it_claims(name, setting):
    """Running sums, rounds in turn with a memory, local steps, blocks, passes, a warm start, parts, own models."""
    result = audit_subject(of(name, setting), "opposite", trials=TRIALS, seed=0)
    assert result.path == "door"
    assert result.label == f"{name}, {setting.name}"
    assert not beyond(result)
    assert result.epsilon_claimed == pytest.approx(EPSILON, rel=2e-3)
    assert result.route == "gdp"
    assert result.tightness > 0.2


@pytest.mark.parametrize("setting", [name for name, own in BY_NAME.items() if own.only == ("mb-sgd",)])
def test_batches_of_sums_over_silos_are_attacked_at_the_door(setting):
    """A daemon takes them all; in full size they take the suite's time."""
    result = audit_subject(of("mb-sgd", BY_NAME[setting]), "opposite", trials=TRIALS, seed=0)
    assert result.path == "door"
    assert not beyond(result)


def test_settings_for_those_that_demand_one_pass_are_for_them_alone():
    found = {name: [] for name in ("mb-sgd", "prox-sgd")}
    for some in subjects(epsilon=EPSILON, delta=DELTA, algorithms=found):
        if some.target is not None:
            found[some.entry.name].append(some.setting.name)
    assert found["prox-sgd"] == ["one pass", "one pass, shuffled sum", "one pass, pairwise"]
    assert set(found["mb-sgd"]) == {name for name, own in BY_NAME.items() if own.instead is None}


@pytest.mark.parametrize(("sampling", "least"), [("wr", 0.0), ("poisson", 0.0)])
def test_secret_batches_are_attacked_as_mixtures(sampling, least):
    result = audit_subject(of("mb-sgd", Setting("batch", sampling, 1, 4, 2, None)), "opposite", trials=6000, seed=0)
    assert not beyond(result)
    assert result.route == "direct"
    assert result.tightness >= least
    assert result.bounds[0.99] < result.bounds[0.95]


@pytest.mark.parametrize(
    ("algorithm", "setting", "path"),
    [
        ("mb-sgd", "shuffled sum", "door"),
        ("mb-psgm", "shuffled reports", "door"),
        ("sgda", "shuffled sum", "door"),
        ("mu2-sgd", "shuffled sum", "simulated"),
        ("ce-psgm", "shuffled sum", "simulated"),
        ("steffle", "schedule", "simulated"),
        ("mb-sgd", "trusted server", "simulated"),
        ("mb-sgd", "open", "simulated"),
    ],
)
def test_what_no_daemon_takes_is_attacked_in_the_simulator(algorithm, setting, path):
    assert of(algorithm, BY_NAME[setting]).target.path == path


def test_a_trusted_server_lets_out_no_more_than_it_claims():
    result = audit_subject(of("mu2-sgd", BY_NAME["trusted server"]), "opposite", trials=8000, seed=0)
    assert result.label == "mu2-sgd, trusted server, simulated"
    assert result.as_json()["path"] == "simulated"
    assert result.tightness > 0.2


def test_without_protection_one_trial_is_enough():
    result = audit_subject(of("mb-sgd", BY_NAME["open"]), "opposite", trials=2000, seed=0)
    assert math.isinf(result.epsilon_claimed)
    assert result.tightness is None
    assert result.as_json()["epsilon_claimed"] is None
    assert result.epsilon_lower_bound > 5


@pytest.mark.parametrize("canary", ["overflow", "faint"])
def test_a_record_that_overflows_or_underflows_says_no_more(canary):
    assert not beyond(audit_subject(of("prox-spider", FULL), canary, trials=TRIALS, seed=0))


def test_one_kind_of_round_is_priced_and_heard_by_itself():
    spider = of("prox-spider", FULL)
    result = audit_mechanism(spider.target, trials=TRIALS, seed=0, label="gradients", kind="gradient")
    assert result.epsilon_claimed == spider.target.claim("gradient").epsilon
    assert result.epsilon_claimed < 0.99 * EPSILON
    assert result.tightness > 0.1


def test_transcripts_are_never_the_same_twice():
    scene = of("mb-sgd", FULL).target.scenes(canary="opposite", kind=None, seed=0)[0]
    drawn = np.concatenate([scene.draw(0, 20), scene.draw(0, 20)])
    assert len(np.unique(drawn)) == drawn.size
    still = scene.draw(0, 3, quiet=True)
    assert np.ptp(still, axis=0).max() == 0.0


def test_a_hostile_server_asks_as_often_as_was_agreed():
    algorithm = of("mb-sgd", BY_NAME["trusted server"]).target.algorithm
    assert rounds_answered(algorithm, Seat(4)) == tuple(range(10))
    assert rounds_answered(algorithm, Seat(4, max_participations=3)) == (0, 1, 2)
    turns = {kind: dataclasses.replace(part, participants="in turn") for kind, part in algorithm.rounds.items()}
    assert len(rounds_answered(dataclasses.replace(algorithm, rounds=turns), Seat(4, silos=3))) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"trials": 10}, "trials=10"), ({"confidence": 1.0}, "confidence=1"), ({"kind": "gradeint"}, "gradient")],
)
def test_what_cannot_be_audited_is_refused(changes, message):
    given = {"trials": 2000, "seed": 0, "label": "x", **changes}
    with pytest.raises(AuditError, match=message):
        audit_mechanism(of("mb-sgd", FULL).target, **given)
