"""Mistakes in what is typed: told early, with what was probably meant or an example to follow."""

import shlex
import tomllib

import pytest
from typer.testing import CliRunner

from tacit import cli
from tacit.cli import app
from tacit.errors import TacitError

RUNNER = CliRunner()


@pytest.fixture
def clinics(tmp_path):
    for name in ("aachen", "bonn"):
        (tmp_path / f"{name}.csv").write_text("age,ill\n30,no\n40,yes\n50,yes\n", encoding="utf-8")
    return tmp_path


def test_a_misspelt_target_is_asked_for_again_before_anything_else(clinics, monkeypatch):
    monkeypatch.setattr("tacit.cli.choose.somebody_answers", lambda: True)
    done = RUNNER.invoke(app, ["init", str(clinics)], input="Il\nsick\nill\n0:110\nno,yes\n")
    assert done.exit_code == 0, done.output
    assert "Unknown column 'Il'; did you mean 'ill'?" in done.output
    assert done.output.count("Which column is to be predicted?") == 3
    assert tomllib.loads((clinics / "schema.toml").read_text(encoding="utf-8"))["target"]["column"] == "ill"


@pytest.mark.parametrize("flags", [("--target", "il"), ("--target", "ill", "--range", "il=0:1")])
def test_a_flag_that_names_no_column_is_told_before_anything_is_asked(clinics, monkeypatch, flags):
    monkeypatch.setattr("tacit.cli.choose.somebody_answers", lambda: True)
    done = RUNNER.invoke(app, ["init", str(clinics), *flags])
    assert isinstance(done.exception, TacitError)
    assert "did you mean 'ill'?" in str(done.exception)
    assert done.output == ""


def test_a_grid_is_shown_where_there_is_none():
    told = RUNNER.invoke(app, ["tune", "heart-disease"]).exception
    assert isinstance(told, TacitError)
    example = str(told).partition(": ")[2].partition(";")[0]
    assert example.startswith("tacit tune heart-disease --grid ")
    assert RUNNER.invoke(app, [*shlex.split(example)[1:], "--plan"]).exit_code == 0


def test_rounds_are_refused_in_a_grid_with_the_reason():
    told = RUNNER.invoke(app, ["tune", "heart-disease", "--grid", "algorithm.num_rounds=[10,30]"]).exception
    assert isinstance(told, TacitError)
    assert "among algorithm.clip_norm, algorithm.server, algorithm.step_size, got algorithm.num_rounds." in str(told)
    assert "no price is known" in str(told)


def test_an_error_that_quotes_somebody_else_steers_no_terminal(monkeypatch, capsys):
    def assembled(*_):
        def fails(**_):
            raise TacitError("a reply says \x1b[2J\x9b1m\n\tand more")

        return fails

    monkeypatch.setattr(cli, "assembled", assembled)
    monkeypatch.setattr(cli.sys, "argv", ["tacit", "plan"])
    with pytest.raises(SystemExit):
        cli.main()
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\x9b" not in told
    assert "says ?[2J?1m\n        and more" in told
