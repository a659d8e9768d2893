"""Every committed result is in the index, and can be made again by a command that exists."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments.fair.page import PAGES
from experiments.gallery import EXHIBITS, index, reproduce
from tacit.cli import app
from tacit.errors import TacitError

RESULTS = Path(__file__).parents[2] / "results"


def test_the_index_shows_every_folder():
    assert (RESULTS / "README.md").read_text() == index(RESULTS), "write it with `tacit reproduce --gallery`"


def test_every_page_that_the_index_names_is_there():
    for link in re.findall(r"\]\(([^)]+)\)", (RESULTS / "README.md").read_text()):
        assert (RESULTS / link).is_file()


def test_a_folder_that_nobody_describes_is_refused(tmp_path):
    (tmp_path / "new-result").mkdir()
    with pytest.raises(TacitError, match="describe it"):
        index(tmp_path)


@pytest.mark.parametrize("name", EXHIBITS)
def test_its_command_exists_and_writes_where_it_is_told(name, tmp_path):
    made = []
    assert reproduce(EXHIBITS[name], tmp_path, lambda command: made.append(command) or 0) == 0
    [command] = made
    assert command[:2] == [sys.executable, "-c"]
    assert Path(command[3]) == RESULTS.parent
    assert importlib.util.find_spec(command[4]) is not None
    if name != "benchmarks":
        assert any(str(tmp_path / name) in part for part in command)


def test_every_driver_is_in_the_gallery():
    folder = RESULTS.parent / "experiments"
    drivers = {p.stem.replace("_", "-") for p in folder.glob("*.py") if "EXPERIMENT.main()" in p.read_text()}
    assert len(drivers) >= 13
    assert drivers | set(PAGES) <= set(EXHIBITS)


def test_the_command_lists_and_refuses():
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["reproduce", "--list", "--json"]).stdout)
    assert {row["name"] for row in rows} == set(EXHIBITS)
    assert all(row["minutes"] > 0 for row in rows)
    for wrong in (["reproduce"], ["reproduce", "audit", "--all"], ["reproduce", "audits"]):
        found = runner.invoke(app, wrong)
        assert isinstance(found.exception, TacitError)
    assert "audit" in str(found.exception)


def test_outside_a_checkout_the_command_says_what_it_needs(tmp_path, monkeypatch):
    package = tmp_path / "lib" / "site-packages" / "tacit"
    package.mkdir(parents=True)
    monkeypatch.setattr("tacit.__file__", str(package / "__init__.py"))
    monkeypatch.chdir(RESULTS.parent)  # a checkout that this package does not come from is not taken
    for arguments in (["--list"], ["--all"], ["--gallery"], ["audit"]):
        found = CliRunner().invoke(app, ["reproduce", *arguments])
        assert isinstance(found.exception, TacitError)
        assert "needs a checkout" in str(found.exception)
        assert str(package) in str(found.exception)


def test_a_result_is_made_from_any_folder(tmp_path):
    """The launched process finds the checkout's modules wherever it is started, and passes its exit code on."""
    toy = dataclasses.replace(EXHIBITS["benchmarks"], arguments=("experiments.fair", "no-such-page"))
    told = []

    def call(command):
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        told.append(done.stderr)
        return done.returncode

    assert reproduce(toy, tmp_path, call) == 1
    assert "Expected one of credit-card-fair" in told[0]


def test_data_that_are_missing_are_told_without_a_traceback(tmp_path):
    nowhere = {
        **os.environ,
        "TACIT_DATA": str(tmp_path),
        "TACIT_CACHE": str(tmp_path),
        "https_proxy": "http://127.0.0.1:9",
    }
    told = []

    def call(command):
        done = subprocess.run(command, capture_output=True, text=True, env=nowhere, check=False)
        told.append(done.stderr)
        return done.returncode

    assert reproduce(EXHIBITS["insurance-linear"], tmp_path / "results", call) == 1
    assert told[0].startswith("error: ")
    assert "insurance" in told[0]
    assert "Traceback" not in told[0]
