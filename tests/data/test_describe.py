"""Tables and pictures of a partition, and the command that shows them."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tacit import data
from tacit.cli.data import data_command

RUNNER = CliRunner()


@pytest.fixture
def app():
    made = typer.Typer()
    made.command()(data_command)
    return made


def is_png(path):
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("silos", [2, 70])
def test_picture_of_labels(silos, tmp_path):
    path = tmp_path / "new" / "labels.png"
    data.plot_partition(data.load("heart-disease", partition="iid", silos=silos), path)
    assert is_png(path)


def test_picture_of_a_target(shared, tmp_path):
    data.plot_partition(data.load("insurance", directory=shared), tmp_path / "target.png")
    assert is_png(tmp_path / "target.png")


def test_summary_counts_training_records():
    facts = data.summary(data.load("heart-disease"))
    for silo in facts["silos"]:
        assert sum(silo["labels"].values()) == silo["train"]
    assert json.loads(json.dumps(facts)) == facts


def test_command_prints_a_table(app, tmp_path):
    done = RUNNER.invoke(app, ["heart-disease", "--plot", str(tmp_path / "p.png")], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    for words in ("cleveland", "212", "healthy", "public", "CC BY 4.0", "l2 norm at most 1"):
        assert words in done.output
    assert is_png(tmp_path / "p.png")


def test_command_prints_json(app):
    done = RUNNER.invoke(app, ["breast-cancer", "--partition", "iid", "--silos", "3", "--json"])
    facts = json.loads(done.output)
    assert [silo["train"] for silo in facts["silos"]] == [152, 152, 151]
    assert facts["touches_private_data"] is False


def test_command_shows_sensitive_groups(app, shared):
    done = RUNNER.invoke(app, ["credit-card"], env={"TACIT_DATA": str(shared), "COLUMNS": "120"})
    assert "sensitive groups" in done.output
    assert "female" in done.output


def test_command_lists_names(app):
    lines = RUNNER.invoke(app, []).output.splitlines()
    assert lines[:-2] == list(data.names())
    assert [line.partition(":")[0] for line in lines[-2:]] == ["csv", "synthetic"]


def test_command_passes_errors_on(app):
    done = RUNNER.invoke(app, ["hart-disease"])
    assert isinstance(done.exception, data.DataError)
