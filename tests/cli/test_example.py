"""`tacit init --example`: sample files that ship, made by a script that makes them again."""

import filecmp
import tomllib
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments import example_clinics
from tacit.cli import app
from tacit.cli.example import EXAMPLES
from tacit.data.schema import read_schema
from tacit.errors import TacitError

SHIPPED = Path(str(resources.files("tacit.data"))) / "examples"


def init(*arguments):
    return CliRunner().invoke(app, ["init", *map(str, arguments)], catch_exceptions=False)


def test_the_script_makes_the_shipped_files_again(tmp_path):
    example_clinics.main(tmp_path)
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.csv")}
    shipped = {path.relative_to(SHIPPED / "clinics") for path in (SHIPPED / "clinics").rglob("*.csv")}
    assert made == shipped
    assert len(made) == 5
    for name in made:
        assert filecmp.cmp(tmp_path / name, SHIPPED / "clinics" / name, shallow=False), name
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) < 150_000
    assert "invented" in (SHIPPED / "clinics" / "README.md").read_text()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_study_whose_schema_is_public(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    done = init("--example", name)
    assert done.exit_code == 0, done.output
    schema = read_schema(tmp_path / name / "schema.toml")
    assert (schema.target.column, schema.read_from_records) == (EXAMPLES[name], ())
    study = tomllib.loads((tmp_path / name / "study.toml").read_text())
    assert study["privacy"]["epsilon"] == 1.0
    for words in ("tacit run clinics/study.toml --model", "tacit predict clinics/model clinics/new/new.csv"):
        assert words in done.output
    # Nothing is written over; another folder and --json will do.
    with pytest.raises(TacitError, match="exists; name a new folder"):
        init("--example", name)
    assert init(tmp_path / "mine", "--example", name, "--epsilon", 2, "--json").output.count("\n") == 1
    assert (tmp_path / "mine" / "study.toml").is_file()


def test_mistakes_with_examples_are_told(tmp_path):
    with pytest.raises(TacitError, match="did you mean 'clinics'"):
        init("--example", "clinic")
    with pytest.raises(TacitError, match="Expected --example without --target, --range: an example knows"):
        init(tmp_path / "a", "--example", "clinics", "--target", "age", "--range", "age=0:1")
    with pytest.raises(TacitError, match="tacit init --example clinics"):
        init()
    (tmp_path / "file").write_text("")
    with pytest.raises(TacitError, match="exists; name a new folder"):
        init(tmp_path / "file", "--example", "clinics")
