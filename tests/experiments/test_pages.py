"""Every committed page is what its template says of the numbers beside it, to the byte."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError

from experiments.fair.driver import experiment
from experiments.fair.page import PAGES
from experiments.folder import Experiment, render, worked
from experiments.search import Trials

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NAMES = sorted(path.parent.name for path in RESULTS.glob("*/data.json"))


def experiment_of(name: str) -> Experiment:
    return (
        experiment(name)
        if name in PAGES
        else importlib.import_module("experiments." + name.replace("-", "_")).EXPERIMENT
    )


def test_there_are_pages_to_look_at():
    assert len(NAMES) >= 16


@pytest.mark.parametrize("name", NAMES)
def test_a_page_follows_from_its_numbers(name):
    folder, study = RESULTS / name, experiment_of(name)
    assert study.name == name
    data = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    assert study.page(folder, data) == (folder / "README.md").read_text(encoding="utf-8"), (
        f"write it with `{study.command} --page`"
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_command_that_a_page_names_exists(name):
    page = (RESULTS / name / "README.md").read_text(encoding="utf-8")
    [command] = re.findall(r"`python -m (experiments\.[^`]+)`", page)
    module, *arguments = command.split()
    assert importlib.util.find_spec(module) is not None
    assert arguments in ([], [name])


def test_a_page_is_written_again_without_running_anything(tmp_path):
    study = Experiment("toy", _never, lambda folder, data: (folder / "figure.png").write_bytes(b""), _no_words)
    made = json.loads((RESULTS / "convex-rates" / "data.json").read_text(encoding="utf-8"))["provenance"]
    (tmp_path / "data.json").write_text(json.dumps({"provenance": made}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.folder.render", lambda template, **told: f"{template} {sorted(told)}\n")
        study.main(["--out", str(tmp_path), "--page"])
    assert (tmp_path / "README.md").read_text() == "toy.md.j2 ['provenance']\nfooter.md.j2 ['made', 'now']\n"
    assert (tmp_path / "figure.png").exists()


def test_a_study_that_was_stopped_tells_the_seconds_of_all_its_trials(tmp_path):
    assert worked(tmp_path) == 0
    clock = iter([0.0, 90.0, 90.0, 200.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.search.time.perf_counter", lambda: next(clock))
        for step in (1.0, 2.0):  # twice begun
            Trials(tmp_path / "trials.jsonl", 1).get("m", [{"step": step}], [0], lambda some, s: {"e": np.ones(1)})
    assert worked(tmp_path) == 200.0


def _never(given):
    raise AssertionError("nothing is to be run")


def _no_words(data):
    return {}


def test_what_a_template_needs_and_is_not_told_is_an_error():
    with pytest.raises(UndefinedError, match="missing"):
        render("results.md.j2", shown=[], figures=[])


def test_a_page_says_where_a_command_has_gone():
    made = {"command": "python -m old", "date": "2026-11-16T00:00:00", "seconds": 3.2, "python": "3"}
    made |= {"versions": {"jax": "1", "numpy": "2"}, "machine": "Linux"}
    assert render("footer.md.j2", made=made, now="python -m new") == (
        "\nMade by `python -m old` (now `python -m new`) on 2026-11-16 in 3 s (Python 3, jax 1, numpy 2, Linux, CPU).\n"
    )
    assert "now" not in render("footer.md.j2", made=made, now="python -m old")
