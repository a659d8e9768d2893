"""``tacit consortium try`` on two folders of one's own: real processes from CSV files to predictions, and none left."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.main import get_command

from tacit.cli import app
from tacit.counting.validated import verdict
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.processes import TACIT
from tacit.deploy.consortium.trial import HOST, Trial
from tacit.deploy.silo.policy import load_policy
from tacit.errors import TacitError
from tacit.models import load_model
from tacit.objectives.installed import installed
from tests.deploy.silo.packaged import PACKAGE, forget, install

TRY = [sys.executable, "-c", "from tacit.cli import main; main()", "consortium", "try"]


def shorten(study, *changes):
    text, found = re.subn(r"num_rounds = \d+", "num_rounds = 3", study.read_text())
    assert found == 1
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    study.write_text(text)


def houses(folder, silos=3):
    """Houses of made-up towns: a regression, with a name that messages cannot carry as it is."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for town in range(silos):
        size, rooms = rng.uniform(40, 200, 60), rng.integers(1, 8, 60)
        price = 2 * size + 10 * rooms + rng.normal(0, 20, 60)
        lines = [f"{a:.1f},{b},{min(max(c, 0), 600):.1f}" for a, b, c in zip(size, rooms, price, strict=True)]
        (folder / f"town {town}.csv").write_text("\n".join(["size,rooms,price", *lines]) + "\n")
    ranges = ("size=0:250", "rooms=0:10", "price=0:600")
    words = [word for text in ranges for word in ("--range", text)]
    get_command(app).main(["init", str(folder), "--target", "price", *words], standalone_mode=False)


def left_over(root):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [command] if str(root) in command else []
    return found


def test_two_commands_lead_from_csv_files_to_predictions(tmp_path):
    pytest.importorskip("flwr")
    folder, keep = tmp_path / "own", tmp_path / "k"
    get_command(app).main(["init", str(folder), "--example", "clinics"], standalone_mode=False)
    shorten(folder / "study.toml")
    done = subprocess.run(
        [*TRY, str(folder), "--out", str(tmp_path / "runs"), "--keep", str(keep)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Stopped." in done.stdout
    assert left_over(tmp_path) == []
    [run] = (tmp_path / "runs").iterdir()
    predicts(run, folder)
    for path in folder.glob("*.csv"):
        assert len(list((keep / "homes" / path.stem / "silo" / "models").iterdir())) == 1
        assert f"{path.stem} " in done.stdout
    assert "predicts" in done.stdout
    # Validated, on a fifth of each silo's records, from an account of their own.
    told = json.loads((run / "validation.json").read_text())
    assert {silo["name"]: silo["records"] for silo in told["silos"]} == {"bergen": 260, "oslo": 180, "tromso": 120}
    assert "own-validation, 95% intervals" in done.stdout
    assert verdict(told) in " ".join(done.stdout.split())


def predicts(run, folder):
    model = load_model(run / "model")
    x, _ = model.encode(next(iter(folder.glob("*.csv"))))
    assert len(model.predictions(model.outputs(x))) == len(x) >= 60


def test_the_entry_points_of_the_compose_files_run_without_containers(tmp_path):
    pytest.importorskip("flwr")
    houses(tmp_path / "own")
    shorten(tmp_path / "own" / "study.toml")
    trial = Trial(tmp_path / "own", tmp_path / "k", ["shuffled-sum"])
    try:
        trial.start_all()
        running = {tuple(party.command[len(TACIT) :]) for party in trial.parties.values()}
        composed = [pages.containers(trial.terms, party, home)["compose.yaml"] for party, home in trial.homes.items()]
        listed = {tuple(found["command"]) for text in composed for found in yaml.safe_load(text)["services"].values()}
        # On trial the front listens on this machine only.
        assert running == {tuple(HOST if word == "0.0.0.0" else word for word in words) for words in listed}
        assert len(running) == 9
        [study] = trial.studies
        run = trial.lead(study, tmp_path / "runs", "--record")
        predicts(run, tmp_path / "own")
        assert json.loads((run / "validation.json").read_text())["channel"] == "shuffled-sum"
        assert (run / "received.bin").stat().st_size > 0
        assert (trial.homes["shuffler-b"] / "shuffler" / "received.bin").stat().st_size > 0
    finally:
        trial.stop()
    assert left_over(tmp_path) == []


def test_a_trial_that_is_told_to_end_leaves_nothing_running(tmp_path):
    pytest.importorskip("flwr")
    get_command(app).main(["init", str(tmp_path / "own"), "--example", "clinics"], standalone_mode=False)
    command = [*TRY, str(tmp_path / "own"), "--out", str(tmp_path / "runs"), "--keep", str(tmp_path / "k")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("round:"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        assert process.wait(120) == 130, "".join(said) + rest
    assert "Stopping everything." in rest
    assert left_over(tmp_path) == []


def test_a_folder_without_a_study_is_told_how_to_make_one(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    with pytest.raises(TacitError, match="tacit init"):
        Trial(tmp_path, tmp_path / "trial")
    assert not (tmp_path / "trial").exists()


def test_policies_of_a_trial_list_the_model_of_its_study(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    install(tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    forget()
    folder = tmp_path / "own"
    houses(folder, silos=2)
    text = (folder / "study.toml").read_text()
    assert text.count("[objective]") == 1
    (folder / "study.toml").write_text(
        re.sub(r"\[objective\]\n(model = .*\n)?", '[objective]\nmodel = "chest-net"\n', text)
    )
    (tmp_path / "k").mkdir()
    trial = Trial(folder, tmp_path / "k")
    here = installed("chest-net")
    for name in ("town-0", "town-1"):
        policy = load_policy(trial.homes[name] / "silo" / "policy.toml")
        assert {n: (own.version, own.digest) for n, own in policy.allow.models.items()} == {
            "chest-net": (here.version, here.digest)
        }
    assert PACKAGE not in sys.modules
    forget()
