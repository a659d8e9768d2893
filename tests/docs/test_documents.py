"""What the documents say is true: code runs, commands exist."""

import re
import sys
import types
from pathlib import Path

import jax
import pytest
from typer.testing import CliRunner

import tacit
from experiments.audit.table import Setting, subject
from tacit.cli import app
from tacit.plans.catalogue import ALGORITHMS, Entry
from tacit.plans.spec import StudyError, load_study
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tacit.studies.run import prepare
from tests.algorithms import test_conformance as conformance
from tests.algorithms import test_shape as shape
from tests.algorithms.table import CASES, LOGISTIC, Case, largest_difference, start, tables

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_python_of_the_readme_runs(capsys):
    for block in blocks("README.md", "python"):
        exec(compile(block, "README.md", "exec"), {})
    assert "cleveland" in capsys.readouterr().out


@pytest.fixture
def heavy_ball(monkeypatch):
    """The file and the row of the five steps, as if they stood where the steps say."""
    code, row = blocks("CONTRIBUTING.md", "python")
    module = types.ModuleType("tacit.algorithms.heavy_ball")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    entry = eval(row, {"Entry": Entry})
    monkeypatch.setitem(ALGORITHMS, entry.name, entry)
    monkeypatch.setitem(CASES, entry.name, Case(entry.name))
    return entry


def test_one_file_and_one_row_pass_the_shared_tests(heavy_ball):
    for sampling in ("full", "poisson", "one-pass"):
        conformance.test_simulate_equals_the_plain_loop("heavy-ball", sampling, "one or two")
    conformance.test_without_noise_it_converges_to_the_known_solution("heavy-ball")
    conformance.test_error_falls_as_noise_falls("heavy-ball")
    conformance.test_the_open_channel_needs_no_clip_and_no_noise("heavy-ball")


def test_the_skeleton_is_short_enough():
    [code, _] = blocks("CONTRIBUTING.md", "python")
    assert len(shape.overhead(code)) <= shape.allowed(code)


def test_one_file_and_one_row_are_an_algorithm_for_everybody(heavy_ball):
    assert tacit.heavy_ball is heavy_ball.recipe
    assert "heavy_ball" in dir(tacit)
    assert heavy_ball.letters == {"m": "momentum", "eta": "step_size"}
    silos = tables()
    found = tacit.fit(LOGISTIC, silos, tacit.heavy_ball(step_size=0.1, num_rounds=4), budget=None)
    assert found.trace["velocity_norm"].shape == (4,)
    chosen = ["algorithm.name=heavy-ball", "algorithm.output=none", "run.seeds=1"]
    plan = prepare(load_study("heart-disease", [*chosen, "algorithm.momentum=0.5"])).plan
    assert all(silo.price.epsilon <= 1.0 for silo in plan.silos)
    with pytest.raises(StudyError, match="momentum"):
        prepare(load_study("heart-disease", [*chosen, "algorithm.momentun=0.5"]))
    setting = Setting("schedule", "full", 3, 4, None, 0.7)
    assert subject(heavy_ball, setting, epsilon=1.0, delta=1e-5).target is not None


def test_without_momentum_the_skeleton_is_minibatch_sgd(heavy_ball):
    plain = CASES["mb-sgd"].build(LOGISTIC, output="last")
    still = CASES["heavy-ball"].build(LOGISTIC, momentum=0.0)
    silos = enrol(tables())
    found = [simulate(a, start(LOGISTIC), silos, key=jax.random.key(0)).params for a in (plain, still)]
    assert largest_difference(*found) < 1e-6


def commands():
    names = {c.name for c in app.registered_commands}
    return sorted(name for name in names if name)


@pytest.mark.parametrize("name", commands())
def test_every_command_has_help_with_an_example_and_is_in_the_readme(name):
    shown = CliRunner().invoke(app, [name, "--help"]).output
    assert f"Example: tacit {name}" in " ".join(shown.split())
    assert f"tacit {name}" in (ROOT / "README.md").read_text(encoding="utf-8")
