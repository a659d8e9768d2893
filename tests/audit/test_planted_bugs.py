"""The auditor earns its keep: bugs that are planted into the shipping code are found, each of them."""

import importlib

import jax
import jax.numpy as jnp
import pytest

from experiments.audit.suite import DELTA, EPSILON, key_for
from tacit.algorithms import find
from tacit.audit.mechanism import audit_mechanism
from tacit.audit.table import Setting, subject
from tacit.audit.worst_case import attackers_problem
from tacit.privacy import price
from tacit.privacy.plan import events_of
from tacit.runtime import program

# The package holds functions of the same names.
answering = importlib.import_module("tacit.silo.simulated")
gradients = importlib.import_module("tacit.silo.gradients")

FULL = Setting("full", "full", 6, 4, None, None)
WITHOUT_REPLACEMENT = Setting("wor", "wor", 6, 8, 2, None)


def audit(setting=FULL, *, canary="opposite", trials=8000, claim=None):
    some = subject(find("mb-sgd"), setting, epsilon=EPSILON, delta=DELTA)
    return audit_mechanism(
        some.algorithm,
        some.seat,
        delta=DELTA,
        trials=trials,
        key=key_for(setting.name, 0),
        label="planted",
        canary=canary,
        claim=claim,
    )


@pytest.mark.parametrize("canary", ["opposite", "overflow"])
@pytest.mark.parametrize("setting", [FULL, WITHOUT_REPLACEMENT], ids=lambda s: s.name)
def test_without_a_bug_nothing_is_found(setting, canary):
    assert not audit(setting, canary=canary).violated


def test_noise_for_half_the_sensitivity(monkeypatch):
    right = answering.standard_deviation
    monkeypatch.setattr(answering, "standard_deviation", lambda *terms: right(*terms) / 2)
    result = audit()
    assert result.violated
    assert result.epsilon_lower_bound > 1.5 * EPSILON


def test_clipping_the_mean_instead_of_each_record(monkeypatch):
    def clip_the_sum(query, work, records, present, bound):
        total = gradients.plain_sum(query, work, records, present)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(total)))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, present.sum() * bound / norm), total)

    monkeypatch.setattr(answering, "clipped_sum", clip_the_sum)
    # Beside silent records the loud one alone decides the direction of the whole mean.
    poisson = Setting("poisson", "poisson", 6, 8, 8, None)
    assert audit(poisson).violated


def test_noise_used_again_in_every_round(monkeypatch):
    right = program.silo_key
    monkeypatch.setattr(program, "silo_key", lambda keys, place, number: right(keys, place, 0))
    assert audit().violated


def test_amplification_claimed_while_the_batch_is_revealed(monkeypatch):
    """As SteFFLe is printed: an un-noised message beside the noisy one tells whether the record is in the batch."""
    right = answering.privatise

    def revealing(silo, work, desk, *, keys, position, **rest):
        released = right(silo, work, desk, keys=keys, position=position, **rest)
        batch = answering.draw(
            keys[0],
            silo.release.sampling,
            count=desk.count,
            batch_size=silo.release.batch_size,
            capacity=desk.count,
            slots=silo.release.batch_size,
            padded=desk.padded,
            order=None,
            position=position,
        )
        return {"released": released, "inside": jnp.any((batch.rows == 0) & batch.present).astype(jnp.float32)}

    monkeypatch.setattr(answering, "privatise", revealing)
    monkeypatch.setattr("tacit.audit.transcript.hostile_broadcasts", _steady)
    assert audit(Setting("revealed", "wr", 8, 16, 1, None), trials=8000).violated


def _steady(algorithm, params, shapes, turning):
    """The server half does not know the message that the bug adds, so the hostile server repeats itself."""
    return [algorithm.rounds[kind].server.ask(algorithm.init(params)) for kind in algorithm.schedule]


def test_a_budget_per_round_that_was_meant_for_all_rounds():
    once = Setting("once", "full", 1, 4, None, None)
    one = subject(find("mb-sgd"), once, epsilon=EPSILON, delta=DELTA)
    [event] = events_of(one.algorithm, place=0, silos=1, records=4)
    parameters = {"step_size": 0.2, "num_rounds": 6, "clip_norm": 1.0, "batch_size": None, "sampling": "full"}
    six = find("mb-sgd").build(attackers_problem(), **parameters, noise_multiplier=event.noise_multiplier)
    claim = price([event], delta=DELTA)
    result = audit_mechanism(
        six, one.seat, delta=DELTA, trials=8000, key=jax.random.key(0), label="planted", claim=claim
    )
    assert result.violated


def test_a_record_that_is_not_finite_leaks(monkeypatch):
    def unmasked(squared, magnitude, bound, present):
        factor = jnp.minimum(1.0, bound / jnp.sqrt(squared + 1e-30))
        return jnp.where(present, factor, 0.0), present

    monkeypatch.setattr(gradients, "scales", unmasked)
    result = audit(canary="overflow")
    assert result.violated
    assert result.counts.rates == (1.0, 0.0)


def test_a_seed_that_the_server_knows(monkeypatch):
    def from_the_server(keys, place, number):
        return jax.random.fold_in(jax.random.key(0), number)

    monkeypatch.setattr(program, "silo_key", from_the_server)
    result = audit()
    assert result.violated
    assert result.counts.rates == (1.0, 0.0)
