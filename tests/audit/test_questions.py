"""One release of each kind of statistic, of ridge and of validation, attacked at the door with its real noise.

Two neighbouring silos differ in one record, as far apart as the kind allows. The attacker projects messages onto the
difference of their means, the best test there is, and no lower bound on epsilon exceeds the price in the ledger.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.audit import questions
from experiments.patients import COLUMNS
from tacit.algorithm import Terms
from tacit.algorithms.ridge import ridge
from tacit.algorithms.statistics import statistics
from tacit.algorithms.validation import validation
from tacit.audit.bounds import Counts, mu_lower_bound
from tacit.audit.mechanism import audit_mechanism
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.objectives.survival import hazards, piecewise_exponential
from tacit.plans.catalogue import ALGORITHMS, shipped
from tacit.plans.price import Seat, releases_of
from tacit.privacy import price
from tacit.privacy.gaussian import gdp_epsilon, gdp_mu
from tacit.silo import door
from tacit.silo.door import NO_PAST, Door, no_noise
from tacit.silo.sampler import discrete_gaussian
from tests.audit.strict import beyond

EPSILON, DELTA, TRIALS, RECORDS = 4.0, 1e-5, 500, 4
STATISTICS = {
    "counts": {"columns": ["sex"]},
    "histogram": {"columns": ["age"], "edges": [20, 40, 60], "by": "sex"},
    "table": {"columns": ["sex", "age"], "bins": 4},
    "quantiles": {"columns": ["age"], "bins": 16},
    "moments": {"columns": ["age"]},
    "correlation": {"columns": ["age", "bmi"]},
    "survival": {"columns": ["time", "event"], "by": "sex", "bins": 8},
}
TERMS = {"batch_size": None, "sampling": "full"}


def _statistics(kind, z):
    asked = [{"kind": kind, **STATISTICS[kind]}]
    made = statistics(statistics=asked, columns=COLUMNS)(None, Terms(clip_norm=None, noise_multiplier=z, **TERMS))
    rows = list(itertools.product([0.0, 1.0], repeat=len(COLUMNS)))
    return made, (), [{"columns": np.array(row, np.float32)} for row in rows]


def _validation(loss, outputs, targets, z):
    problem = Problem(Objective(linear(2, outputs), loss))
    made = validation(asked={})(problem, Terms(clip_norm=None, noise_multiplier=z, **TERMS))
    params = {"linear": {"w": jnp.array([[4.0] * outputs, [0.0] * outputs]), "b": jnp.arange(float(outputs))}}
    corners = itertools.product([-1.0, 1.0], targets)
    return made, params, [{"x": np.array([x, 0.0], np.float32), "y": y} for x, y in corners]


def _survival(z):
    problem = Problem(Objective(hazards(2, 3), piecewise_exponential(3)))
    made = validation(asked={})(problem, Terms(clip_norm=None, noise_multiplier=z, **TERMS))
    params = {"linear": {"w": jnp.array([[4.0], [0.0]]), "b": jnp.arange(3.0)}}
    corners = itertools.product([-1.0, 1.0], [-1.0, 0.3, 0.9])
    return made, params, [{"x": np.array([x, 0.0], np.float32), "y": np.float32(y)} for x, y in corners]


def _ridge(z):
    problem = Problem(Objective(linear(2, 1), squared()))
    made = ridge(strength=0.1)(problem, Terms(clip_norm=1.0, noise_multiplier=z, **TERMS))
    # Orthogonal where the products of features, of constants and of targets add up to nothing.
    corners = itertools.product([(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (-0.5, 0.75**0.5)], [0.0, 1.0])
    return made, (), [{"x": np.array(x, np.float32), "y": np.float32(y)} for x, y in corners]


CASES = {kind: (lambda z, kind=kind: _statistics(kind, z)) for kind in STATISTICS} | {
    "validation, two classes": lambda z: _validation(logistic(), 1, [np.int32(0), np.int32(1)], z),
    "validation, three classes": lambda z: _validation(softmax(), 3, [np.int32(k) for k in range(3)], z),
    "validation, numbers": lambda z: _validation(squared(), 1, [np.float32(0), np.float32(1)], z),
    "validation, survival": _survival,
    "ridge": _ridge,
}


class Silo:
    """A door whose last record can be exchanged."""

    def __init__(self, algorithm, broadcast, records):
        [once] = algorithm.rounds.values()
        table = {name: np.stack([row[name] for row in records]) for name in records[0]}
        self._door = Door(once.silo, table, silo_index=0, form=False)
        self._broadcast = broadcast

    def say(self, sampler):
        batch = self._door.batch(0, None)
        said = self._door.answer(self._broadcast, (), batches=[batch], sampler=sampler, past=NO_PAST).message
        return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(said)])


def noise_of(algorithm, message):
    """The deviation of every coordinate of a message, up to a common factor."""
    [once] = algorithm.rounds.values()
    release = once.silo.release
    clips = release.clip(())
    if not isinstance(clips, dict):
        return np.ones(sum(np.size(leaf) for leaf in jax.tree.leaves(message)))
    return np.concatenate(
        [
            np.full(np.size(leaf), float(release.noise_multiplier[name]) * float(clips[name]))
            for name, leaf in sorted(message.items())
        ]
    )


@pytest.mark.parametrize("case", CASES)
def test_no_attack_proves_more_than_the_price(case):
    algorithm, broadcast, corners = CASES[case](1 / gdp_mu(EPSILON, DELTA))
    [once] = algorithm.rounds.values()
    shape = jax.eval_shape(once.silo.query, broadcast, corners[0])
    deviation = noise_of(algorithm, shape)
    exact = [Silo(algorithm, broadcast, [corners[0]] * (RECORDS - 1) + [row]).say(no_noise) for row in corners]
    far, one, other = max(
        (float(np.linalg.norm((exact[a] - exact[b]) / deviation)), a, b)
        for a, b in itertools.combinations(range(len(corners)), 2)
    )
    assert far > 0
    worlds = [Silo(algorithm, broadcast, [corners[0]] * (RECORDS - 1) + [corners[row]]) for row in (one, other)]
    direction = (exact[one] - exact[other]) / deviation**2
    scores = [np.array([silo.say(discrete_gaussian) @ direction for _ in range(TRIALS)]) for silo in worlds]
    middle = float((exact[one] + exact[other]) @ direction / 2)
    counts = Counts(int((scores[0] > middle).sum()), int((scores[1] > middle).sum()), TRIALS)
    [claimed] = releases_of(algorithm, Seat(0, 1, RECORDS, None))
    paid = price([claimed], delta=DELTA).epsilon
    assert 0.95 * EPSILON < paid <= 1.002 * EPSILON
    proved = gdp_epsilon(mu_lower_bound(counts, 0.999), DELTA)
    assert proved <= paid
    likely = gdp_epsilon(mu_lower_bound(counts, 0.5), DELTA)
    assert likely >= 0.6 * paid, "an attack that finds nothing shows nothing"


@pytest.mark.parametrize("name", [name for name, own in questions.QUESTIONS.items() if own.channels])
def test_questions_are_attacked_at_the_door_of_a_daemon(name):
    """As the suite does it, through every channel; in full size: `make audit`."""
    for setting in questions.settings_of(name):
        target = questions.target_of(name, setting, epsilon=EPSILON, delta=DELTA)
        result = audit_mechanism(target, trials=1000, seed=0, label=name)
        assert not beyond(result)
        assert result.epsilon_claimed == pytest.approx(EPSILON, rel=2e-3)
        assert result.tightness > 0.1


def test_every_kind_of_question_has_a_row_in_the_suite():
    kinds = {own.algorithm["statistics"][0]["kind"] for own in questions.QUESTIONS.values() if own.objective is None}
    assert kinds == set(STATISTICS)
    assert {name.split(" (")[0] for name in questions.QUESTIONS} == shipped().keys() - ALGORITHMS.keys()


def test_a_question_with_half_its_noise_is_found(monkeypatch):
    right = door.noise_scale
    target = questions.target_of("ridge", questions.SETTINGS["single release"], epsilon=EPSILON, delta=DELTA)
    monkeypatch.setattr(door, "noise_scale", lambda *terms: right(*terms) / 2)
    assert audit_mechanism(target, trials=2000, seed=0, label="ridge").violated
