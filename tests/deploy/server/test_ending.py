"""A study that cannot go on is ended at every silo; one that can is left open, and `abort` ends it."""

import io
import json
import time
import tomllib

import pytest
import tomli_w
from rich.console import Console

from tacit.deploy.flower import watch
from tacit.deploy.permissions import read_secret, write_secret
from tacit.deploy.server import ending, study
from tacit.deploy.server.coordinator import StalledError
from tacit.deploy.server.deployment import check_proposer, led, locked
from tacit.deploy.server.ending import abort
from tacit.deploy.server.study import lead
from tacit.deploy.signing import Signer, new_signing_key
from tacit.deploy.silo.owner import decide
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import RefusalError, read_frame
from tacit.errors import TacitError
from tacit.plans.spec import StudyError
from tacit.stopping import ToldInterrupt
from tests.deploy.silo.consortium import led_by, make_home, records_of

NAMES = ("a", "b", "c")
ROUNDS = 3


class Room:
    """Silos in this process, but for those ``away``; ``before`` is called with the number of each ask."""

    def __init__(self, services):
        self.services, self.asks, self.before, self.away = services, 0, lambda number: None, set()

    def present(self):
        return [name for name in self.services if name not in self.away]

    def ask(self, requests, seconds, enough=None):
        self.asks += 1
        self.before(self.asks)
        found = {}
        for name, frames in requests.items():
            if name not in self.away:
                replies = [self.services[name].handle(*read_frame(io.BytesIO(raw).read)) for raw in frames]
                found[name] = [read_frame(io.BytesIO(raw).read) for raw in replies]
        return found


@pytest.fixture
def room(tmp_path):
    services = {}
    for number, name in enumerate(NAMES):
        records = records_of(number, 40)
        # The last one has little left to give.
        changes = {"allow": {"max_open": 4}, "budget": {"epsilon": 2.0 if name == "c" else 30.0}}
        home, policy = make_home(tmp_path / name, records, **changes)
        services[name] = SiloService(policy, records, home)
    yield Room(services)
    for service in services.values():
        service.close()


def prepare(root, epsilon=1.0, **terms):
    root.mkdir()
    algorithm = {"name": "mb-sgd", "num_rounds": ROUNDS, "step_size": 0.2, "clip_norm": 0.7}
    tree = {"name": "led", "data": {"name": "silo"}, "algorithm": algorithm}
    (root / "study.toml").write_text(tomli_w.dumps({**tree, "privacy": {"epsilon": epsilon, "delta": 1e-6}}))
    usual = {"silos": 3, "folder": str(root), "patience": 60.0, "round_seconds": 5.0}
    (root / "deployment.toml").write_text(tomli_w.dumps({**usual, **terms, **led_by(root, *NAMES)}))
    return root


def live(room):
    return {
        name: sum(account.live for account in service._ledger.accounts.values())
        for name, service in room.services.items()
    }


def journal(root, event):
    rows = [json.loads(line) for line in (root / "progress.jsonl").read_text().splitlines()]
    return [row for row in rows if row["event"] == event]


def test_many_refused_runs_in_a_row_leave_no_place_taken(room, tmp_path):
    """One silo refuses, the others have consented: today's failure must not lock them for a month."""
    for number in range(6):
        root = prepare(tmp_path / f"run{number}", epsilon=5.0)
        with pytest.raises(RefusalError, match="c refuses"):
            lead(root, room)
        assert set(live(room).values()) == {0}
        (row,) = journal(root, "ended")
        assert row["unreached"] == []
        assert row["silos"]["a"] == row["silos"]["b"] == "ended after 0 answers, epsilon 0"
        assert row["silos"]["c"].startswith("not open")
        assert journal(root, "failed")[0]["final"] is True
    assert not room.services["a"]._ledger.charged


def test_a_silo_that_refuses_in_the_middle_ends_the_study_everywhere(room, tmp_path):
    root = prepare(tmp_path / "run")

    def close(number):
        account = next(iter(room.services["b"]._ledger.accounts.items()), None)
        if account is not None and account[1].answers == 1:
            decided = room.services["b"].home.decided
            decided.mkdir(exist_ok=True)
            (decided / f"{account[0]}.revoke").touch()

    room.before = close
    with pytest.raises(StalledError, match="revoked"):
        lead(root, room)
    assert set(live(room).values()) == {0}
    assert journal(root, "ended")[0]["silos"]["a"].startswith("ended after 2 answers")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("a bug"), SystemExit])
def test_what_stops_a_run_before_its_first_round_ends_it_everywhere(room, tmp_path, monkeypatch, error):
    root = prepare(tmp_path / "run")
    monkeypatch.setattr(study.Coordinator, "_play", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(error if isinstance(error, type) else type(error)):
        lead(root, room)
    assert set(live(room).values()) == {0}
    monkeypatch.undo()
    with pytest.raises(StudyError, match="was ended at its silos; start it anew"):
        lead(root, room)


def test_an_interrupt_after_a_round_leaves_a_run_that_can_go_on_or_be_aborted(room, tmp_path):
    root = prepare(tmp_path / "run")

    def interrupt(number):
        if any(account.answers == 2 for account in room.services["a"]._ledger.accounts.values()):
            room.before = lambda number: None
            raise KeyboardInterrupt

    room.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        lead(root, room)
    assert set(live(room).values()) == {1}
    assert journal(root, "failed")[0] | {"time": ""} == {
        "time": "",
        "event": "failed",
        "text": "interrupted",
        "final": False,
    }
    said = abort(root, room)
    assert set(live(room).values()) == {0}
    assert all(text.startswith("ended after 2 answers") for text in said.values())
    # It may be said again, and the run is over.
    assert abort(root, room) == said
    with pytest.raises(StudyError, match="was ended"):
        lead(root, room)


def test_a_run_that_waits_for_silos_stays_open_and_goes_on(room, tmp_path):
    root = prepare(tmp_path / "run", patience=0.5, round_seconds=0.2)

    def leave(number):
        if any(account.answers for account in room.services["a"]._ledger.accounts.values()):
            room.away = {"b"}

    room.before = leave
    with pytest.raises(StalledError, match="needs 3 silos"):
        lead(root, room)
    assert set(live(room).values()) == {1}
    room.before, room.away = lambda number: None, set()
    lead(root, room)
    assert len(journal(root, "round")) == ROUNDS
    assert set(live(room).values()) == {0}


def stall(room, root):
    """Lead until silo a has answered, when b leaves for good."""

    def leave(number):
        if any(account.answers for account in room.services["a"]._ledger.accounts.values()):
            room.away = {"b"}

    room.before = leave
    with pytest.raises(StalledError):
        lead(root, room)


def test_silos_that_are_away_when_a_run_is_aborted_are_named(room, tmp_path, monkeypatch):
    root = prepare(tmp_path / "run", patience=0.5, round_seconds=0.2)
    room.away = set()

    stall(room, root)
    monkeypatch.setattr(ending.end_everywhere, "__defaults__", (None, 1.0))
    begun = time.monotonic()
    said = abort(root, room)
    assert time.monotonic() - begun < 5.0
    assert live(room) == {"a": 0, "b": 1, "c": 0}
    assert said["b"].startswith("not reached")
    assert journal(root, "ended")[0]["unreached"] == ["b"]
    room.before, room.away = lambda number: None, set()
    assert abort(root, room)["b"].startswith("ended after")
    assert set(live(room).values()) == {0}


def test_a_folder_without_a_proposed_study_cannot_be_aborted(room, tmp_path):
    with pytest.raises(TacitError, match="nothing to end"):
        abort(prepare(tmp_path / "run"), room)


@pytest.mark.parametrize(("final", "told"), [(True, "ended at its silos: start"), (False, "or end it with: tacit")])
def test_who_interrupts_a_run_is_told_what_became_of_it(tmp_path, monkeypatch, final, told):
    class Leader:
        stdin = None

        def poll(self):
            return None

        def terminate(self):
            ending.journal(tmp_path, "failed", {"text": "interrupted", "final": final})

        def wait(self, seconds=None):
            return 0

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "start", lambda folder, control: Leader())
    out = io.StringIO()
    with pytest.raises(ToldInterrupt):
        watch.follow(tmp_path, tmp_path, Console(file=out, width=300), interrupt)
    assert told in out.getvalue()
    assert ("--resume" in out.getvalue().split("Stopped")[1].replace("without --resume", "")) is not final


def test_an_end_that_silos_refuse_is_told_and_leaves_a_run_that_can_go_on(room, tmp_path, monkeypatch):
    """Another proposer's key ends nothing: the study is open, and its own proposer goes on."""
    root = prepare(tmp_path / "run", patience=0.5, round_seconds=0.2)

    stall(room, root)
    room.before, room.away = lambda number: None, set()
    usual = (root / "deployment.toml").read_text()
    for name in ("a", "b", "c"):
        _admit(room.services[name], "stranger", root / "stranger.key")
    tree = tomllib.loads(usual) | {"proposer": "stranger", "key": str(root / "stranger.key")}
    (root / "deployment.toml").write_text(tomli_w.dumps(tree))
    begun = time.monotonic()
    said = abort(root, room)
    assert time.monotonic() - begun < 30.0
    assert all(text.startswith("refused, and still open there (proposer") for text in said.values())
    assert set(live(room).values()) == {1}
    assert not journal(root, "ended")
    assert set(journal(root, "not-ended")[0]["refused"]) == set(NAMES)
    with pytest.raises(TacitError, match="proposed by stranger"):
        check_proposer(root, "tester")
    (root / "deployment.toml").write_text(usual)
    lead(root, room)
    assert len(journal(root, "round")) == ROUNDS


def _admit(service, name, key):
    """Let one more proposer in."""
    if not key.exists():
        write_secret(key, new_signing_key())
    path = service.home.folder / "policy.toml"
    tree = tomllib.loads(path.read_text())
    tree["proposers"][name] = Signer(read_secret(key)).public
    path.write_text(tomli_w.dumps(tree))


def test_a_run_folder_is_led_by_one_command_at_a_time(tmp_path):
    with locked(tmp_path) as make_room:
        with pytest.raises(TacitError, match="is in use"), locked(tmp_path):
            pass
        make_room()
        with led(tmp_path), pytest.raises(TacitError, match="is in use"), locked(tmp_path):
            pass
    # The command may have died before its leader.
    with led(tmp_path), pytest.raises(TacitError, match="is in use"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_leader_holds_its_run_folder(room, tmp_path):
    root, seen = prepare(tmp_path / "run"), []

    def look(number):
        with pytest.raises(TacitError, match="is in use"), locked(root):
            pass
        seen.append(number)

    room.before = look
    lead(root, room)
    assert seen
    with locked(root):
        pass


def test_who_has_not_consented_is_said_in_words_and_nobody_else(room, tmp_path):
    """One silo consents late: its reason of before is not told any more."""
    root = prepare(tmp_path / "run", patience=3.0, round_seconds=0.2)
    for name in ("a", "b"):
        path = room.services[name].home.folder / "policy.toml"
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"approval": {"mode": "manual"}}))

    def approve(number):
        for waiting in room.services["a"]._ledger.pending():
            decide(room.services["a"].home.approved, waiting, "approve")

    room.before = approve
    with pytest.raises(StalledError) as caught:
        lead(root, room)
    assert str(caught.value) == "Expected the consent of 3 silos, got 2; b: waits for its owner's approval."


def test_who_is_not_met_is_told_at_once_and_why_that_may_be(room, tmp_path):
    root = prepare(tmp_path / "run", patience=0.5, round_seconds=0.2)
    room.away = {"b"}
    tree = tomllib.loads((root / "deployment.toml").read_text())
    del tree["pins"]["c"]
    (root / "deployment.toml").write_text(tomli_w.dumps(tree))
    with pytest.raises(StalledError, match="Not met: b; at 1 more node online no pinned silo") as caught:
        lead(root, room)
    assert "met 1: a" in str(caught.value)
    assert "Not met: b" in journal(root, "warning")[0]["text"]
