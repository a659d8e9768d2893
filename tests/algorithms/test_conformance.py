"""Every algorithm: its compiled program equals the plain loop, finds a known solution, and errs less with less noise.

A preset is shown to be, letter by letter, the program of the algorithm that it is; the others stand for it from there.
"""

import re
from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from tacit.plans.catalogue import ALGORITHMS
from tacit.silo import enrol, rows_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, least_squares, start, tables, traced_run
from tests.algorithms.table import test_every_row_is_an_algorithm as test_every_row_is_an_algorithm

SAMPLINGS = {
    "full": {"sampling": "full"},
    "wor": {"sampling": "wor", "batch_size": 8},
    "wr": {"sampling": "wr", "batch_size": 8},
    "poisson": {"sampling": "poisson", "batch_size": 8, "capacity": 12},
    "allocation": {"sampling": "allocation", "batch_size": 8, "capacity": 17},
    "one-pass": {"sampling": "one-pass", "batch_size": 2},
}
WHO = {"all": None, "two of three": 2, "one or two": (1, 2)}
PRESETS = [name for name, case in CASES.items() if case.preset_of is not None]
# DIFF2 with local steps stands for all that CE-PSGM does without momentum and through a trusted server.
DISTINCT = [name for name in CASES if name not in PRESETS or name == "diff2-bvr-lsgd"]
# Noise that remembers converges by itself.
TRAINED = [*DISTINCT, "dp-ftrl"]

SETTINGS = (
    ("mb-sgd", "full", "all"),
    ("mb-sgd", "wor", "two of three"),
    ("mb-sgd", "wr", "all"),
    ("mb-sgd", "poisson", "one or two"),
    ("mb-sgd", "one-pass", "all"),
    ("mb-sgd", "allocation", "two of three"),
    ("local-sgd", "allocation", "all"),
    ("local-sgd", "wor", "one or two"),
    ("local-sgd", "poisson", "all"),
    ("local-sgd", "one-pass", "two of three"),
    ("accelerated-mb-sgd", "wr", "two of three"),
    ("prox-spider", "full", "all"),
    ("prox-svrg", "poisson", "one or two"),
    ("sgda", "wor", "all"),
    ("steffle", "full", "all"),
    ("steffle", "poisson", "one or two"),
    ("fedfdp", "wr", "two of three"),
    ("lagrangian-dual", "one-pass", "one or two"),
    ("mu2-sgd", "one-pass", "one or two"),
    ("ce-psgm", "wor", "one or two"),
    ("diff2-bvr-lsgd", "full", "all"),
)
# A later algorithm need not be listed.
SETTINGS += tuple((name, "full", "one or two") for name in DISTINCT if name not in {row[0] for row in SETTINGS})


def test_settings_cover_algorithms_samplings_and_participations():
    """Each algorithm at least once; each sampling and each participation with at least two algorithms."""
    assert {name for name, _, _ in SETTINGS} == set(DISTINCT)
    for silo_index, known in ((1, SAMPLINGS), (2, WHO)):
        assert all(len({row[0] for row in SETTINGS if row[silo_index] == value}) >= 2 for value in known)
    assert all(sampling in CASES[name].samplings for name, sampling, _ in SETTINGS)


# Rows of padding meet every sampling and each way of adding records up; all other algorithms add up as mb-sgd does.
PADDED = {*(("mb-sgd", sampling) for sampling in SAMPLINGS)}
PADDED |= {("local-sgd", "poisson"), ("steffle", "poisson"), ("ce-psgm", "wor")}


@pytest.mark.parametrize(("name", "sampling", "who"), SETTINGS)
def test_simulate_equals_the_plain_loop(name, sampling, who):
    """The loop knows no padding, and compiles once for each size of silo. A network for mb-sgd, else a linear model."""
    problem, chosen = MLP if (name, who) == ("mb-sgd", "all") else LOGISTIC, participation(3, WHO[who])
    silos, key = enrol(tables(sizes=(24, 17, 24) if (name, sampling) in PADDED else (24, 24, 24))), jax.random.key(1)
    algorithm = CASES[name].build(problem, **SAMPLINGS[sampling])
    fast = simulate(algorithm, start(problem), silos, key=key, who=chosen, noise="each")
    slow = debug(algorithm, start(problem), [rows_of(silos, i) for i in range(3)], key=key, who=chosen)
    assert largest_difference((fast.params, fast.personal), (slow.params, slow.personal)) < 1e-5
    assert (fast.personal is not None) == ALGORITHMS[name].personal


def words_of(algorithm):
    """What is compiled to run an algorithm, in jax's own words, and the numbers in it."""
    traced, turns = traced_run(algorithm, LOGISTIC, noise="each")
    words = [re.sub(r" at 0x[0-9a-f]+", "", str(part)) for part in traced]
    return words, turns, [part.consts for part in traced]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_the_program_of_the_algorithm_that_it_is(name):
    case = CASES[name]
    terms = SAMPLINGS[case.samplings[-1]]
    same = {"name": case.preset_of, "parameters": {**case.parameters, **case.settles}}
    found = [words_of(one.build(LOGISTIC, **terms)) for one in (case, replace(case, **same))]
    assert found[0][0] == found[1][0]
    for mine, other in zip(*map(jax.tree.leaves, (found[0][1:], found[1][1:])), strict=True):
        np.testing.assert_array_equal(mine, other)


ROUNDS = 400


@cache
def trained(name):
    """One program for all that is asked below; rows are seeds, columns the points of a grid.

    Points: converging without noise; three noise multipliers; neither clip nor noise to speak of and a slow step.
    Seeds: three with silos of one size, one with silos of three sizes.
    """
    case, (_, problem, _) = CASES[name], least_squares()
    terms = {"step_size": 0.5, **case.convergence}
    fixed = {key: terms.pop(key) for key in ("output", "batch_size", "passes") if key in terms}
    usual = {"step_size": 0.2, **case.parameters}
    grid = {key: np.float32([value, *[usual[key]] * 3, value]) for key, value in terms.items()}
    grid["step_size"][-1] = case.slow_step
    grid["clip_norm"] = np.float32([1e3, 2, 2, 2, 1e6])
    grid["noise_multiplier"] = np.float32([0, 0.1, 20, 1000, 0])
    found = simulate_grid(lambda **point: case.build(problem, num_rounds=ROUNDS, **fixed, **point), grid, seeds_of())
    return np.asarray(found.params["linear"]["w"])[..., 0]


def seeds_of():
    made, problem, _ = least_squares()
    equal = [Seed(jax.random.key(s), start(problem), enrol(made)) for s in range(3)]
    return [*equal, Seed(jax.random.key(3), start(problem), enrol(least_squares(sizes=(40, 25, 33))[0]))]


@pytest.mark.parametrize("name", TRAINED)
def test_without_noise_it_converges_to_the_known_solution(name):
    np.testing.assert_allclose(trained(name)[0, 0], least_squares()[2], atol=0.02)


@pytest.mark.parametrize("name", TRAINED)
def test_error_falls_as_noise_falls(name):
    """Paired seeds."""
    error = np.linalg.norm(trained(name)[:3, 1:4] - least_squares()[2], axis=-1).mean(axis=0)
    assert error[0] < error[1] < error[2]


@pytest.mark.parametrize("name", DISTINCT)
def test_the_open_channel_needs_no_clip_and_no_noise(name):
    problem, case = least_squares()[1], CASES[name]
    terms = {"num_rounds": ROUNDS, **(case.convergence or {}), "step_size": case.slow_step}

    def run(**changes):
        seed = seeds_of()[-1]
        algorithm = case.build(problem, **{**terms, **changes})
        return np.asarray(simulate(algorithm, seed.params, seed.silos, key=seed.key).params["linear"]["w"])[:, 0]

    opened = run(channel="open", clip_norm=None, noise_multiplier=None)
    # Open and direct means count silos alike; shuffled ones count records alike, and silos differ in size here.
    crowded = name == "ce-psgm"
    same = run(channel="direct", clip_norm=1e6, noise_multiplier=0.0) if crowded else trained(name)[3, 4]
    np.testing.assert_allclose(opened, same, atol=1e-4)
    moved, left = np.abs(opened).max(), np.abs(opened - least_squares()[2]).max()
    assert min(moved, left) > 0.05, "give its row of the table a smaller or larger slow_step"


def test_one_local_step_is_minibatch_sgd():
    local = CASES["local-sgd"].build(LOGISTIC, local_steps=1, num_rounds=5)
    plain = CASES["mb-sgd"].build(LOGISTIC, num_rounds=5, output="last")
    silos = enrol(tables())
    found = [simulate(a, start(LOGISTIC), silos, key=jax.random.key(3), noise="each").params for a in (local, plain)]
    assert largest_difference(*found) < 1e-5
