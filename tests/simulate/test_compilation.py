"""What one process compiled, the next one reads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import jax
from tacit.simulate.compilation import keep_compiled
from tacit.simulate.compiled import simulate
from tacit.silo import enrol
from tests.algorithms.table import CASES, LOGISTIC, start, tables

hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith("cache_hits") else None)
folder = keep_compiled()
params = simulate(CASES["mb-sgd"].build(LOGISTIC), start(LOGISTIC), enrol(tables()), key=jax.random.key(0)).params
print(folder, len(hits), float(params["linear"]["w"].sum()).hex())
"""


SHORT = """
import jax
from tacit.simulate.compilation import keep_compiled

print(keep_compiled())
jax.jit(lambda x: jax.numpy.sin(x).sum())(jax.numpy.arange(9.0)).block_until_ready()
"""


def run(program, cache, **more):
    """Run a program without the folder of compiled programs that tests share."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_COMPILATION", "JAX_PERSIST"))}
    env = {**own, "TACIT_CACHE": cache, **more}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert "rror" not in done.stderr
    return done.stdout.split()


def test_a_second_process_finds_the_programs_of_the_first(tmp_path):
    first = run(PROGRAM, str(tmp_path))
    assert Path(first[0]).parent == tmp_path / "programs"
    assert int(first[1]) == 0
    assert list(Path(first[0]).iterdir())
    second = run(PROGRAM, str(tmp_path))
    assert int(second[1]) > 0
    assert second[2] == first[2]


@pytest.mark.parametrize("told", [False, True])
def test_nothing_is_kept_where_the_user_does_not_want_it(tmp_path, told):
    elsewhere = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "own")} if told else {}
    [folder] = run(SHORT, "" if not told else str(tmp_path), **elsewhere)
    assert folder == (str(tmp_path / "own") if told else "None")
    assert not (tmp_path / "programs").exists()
