"""A ledger that was copied, moved or lost never spends a budget twice."""

import shutil
import sys
import time

import jax
import pytest
import tomli_w
import typer
from typer.testing import CliRunner

from tacit.cli import moving
from tacit.cli.books import account_of
from tacit.cli.silo import silo_app
from tacit.cli.status import status_of
from tacit.deploy.signing import Proposer, Signer, digest_of, new_signing_key, opened_reply
from tacit.deploy.silo.policy import PolicyError, load_policy
from tacit.deploy.silo.service import SiloService, home_of
from tacit.deploy.wire import Finish, Hello, Propose, RefusalError, unframed
from tacit.errors import TacitError
from tacit.silo import chain, lost
from tacit.silo.ledger import Ledger, inspect
from tacit.silo.spending import LedgerError
from tests.deploy.silo.consortium import PROPOSER, LocalClient, make_home, plan_of, policy_tree, records_of
from tests.deploy.silo.test_service import LOCAL, MB, RECORDS, Silo

app = typer.Typer()
app.add_typer(silo_app)
BUDGET = {"epsilon": 2.0, "delta": 1e-5}


def run(*words):
    found = CliRunner().invoke(app, ["silo", *map(str, words)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def edit(folder, **changes):
    text = tomli_w.dumps(policy_tree(**{"name": folder.name, **changes}))
    (folder / "policy.toml").write_text(text, encoding="utf-8")


def reopened(folder):
    policy = load_policy(folder / "policy.toml")
    return SiloService(policy, RECORDS, home_of(folder, policy))


class Timely(Silo):
    """A silo whose clock is that of the commands."""

    def open(self):
        self.time = time.time()
        super().open()


def used(folder):
    """A silo that has answered once, with the study still open."""
    silo = Timely(folder, budget=BUDGET)
    silo.propose(MB)
    silo.answer(MB, 0)
    silo.service.close()
    return silo


def copied(silo, to, *, counter=True):
    """A copy of a silo's folder, and of its counter."""
    shutil.copytree(silo.home.folder, to, ignore=shutil.ignore_patterns("*.lock", "door"))
    place = to.parent / "apart" / f"counter-{to.name}"
    place.parent.mkdir(exist_ok=True, mode=0o700)
    edit(to, budget=BUDGET, counter=f"../apart/{place.name}")
    if counter:
        shutil.copy(silo.home.counter, place)
    return to


def refused(code, folder):
    with pytest.raises(LedgerError) as caught:
        reopened(folder)
    assert caught.value.code == code, caught.value
    return str(caught.value)


def test_a_copied_folder_with_its_counter_does_not_serve_beside_the_first(tmp_path):
    silo = used(tmp_path / "clinic")
    twin = copied(silo, tmp_path / "twin")
    assert "tacit silo move" in refused("moved", twin)
    # With the machine's own secret beside it as well.
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    other = copied(silo, tmp_path / "elsewhere" / "clinic")
    shutil.copy(silo.home.machine, tmp_path / "elsewhere" / "apart" / "machine")
    refused("moved", other)
    silo.open()
    silo.answer(MB, 1)
    silo.service.close()


def test_the_same_path_on_another_machine_is_another_place(tmp_path, monkeypatch):
    silo = used(tmp_path / "clinic")
    (tmp_path / "machine-id").write_text("another\n")
    monkeypatch.setattr(chain, "MACHINE_ID", tmp_path / "machine-id")
    refused("moved", silo.home.folder)
    monkeypatch.undo()
    # Or one that has the same id, as clones of an image have, but not the secret.
    silo.home.machine.unlink()
    refused("moved", silo.home.folder)


def test_a_silo_moves_and_the_place_that_it_left_is_shut(tmp_path):
    silo = used(tmp_path / "clinic")
    there = copied(silo, tmp_path / "there", counter=False)
    place, line = run("place", there).split("\n")[:2]
    assert "counter-there" in line
    assert place == run("place", there).split("\n")[0] != run("place", silo.home.folder).split("\n")[0]
    with pytest.raises(TacitError, match="--here"):
        run("move", silo.home.folder, there)
    # Copied too early: the ledger over there is not the newest.
    early = there / "ledger.sqlite"
    assert f"bound to {place}" in run("move", silo.home.folder, place).replace("\n", " ")
    refused("moved", silo.home.folder)
    shutil.copy(silo.home.counter, tmp_path / "apart" / "counter-there")
    refused("restored", there)
    shutil.copy(silo.home.ledger, early)
    service = reopened(there)
    client = LocalClient(service)
    client._silo = "there"
    assert client.ask(Propose(plan=MB))[0].next_round == 1
    service.close()
    moved = next(entry for entry in inspect(early) if entry.kind == "move").data
    assert (moved["place"], moved["vouched"]) == (place, False)
    assert moved["who"]
    with pytest.raises(LedgerError, match="bound to another machine"):
        run("move", silo.home.folder, place)


def test_an_owner_may_vouch_for_a_place_where_the_old_machine_is_gone(tmp_path):
    silo = used(tmp_path / "clinic")
    silo.home.machine.unlink()
    refused("moved", silo.home.folder)
    assert "Never serve another copy" in run("move", silo.home.folder, "--here")
    reopened(silo.home.folder).close()
    assert inspect(silo.home.ledger)[-1].data["vouched"] is True
    # Nobody can vouch for a ledger that has forgotten something.
    copy = silo.home.ledger.read_bytes()
    silo.open()
    silo.answer(MB, 1)
    silo.service.close()
    silo.home.ledger.write_bytes(copy)
    with pytest.raises(LedgerError, match="restored from a backup"):
        run("move", silo.home.folder, "--here")


def test_a_place_must_be_one(tmp_path):
    silo = used(tmp_path / "clinic")
    for words in ((), ("nonsense",), ("0" * 32, "--here")):
        with pytest.raises(TacitError, match=r"Expected (the PLACE|a place)"):
            run("move", silo.home.folder, *words)
    silo.home.ledger.unlink()
    with pytest.raises(TacitError, match="nothing to move"):
        run("move", silo.home.folder, "0" * 32)


def test_a_ledger_of_an_earlier_version_is_bound_when_it_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("tacit.deploy.silo.service.place_of", lambda *_: None)
    silo = used(tmp_path / "clinic")
    assert "place" not in inspect(silo.home.ledger)[0].data
    monkeypatch.undo()
    reopened(silo.home.folder).close()
    assert inspect(silo.home.ledger)[-1].kind == "move"
    refused("moved", copied(silo, tmp_path / "twin"))


@pytest.mark.parametrize("left", ["a backup", "nothing", "a ruin"])
def test_a_lost_ledger_is_written_off_whole(tmp_path, left):
    silo = used(tmp_path / "clinic")
    folder, backup = silo.home.folder, silo.home.ledger.read_bytes()
    silo.open()
    silo.answer(MB, 1)
    silo.service.close()
    silo.home.ledger.unlink()
    if left != "nothing":
        silo.home.ledger.write_bytes(backup if left == "a backup" else b"ruin" * 1000)
    said = " ".join(run("write-off", folder, "--yes").split())
    assert "epsilon 2 at delta 1e-05" in said
    assert "raise budget.epsilon and budget.delta" in said
    # Under the old budget, or with only one of the two raised, nothing is served.
    for budget in ({}, {"epsilon": 3.0}, {"delta": 2e-5}):
        edit(folder, budget={**BUDGET, **budget})
        assert "whole budget counts as spent: epsilon 2 at delta 1e-05" in refused("written-off", folder)
        assert account_of(folder)["account"]["left_share"] == 0.0
    edit(folder, budget={"epsilon": 3.0, "delta": 2e-5})
    service = reopened(folder)
    rule = service._ledger.rule
    assert (rule.epsilon, rule.delta) == (pytest.approx(1.0), pytest.approx(1e-5))
    with pytest.raises(RefusalError, match="Expected a study that fits the account of epsilon=1 "):
        LocalClient(service).ask(Propose(plan=plan_of({"name": "mb-sgd"}, epsilon=1.5)))
    small = plan_of({"name": "mb-sgd"}, epsilon=0.5)
    assert LocalClient(service).ask(Propose(plan=small))[0].state == "consented"
    service.close()
    account = account_of(folder)["account"]
    assert account["written_off"] == {"epsilon": 2.0, "delta": 1e-5}
    assert account["promised_epsilon"] == pytest.approx(3.0)
    # What was written off stays so, and lowering the budget to it shuts the silo again.
    edit(folder, budget=BUDGET)
    refused("written-off", folder)


def test_what_was_approved_is_not_and_what_was_revoked_is_at_a_new_ledger(tmp_path):
    silo = Timely(tmp_path / "clinic", budget=BUDGET, approval={"mode": "manual"})
    folder, other = silo.home.folder, MB.model_copy(update={"nonce": "07"})
    assert silo.propose(LOCAL).state == "pending"
    assert silo.propose(MB).state == "pending"
    run("approve", folder, LOCAL.study)
    run("revoke", folder, MB.study)
    assert silo.propose(LOCAL).state == "consented"
    silo.refused("revoked", Propose(plan=other))
    silo.service.close()
    for epsilon in (4.0, 8.0):
        run("write-off", folder, "--yes")
        edit(folder, budget={"epsilon": epsilon, "delta": 1e-5 * epsilon}, approval={"mode": "manual"})
        service = reopened(folder)
        client = LocalClient(service)
        assert client.ask(Propose(plan=LOCAL))[0].state == "pending"
        with pytest.raises(RefusalError, match="revoked"):
            client.ask(Propose(plan=other))
        service.close()
    assert not list(silo.home.approved.iterdir())


def test_what_was_set_aside_never_trains_under_a_new_ledger_either(tmp_path):
    data = {"validation": 0.2}
    silo = Timely(tmp_path / "clinic", budget=BUDGET, data=data)
    folder, split = silo.home.folder, silo.service._opened().notes.split
    silo.service.close()
    for epsilon in (4.0, 8.0):
        run("write-off", folder, "--yes")
        edit(folder, budget={"epsilon": epsilon, "delta": 1e-5 * epsilon}, data=data)
        service = reopened(folder)
        assert service._opened().notes.split == split
        service.close()
    assert [entry.kind for entry in inspect(silo.home.ledger)].count("pools") == 0


def test_a_second_loss_adds_to_the_first(tmp_path):
    silo = used(tmp_path / "clinic")
    folder = silo.home.folder
    run("write-off", folder, "--yes", "--epsilon", "2.5")
    edit(folder, budget={"epsilon": 4.0, "delta": 2e-5})
    service = reopened(folder)
    LocalClient(service).ask(Propose(plan=LOCAL))
    service.close()
    edit(folder, budget={"epsilon": 3.0, "delta": 2e-5})
    # The ledger has had 2.5 + 1.5 by now, whatever the policy says today.
    assert "epsilon 4 at delta 2e-05" in " ".join(run("write-off", folder, "--yes").split())


def snapshots(of, to, work):
    """Copies of a folder as a power cut would leave it: one before each line of `tacit.silo.lost` that runs."""
    made, before = [], sys.gettrace()

    def trace(frame, event, arg):
        if frame.f_code.co_filename != lost.__file__:
            return None
        if event == "line":
            made.append(to / str(len(made)))
            shutil.copytree(of, made[-1], ignore=shutil.ignore_patterns("*.lock"))
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return made


@pytest.mark.parametrize("left", ["all", "no counter", "a backup", "nothing"])
def test_a_write_off_that_is_cut_off_anywhere_gives_no_budget_back(tmp_path, left):
    here = tmp_path / "here"
    silo = Timely(here / "clinic", budget=BUDGET)
    silo.propose(MB)
    silo.service._ledger._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    backup = silo.home.ledger.read_bytes()
    silo.answer(MB, 0)
    spent = silo.service._ledger.spent()
    silo.service.close()
    folder, home, limit = silo.home.folder, silo.home, silo.policy.limit
    if left == "no counter":
        home.counter.unlink()
    if left == "nothing":
        home.ledger.unlink()
    if left == "a backup":
        home.ledger.write_bytes(backup)
    loss = moving.loss_of(folder, None, None)
    states, made = set(), snapshots(here, tmp_path, lambda: moving.write_off(folder, loss))
    for snapshot in made:
        shutil.rmtree(here)
        shutil.copytree(snapshot, here)
        try:
            ledger = Ledger(home.ledger, home.counter, {}, limit)
        except LedgerError as error:
            states.add(error.code)
        else:
            # Nothing has happened yet: it is all there.
            states.add("as it was")
            assert left == "all"
            assert ledger.spent() == spent
            ledger.close()
        # Run again, it is written off after all.
        assert moving.loss_of(folder, None, None)["epsilon"] == loss["epsilon"] == 2.0
        moving.write_off(folder, moving.loss_of(folder, None, None))
        with pytest.raises(LedgerError, match="whole budget counts as spent: epsilon 2 at"):
            Ledger(home.ledger, home.counter, {}, limit)
    assert len(made) > 20
    assert states <= {"as it was", "restored", "counter", "written-off"}
    assert states >= {"restored"} | ({"as it was"} if left == "all" else set())


def test_a_ledger_begins_at_zero_only_where_nothing_was_written_off(tmp_path):
    silo = used(tmp_path / "clinic")
    run("write-off", silo.home.folder, "--yes")
    silo.home.ledger.unlink()
    silo.home.counter.unlink()
    assert "Run: tacit silo write-off" in refused("restored", silo.home.folder)
    with pytest.raises(LedgerError, match="Run: tacit silo write-off"):
        status_of(silo.home.folder)
    # The ledger before is still there to look at, and says what it has had.
    edit(silo.home.folder, budget={"epsilon": 0.5, "delta": 1e-6})
    assert "epsilon 2 at delta 1e-05" in " ".join(run("write-off", silo.home.folder, "--yes").split())


@pytest.mark.parametrize("again", [False, True])
def test_a_lowered_policy_does_not_make_a_write_off_smaller(tmp_path, again):
    silo = used(tmp_path / "clinic")
    folder = silo.home.folder
    if again:
        run("write-off", folder, "--yes")
        edit(folder, budget={"epsilon": 5.0, "delta": 3e-5})
        service = reopened(folder)
        LocalClient(service).ask(Propose(plan=MB))
        service.close()
    silo.policy = load_policy(folder / "policy.toml")
    most = silo.policy.budget
    silo.open()
    edit(folder, budget={"epsilon": most.epsilon - 1.5, "delta": most.delta})
    silo.client.ask(Hello())
    silo.service.close()
    # The ledger is lost, with what it says; the counter is apart.
    for path in folder.glob("ledger.sqlite*"):
        path.unlink()
    assert f"epsilon {most.epsilon:g} at delta {most.delta:g}" in " ".join(run("write-off", folder, "--yes").split())


def test_a_running_silo_is_not_written_off_and_a_doubt_changes_nothing(tmp_path):
    silo = used(tmp_path / "clinic")
    silo.open()
    with pytest.raises(LedgerError, match="one ledger has one daemon"):
        run("write-off", silo.home.folder, "--yes")
    silo.service.close()
    found = CliRunner().invoke(app, ["silo", "write-off", str(silo.home.folder)], input="n\n")
    assert found.exit_code != 0
    silo.open()
    silo.answer(MB, 1)
    silo.service.close()


def test_a_policy_that_is_lowered_to_what_was_written_off_stops_a_running_silo(tmp_path):
    silo = used(tmp_path / "clinic")
    folder = silo.home.folder
    run("write-off", folder, "--yes")
    edit(folder, budget={"epsilon": 4.0, "delta": 2e-5})
    service = reopened(folder)
    client = LocalClient(service)
    client.ask(Propose(plan=MB))
    edit(folder, budget=BUDGET)
    with pytest.raises(RefusalError) as caught:
        client.ask(Finish(study=MB.study))
    assert caught.value.code == "policy"
    service.close()


def test_a_silo_s_key_is_replaced(tmp_path):
    silo = used(tmp_path / "clinic")
    path = silo.home.folder / "sign.key"
    old = Signer(path.read_bytes()).public
    path.rename(path.with_name("sign.key.old"))
    new = run("keys", silo.home.folder).split()[1]
    assert new != old
    silo.open()
    raw = PROPOSER.request(Hello(), silo="clinic")
    reply = unframed(silo.service.handle(*unframed(raw)))
    assert opened_reply(*reply, request=digest_of(*unframed(raw)), silos={"clinic": new})[0] == "clinic"
    with pytest.raises(RefusalError, match="has not signed"):
        opened_reply(*reply, request=digest_of(*unframed(raw)), silos={"clinic": old})
    silo.answer(MB, 1)
    silo.service.close()


def test_a_proposer_s_key_is_replaced_while_a_study_runs(tmp_path):
    silo = used(tmp_path / "clinic")
    silo.open()
    new = Proposer(PROPOSER.name, Signer(new_signing_key()))
    edit(silo.home.folder, budget=BUDGET, proposers={PROPOSER.name: new.signer.public})
    silo.refused("signature", *silo.ask(MB, 1))
    silo.client._proposer = new
    silo.answer(MB, 1)
    silo.service.close()


@pytest.mark.parametrize("name", ["jax_debug_nans", "jax_debug_infs"])
def test_a_silo_does_not_serve_where_errors_would_tell_of_records(tmp_path, name):
    home, policy = make_home(tmp_path / "clinic", records_of(0, 20))
    jax.config.update(name, True)
    try:
        with pytest.raises(PolicyError, match="unset them to serve"):
            SiloService(policy, records_of(0, 20), home)
    finally:
        jax.config.update(name, False)
    SiloService(policy, records_of(0, 20), home).close()
