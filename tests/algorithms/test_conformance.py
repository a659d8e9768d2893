"""Every algorithm: the compiled program equals the plain loop, and noise summed is noise added."""

import jax
import numpy as np
import pytest

from tacit.algorithms import find
from tacit.runtime.debug import debug
from tacit.runtime.participation import participation
from tacit.runtime.simulate import Seed, simulate, simulate_grid
from tacit.silo import enrol, rows_of
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, least_squares, start, tables
from tests.algorithms.table import test_every_row_is_an_algorithm as test_every_row_is_an_algorithm

SAMPLINGS = {
    "full": {"sampling": "full"},
    "wor": {"sampling": "wor", "batch_size": 8},
    "wr": {"sampling": "wr", "batch_size": 8},
    "poisson": {"sampling": "poisson", "batch_size": 8, "capacity": 12},
    "one-pass": {"sampling": "one-pass", "batch_size": 2},
}
WHO = {"all": None, "two of three": 2, "one or two": (1, 2)}


def both(case, problem, changes, participants=None):
    silos = enrol(tables())
    who = participation(3, participants)
    algorithm = case.build(problem, **changes)
    fast = simulate(algorithm, start(problem), silos, key=jax.random.key(1), who=who, noise="each")
    slow = debug(algorithm, start(problem), [rows_of(silos, i) for i in range(3)], key=jax.random.key(1), who=who)
    return fast, slow


def settings():
    """Every sampling and participation with the simplest algorithm; two very different settings with every other.

    Algorithms that are one file with other parameters run in one setting each: compiling them is most of the time.
    """
    files = set()
    for name, case in CASES.items():
        if name in ("mb-sgd", "local-sgd"):
            yield from ((name, sampling, "all") for sampling in case.samplings)
            yield from ((name, "full", who) for who in ("two of three", "one or two"))
            continue
        file = find(name).recipe.__module__
        if file not in files:
            yield name, case.samplings[0], "all"
        files.add(file)
        yield name, "poisson" if "poisson" in case.samplings else case.samplings[0], "one or two"


@pytest.mark.parametrize(("name", "sampling", "who"), list(settings()))
def test_simulate_equals_the_plain_loop(name, sampling, who):
    fast, slow = both(CASES[name], MLP if who == "all" else LOGISTIC, SAMPLINGS[sampling], WHO[who])
    assert largest_difference(fast.params, slow.params) < 1e-5


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.convergence is not None])
def test_without_noise_it_converges_to_the_known_solution(name):
    made, problem, solution = least_squares()
    common = {"step_size": 0.5, "num_rounds": 400, "clip_norm": 1e3, "noise_multiplier": 0.0}
    algorithm = CASES[name].build(problem, **{**common, **CASES[name].convergence})
    found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], solution, atol=0.02)


@pytest.mark.parametrize("name", CASES)
def test_error_falls_as_noise_falls(name):
    """Paired seeds, a grid of noise multipliers in one program."""
    made, problem, solution = least_squares()
    case = CASES[name]
    seeds = [Seed(jax.random.key(s), start(problem), enrol(made)) for s in range(6)]

    def build(noise_multiplier):
        # Twenty rounds of two records are one pass.
        return case.build(problem, num_rounds=20, clip_norm=2.0, noise_multiplier=noise_multiplier)

    found = simulate_grid(build, {"noise_multiplier": np.asarray([0.1, 20.0, 1000.0], np.float32)}, seeds).params
    error = np.linalg.norm(np.asarray(found["linear"]["w"])[..., 0] - solution, axis=-1).mean(axis=0)
    assert error[0] < error[1] < error[2]


@pytest.mark.parametrize("name", CASES)
def test_the_open_channel_needs_no_clip_and_no_noise(name):
    algorithm = CASES[name].build(LOGISTIC, channel="open", clip_norm=None, noise_multiplier=None)
    outcome = simulate(algorithm, start(LOGISTIC), enrol(tables()), key=jax.random.key(0))
    # Open and direct means count silos alike; shuffled ones count records alike, and silos differ in size here.
    clipped = CASES[name].build(LOGISTIC, channel="direct", clip_norm=1e6, noise_multiplier=0.0)
    same = simulate(clipped, start(LOGISTIC), enrol(tables()), key=jax.random.key(0))
    assert largest_difference(outcome.params, same.params) < 1e-4


def test_one_local_step_is_minibatch_sgd():
    local = CASES["local-sgd"].build(MLP, local_steps=1, num_rounds=5)
    plain = CASES["mb-sgd"].build(MLP, num_rounds=5, output="last")
    silos = enrol(tables())
    found = [simulate(a, start(MLP), silos, key=jax.random.key(3), noise="each").params for a in (local, plain)]
    assert largest_difference(*found) < 1e-5
