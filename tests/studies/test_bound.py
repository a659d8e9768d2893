"""The plan shows what theory promises, or which constant is missing."""

import json
import math

import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.cli import app
from tacit.plans.spec import load_study
from tacit.studies.bound import NO_BALL
from tacit.studies.plan import paper_of
from tacit.studies.run import prepare
from tacit.theory import Statement


def planned(*overrides):
    return prepare(load_study("heart-disease", ("run.seeds=1", *overrides))).plan


def test_a_ball_makes_the_bound_known():
    found = planned("objective.regulariser=l2-ball:3").bound
    assert isinstance(found, Statement)
    # A study does not say that its silos are alike, so that the promise is about the records at hand.
    assert found.risk == "empirical"
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


@pytest.mark.parametrize(
    "flags", [("--max-rounds", "1000"), ("--max-rounds", "3", "--goal", "population"), ("--epsilon", "0.01")]
)
def test_choose_and_plan_say_the_same_of_the_same_theorem(tmp_path, flags):
    out = tmp_path / "chosen.toml"
    command = ["choose", "--study", "heart-disease", *flags, "--out", str(out)]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    plan = ["plan", str(out), "--set", "run.seeds=1"]
    told = json.loads(CliRunner().invoke(app, [*plan, "--json"]).output)
    assert told["theory"]["sentence"] == best["sentence"]
    shown = " ".join(CliRunner().invoke(app, [*command, "--force"]).output.split())
    assert best["sentence"] in shown
    assert best["sentence"] in " ".join(CliRunner().invoke(app, plan).output.split())
    # And of what is missing, before there is such a study.
    [assumed] = [line for line in found["assumed"] if line.startswith("diameter")]
    assert NO_BALL in assumed
    assert NO_BALL in planned().bound


def test_conditions_of_the_lower_bound_do_not_empty_the_promise():
    found = planned("objective.regulariser=l2-ball:1").bound
    assert found.failed == ()
    assert any(not c.holds for c in found.lower_conditions)
    said = found.sentence()
    assert "Its conditions hold." in said
    assert "this lower bound alone needs more: " in said
    void = planned("objective.regulariser=l2-ball:1", "privacy.epsilon=0.001").bound
    assert f"The promise is empty: it needs {'; '.join(void.failed)}." in void.sentence()


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


def test_a_bound_above_the_loss_of_the_zero_model_promises_nothing():
    """L D of the ball of radius 3 is 4.24, but the logistic loss of any record at zero is log 2."""
    found = planned("objective.regulariser=l2-ball:3", "privacy.epsilon=0.7").bound
    assert math.log(2) < found.bound < 3 * 2**0.5
    assert found.failed == (f"bound={found.bound:.4g} <= excess risk at the start=0.6931",)


def test_private_statistics_take_their_share_of_the_bound_and_of_the_papers_noise(tmp_path):
    columns = "preprocessing={standardise='moments', columns=['age']}"
    ball = "objective.regulariser=l2-ball:1"
    plans = [planned(ball, columns, f"preprocessing.share={share}") for share in (0.2, 0.8)]
    assert plans[1].bound.bound > 1.3 * plans[0].bound.bound
    for plan in plans:
        printed, silo = paper_of(plan, plan.silos[0]), plan.silos[0]
        [gradient] = [event for event in silo.events if event.kind == "gradient"]
        ours = 2 * gradient.noise_multiplier / gradient.batch
        assert printed.ratio == pytest.approx(printed.sigma_over_clip[0] / ours, rel=5e-3)
    study, out = tmp_path / "own.toml", tmp_path / "chosen.toml"
    study.write_text(tomli_w.dumps(plans[1].study.model_dump(mode="json", exclude_none=True)), encoding="utf-8")
    found = json.loads(CliRunner().invoke(app, ["choose", "--study", str(study), "--out", str(out), "--json"]).output)
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    told = json.loads(CliRunner().invoke(app, ["plan", str(out), "--json"]).output)
    assert told["theory"]["bound"] == pytest.approx(best["bound"], rel=1e-3)
    assert load_study(out).privacy.epsilon == plans[1].study.privacy.epsilon


def test_a_squared_norm_beside_the_ball_counts_as_a_part_of_the_loss(tmp_path):
    out = tmp_path / "chosen.toml"
    flags = ["--convex", "--beta", "0.5", "--mu", "0.1", "--records", "1000", "--silos", "5", "-d", "11"]
    command = ["choose", *flags, "--epsilon", "1", "--max-rounds", "50", "--out", str(out), "--json"]
    found = json.loads(CliRunner().invoke(app, command).output)
    assert any("squared-l2:0.1" in line for line in found["assumed"])
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    told = json.loads(CliRunner().invoke(app, ["plan", str(out), "--json"]).output)["theory"]
    assert told["bound"] == pytest.approx(best["bound"], rel=1e-3)
    assert "has l1" in planned("objective.regulariser=l1:0.1+l2-ball:1").bound


def test_a_promise_of_another_kind_than_was_asked_for_is_called_so():
    known = ["--no-convex", "--beta", "0.5", "--records", "1000", "--silos", "5", "-d", "11", "--epsilon", "1"]
    command = ["choose", *known, "--goal", "population"]
    found = json.loads(CliRunner().invoke(app, [*command, "--json"]).output)
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    assert best["measure"] == "squared gradient"
    assert "population excess risk" in found["goal_missed"]
    assert found["goal_missed"] in " ".join(CliRunner().invoke(app, command).output.split())
    for goal in ("empirical", "population"):
        met = json.loads(
            CliRunner().invoke(app, ["choose", "--study", "heart-disease", "--goal", goal, "--json"]).output
        )
        assert met["goal_missed"] is None


def test_choose_without_a_study_assumes_the_constants_of_the_study_that_it_writes(tmp_path):
    out = tmp_path / "chosen.toml"
    flags = ["--convex", "--beta", "0.5", "--records", "1000", "--silos", "5", "-d", "11", "--epsilon", "1"]
    found = json.loads(CliRunner().invoke(app, ["choose", *flags, "--out", str(out), "--json"]).output)
    best = next(row for row in found["candidates"] if row["algorithm"] == found["winner"])
    told = json.loads(CliRunner().invoke(app, ["plan", str(out), "--json"]).output)["theory"]
    assert told["bound"] == pytest.approx(best["bound"], rel=1e-3)
    assert told["rounds"] == best["rounds"]
