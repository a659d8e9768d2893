"""Silos on two devices: the same numbers, each device its own silos."""

import os
import subprocess
import sys

import jax
import pytest

from tacit.errors import TacitError
from tacit.silo import enrol
from tacit.simulate.sharding import spread
from tests.algorithms.table import tables

PROGRAM = """
import jax, numpy as np
from tacit.simulate.participation import participation
from tacit.simulate.program import advance, split_keys, start as begin, turns_of
from tacit.simulate.sharding import spread
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.silo import enrol
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables

assert len(jax.devices()) == 2
silos = enrol(tables(sizes=(24, 17, 24, 9)))
halves = spread(silos)
assert {tuple(s.data.shape) for s in halves.records["x"].addressable_shards} == {(2, 24, 5)}
key = jax.random.key(3)
algorithm = CASES["prox-spider"].build(LOGISTIC)
whole, parts = (simulate(algorithm, start(LOGISTIC), own, key=key, noise="each").params for own in (silos, halves))
assert largest_difference(whole, parts) < 1e-5
assert largest_difference(whole, start(LOGISTIC)) > 1e-3

grid = {"step_size": np.asarray([0.1, 0.4], np.float32)}
build = lambda step_size: CASES["mb-sgd"].build(LOGISTIC, step_size=step_size, sampling="wor", batch_size=5)
whole, parts = (simulate_grid(build, grid, [Seed(key, start(LOGISTIC), own)]).params for own in (silos, halves))
assert largest_difference(whole, parts) < 1e-5
assert largest_difference(whole, start(LOGISTIC)) > 1e-3

algorithm, who, keys = CASES["mb-sgd"].build(LOGISTIC), participation(4), split_keys(key)
turns, carry = turns_of(algorithm, 0, who, 4, keys), begin(algorithm, start(LOGISTIC), silos, who=who, noise="summed")
run = jax.jit(lambda own: advance(algorithm, own, keys, carry, turns, who=who, noise="summed", measure=None)[0].state)
compiled = {name: run.lower(own).compile() for name, own in (("whole", silos), ("parts", halves))}
assert "all-reduce" in compiled["parts"].as_text() and "all-reduce" not in compiled["whole"].as_text()
assert "all-gather" not in compiled["parts"].as_text()
sizes = {name: own.memory_analysis().argument_size_in_bytes for name, own in compiled.items()}
assert sizes["parts"] <= 0.6 * sizes["whole"], sizes
print("same")
"""


def test_two_devices_give_the_numbers_of_one_and_share_the_records():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "same"


def test_silos_that_devices_do_not_divide_are_refused():
    silos = enrol(tables())
    with pytest.raises(TacitError, match="divide evenly, got 3"):
        spread(silos, jax.devices()[:1] * 2)
