"""Two processes that share a simulation: each has its own silos, and both end with the numbers of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import jax, numpy as np

address, index = sys.argv[1], int(sys.argv[2])
jax.distributed.initialize(address, num_processes=2, process_id=index)
from tacit.simulate.compiled import simulate
from tacit.simulate.sharding import spread
from tacit.silo import enrol
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables

assert jax.process_count() == 2 and len(jax.devices()) == 2 and len(jax.local_devices()) == 1
silos = enrol(tables(sizes=(24, 17, 24, 9)))
halves = spread(silos)
assert [tuple(s.data.shape) for s in halves.records["x"].addressable_shards] == [(2, 24, 5)]
key, algorithm = jax.random.key(3), CASES["mb-sgd"].build(LOGISTIC, sampling="wor", batch_size=5)
shared = simulate(algorithm, start(LOGISTIC), halves, key=key, noise="each").params
gathered = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), shared)
assert largest_difference(gathered, start(LOGISTIC)) > 1e-3
if index == 0:
    alone = simulate(algorithm, start(LOGISTIC), silos, key=key, noise="each").params
    assert largest_difference(gathered, alone) < 1e-5
print("same")
"""


def together(commands, envs):
    """What processes that run at the same time print."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, env=env, **pipes) for command, env in zip(commands, envs, strict=True)]
    try:
        said = [process.communicate(timeout=240) for process in both]
    finally:
        for process in both:
            process.kill()
    for (_, err), process in zip(said, both, strict=True):
        assert process.returncode == 0, err
    return [out for out, _ in said]


def test_two_processes_give_the_numbers_of_one_and_share_the_silos():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    said = together([[sys.executable, "-c", PROGRAM, address, str(index)] for index in range(2)], [env, env])
    assert [out.splitlines()[-1] for out in said] == ["same", "same"]


def test_the_example_for_slurm_runs_as_slurm_starts_it_and_gives_the_numbers_of_one_machine():
    example = Path(__file__).parents[2] / "examples" / "slurm" / "simulation.py"
    alone = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2"}
    nodes = [{**alone, **job, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)} for i in range(2)]
    first, second = together([[sys.executable, str(example)]] * 2, nodes)
    [one] = together([[sys.executable, str(example)]], [alone])
    lines = [[line for line in out.splitlines() if "devices:" in line] for out in (first, second, one)]
    assert [len(own) for own in lines] == [1, 0, 1]
    assert lines[0][0].startswith("2 processes, 2 devices:")
    shared, own = ([float(w) for w in line.split(":")[1].split()] for [line] in (lines[0], lines[2]))
    assert len(own) == 5
    assert max(abs(a - b) for a, b in zip(shared, own, strict=True)) < 1e-3
