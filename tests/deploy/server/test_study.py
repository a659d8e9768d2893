"""A study that is led from its run folder: what the folder tells, and what it must not."""

import io
import json
import re
import subprocess
import sys

import pytest
import tomli_w
from rich.console import Console

from tacit.deploy.flower import watch
from tacit.deploy.server.coordinator import Patience, StalledError, is_final, meet
from tacit.deploy.server.study import lead
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import RefusalError, Welcome, read_frame
from tacit.errors import TacitError
from tacit.privacy import Event, risk, risk_of
from tests.deploy.server.world import NAMES, SIZES
from tests.deploy.silo.consortium import SEED, led_by, make_home, records_of

SECRET = "8660953f42b6c0ffee"
COMMAND = "tacit server run led.toml --silos 4"
ROUNDS = 5


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    """The run folder of a direct study, led by a process that was given arguments of its own."""
    root, daemons = tmp_path_factory.mktemp("led"), world[0]
    algorithm = {"name": "mb-sgd", "num_rounds": ROUNDS, "step_size": 0.2, "clip_norm": 0.7, "sampling": "full"}
    privacy = {"epsilon": 1.0, "delta": 1e-6}
    tree = {"name": "led", "data": {"name": "silo"}, "algorithm": algorithm, "privacy": privacy}
    (root / "study.toml").write_text(tomli_w.dumps(tree))
    terms = {"silos": 4, "folder": str(root), "seed": SEED, "round_seconds": 60.0, "command": COMMAND, "record": True}
    (root / "deployment.toml").write_text(tomli_w.dumps({**terms, **led_by(root, *NAMES)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["leader", str(root), SECRET])
        lead(root, SocketTransport([daemon.home.socket for daemon in daemons]))
    return root


def test_no_file_of_a_run_folder_holds_what_the_leader_was_given(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {"provenance.json", "report.html", "progress.jsonl", "received.bin"} <= {path.name for path in files}
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path.name


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


class Nearby:
    """A silo in this process; ``after`` is called when it has answered so many times."""

    def __init__(self, service, after=None):
        self.service, self.after, self.asks = service, after or {}, 0

    def present(self):
        return ["silo"]

    def ask(self, requests, seconds, enough=None):
        self.asks += 1
        self.after.get(self.asks, lambda: None)()
        frames = [read_frame(io.BytesIO(raw).read) for raw in requests.get("silo", [])]
        replies = [self.service.handle(*parts) for parts in frames]
        return {"silo": [read_frame(io.BytesIO(raw).read) for raw in replies]} if replies else {}


@pytest.fixture
def manual(tmp_path):
    records = records_of(0, 40)
    changes = {"approval": {"mode": "manual"}, "allow": {"min_silos": 1}, "budget": {"epsilon": 2.0}}
    home, policy = make_home(tmp_path / "clinic", records, **changes)
    service = SiloService(policy, records, home)
    yield service
    service.close()


def prepare(root, epsilon=1.0):
    root.mkdir()
    algorithm = {"name": "mb-sgd", "num_rounds": 1, "step_size": 0.2, "clip_norm": 0.7}
    privacy = {"epsilon": epsilon, "delta": 1e-6}
    tree = {"name": "led", "data": {"name": "silo"}, "algorithm": algorithm, "privacy": privacy}
    (root / "study.toml").write_text(tomli_w.dumps(tree))
    (root / "deployment.toml").write_text(
        tomli_w.dumps({"silos": 1, "folder": str(root), "patience": 60.0, **led_by(root, "clinic")})
    )


def followed(root, monkeypatch, begin):
    """What is printed without a terminal by the command that follows a run; ``begin`` plays the leader's part."""
    monkeypatch.setattr(watch, "start", lambda folder, control: begin() or subprocess.Popen(["true"]))
    out = io.StringIO()
    try:
        watch.follow(root, root / "control.toml", Console(file=out, width=300))
    except TacitError as error:
        return out.getvalue(), str(error)
    return out.getvalue(), None


def test_without_a_terminal_a_line_says_whose_approval_is_awaited(manual, tmp_path, monkeypatch):
    root = tmp_path / "run"
    prepare(root)

    def approve():
        (study,) = manual._ledger.pending()
        manual.home.approved.mkdir()
        (manual.home.approved / study).touch()

    printed, error = followed(root, monkeypatch, lambda: lead(root, Nearby(manual, {6: approve})))
    assert error is None
    assert printed.count("waiting: silo clinic, for its owner's approval, compare ") == 1
    assert printed.index("waiting:") < printed.index("consent:") < printed.index("round:")


def test_what_would_be_refused_again_is_not_to_be_resumed(manual, tmp_path, monkeypatch):
    root = tmp_path / "run"
    prepare(root, epsilon=5.0)

    def begin():
        with pytest.raises(RefusalError):
            lead(root, Nearby(manual))

    printed, error = followed(root, monkeypatch, begin)
    assert "refusal: silo clinic, code over-budget, text Expected a study that fits the account of epsilon=2" in printed
    assert re.search(r"100\.0% is left; epsilon [\d.]+ would fit\. Asking again would end in the same way", error)
    assert "Go on with --resume" not in error


def test_what_can_be_waited_for_is_to_be_resumed(manual, tmp_path, monkeypatch):
    root = tmp_path / "run"
    prepare(root)
    (root / "deployment.toml").write_text(
        tomli_w.dumps({"silos": 1, "folder": str(root), "patience": 0.1, **led_by(root, "clinic")})
    )

    def begin():
        with pytest.raises(StalledError, match="waits for its owner's approval"):
            lead(root, Nearby(manual))

    _, error = followed(root, monkeypatch, begin)
    assert error.endswith(f". Go on with --resume {root}.")


@pytest.mark.parametrize(
    ("code", "final"), [("over-budget", True), ("bad-plan", True), ("bad-message", False), ("restored", False)]
)
def test_which_refusals_are_final(code, final):
    assert is_final(RefusalError(code, "no")) is final
    assert is_final(StalledError("no", final=final)) is final
    assert not is_final(OSError("a disk"))


def test_a_leader_that_dies_is_told_with_its_last_words(tmp_path, monkeypatch):
    def start(folder, control):
        (folder / "leader.log").write_text("Traceback ...\nMemoryError: all of it\n")
        return subprocess.Popen(["false"])

    monkeypatch.setattr(watch, "start", start)
    with pytest.raises(TacitError, match=r"has ended: MemoryError: all of it .*Go on with --resume"):
        watch.follow(tmp_path, tmp_path / "control.toml", Console(file=io.StringIO()))


class Online:
    """Nodes that each speak for a silo of some name."""

    def __init__(self, *names, late=()):
        self._names, self._late = list(names), list(late)

    def present(self):
        found = [str(i) for i in range(len(self._names))]
        self._names += self._late
        self._late = []
        return found

    def ask(self, requests, seconds, enough=None):
        facts = {
            "version": 1,
            "tacit": "0",
            "records": 5,
            "features": (3,),
            "task": "binary",
            "classes": 2,
            "noise": "on",
            "schema_digest": "0" * 64,
        }
        return {at: [(Welcome(silo=self._names[int(at)], **facts).model_dump_json().encode(), b"")] for at in requests}


def met(transport, silos, only=()):
    return sorted(meet(transport, silos, Patience(1.0, 0.5), lambda event, facts: None, only))


def test_silos_that_are_named_are_waited_for_and_others_left_alone():
    assert met(Online("a", "b", "c"), 2) == ["a", "b", "c"]
    assert met(Online("a", "b", "c"), 2, ["a", "c"]) == ["a", "c"]
    assert met(Online("a", "b", late=["c"]), 2, ["a", "c"]) == ["a", "c"]
    with pytest.raises(StalledError, match=r"Expected 2 silos, met 2: a, b; missing: d\."):
        met(Online("a", "b"), 2, ["a", "d"])


@pytest.mark.parametrize("transport", [Online("a", "b", "a"), Online("a", late=["b", "a"])])
def test_a_silo_with_two_nodes_is_told_of_and_stops_nobody(transport):
    told = []
    found = meet(transport, 2, Patience(1.0, 0.5), lambda event, facts: told.append((event, facts)))
    assert {name: at for name, (at, _) in found.items()}.keys() == {"a", "b"}
    assert found["a"][0] == "0"
    warnings = [facts["text"] for event, facts in told if event == "warning" and "Not met" not in facts["text"]]
    assert all("Two nodes speak for a," in text and "tacit server silos" in text for text in warnings)
    assert len(warnings) == 1


def test_more_silos_than_the_study_takes_are_asked_about(tmp_path, monkeypatch):
    prepare(tmp_path / "run")
    monkeypatch.setattr("tacit.deploy.server.study.SignedTransport", lambda carrier, proposer, pins: carrier)
    with pytest.raises(
        TacitError, match=r"3 silos are online, .* takes 1 of them: a, b, c\. Say which, with --only a$"
    ):
        lead(tmp_path / "run", Online("c", "b", "a"))
