"""Preconditioning: the recursion, what it gains and costs, one price for both kinds, noise alone, hostile scales."""

import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithms.noise_split import TYPICAL, moment_ratio
from tacit.algorithms.preconditioned_sgd import ScaledPoint
from tacit.objectives import Objective, Problem, linear, logistic, squared
from tacit.plans.catalogue import find
from tacit.privacy import calibrate, gdp_mu, price
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.silo.door import NO_PAST, Door, no_noise
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables

PROBLEM = Problem(Objective(linear(3, 1, bias=False), squared()))


def built(problem=PROBLEM, **changes):
    return CASES["preconditioned-sgd"].build(problem, **{"noise_multiplier": 0.0, **changes})


def table(seed=0, size=40, scales=(1.0, 0.1, 0.0)):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, len(scales))) * scales
    return {"x": x.astype(np.float32), "y": rng.normal(size=size).astype(np.float32)}


def test_without_noise_it_is_the_recursion():
    silo, eta, bound, floor = table(), 0.1, 0.7, 0.02
    algorithm = built(num_rounds=9, moment_rounds=2, step_size=eta, clip_norm=bound, floor=floor, output="last")
    found = simulate(algorithm, start(PROBLEM), enrol([silo]), key=jax.random.key(0)).state
    w, s, x, y = np.zeros(3), np.ones(3), silo["x"].astype(float), silo["y"].astype(float)

    def clipped(rows, limit):
        return rows * np.minimum(1.0, limit / np.maximum(np.linalg.norm(rows, axis=1), 1e-30))[:, None]

    for number in range(9):
        rows = s * (x @ w - y)[:, None] * x
        if number < 2:
            m = clipped(rows**2, bound**2).mean(axis=0)
            v = np.maximum(m, floor * m.mean())
            s = s * np.sqrt(v.mean() / v)
        else:
            w = w - eta * s * clipped(rows, bound).mean(axis=0)
    np.testing.assert_allclose(np.asarray(found.scale["linear"]["w"])[:, 0], s, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(found.inner.params["linear"]["w"])[:, 0], w, rtol=1e-3, atol=1e-6)
    assert s[1] / s[0] > 5, "the smaller feature counts as much now"


def test_without_moments_it_is_minibatch_sgd():
    silos, key = enrol(tables()), jax.random.key(3)
    own, plain = built(LOGISTIC, moment_rounds=0, noise_multiplier=0.2), CASES["mb-sgd"].build(LOGISTIC)
    found = [simulate(a, start(LOGISTIC), silos, key=key, noise="each").params for a in (own, plain)]
    assert largest_difference(*found) == 0.0


def test_noise_alone_makes_no_scale():
    """Moments far below their noise: what is not believed is raised to the same level."""
    wide = Problem(Objective(linear(200, 1, bias=False), squared()))
    silo = table(1, 20, np.full(200, 1e-4))
    algorithm = built(wide, num_rounds=2, moment_rounds=1, noise_multiplier=5.0)
    seeds = [Seed(jax.random.key(seed), start(wide), enrol([silo])) for seed in range(8)]
    scales = np.asarray(simulate_grid(lambda: algorithm, {}, seeds).state.scale["linear"]["w"]).reshape(8, -1)
    spread = scales.max(axis=1) / scales.min(axis=1)
    assert 1.05 < spread.max() < 2.0


SILOS, RECORDS, ROUNDS, EPSILON, DELTA = 4, 400, 40, 4.0, 1e-5


@cache
def loss_at_equal_epsilon(name, spread):
    """The mean loss on all records, of the best clip and step: eight features, the last 10^spread times the first."""
    problem, rng = Problem(Objective(linear(8, 1, bias=False), logistic())), np.random.default_rng(0)
    scales = np.logspace(-spread, 0, 8)
    x = rng.normal(size=(SILOS, RECORDS, 8))
    chances = 1 / (1 + np.exp(-x @ rng.choice([-1.0, 1.0], 8)))
    x, y = (x * scales).astype(np.float32), (rng.random((SILOS, RECORDS)) < chances).astype(np.int32)
    fixed = {"num_rounds": ROUNDS, "output": "tail", "sampling": "full", "batch_size": None}
    make = partial(find(name).build, problem, **fixed)
    events = events_of(
        make(noise_multiplier=1.0, clip_norm=1.0, step_size=1.0), silo_index=0, silos=SILOS, records=RECORDS
    )
    noise = calibrate(events, epsilon=EPSILON, delta=DELTA)[0].noise_multiplier / events[0].noise_multiplier
    clips, steps = np.meshgrid([0.1, 0.5, 2.0], [0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
    grid = {"clip_norm": np.float32(clips.ravel()), "step_size": np.float32(steps.ravel())}
    silos = enrol([{"x": own, "y": label} for own, label in zip(x, y, strict=True)])
    seeds = [Seed(jax.random.key(seed), start(problem), silos) for seed in range(3)]
    found = simulate_grid(lambda **point: make(noise_multiplier=noise, **point), grid, seeds)
    outputs = np.einsum("spd,mnd->spmn", np.asarray(found.params["linear"]["w"])[..., 0], x)
    return (np.logaddexp(0, outputs) - y * outputs).mean(axis=(2, 3)).mean(axis=0).min()


def test_it_beats_minibatch_sgd_where_features_are_badly_scaled():
    """Both are tuned. Plain steps never get to what the small features tell."""
    assert loss_at_equal_epsilon("preconditioned-sgd", 1.5) < loss_at_equal_epsilon("mb-sgd", 1.5) - 0.05


def test_it_costs_little_where_there_is_nothing_to_gain():
    assert loss_at_equal_epsilon("preconditioned-sgd", 0.0) < loss_at_equal_epsilon("mb-sgd", 0.0) + 0.005


@pytest.mark.parametrize(("sampling", "rows"), [("full", math.sqrt(2.0)), ("poisson", 2.0)])
def test_both_kinds_are_paid_for(sampling, rows):
    drawn = {} if sampling == "full" else {"batch_size": 8, "capacity": 12}
    algorithm = built(num_rounds=9, moment_rounds=3, noise_multiplier=6.0, sampling=sampling, **drawn)
    assert algorithm.schedule == ("moments",) * 3 + ("gradient",) * 6
    ratio = (3 / (6 * TYPICAL**2 * 3 / 2)) ** 0.25
    noise = {kind: part.silo.release.noise_multiplier for kind, part in algorithm.rounds.items()}
    assert noise == {"gradient": 6.0, "moments": pytest.approx(6.0 * ratio)}
    assert algorithm.rounds["moments"].silo.release.sensitivity == rows
    if sampling == "full":
        paid = price(events_of(algorithm, silo_index=0, silos=3, records=24), delta=1e-5)
        squares = 6 / 6.0**2 + 3 / (6.0 * ratio) ** 2
        assert gdp_mu(paid.epsilon, 1e-5) == pytest.approx(math.sqrt(squares), rel=1e-5)
    told = built(num_rounds=9, moment_noise=0.5, noise_multiplier=6.0)
    assert told.rounds["moments"].silo.release.noise_multiplier == 3.0


def test_the_split_follows_the_errors_that_moments_make():
    """By simulation: the harm of a moment's noise is the step that it bends, beside the noise of gradients."""
    rng, batch, clip, d = np.random.default_rng(0), 50, 0.7, 64
    truth = np.full(d, clip**2 / d)
    # Small beside the moments, so that a step moves in proportion.
    off = 1e-3 * rng.normal(size=(4000, d)) * math.sqrt(2) * clip**2 / batch
    mean_gradient = rng.normal(size=d)
    mean_gradient *= TYPICAL * clip / np.linalg.norm(mean_gradient)
    bent = ((truth / (truth + off) - 1) * mean_gradient / 1e-3) ** 2
    noise = d * (2 * clip / batch) ** 2
    harm = bent.sum(axis=1).mean() / noise
    assert moment_ratio(2, 10, d) == pytest.approx((2 / (10 * harm)) ** 0.25, rel=0.02)


@pytest.mark.parametrize("kind", ["moments", "gradient"])
@pytest.mark.parametrize("scale", [np.nan, np.inf, 0.0, -1e30, 1e30, 1e-30])
def test_at_the_door_no_scale_says_more_than_the_clip(kind, scale):
    """A scale that is no number says nothing; a huge one, at most the clip."""
    silo = built(noise_multiplier=1.0, clip_norm=0.5).rounds[kind].silo
    door = Door(silo, table(0, 8), silo_index=0, form=False)
    work = ScaledPoint(start(PROBLEM), jax.tree.map(lambda leaf: jnp.full_like(leaf, scale), start(PROBLEM)))
    said = door.answer(work, (), batches=[door.batch(0, None)], sampler=no_noise, past=NO_PAST).message
    norm = np.linalg.norm(said["linear"]["w"])
    assert norm <= (0.25 if kind == "moments" else 0.5)
    if not np.isfinite(scale) or scale == 0.0:
        assert norm == 0.0


@pytest.mark.parametrize("wrong", [{"moment_rounds": -1}, {"moment_rounds": 6}, {"floor": 0.0}, {"floor": 1.5}])
def test_what_cannot_be_is_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        built(num_rounds=6, **wrong)
