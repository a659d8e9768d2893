"""Localised minibatch SGD: phases on records of their own, what that costs, and what its theorem promises."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.objectives import squared
from tacit.plans.catalogue import find
from tacit.privacy import PricingError, gdp_mu, price
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.silo.door import Door
from tacit.simulate.compiled import simulate
from tacit.simulate.program import silo_order, split_keys
from tacit.theory import ConvexSetting, localised_mb_sgd_from_theory, one_pass_accelerated_from_theory
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, least_squares, start, tables

PARTS = {"sampling": "one-pass", "batch_size": 8}


def localised(problem=LOGISTIC, **changes):
    return CASES["localised-mb-sgd"].build(problem, **{**PARTS, **changes})


def test_one_phase_without_strength_is_the_accelerated_method():
    silos, common = enrol(tables()), {"sampling": "full", "batch_size": None}
    one = localised(phases=1, strength=0.0, **common)
    other = find("accelerated-mb-sgd").build(
        LOGISTIC, step_size=0.2, num_rounds=6, clip_norm=0.7, noise_multiplier=0.2, **common
    )
    found = [simulate(a, start(LOGISTIC), silos, key=jax.random.key(3)).params for a in (one, other)]
    assert largest_difference(*found) < 1e-6


def test_every_phase_ends_at_the_minimum_of_its_own_part_near_where_the_last_one_ended():
    made, problem, _ = least_squares(sizes=(30, 30))
    strength, key = 0.3, jax.random.key(5)
    terms = {"num_rounds": 800, "step_size": 0.2, "restarts": 8, "clip_norm": 1e3, "noise_multiplier": 0.0}
    algorithm = localised(problem, batch_size=16, strength=strength, **terms)
    found = simulate(algorithm, start(problem), enrol(made), key=key).params["linear"]["w"][:, 0]
    scale = float(jax.grad(lambda p: squared().value(p, jnp.zeros(1))[0])(jnp.ones((1, 1)))[0, 0])
    orders = [np.asarray(silo_order(algorithm, split_keys(key), i, 30, 30)) for i in range(2)]
    at = np.asarray(start(problem)["linear"]["w"], float)[:, 0]
    for first, last, pull in ((0, 16, strength), (16, 24, 4 * strength)):
        rows = [(t["x"][o[first:last]], t["y"][o[first:last]]) for t, o in zip(made, orders, strict=True)]
        curvature = sum(scale * x.T @ x / len(y) / 2 for x, y in rows) + pull * np.eye(4)
        at = np.linalg.solve(curvature, sum(scale * x.T @ y / len(y) / 2 for x, y in rows) + pull * at)
    np.testing.assert_allclose(found, at, atol=1e-3)


def reads(algorithm, records=24):
    """By record, in how many releases of each kind it is, at the door."""
    data = {name: column for name, column in tables(sizes=(records,))[0].items() if name != "s"}
    order = np.random.default_rng(0).permutation(records)
    found = {kind: np.zeros(records, int) for kind in algorithm.rounds}
    for kind, position in zip(algorithm.schedule, algorithm.positions, strict=True):
        batch = Door(algorithm.rounds[kind].silo, data, silo_index=0, form=False).batch(position, order)
        np.add.at(found[kind], batch.rows[batch.present], 1)
    return np.stack(list(found.values()))


def test_a_record_is_in_the_rounds_of_one_phase_and_pays_for_these():
    algorithm = localised(phases=3, num_rounds=7, noise_multiplier=2.0)
    counted = reads(algorithm)
    assert ((counted > 0).sum(axis=0) <= 1).all()
    assert counted.sum(axis=1).tolist() == [3 * 8, 2 * 4, 2 * 2]
    events = events_of(algorithm, silo_index=0, silos=3, records=24)
    assert counted.sum(axis=0).max() == 3
    paid = price(events, delta=1e-5)
    assert gdp_mu(paid.epsilon, 1e-5) == pytest.approx(math.sqrt(3) / 2.0, rel=1e-6)


def test_parts_that_overlap_or_are_read_too_often_have_no_price():
    """Planted: what the price rests on is checked where it is computed."""
    good = localised(num_rounds=6)

    def planted(kind="phase_2", schedule=good.schedule, **changes):
        part = good.rounds[kind]
        silo = replace(part.silo, release=replace(part.silo.release, **changes))
        bad = replace(good, rounds={**good.rounds, kind: replace(part, silo=silo)}, schedule=schedule)
        return price(events_of(bad, silo_index=0, silos=3, records=24), delta=1e-5)

    assert planted().epsilon > 0
    for changes, text in (
        ({"part": 7}, "do not overlap"),
        ({"part": None}, "do not overlap"),
        ({"kind": "phase_1", "batch_size": 9}, "do not overlap"),
        ({"part": 21}, "among records=24"),
        ({"schedule": (*good.schedule, "phase_2")}, "at most passes=3"),
        ({"passes": 2}, "at most passes=2"),
        ({"passes": 4}, "same passes"),
    ):
        with pytest.raises(PricingError, match=text):
            planted(**changes)
    for changes in ({"sampling": "full"}, {"part": -1}, {"mechanism": "cumulative"}, {"batch_size": None}):
        with pytest.raises(ValueError, match="only for one-pass sampling"):
            replace(good.rounds["phase_1"].silo.release, **changes)


def test_what_cannot_be_is_refused():
    for changes, text in (
        ({"batch_size": 1}, "at least 2"),
        ({"phases": 0}, "phases=0"),
        ({"phases": 4, "restarts": 2}, "fewer than 8"),
    ):
        with pytest.raises(ValueError, match=text):
            localised(**changes)


def setting(records, **changes):
    common = {"lipschitz": 1, "radius": 1, "smoothness": 1, "silos": 50, "dimension": 10, "epsilon": 1, "delta": 1e-7}
    return ConvexSetting(records=records, **{**common, **changes})


def test_its_bound_falls_as_the_rate_does_in_fewer_rounds_than_one_pass():
    sizes = (10**4, 10**5, 10**6)
    found = [localised_mb_sgd_from_theory(setting(n)) for n in sizes]
    once = [one_pass_accelerated_from_theory(setting(n)) for n in sizes]
    for ours, theirs in zip(found[1:], once[1:], strict=True):
        assert ours.lower_bound < ours.rate < ours.bound < theirs.bound
        assert ours.parameters["num_rounds"] < theirs.parameters["num_rounds"] / 10
    slope = np.polyfit(np.log(sizes), np.log([one.bound for one in found]), 1)[0]
    rate = np.polyfit(np.log(sizes), np.log([one.rate for one in found]), 1)[0]
    assert slope < rate + 0.1
    assert localised_mb_sgd_from_theory(setting(10**5, smoothness=None)).smoothing is not None


def test_what_the_theorem_returns_is_priced_at_its_budget():
    found = localised_mb_sgd_from_theory(setting(10**4))
    algorithm = find("localised-mb-sgd").build(LOGISTIC, **found.parameters)
    events = events_of(algorithm, silo_index=0, silos=50, records=10**4)
    assert price(events, delta=1e-7).epsilon == pytest.approx(1.0, rel=1e-4)
