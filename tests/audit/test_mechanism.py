"""Every algorithm of the table is attacked, and no claim is exceeded; the full size is `make audit`."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from experiments.audit.suite import DELTA, EPSILON, audit_subject
from tacit.algorithms import ALGORITHMS, find
from tacit.audit.attack import fit
from tacit.audit.mechanism import AuditError, audit_mechanism, claim_of
from tacit.audit.table import SETTINGS, subject
from tacit.audit.transcript import Seat, rounds_answered, scenes_of

TRIALS = 16_000
BY_NAME = {setting.name: setting for setting in SETTINGS}


def of(algorithm, name):
    return subject(find(algorithm), BY_NAME[name], epsilon=EPSILON, delta=DELTA)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_algorithm_says_more_than_it_claims(name):
    offered = [s for s in (of(name, "schedule"), of(name, "one pass")) if s.algorithm is not None]
    result = audit_subject(offered[0], "opposite", trials=TRIALS, seed=0)
    assert not result.violated
    assert result.epsilon_claimed == pytest.approx(EPSILON, rel=2e-3)
    assert result.route == "gdp"
    assert result.tightness > 0.5


@pytest.mark.parametrize("setting", ["single release", "without replacement", "with replacement", "Poisson"])
def test_releases_are_attacked_nearly_as_well_as_can_be(setting):
    result = audit_subject(of("mb-sgd", setting), "opposite", trials=2 * TRIALS, seed=0)
    assert not result.violated
    assert result.tightness > (0.6 if setting == "single release" else 0.25)
    assert result.bounds[0.99] < result.bounds[0.95]


def test_a_trusted_server_lets_out_no_more_than_it_claims():
    result = audit_subject(of("mu2-sgd", "trusted server"), "opposite", trials=TRIALS, seed=0)
    assert 0.5 < result.tightness <= 1


@pytest.mark.parametrize("algorithm", ["mb-sgd", "prox-spider"])
def test_a_record_that_overflows_says_nothing(algorithm):
    result = audit_subject(of(algorithm, "schedule"), "overflow", trials=TRIALS, seed=0)
    assert not result.violated


def test_without_protection_one_trial_is_enough():
    result = audit_subject(of("mb-sgd", "open"), "opposite", trials=2000, seed=0)
    assert math.isinf(result.epsilon_claimed)
    assert result.tightness is None
    assert result.as_json()["epsilon_claimed"] is None
    assert result.epsilon_lower_bound > 5


def test_one_kind_of_round_is_priced_and_heard_by_itself():
    spider = of("prox-spider", "schedule")
    result = audit_mechanism(
        spider.algorithm,
        spider.seat,
        delta=DELTA,
        trials=TRIALS,
        key=jax.random.key(0),
        label="differences",
        kind="difference",
    )
    assert result.epsilon_claimed == claim_of(spider.algorithm, spider.seat, DELTA, "difference").epsilon
    assert result.epsilon_claimed < 0.8 * EPSILON
    assert 0.4 < result.tightness <= 1


def test_a_hostile_server_asks_as_often_as_was_agreed():
    algorithm = of("mb-sgd", "schedule").algorithm
    assert rounds_answered(algorithm, Seat(4)) == tuple(range(10))
    assert rounds_answered(algorithm, Seat(4, max_participations=3)) == (0, 1, 2)
    turns = {kind: dataclasses.replace(part, participants="in turn") for kind, part in algorithm.rounds.items()}
    assert len(rounds_answered(dataclasses.replace(algorithm, rounds=turns), Seat(4, silos=3))) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"trials": 10}, "trials=10"), ({"confidence": 1.0}, "confidence=1"), ({"kind": "gradeint"}, "gradient")],
)
def test_what_cannot_be_audited_is_refused(changes, message):
    some = of("mb-sgd", "single release")
    given = {"delta": DELTA, "trials": 2000, "key": jax.random.key(0), "label": "x", **changes}
    with pytest.raises(AuditError, match=message):
        audit_mechanism(some.algorithm, some.seat, **given)


def test_messages_far_from_zero_cost_the_attack_nothing():
    """A silo's local steps say points near a thousand; what tells is a few thousandths, alike in every round."""
    found = of("ce-psgm-fg", "schedule")
    _, steady = scenes_of(found.algorithm, found.seat, canary="opposite", kind="local")
    weights = fit(steady, jax.random.key(0), 5000).weights[:, 0]
    assert np.ptp(weights) < 0.3  # noise is estimated from 5,000 trials; the largest weight is one
