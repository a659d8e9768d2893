"""The command as people type it: in a process of its own, and where only its words matter in this one."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tacit.__main__ import main


def tacit(*arguments: str, cwd=None, **settings: str) -> subprocess.CompletedProcess:
    code = "from tacit.__main__ import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    environment = {**os.environ, **settings}
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300, check=False)


@pytest.fixture
def here(monkeypatch, capsys):
    """The same command in this process: its exit code, and what it wrote to both streams."""

    def run(*arguments: str, **settings: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as ending:
            main()
        return ending.value.code or 0, *capsys.readouterr()

    return run


def test_run_prints_one_json_object_and_leaves_a_folder(tmp_path):
    done = tacit("run", "heart-disease", "--set", "run.seeds=1", "--set", "run.alone=false", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["silos"][0]["noise_multiplier"]["gradient"] > 1
    assert (tmp_path / found["run_dir"] / "not-private" / "report.html").is_file()


def test_plan_prints_the_documented_shape(here):
    found = json.loads(here("plan", "heart-disease", "--set", "run.seeds=1", "--json")[1])
    silo = found["silos"][0]
    common = {"name", "records", "epsilon", "delta", "epsilon_without_shuffler", "kinds", "risk", "user_level", "paper"}
    assert set(silo) == common | {"epsilon_if_more_collude"}
    assert silo["epsilon_without_shuffler"] is silo["epsilon_if_more_collude"] is None
    assert found["noise"].startswith("simulated")
    assert silo["user_level"]["epsilon"] > 50 * silo["epsilon"]
    assert 0 < silo["risk"]["advantage"] < 0.2
    assert set(silo["kinds"][0]) == {"kind", "count", "sampling", "batch", "noise_multiplier", "sigma_over_clip"}
    assert silo["paper"]["noise_ratio"] > 10
    assert 0 < silo["paper"]["epsilon_certified"] < 0.1


def test_plan_says_the_noise_of_the_mean_and_of_every_point_of_a_grid(here):
    grid = ("--set", "run.seeds=1", "--set", "run.grid.privacy.epsilon=[1,4]")
    direct = json.loads(here("plan", "heart-disease", *grid, "--json")[1])
    assert [row["point"] for row in direct["grid"]] == [{"privacy.epsilon": 1}, {"privacy.epsilon": 4}]
    assert direct["grid"][0]["noise_multiplier"][0] > 3 * direct["grid"][1]["noise_multiplier"][0] > 3
    _, shown, _ = here("plan", "heart-disease", *grid, "--set", "algorithm.channel=shuffled-sum")
    words = " ".join(shown.split())
    assert direct["sigma_of_mean_over_clip"]["gradient"] == pytest.approx(0.127, abs=0.001)
    assert "In the mean of all silos sigma/C is: gradient 0.0636." in words
    assert "the grid: noise at each of its points" in words


def test_plan_says_where_correlated_noise_gains_nothing(here):
    """With full batches; in several passes of small ones it gains, and the plan is silent."""
    terms = ("algorithm.mechanism=correlated", "run.seeds=1")
    full, passes = (), ("algorithm.sampling=one-pass", "algorithm.batch_size=10", "algorithm.passes=2")
    said = []
    for own in (full, (*passes, "algorithm.num_rounds=10")):
        code, shown, _ = here("plan", "heart-disease", *[part for one in (*terms, *own) for part in ("--set", one)])
        assert code == 0
        said.append("Correlated noise gains nothing in gradient: every record is in every" in " ".join(shown.split()))
    assert said == [True, False]


def test_plan_says_that_a_deployment_holds_nothing_out(here):
    words = " ".join(here("plan", "heart-disease", "--set", "run.seeds=1")[1].split())
    assert "a daemon trains on all records of its file, and prices them (cleveland 303, hungarian 294" in words


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("run", "hart-disease"), "did you mean 'heart-disease'"),
        (("run", "heart-disease", "--set", "privacy.epsilon=-1"), "privacy.epsilon"),
        (("run", "heart-disease", "--set", "run.participants=7"), "participants=7"),
        (("report", "nowhere"), "tacit run STUDY"),
        (("data", "hart-disease"), "heart-disease"),
        (("price", "--records", "10", "--rounds", "5", "--noise-multiplier", "-1"), "noise_multiplier"),
    ],
)
def test_mistakes_are_told_without_a_traceback(arguments, text, tmp_path, monkeypatch, here):
    monkeypatch.chdir(tmp_path)
    code, _, told = here(*arguments)
    assert code == 2
    assert text in told
    assert "Traceback" not in told
    assert not list(tmp_path.iterdir())


def test_a_mistake_ends_the_process_without_a_traceback(tmp_path):
    done = tacit("run", "hart-disease", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'heart-disease'" in done.stderr
    assert "Traceback" not in done.stderr


def test_lists_are_machine_readable(here):
    assert any(row["name"] == "mb-sgd" for row in json.loads(here("algorithms", "--json")[1]))
    assert any(row["name"] == "heart-disease" for row in json.loads(here("studies", "--json")[1]))
    assert here("--version")[1].startswith("tacit 0.")


@pytest.mark.parametrize(
    ("command", "keys"),
    [
        (("algorithms",), ("name", "paper")),
        (("studies",), ("name", "data", "algorithm")),
        (("reproduce", "--list"), ("name", "paper", "data")),
    ],
)
def test_names_and_numbers_of_papers_are_whole_in_80_columns(command, keys, here):
    _, shown, _ = here(*command, COLUMNS="80")
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    for row in json.loads(here(*command, "--json")[1]):
        assert re.search(rf"(?<!\S){re.escape(row['name'])}(?!\S)", shown), row["name"]
        for key in keys:
            assert all(word in shown.split() for word in row[key].split()), row[key]


def test_an_interruption_while_libraries_are_loaded_leaves_no_traceback(tmp_path):
    # A library that takes its time, and swallows what is raised meanwhile as some do.
    (tmp_path / "typer.py").write_text(
        "import time\nprint('loading', flush=True)\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    # A shell has Ctrl-C ignored by those whom it runs in the background, as these tests may be.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from tacit.__main__ import main; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, "studies"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "Stopped.\n")


def test_the_installed_command_is_the_one_that_is_tried_here():
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert scripts["scripts"]["tacit"] == "tacit.__main__:main"
