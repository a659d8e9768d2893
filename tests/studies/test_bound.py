"""The plan shows what theory promises, or which constant is missing."""

import json

import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.studies.run import prepare
from tacit.studies.spec import load_study
from tacit.theory import Statement


def planned(*overrides):
    return prepare(load_study("heart-disease", ("run.seeds=1", *overrides))).plan


def test_a_ball_makes_the_bound_known():
    found = planned("objective.regulariser=l2-ball:3").bound
    assert isinstance(found, Statement)
    assert found.risk == "population"
    assert found.bound > found.lower_bound > 0
    tighter = planned("objective.regulariser={kind='l2-ball', radius=3}", "privacy.epsilon=4").bound
    assert tighter.bound < found.bound


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ((), "l2-ball:RADIUS"),
        (("objective.model=mlp", "objective.hidden=[4]"), "bounded features"),
    ],
)
def test_a_missing_constant_is_named(overrides, word):
    assert word in planned(*overrides).bound


def test_no_theorem_is_no_bound():
    assert planned("algorithm.name=local-sgd", "algorithm.local_steps=2", "algorithm.output=none").bound is None
    assert planned("privacy.epsilon=none", "privacy.delta=none").bound is None


def test_the_command_shows_bound_lower_bound_and_guarantee():
    command = ["plan", "heart-disease", "--set", "run.seeds=1", "--set", "objective.regulariser=l2-ball:3"]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0
    words = " ".join(shown.output.split())
    assert "Guarantee: ISRL-DP" in words
    assert "Theorem 2.1" in words
    assert "lower bound" in words
    theory = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)["theory"]
    assert theory["bound"] > theory["lower_bound"] > 0
    trusted = CliRunner().invoke(app, [*command, "--set", "algorithm.channel=trusted", "--json"])
    assert "trusts the server" in json.loads(trusted.output)["guarantee"]
