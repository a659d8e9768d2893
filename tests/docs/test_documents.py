"""What the documents say is true: code runs, commands exist."""

import re
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.runtime.debug import debug
from tacit.runtime.simulate import simulate
from tacit.silo import enrol, rows_of
from tests.algorithms.table import LOGISTIC, Case, largest_difference, start, tables

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_python_of_the_readme_runs(capsys):
    for block in blocks("README.md", "python"):
        exec(compile(block, "README.md", "exec"), {})
    assert "cleveland" in capsys.readouterr().out


def test_the_skeleton_is_an_algorithm():
    [block] = blocks("CONTRIBUTING.md", "python")
    scope: dict = {"__name__": "skeleton"}
    exec(compile(block, "CONTRIBUTING.md", "exec"), scope)
    algorithm = Case("heavy-ball", scope["heavy_ball"]).build(LOGISTIC)
    silos = enrol(tables())
    fast = simulate(algorithm, start(LOGISTIC), silos, key=jax.random.key(0), noise="each")
    slow = debug(algorithm, start(LOGISTIC), [rows_of(silos, i) for i in range(3)], key=jax.random.key(0))
    assert largest_difference(fast.params, slow.params) < 1e-5


def commands():
    names = {c.name for c in app.registered_commands}
    return sorted(name for name in names if name)


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help_with_an_example_and_is_in_the_readme(name):
    shown = CliRunner().invoke(app, [name, "--help"]).output
    assert f"Example: tacit {name}" in " ".join(shown.split())
    assert f"tacit {name}" in (ROOT / "README.md").read_text(encoding="utf-8")
