"""Adaptive clipping: the paper's recursion, the quantile that it finds, one price for both parts, a hostile clip."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.quantile_clip import QuantileClipState, quantile_clip
from tacit.objectives import Objective, Problem, linear, squared
from tacit.privacy.plan import events_of
from tacit.silo import SLACK, enrol, exact_statistic, view_of
from tacit.silo.door import NO_PAST, Door, no_noise
from tacit.simulate.compiled import simulate
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables

PROBLEM = Problem(Objective(linear(3, 1, bias=False), squared()))


def built(problem=PROBLEM, **changes):
    return CASES["quantile-clip"].build(problem, **{"clip_step": 0.2, "noise_multiplier": 0.0, **changes})


def table(seed=0, size=40):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 3)).astype(np.float32), "y": rng.normal(size=size).astype(np.float32)}


def test_without_noise_it_is_the_papers_recursion():
    silo, rounds, step, rate, quantile = table(), 12, 0.1, 0.3, 0.7
    algorithm = built(num_rounds=rounds, step_size=step, clip_step=rate, quantile=quantile, clip_norm=5.0)
    found = simulate(algorithm, start(PROBLEM), enrol([silo]), key=jax.random.key(0)).state
    w, clip, x, y = np.zeros(3), 5.0, silo["x"].astype(float), silo["y"].astype(float)
    for _ in range(rounds):
        gradients = (x @ w - y)[:, None] * x
        norms = np.linalg.norm(gradients, axis=1)
        w = w - step * (gradients * np.minimum(1.0, clip / norms)[:, None]).mean(axis=0)
        clip = clip * np.exp(-rate * (np.mean(norms <= clip) - quantile))
    np.testing.assert_allclose(np.asarray(found.params["linear"]["w"])[:, 0], w, rtol=1e-3, atol=1e-5)
    assert float(found.clip) == pytest.approx(clip, rel=1e-3)


@pytest.mark.parametrize("first", [1e-3, 1e3])
@pytest.mark.parametrize("quantile", [0.2, 0.8])
def test_the_clip_finds_the_quantile_from_far_away(first, quantile):
    """A model that does not move, and noise on the counts."""
    silo = table(1, 400)
    algorithm = built(
        num_rounds=150, step_size=1e-9, clip_step=0.3, quantile=quantile, clip_norm=first, noise_multiplier=1.0
    )
    found = simulate(algorithm, start(PROBLEM), enrol([silo]), key=jax.random.key(0)).state
    norms = np.linalg.norm(silo["x"] * silo["y"][:, None], axis=1)
    assert np.mean(norms <= float(found.clip)) == pytest.approx(quantile, abs=0.1)


def test_a_clip_that_does_not_move_is_minibatch_sgd():
    silos, key = enrol(tables()), jax.random.key(3)
    own = built(LOGISTIC, clip_step=0.0)
    plain = CASES["mb-sgd"].build(LOGISTIC, noise_multiplier=0.0, output="last")
    found = [simulate(a, start(LOGISTIC), silos, key=key, noise="each").params for a in (own, plain)]
    assert largest_difference(*found) < 1e-5


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_both_parts_together_cost_what_one_release_does(share):
    [event] = events_of(built(noise_multiplier=3.0, count_share=share), silo_index=0, silos=1, records=40)
    assert event.noise_multiplier == pytest.approx(3.0)
    assert event.count == 6


@pytest.mark.parametrize("clip", [1e-3, 1.0, 1e6])
def test_no_clip_that_a_server_says_moves_a_record_further_than_is_priced(clip):
    """Replacing one record, in both parts, over the deviation that the noise of each has."""
    silo = built(noise_multiplier=1.0).rounds["step"].silo
    work = QuantileClipState(start(PROBLEM), jnp.float32(clip))
    for other in range(1, 12):
        worlds = []
        for seed in (0, other):
            rows = table(0, 8)
            rows["x"][0] = np.random.default_rng(seed).normal(size=3) * 10.0 ** (seed - 5)
            view = view_of({k: jnp.asarray(v) for k, v in rows.items()}, 8, None, 0)
            worlds.append(exact_statistic(silo, work, view, key=jax.random.key(0), position=0)[0])
        gradient = worlds[0]["params"]["linear"]["w"] - worlds[1]["params"]["linear"]["w"]
        assert abs(float(worlds[0]["duals"] - worlds[1]["duals"])) <= 1.0 / 8 * (1 + SLACK)
        assert float(jnp.linalg.norm(gradient)) <= 2 * clip / 8 * (1 + SLACK)


@pytest.mark.parametrize("clip", [np.nan, np.inf, -1.0, 0.0, 2.0**70])
def test_at_the_door_a_clip_that_is_no_number_says_nothing_about_gradients(clip):
    silo = built(noise_multiplier=1.0).rounds["step"].silo
    records = {**table(0, 8), "s": np.zeros(8, np.int32)}
    door = Door(silo, records, silo_index=0, form=False)
    work = QuantileClipState(start(PROBLEM), jnp.float32(clip))
    said = door.answer(work, (), batches=[door.batch(0, None)], sampler=no_noise, past=NO_PAST).message
    assert not np.any(said["params"]["linear"]["w"])
    assert abs(float(said["duals"])) <= 0.5 * (1 + 1e-6)


@pytest.mark.parametrize("wrong", [{"quantile": 0.0}, {"quantile": 1.0}, {"clip_step": -0.1}, {"count_share": 1.0}])
def test_what_is_no_share_is_refused(wrong):
    terms = Terms(1.0, 1.0, None, "full")
    with pytest.raises(ValueError, match="Expected"):
        quantile_clip(step_size=0.1, num_rounds=2, **wrong)(PROBLEM, terms)


def test_a_clip_for_each_silo_is_refused():
    """The count is of gradients within one clip."""
    with pytest.raises(ValueError, match="one clip_norm for all silos"):
        quantile_clip(step_size=0.1, num_rounds=2)(PROBLEM, Terms(jnp.array([1.0, 100.0]), 1.0, None, "full"))
