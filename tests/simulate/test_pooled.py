"""All silos' batches in one sum: the same mean and the same noise as silo by silo, and only where silos are alike."""

import jax
import numpy as np
import pytest
from scipy import stats

from tacit.silo import enrol
from tacit.simulate import program
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.participation import participation
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables, traced_run

SAMPLINGS = {
    "wor": {"sampling": "wor", "batch_size": 8},
    "wr": {"sampling": "wr", "batch_size": 8},
    "poisson": {"sampling": "poisson", "batch_size": 8, "capacity": 12},
    "allocation": {"sampling": "allocation", "batch_size": 8},
    "one-pass": {"sampling": "one-pass", "batch_size": 2},
}
EVERYONE = participation(3)


@pytest.fixture
def pooled(monkeypatch):
    """How often a sum over all silos was traced."""
    calls, real = [], program.pooled_mean
    monkeypatch.setattr(program, "pooled_mean", lambda *args: calls.append(1) or real(*args))
    return calls


def both_ways(name, problem, who, **terms):
    """With noise off, so that what is left is the mean."""
    algorithm, silos = CASES[name].build(problem, noise_multiplier=0.0, **terms), enrol(tables())
    run = {"key": jax.random.key(2), "who": who}
    return [simulate(algorithm, start(problem), silos, noise=how, **run).params for how in ("summed", "each")]


@pytest.mark.parametrize(
    ("sampling", "who"), [("wor", 3), ("wr", 2), ("poisson", (1, 2)), ("allocation", 2), ("one-pass", 3)], ids=str
)
def test_one_sum_is_the_mean_over_the_silos_that_come(pooled, sampling, who):
    assert largest_difference(*both_ways("mb-sgd", LOGISTIC, participation(3, who), **SAMPLINGS[sampling])) < 1e-5
    assert len(pooled) == 1


@pytest.mark.parametrize(("name", "channel"), [("prox-spider", "direct"), ("mb-sgd", "trusted"), ("sgda", "direct")])
def test_differences_blocks_and_a_trusted_server_alike(pooled, name, channel):
    terms = {"channel": channel, **SAMPLINGS["wor"]}
    algorithm = CASES[name].build(LOGISTIC, noise_multiplier=0.0, **terms)
    silos, run = enrol(tables()), {"key": jax.random.key(2)}
    found = simulate(algorithm, start(LOGISTIC), silos, **run).params
    assert pooled
    program_alone = CASES[name].build(LOGISTIC, noise_multiplier=0.0, **{**terms, "batch_size": np.full(3, 8)})
    del pooled[:]
    assert largest_difference(found, simulate(program_alone, start(LOGISTIC), silos, **run).params) < 1e-5
    assert not pooled


@pytest.mark.parametrize(
    ("who", "terms"),
    [
        (EVERYONE, {"sampling": "full"}),
        (EVERYONE, {"sampling": "wor", "batch_size": np.array([8, 5, 8])}),
        (EVERYONE, {"sampling": "wor", "batch_size": 8, "clip_norm": np.array([0.1, 0.5, 0.9], np.float32)}),
        (participation(3, weights=(0.2, 0.5, 0.3)), {"sampling": "wor", "batch_size": 8}),
    ],
)
def test_silos_that_differ_are_summed_by_themselves(pooled, who, terms):
    traced_run(CASES["mb-sgd"].build(LOGISTIC, **terms), LOGISTIC, who=who, noise="summed")
    assert not pooled


def test_silos_that_differ_in_all_of_this_have_the_mean_of_each():
    who = participation(3, weights=(0.2, 0.5, 0.3))
    terms = {"sampling": "wor", "batch_size": np.array([8, 5, 8]), "clip_norm": np.array([0.1, 0.5, 0.9], np.float32)}
    assert largest_difference(*both_ways("mb-sgd", LOGISTIC, who, **terms)) < 1e-5


def test_noise_of_the_sum_is_that_of_all_silos():
    silos, noise = enrol(tables()), np.asarray([0.5, 1.0, 2.0], np.float32)

    def build(noise_multiplier):
        terms = {"num_rounds": 1, "step_size": 1.0, "output": "last", **SAMPLINGS["wor"]}
        return CASES["mb-sgd"].build(LOGISTIC, noise_multiplier=noise_multiplier, **terms)

    seeds = [Seed(jax.random.key(s), start(LOGISTIC), silos) for s in range(400)]
    grid = {"noise_multiplier": np.stack([noise, 0 * noise])}
    found = np.asarray(simulate_grid(build, grid, seeds).params["linear"]["w"])[..., 0]
    sigma = np.sqrt(sum((z * 2 * 0.7 / 8 / 3) ** 2 for z in noise))
    assert stats.kstest((found[:, 0] - found[:, 1]).ravel(), "norm", args=(0, sigma)).pvalue > 1e-3
