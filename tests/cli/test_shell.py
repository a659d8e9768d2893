"""The command in a shell: completion, -v, and names that `tacit` has."""

import os
import subprocess
import sys

import pytest

import tacit
from tacit.cli import COMMANDS


def run(*arguments, **variables):
    command = [sys.executable, "-m", "tacit", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, timeout=120)


def completed(words):
    """What bash is told to offer, as its own script asks."""
    place = str(len(words.split()) - 1)
    done = run(_TACIT_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offers"),
    [
        ("tacit pre", ["predict"]),
        ("tacit silo mo", ["models", "move"]),
        ("tacit predict --p", ["--proba"]),
        ("tacit server del", ["deliver"]),
    ],
)
def test_bash_completes_commands_and_options(words, offers):
    assert completed(words) == offers


def test_other_shells_complete_too():
    zsh = run(_TACIT_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="tacit predict --p").stdout
    assert '"--proba":"Also the probability of every class."' in zsh
    fish = {"_TYPER_COMPLETE_ARGS": "tacit ev", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert run(_TACIT_COMPLETE="complete_fish", **fish).stdout.split()[0] == "evaluate"


def test_every_command_is_offered_and_the_script_is_tacits():
    offered = run(_TACIT_COMPLETE="complete_bash", COMP_WORDS="tacit ", COMP_CWORD="1").stdout.split()
    assert offered == list(COMMANDS)
    script = run("--show-completion", "bash").stdout
    assert "_TACIT_COMPLETE=complete_bash" in script
    assert script.rstrip().endswith("complete -o default -F _tacit_completion tacit")


def test_verbose_says_what_runs_and_shows_tracebacks_wherever_it_stands():
    for words in (("-v", "algorithms", "--json"), ("algorithms", "--json", "--verbose")):
        done = run(*words)
        assert done.returncode == 0
        assert done.stdout.startswith("[{")
        assert f"tacit {tacit.__version__} from " in done.stderr
        assert " MiB of memory" in done.stderr
    wrong = ("plan", "nowhere.toml")
    plain, told = run(*wrong), run(*wrong, "-v")
    assert (plain.returncode, told.returncode) == (2, 2)
    assert "Traceback" not in plain.stderr
    assert "Traceback" in told.stderr
    assert told.stderr.rstrip().endswith(plain.stderr.strip())


def test_dir_lists_what_people_type_and_all_of_it_is_there():
    names = dir(tacit)
    assert {"fit", "load_model", "mb_sgd", "Budget", "data", "objectives", "privacy"} <= set(names)
    assert not [name for name in names if name.startswith("_") and name != "__version__"]
    assert all(getattr(tacit, name) is not None for name in names)
    code = "import tacit; print(len(tacit.data.load('heart-disease').silos), tacit.objectives.logistic().name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "logistic"]


WITHOUT_POSIX = """
import sys
for name in ("fcntl", "pwd", "grp", "resource", "termios"):
    sys.modules[name] = None
sys.argv = ["tacit", *sys.argv[1:]]
from tacit.__main__ import main
main()
"""
"""The command on a system that lacks what Windows lacks."""


def test_training_and_predicting_need_nothing_that_windows_lacks_and_serving_says_so(tmp_path):
    def without(*arguments):
        command = [sys.executable, "-W", "ignore", "-c", WITHOUT_POSIX, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)

    quick = ("--set", "run.seeds=1", "--set", "run.alone=false", "--set", "algorithm.num_rounds=3")
    assert without("init", "--example", "clinics").returncode == 0
    done = without("run", "clinics/study.toml", "--model", "model", *quick)
    assert done.returncode == 0, done.stderr
    done = without("predict", "model", "clinics/new/new.csv", "-v")
    assert done.stdout.startswith("prediction\n"), done.stderr
    refused = without("silo", "status", "clinics")
    assert refused.returncode == 2
    assert "need file locks and users of Linux or macOS" in refused.stderr
    assert "Traceback" not in refused.stderr
