"""The runtime itself: noise summed and noise each, grids, seeds, progress, participation, failures."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.algorithm import Algorithm, Round
from tacit.errors import TacitError
from tacit.silo import enrol, rows_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import StageError, debug
from tacit.simulate.participation import participation, roster
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables


def test_noise_summed_has_the_distribution_of_noise_added_up():
    """One round from zero with step one: the negated model is the mean message."""
    silos = enrol(tables())
    noise = np.asarray([0.5, 1.0, 2.0], np.float32)

    def build(noise_multiplier):
        return CASES["mb-sgd"].build(
            LOGISTIC, num_rounds=1, step_size=1.0, noise_multiplier=noise_multiplier, output="last"
        )

    seeds = [Seed(jax.random.key(s), start(LOGISTIC), silos) for s in range(400)]
    who = participation(3, weights=(0.2, 0.5, 0.3))
    grid = {"noise_multiplier": np.stack([noise, 0 * noise])}
    found = [simulate_grid(build, grid, seeds, who=who, noise=how).params["linear"]["w"] for how in ("each", "summed")]
    each, summed = (np.asarray(noisy - plain)[..., 0] for noisy, plain in (jnp.moveaxis(w, 1, 0) for w in found))
    sigma = np.sqrt(
        sum((w * z * 2 * 0.7 / n) ** 2 for w, z, n in zip((0.2, 0.5, 0.3), noise, (24, 17, 24), strict=True))
    )
    for sample in (each, summed):
        assert stats.kstest(sample.ravel(), "norm", args=(0, sigma)).pvalue > 1e-3
    assert abs(np.corrcoef(each.ravel(), summed.ravel())[0, 1]) < 0.1


def test_a_grid_equals_its_points_one_by_one():
    silos = enrol(tables())
    grid = {"step_size": np.asarray([0.1, 0.4], np.float32), "clip_norm": np.asarray([0.2, 0.9], np.float32)}

    def build(**point):
        return CASES["mb-sgd"].build(LOGISTIC, **point)

    first, key = start(LOGISTIC), jax.random.key(5)
    together = simulate_grid(build, grid, [Seed(key, first, silos)]).params
    for i in range(2):
        alone = simulate(build(**{k: v[i] for k, v in grid.items()}), first, silos, key=key).params
        assert largest_difference(alone, jax.tree.map(lambda leaf, i=i: leaf[0, i], together)) < 1e-5


def test_a_grid_compiles_once_whatever_its_size():
    calls = []

    def build(step_size):
        calls.append(step_size)
        return CASES["mb-sgd"].build(LOGISTIC, step_size=step_size)

    seeds = [Seed(jax.random.key(0), start(LOGISTIC), enrol(tables()))]
    simulate_grid(build, {"step_size": np.linspace(0.1, 1, 50)}, seeds)
    assert len(calls) <= 8


def test_measurements_and_progress():
    silos = enrol(tables())
    algorithm = CASES["mb-sgd"].build(LOGISTIC, num_rounds=20, output="last")
    seen = []
    outcome = simulate(
        algorithm,
        start(LOGISTIC),
        silos,
        key=jax.random.key(0),
        measure=lambda params: {"size": jnp.sum(params["linear"]["w"] ** 2)},
        measure_every=8,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert outcome.rounds.tolist() == [8, 16, 20]
    assert np.isfinite(outcome.trace["size"]).all()
    np.testing.assert_allclose(
        outcome.trace["size"][-1], np.sum(np.asarray(outcome.params["linear"]["w"]) ** 2), rtol=1e-5
    )
    assert seen[-1] == (20, 20)
    assert len(seen) >= 10
    silent = simulate(algorithm, start(LOGISTIC), silos, key=jax.random.key(0))
    assert largest_difference(outcome.params, silent.params) < 1e-6


def test_the_same_key_gives_the_same_model_and_another_key_another():
    silos = enrol(tables())
    algorithm = CASES["mb-sgd"].build(LOGISTIC)
    first, again, other = (simulate(algorithm, start(LOGISTIC), silos, key=jax.random.key(k)).params for k in (0, 0, 1))
    assert largest_difference(first, again) == 0
    assert largest_difference(first, other) > 1e-4


def test_participation_rosters():
    algorithm = CASES["mb-sgd"].build(LOGISTIC, num_rounds=40)
    key = jax.random.key(0)
    fixed = roster(key, algorithm, participation(5, 2), 5)
    assert fixed.taken.sum(axis=1).tolist() == [2] * 40
    assert (fixed.silo_indices[:, 0] != fixed.silo_indices[:, 1]).all()
    np.testing.assert_allclose(fixed.weights.sum(axis=1), 1)
    varied = roster(key, algorithm, participation(5, (1, 4)), 5)
    assert set(varied.taken.sum(axis=1).tolist()) == {1, 2, 3, 4}
    np.testing.assert_allclose(varied.weights.sum(axis=1), 1, rtol=1e-6)
    capped = roster(key, algorithm, participation(5, 2, cap=17), 5)
    assert capped.answers(5).max() <= 17
    with pytest.raises(TacitError, match="max_participations=15"):
        roster(key, algorithm, participation(5, 2, cap=15), 5)


def test_the_mean_is_unbiased_whoever_comes():
    algorithm = CASES["mb-sgd"].build(LOGISTIC, num_rounds=4000)
    weights = np.asarray([0.1, 0.2, 0.3, 0.4])
    got = roster(jax.random.key(1), algorithm, participation(4, (1, 3), weights=weights), 4)
    share = np.zeros(4)
    np.add.at(share, got.silo_indices[got.taken], got.weights[got.taken])
    np.testing.assert_allclose(share / 4000, weights, atol=0.015)


def test_one_silo_in_turn():
    plain = CASES["mb-sgd"].build(LOGISTIC, num_rounds=7)
    turns = Algorithm(
        plain.init,
        {k: Round(r.silo, r.server, "in turn") for k, r in plain.rounds.items()},
        plain.schedule,
        plain.output,
    )
    assert roster(jax.random.key(0), turns, participation(3), 3).silo_indices[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0]
    silos = enrol(tables(sizes=(24, 24, 24)))
    fast = simulate(turns, start(LOGISTIC), silos, key=jax.random.key(2), noise="each")
    slow = debug(turns, start(LOGISTIC), [rows_of(silos, i) for i in range(3)], key=jax.random.key(2))
    assert largest_difference(fast.params, slow.params) < 1e-6


@pytest.mark.parametrize(
    ("participants", "weights"), [(4, None), (0, None), ((3, 2), None), (None, (1, 2)), (None, (1, -1, 1))]
)
def test_bad_participation_is_refused(participants, weights):
    with pytest.raises(TacitError, match="Expected"):
        participation(3, participants, weights)


def test_the_debug_loop_names_silo_round_and_stage():
    made = tables()
    made[1] = {"x": made[1]["x"][:, :3], "y": made[1]["y"]}
    with pytest.raises(StageError, match="'gradient' failed at Hungary in round 1"):
        debug(
            CASES["mb-sgd"].build(LOGISTIC),
            start(LOGISTIC),
            made,
            key=jax.random.key(0),
            names=["Ohio", "Hungary", "Va"],
        )
