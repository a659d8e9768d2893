"""CE-PSGM: its special cases, its arithmetic against a plain transcription, and what it costs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithms.output import index_of
from tacit.plans.catalogue import find
from tacit.privacy import AnonymitySet, events_of
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tests.algorithms.table import largest_difference, least_squares, start

COMMON = {
    "step_size": 0.3,
    "num_rounds": 5,
    "clip_norm": 1e3,
    "noise_multiplier": 0.0,
    "batch_size": None,
    "sampling": "full",
    "difference_slope": 1e3,
    "channel": "shuffled-reports",
}


def transcription(made, w, *, rounds, local_steps, momentum, step):
    """Algorithm 1 with full batches and no noise, on least squares, as one reads it."""

    def gradient(w, silo):
        return (silo["x"] * (silo["x"] @ w - silo["y"])[:, None]).mean(axis=0)

    before, estimate = w, np.zeros_like(w)
    for r in range(rounds):
        fresh, stale = (np.mean([gradient(v, silo) for silo in made], axis=0) for v in (w, before))
        weight = 1.0 if r == 0 else momentum
        estimate = (1 - weight) * (estimate + fresh - stale) + weight * fresh
        silo, old, new, v = made[r % len(made)], w, w - step * estimate, estimate
        for _ in range(local_steps - 1):
            v = v + gradient(new, silo) - gradient(old, silo)
            old, new = new, new - step * v
        before, w = w, new
    return w


@pytest.mark.parametrize("local_steps", [1, 3])
def test_it_is_algorithm_1(local_steps):
    made, problem, _ = least_squares()
    algorithm = find("ce-psgm").build(problem, local_steps=local_steps, momentum=0.4, **COMMON)
    scale = 1.0 if _is_half_square(problem) else 2.0
    found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params
    first = np.asarray(start(problem)["linear"]["w"])[:, 0].astype(np.float64)
    expected = transcription(made, first, rounds=5, local_steps=local_steps, momentum=0.4, step=0.3 * scale)
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], expected, atol=1e-4)


def _is_half_square(problem):
    """Whether the squared loss is half the square."""
    loss = problem.objective.cost.value(jnp.ones((1, 1)), jnp.zeros(1))
    return float(loss[0]) == pytest.approx(0.5)


def test_what_a_preset_settles_is_no_parameter():
    """That presets are CE-PSGM otherwise is tested with all algorithms."""
    _, problem, _ = least_squares()
    with pytest.raises(ValueError, match='Expected sampling="full" for ce-psgm-fg'):
        find("ce-psgm-fg").build(problem, local_steps=2, **{**COMMON, "sampling": "wor", "batch_size": 3})
    with pytest.raises(TypeError, match="local_steps"):
        find("mb-psgm").build(problem, local_steps=3, **COMMON)


def test_diff2_gd_is_spider_through_a_trusted_server():
    made, problem, _ = least_squares()
    noisy = {**COMMON, "noise_multiplier": 1.0, "clip_norm": 1.0, "difference_slope": 0.5, "channel": "trusted"}
    spider = find("prox-spider").build(problem, phase_length=2, **noisy)
    silos, point = enrol(made), start(problem)
    found = [
        simulate(algorithm, point, silos, key=jax.random.key(2)).params
        for algorithm in (find("diff2-gd").build(problem, phase_length=2, **noisy), spider)
    ]
    assert largest_difference(*found) < 1e-5


def test_a_record_enters_two_r_minus_one_shuffles_and_the_local_steps_of_its_turns():
    _, problem, _ = least_squares()
    algorithm = find("ce-psgm").build(problem, local_steps=4, **{**COMMON, "noise_multiplier": 1.0, "num_rounds": 7})
    counts = []
    for silo_index in range(3):
        events = events_of(
            algorithm, silo_index=silo_index, silos=3, records=40, anonymity_set=AnonymitySet((40, 40, 40), 1.0, 3)
        )
        found = {event.kind: event for event in events}
        assert found["gradient"].count * 1 + found["estimate"].count * len(found["estimate"].streams) == 2 * 7 - 1
        assert found["estimate"].reports == 120
        counts.append(found["local"].count)
    assert counts == [9, 6, 6]


@pytest.mark.parametrize("changes", [{"local_steps": 0}, {"local_steps": 1, "momentum": 1.5}])
def test_nonsense_is_refused(changes):
    _, problem, _ = least_squares()
    with pytest.raises(ValueError, match="Expected"):
        find("ce-psgm").build(problem, **{**COMMON, **changes})


def found_by(**changes):
    made, problem, _ = least_squares()
    algorithm = find("ce-psgm").build(problem, **{**COMMON, "momentum": 0.4, **changes})
    return simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params


def test_the_output_may_be_any_iterate_of_any_round():
    assert largest_difference(found_by(local_steps=3, output=6), found_by(local_steps=3, num_rounds=2)) < 1e-6
    assert largest_difference(found_by(local_steps=3, output=2), found_by(local_steps=2, num_rounds=1)) < 1e-6
    assert largest_difference(found_by(local_steps=1, output=2), found_by(local_steps=1, num_rounds=2)) < 1e-6
    assert largest_difference(found_by(local_steps=3, output=15), found_by(local_steps=3)) == 0.0


def test_a_random_output_is_one_of_the_iterates_by_its_seed():
    seeds = {int(index_of("random", seed, 1, 4)): seed for seed in range(30)}
    assert sorted(seeds) == [1, 2, 3, 4]
    for index in (1, 4):  # inside a round, and the last
        drawn = found_by(local_steps=2, num_rounds=2, output="random", output_seed=seeds[index])
        assert largest_difference(drawn, found_by(local_steps=2, num_rounds=2, output=index)) == 0.0
