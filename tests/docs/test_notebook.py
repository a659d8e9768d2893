"""The notebook of examples/ runs from its first cell to its last, in an empty folder."""

import json
import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from tacit.cli import app

NOTEBOOK = Path(__file__).parents[2] / "examples" / "clinics.ipynb"


def run_cell(source: str, scope: dict) -> None:
    """As a notebook does: lines that begin with ! are commands of a shell, of which this one has tacit alone."""
    if source.startswith("!"):
        name, *arguments = shlex.split(source[1:])
        assert name == "tacit"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, f"{source}\n{done.output}\n{done.exception!r}"
        print(done.output)
    else:
        exec(compile(source, NOTEBOOK.name, "exec"), scope)


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    scope: dict = {}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for source in cells:
        run_cell(source, scope)
    said = capsys.readouterr().out
    assert scope["scores"]["accuracy"] > scope["scores"]["majority_accuracy"] + 0.03
    assert scope["model"].predict(scope["patient"]).tolist() == ["yes"]
    assert len(re.findall(r"epsilon 1\.000, delta 1e-06|epsilon 0\.99\d, delta 1e-06", said)) == 3
    assert "not among its levels: zeros" in said


def test_the_notebook_is_kept_without_what_it_printed():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]
