"""A study that is led from its run folder: what the folder tells, and what it must not."""

import json
import sys

import pytest
import tomli_w

from tacit.privacy import Event, risk, risk_of
from tacit.runtime.server.lead import lead
from tacit.runtime.server.transport import SocketTransport
from tests.daemon.consortium import SEED
from tests.server.world import SIZES

TOKEN = "8660953f42b6c0ffee"
COMMAND = "tacit server run led.toml --silos 4"
ROUNDS = 5


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """The run folder of a direct study, led by a process with the arguments of a child of Flower's."""
    root, daemons = tmp_path_factory.mktemp("led"), world[0]
    algorithm = {"name": "mb-sgd", "num_rounds": ROUNDS, "step_size": 0.2, "clip_norm": 0.7, "sampling": "full"}
    privacy = {"epsilon": 1.0, "delta": 1e-6}
    tree = {"name": "led", "data": {"name": "silo"}, "algorithm": algorithm, "privacy": privacy}
    (root / "study.toml").write_text(tomli_w.dumps(tree))
    terms = {"silos": 4, "folder": str(root), "seed": SEED, "round_seconds": 60.0, "command": COMMAND, "record": True}
    (root / "deployment.toml").write_text(tomli_w.dumps(terms))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["flwr-serverapp", "--runtime-api-address", "127.0.0.1:19092", "--token", TOKEN])
        lead(root, SocketTransport([daemon.home.socket for daemon in daemons]))
    return root


def test_no_file_of_a_run_folder_holds_what_flower_gave_its_child(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"provenance.json", "report.html", "progress.jsonl", "received.bin"} <= {path.name for path in files}
    for path in files:
        assert TOKEN.encode() not in path.read_bytes(), path.name
        assert b"--token" not in path.read_bytes(), path.name


def test_the_report_names_the_command_that_the_user_typed(folder):
    assert json.loads((folder / "provenance.json").read_text())["command"] == COMMAND
    assert COMMAND in (folder / "report.html").read_text()


def test_the_reading_of_a_deployed_run_is_that_of_its_schedule(folder):
    rows = json.loads((folder / "result.json").read_text())["silos"]
    for row, records in zip(rows, SIZES, strict=True):
        (noise,) = row["noise_multiplier"].values()
        event = Event(kind="g", noise_multiplier=noise, count=ROUNDS, records=records, batch=records, sampling="full")
        expected = risk_of([event])
        assert row["risk"]["advantage"] == pytest.approx(expected.advantage, rel=1e-3)
        assert row["risk"]["tpr_at_1pct_fpr"] == pytest.approx(expected.tpr_at_1pct_fpr, rel=1e-3)
        # What epsilon and delta alone allow is far more; a report that fell back to it would contradict the price.
        assert row["risk"]["advantage"] < risk(epsilon=row["epsilon"], delta=row["delta"]).advantage / 2
    worst = (1 + max(row["risk"]["advantage"] for row in rows)) / 2
    assert f"{100 * worst:.1f}%" in (folder / "report.html").read_text()
