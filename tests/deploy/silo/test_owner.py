"""What an owner decides counts with the next request, whether the daemon runs or not, and is in the ledger's chain."""

import hashlib
import os
import sqlite3

import pytest
import tomli_w
import typer
from typer.testing import CliRunner

from tacit.cli.silo import silo_app
from tacit.cli.status import approve, end, status_of, waiting_study
from tacit.deploy.server import coordinator
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.silo import owner
from tacit.deploy.silo.consent import terms_of
from tacit.deploy.silo.owner import decide, differences, myself
from tacit.deploy.silo.policy import PolicyError, policy_from
from tacit.deploy.wire import Answer, Finish, Hello, Propose, RefusalError, Status, parse_response, parse_signed_reply
from tacit.errors import TacitError
from tacit.privacy import price
from tacit.silo.door import DoorError
from tacit.silo.ledger import inspect, refusals
from tests.deploy.silo.consortium import (
    PROPOSER,
    Daemon,
    LocalClient,
    broadcast_of,
    fork_server,
    make_home,
    plan_of,
    policy_tree,
)
from tests.deploy.silo.test_service import DAY, LOCAL, MB, POISSON, RECORDS, Silo

OTHER = Proposer("other", Signer(hashlib.sha256(b"other").digest()))


@pytest.fixture
def make(tmp_path):
    made = []

    def one(**changes):
        made.append(Silo(tmp_path / f"silo{len(made)}", **changes))
        return made[-1]

    yield one
    for silo in made:
        silo.service.close()


def edit(silo, **changes):
    """Write the silo's policy anew, as its owner would."""
    path = silo.home.folder / "policy.toml"
    path.write_text(tomli_w.dumps(policy_tree(**{"name": silo.home.folder.name, **changes})), encoding="utf-8")


def kinds(silo):
    return [entry.kind for entry in inspect(silo.home.ledger)]


def newest(silo, kind):
    return [entry for entry in inspect(silo.home.ledger) if entry.kind == kind][-1].data


def test_a_rejected_proposal_is_refused_and_makes_room(make):
    silo = make(approval={"mode": "manual"}, allow={"max_open": 1})
    silo.propose(MB)
    silo.refused("busy", Propose(plan=LOCAL))
    end(silo.home.folder, MB.study[:8], "reject")
    assert silo.propose(LOCAL).state == "pending"
    for request in (Propose(plan=MB), Status(study=MB.study), Finish(study=MB.study)):
        silo.refused("rejected", request)
    silo.refused("rejected", *silo.ask(MB, 0))
    # Approving it afterwards brings nothing back.
    decide(silo.home.approved, MB.study, "approve")
    silo.refused("rejected", Propose(plan=MB))
    silo.reopen()
    silo.refused("rejected", Propose(plan=MB))
    entry = newest(silo, "refuse")
    assert (entry["reason"], entry["who"], entry["name"]) == ("rejected", myself(), "test")
    assert not list(silo.home.decided.iterdir())
    end(silo.home.folder, LOCAL.study, "reject")
    assert silo.propose(MB.model_copy(update={"nonce": "01"})).state == "pending"


def test_a_closed_study_answers_nothing_more_and_gives_back_what_it_did_not_use(make):
    silo = make(budget={"epsilon": 1.05, "delta": 1e-6, "rule": "gdp"})
    silo.propose(MB)
    silo.answer(MB, 0)
    before = silo.service._ledger.charged
    end(silo.home.folder, "test", "close")
    silo.refused("closed", *silo.ask(MB, 1))
    # Not even what was answered before: the books have forgotten it.
    silo.refused("closed", *silo.ask(MB, 0))
    silo.refused("closed", Propose(plan=MB))
    assert silo.service._ledger.charged == silo.service._ledger.spent() < before
    receipt = silo.client.ask(Finish(study=MB.study))[0]
    assert receipt.answers == 1
    assert silo.client.ask(Status(study=MB.study))[0].state == "finished"
    entry = newest(silo, "close")
    assert (entry["reason"], entry["who"], entry["answers"]) == ("closed", myself(), 1)


def test_what_is_revoked_is_refused_under_any_name_and_after_a_restart(make):
    silo = make()
    silo.propose(MB)
    silo.answer(MB, 0)
    end(silo.home.folder, MB.study, "revoke")
    silo.refused("revoked", *silo.ask(MB, 1))
    copies = [MB.model_copy(update=change) for change in ({"nonce": "07"}, {"name": "another"})]
    for plan in (MB, *copies):
        silo.refused("revoked", Propose(plan=plan))
    silo.reopen()
    for plan in (MB, *copies):
        silo.refused("revoked", Propose(plan=plan))
    assert silo.propose(LOCAL).state == "consented"


def test_a_decision_that_is_being_written_is_not_taken_by_halves(make, monkeypatch):
    """The proposer withdraws his plan, and asks again at the moment at which the owner revokes it."""
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    silo.refused("unknown-study", Finish(study=MB.study))
    monkeypatch.setattr(owner, "myself", lambda: silo.client.ask(Hello())[0].silo)
    decide(silo.home.decided, MB.study, "revoke", terms_of(MB))
    silo.refused("revoked", Propose(plan=MB.model_copy(update={"nonce": "07"})))
    assert not list(silo.home.decided.iterdir())
    assert not [path for path in silo.home.folder.iterdir() if path.name.endswith(".new")]


def test_an_approval_is_withdrawn_before_it_became_a_consent(make):
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    approve(silo.home.folder, MB.study)
    end(silo.home.folder, MB.study, "revoke")
    silo.refused("revoked", *silo.ask(MB, 0))
    assert not silo.service._ledger.accounts


def test_a_finished_study_can_be_revoked_for_the_future(make):
    silo = make()
    silo.propose(MB)
    silo.client.ask(Finish(study=MB.study))
    end(silo.home.folder, MB.study, "revoke")
    silo.refused("revoked", Propose(plan=MB.model_copy(update={"nonce": "07"})))


@pytest.mark.parametrize("verb", ["close", "revoke"])
def test_a_decision_counts_when_the_daemon_did_not_run(make, verb):
    silo = make()
    silo.propose(MB)
    silo.service.close()
    end(silo.home.folder, MB.study, verb)
    assert "close" not in kinds(silo)
    assert status_of(silo.home.folder)["decided"] == [f"{MB.study}.{verb}"]
    silo.open()
    assert status_of(silo.home.folder)["decided"] == []
    assert kinds(silo)[-1] == "close"
    assert not silo.service._ledger.accounts[MB.study].live
    # A crash between the entry and the end of its file makes no second entry.
    length = len(kinds(silo))
    decide(silo.home.decided, MB.study, verb)
    silo.client.ask(Hello())
    assert len(kinds(silo)) == length


def test_a_decision_about_a_study_that_is_gone_still_counts_and_nonsense_does_not(make, caplog):
    silo = make()
    decide(silo.home.decided, MB.study, "revoke")
    silo.refused("revoked", Propose(plan=MB))
    (silo.home.decided / "nonsense.close").touch()
    (silo.home.decided / f"{LOCAL.study}.forget").touch()
    silo.propose(LOCAL)
    assert caplog.text.count("is no decision about a study") == 2
    assert not list(silo.home.decided.iterdir())


def test_a_study_is_named_by_identity_beginning_or_name_but_never_two(make):
    silo = make()
    twin = MB.model_copy(update={"nonce": "01"})
    for plan in (MB, twin):
        silo.propose(plan)
    with pytest.raises(TacitError, match="2 studies of this silo fit 'test'"):
        end(silo.home.folder, "test", "close")
    with pytest.raises(TacitError, match="no study of this silo fit"):
        end(silo.home.folder, "0" * 64, "close")
    with pytest.raises(TacitError, match="is open; close or revoke it"):
        end(silo.home.folder, MB.study, "reject")
    end(silo.home.folder, MB.study, "close")
    silo.refused("closed", Propose(plan=MB))
    # Now the name means the one that is left.
    assert end(silo.home.folder, "test", "close")["study"] == twin.study


def test_a_study_is_its_proposers_alone(make):
    keys = {OTHER.name: OTHER.signer.public}
    silo = make(proposers=keys, approval={"mode": "manual"})
    mine, other = silo.client, LocalClient(silo.service)
    other._proposer = OTHER

    def everything_is_refused():
        silo.client = other
        for request in (Propose(plan=MB), Status(study=MB.study), Finish(study=MB.study)):
            silo.refused("proposer", request)
        silo.refused("proposer", *silo.ask(MB, 0))
        silo.client = mine

    silo.propose(MB)
    everything_is_refused()
    assert list(silo.service._ledger.pending()) == [MB.study]
    approve(silo.home.folder, MB.study)
    everything_is_refused()
    silo.answer(MB, 0)
    everything_is_refused()
    silo.reopen()
    mine, other.service = silo.client, silo.service
    everything_is_refused()
    assert silo.service._ledger.accounts[MB.study].live
    entry = newest(silo, "reserve")
    assert (entry["proposer"], entry["approved"]["who"]) == ("tester", myself())
    silo.client.ask(Finish(study=MB.study))
    assert newest(silo, "close")["who"] == "tester"


def asked_by(proposer, silo, request, payload=b""):
    """The reply to another proposer: its kind, or the code of a refusal."""
    client = LocalClient(silo.service)
    client._proposer = proposer
    try:
        return client.ask(request, payload)[0].type
    except RefusalError as refusal:
        return refusal.code


def test_nobody_proposes_anothers_plan_before_he_does_or_by_an_approval_that_he_was_given(make):
    silo = make(proposers={OTHER.name: OTHER.signer.public}, approval={"mode": "manual"})
    assert asked_by(OTHER, silo, Propose(plan=MB)) == "proposer"
    assert asked_by(OTHER, silo, Propose(plan=MB.model_copy(update={"proposer": None}))) == "proposer"
    assert silo.propose(MB).state == "pending"
    approve(silo.home.folder, MB.study)
    silo.refused("unknown-study", Finish(study=MB.study))
    # The proposal is gone, and so is the approval, for him and for others.
    assert not list(silo.home.approved.iterdir())
    assert asked_by(OTHER, silo, Propose(plan=MB)) == "proposer"
    twin = MB.model_copy(update={"proposer": OTHER.name})
    assert asked_by(OTHER, silo, Propose(plan=twin)) == "consent"
    assert silo.propose(MB).state == "pending"
    assert twin.study != MB.study
    assert asked_by(OTHER, silo, *silo.ask(twin, 0)) == "pending"
    assert {row["study"]: row["proposer"] for row in status_of(silo.home.folder)["pending"]} == {
        MB.study: "tester",
        twin.study: "other",
    }
    approve(silo.home.folder, MB.study)
    silo.answer(MB, 0)
    assert asked_by(OTHER, silo, *silo.ask(twin, 0)) == "pending"


def test_an_approval_goes_with_a_proposal_whose_time_is_up(make):
    silo = make(approval={"mode": "manual", "study_days": 1.0})
    silo.propose(MB)
    approve(silo.home.folder, MB.study)
    silo.time += 2 * DAY
    silo.refused("unknown-study", Status(study=MB.study))
    assert silo.propose(MB).state == "pending"


def test_what_is_revoked_is_refused_in_any_order_of_keys_and_at_any_place(make):
    silo = make()
    plan = plan_of({"name": "mb-sgd", "step_size": 2.0})
    silo.propose(plan)
    end(silo.home.folder, plan.study, "revoke")
    copies = (
        {"algorithm": dict(reversed(plan.algorithm.items()))},
        {"algorithm": {**plan.algorithm, "step_size": 2}},
        {"algorithm": {**plan.algorithm, "batch_size": None}},
        {"silo_index": 1},
        {"name": "another", "nonce": "07", "silo_index": 2},
    )
    for change in copies:
        twin = plan.model_copy(update=change)
        assert twin.study != plan.study
        silo.refused("revoked", Propose(plan=twin))
    assert silo.propose(plan.model_copy(update={"epsilon": 0.9})).state == "consented"


def test_what_was_revoked_stays_so_though_the_proposal_was_withdrawn_meanwhile(make, monkeypatch):
    """The proposer takes it back between the owner's look at it and the owner's word."""
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    written = []
    monkeypatch.setattr("tacit.cli.status.decide", lambda *words: written.append(words))
    end(silo.home.folder, MB.study, "revoke")
    silo.refused("unknown-study", Finish(study=MB.study))
    decide(*written[0])
    silo.refused("revoked", Propose(plan=MB.model_copy(update={"nonce": "ff"})))
    assert newest(silo, "refuse")["who"] == myself()


def test_hours_hold_for_the_clock_even_if_it_was_ahead_before(make):
    silo = make(allow={"hours": ["08:00-18:00"]})
    midnight = 1e9 - 1e9 % DAY + DAY
    silo.time = midnight + 3 * DAY + 12 * 3600.0
    silo.propose(MB)
    silo.time = midnight + 23 * 3600.0
    silo.refused("hours", *silo.ask(MB, 0))
    silo.time = midnight + DAY + 9 * 3600.0
    silo.answer(MB, 0)


def test_after_the_policy_has_expired_a_study_can_still_be_ended_and_nothing_else(make):
    silo = make(approval={"mode": "manual"})
    for plan in (MB, LOCAL, POISSON):
        silo.propose(plan)
    approve(silo.home.folder, MB.study)
    silo.answer(MB, 0)
    approve(silo.home.folder, LOCAL.study)
    edit(silo, approval={"mode": "manual"}, expires="2001-01-01")
    silo.refused("expired", *silo.ask(MB, 1))
    silo.refused("expired", Propose(plan=LOCAL))
    # An approval that comes too late reserves nothing.
    assert silo.client.ask(Status(study=LOCAL.study))[0].state == "pending"
    silo.refused("expired", *silo.ask(LOCAL, 0))
    assert list(silo.service._ledger.accounts) == [MB.study]
    assert silo.client.ask(Status(study=MB.study))[0].next_round == 1
    assert silo.client.ask(Finish(study=MB.study))[0].answers == 1
    silo.refused("unknown-study", Finish(study=POISSON.study))
    silo.time += 60 * DAY
    silo.refused("unknown-study", Status(study=LOCAL.study))
    assert not silo.service._ledger.pending()


def test_the_policy_bounds_the_epsilon_of_a_study(make):
    silo = make(allow={"max_epsilon_per_study": 0.5})
    refusal = silo.refused("not-allowed", Propose(plan=MB))
    assert refusal.numbers == {"epsilon": 1.0, "limit": 0.5}
    assert silo.propose(plan_of({"name": "mb-sgd"}, epsilon=0.5)).state == "consented"


def test_a_large_delta_does_not_pass_the_bound_on_epsilon(make):
    """At a delta of 0.09 an epsilon of 0.5 pays for releases that cost six times as much at the account's."""
    silo = make(budget={"epsilon": 4.0, "delta": 1e-6}, allow={"max_epsilon_per_study": 0.5})
    for delta in (0.09, 1.01e-6):
        refusal = silo.refused("not-allowed", Propose(plan=plan_of({"name": "mb-sgd"}, epsilon=0.5, delta=delta)))
        assert refusal.numbers == {"delta": delta, "limit": 1e-6}
    for nonce, delta in (("01", 1e-6), ("02", 1e-8)):
        plan = plan_of({"name": "mb-sgd"}, epsilon=0.5, delta=delta, nonce=nonce)
        silo.propose(plan)
        assert price(silo.service._ledger.accounts[plan.study].events, delta=1e-6).epsilon <= 0.5


def test_a_proposal_that_was_withdrawn_is_not_brought_back_by_a_courier(make):
    silo = make(approval={"mode": "manual"}, allow={"max_open": 1})
    to = {"silo": silo.policy.name, "ledger": silo.service._ledger.identity}
    # Nothing is greeted afterwards: the proposal stays the newest request that is about no known study.
    silo.client._ledger = to["ledger"]
    tape = PROPOSER.request(Propose(plan=MB), **to)
    silo.client.exchange(tape)
    approve(silo.home.folder, MB.study)
    silo.refused("unknown-study", Finish(study=MB.study))
    for raw in (tape, PROPOSER.request(Status(study=MB.study), **to, counter=1)):
        reply = parse_response(parse_signed_reply(silo.client.exchange(raw)[0]).reply.encode())
        assert reply.code == "replayed"
        assert kinds(silo) == ["open"]
        assert not silo.service._ledger.pending()
    assert silo.propose(LOCAL).state == "pending"


def test_nothing_is_answered_outside_the_hours(make):
    silo = make(allow={"hours": ["08:00-12:00", "22:00-02:00"]})
    midnight = 1e9 - 1e9 % DAY + DAY
    silo.time = midnight + 3 * 3600.0
    silo.propose(MB)
    for hour, is_open in ((3, False), (8, True), (11.99, True), (12, False), (21.9, False), (22, True), (25.9, True)):
        silo.time = midnight + hour * 3600.0
        if is_open:
            silo.answer(MB, silo.client.ask(Status(study=MB.study))[0].next_round)
        else:
            assert "08:00-12:00, 22:00-02:00 UTC" in str(silo.refused("hours", *silo.ask(MB, 0)))
    silo.time = midnight + 27 * 3600.0
    assert silo.client.ask(Finish(study=MB.study))[0].answers == 4


@pytest.mark.parametrize("hours", [["8:00-18:00"], ["08:00-08:00"], ["25:00-26:00"], ["08:00-24:30"], [], ["now"]])
def test_hours_that_mean_nothing_are_refused(hours):
    with pytest.raises(PolicyError, match=r"allow\.hours"):
        policy_from(policy_tree("a", allow={"hours": hours}))


TIGHTER = {
    "fewer algorithms": ("not-allowed", {"allow": {"algorithms": ["local-sgd"]}}),
    "more silos": ("not-allowed", {"allow": {"min_silos": 5}}),
    "a smaller study": ("not-allowed", {"allow": {"max_epsilon_per_study": 0.5}}),
    "other batches": ("not-allowed", {"allow": {"sampling": ["poisson"]}}),
    "a smaller budget": ("over-budget", {"budget": {"epsilon": 0.5}}),
    "no hours": ("hours", {"allow": {"hours": ["00:00-00:01"]}}),
    "another proposer": ("proposer", {"proposers": {"tester": OTHER.signer.public, "other": OTHER.signer.public}}),
    "an end": ("expired", {"expires": "2001-01-01"}),
}


@pytest.mark.parametrize("way", TIGHTER)
def test_a_policy_that_is_tightened_while_a_study_runs_stops_the_next_answer(make, way):
    code, changes = TIGHTER[way]
    silo = make()
    silo.propose(MB)
    silo.answer(MB, 0)
    if way == "another proposer":
        tree = policy_tree(silo.home.folder.name)
        tree["proposers"] = {"other": OTHER.signer.public}
        (silo.home.folder / "policy.toml").write_text(tomli_w.dumps(tree))
    else:
        edit(silo, **changes)
    silo.refused(code, *silo.ask(MB, 1))
    entry = newest(silo, "policy")
    assert entry["changed"]
    assert entry["who"]
    silo.reopen()
    length = len(kinds(silo))
    edit(silo)
    silo.answer(MB, 1)
    assert len(kinds(silo)) > length


def test_a_change_of_the_policy_is_an_entry_in_words(make):
    silo = make()
    silo.propose(MB)
    edit(silo, budget={"epsilon": 12.5}, allow={"max_rounds": 50})
    silo.answer(MB, 0)
    assert kinds(silo)[-3:] == ["rule", "policy", "debit"]
    assert newest(silo, "policy")["changed"] == ["allow.max_rounds: 10000 -> 50", "budget.epsilon: 30 -> 12.5"]
    assert silo.service._ledger.rule.epsilon == 12.5
    # A comment changes nothing, and a change that was made while the daemon was away is found at its start.
    path = silo.home.folder / "policy.toml"
    path.write_text(path.read_text() + "# a comment\n")
    silo.answer(MB, 1)
    assert kinds(silo)[-1] == "debit"
    silo.policy = policy_from(policy_tree(silo.home.folder.name, allow={"max_open": 2}))
    silo.reopen()
    assert "allow.max_open: 4 -> 2" in newest(silo, "policy")["changed"]


BROKEN = {
    "no TOML": "name = ",
    "an unknown key": "surprise = 1\n",
    "nothing": "",
    "a rule that the ledger does not have": None,
}


@pytest.mark.parametrize("way", BROKEN)
def test_while_the_policy_cannot_be_used_everything_is_refused(make, caplog, way):
    silo = make()
    silo.propose(MB)
    path = silo.home.folder / "policy.toml"
    usual, length = path.read_text(), len(kinds(silo))
    if BROKEN[way] is None:
        edit(silo, budget={"rule": "gdp"})
    else:
        path.write_text(BROKEN[way] + (usual if BROKEN[way] else ""))
    for request in (Hello(), Propose(plan=LOCAL), Status(study=MB.study), Finish(study=MB.study)):
        refusal = silo.refused("policy", request)
        assert "gdp" not in str(refusal)
    silo.refused("policy", *silo.ask(MB, 0))
    assert caplog.text.count("everything is refused, because the policy cannot take effect") == 1
    assert len(kinds(silo)) == length
    path.write_text(usual)
    silo.answer(MB, 0)


@pytest.mark.parametrize("entry", ["policy", "rule"])
def test_a_policy_that_is_taken_back_before_its_entry_is_made_never_counts(make, entry):
    """The ledger cannot be written while the owner loosens the policy by mistake, and can when that is mended."""
    silo = make(allow={"max_epsilon_per_study": 0.1}, approval={"mode": "manual"})
    path = silo.home.folder / "policy.toml"
    tight, length = path.read_bytes(), len(kinds(silo))
    silo.refused("not-allowed", Propose(plan=MB))
    # It waits for others less long than it would.
    silo.service._ledger._database.execute("PRAGMA busy_timeout = 100")
    backup = sqlite3.connect(silo.home.ledger, isolation_level=None)
    backup.execute("BEGIN IMMEDIATE")
    edit(silo, **({"budget": {"epsilon": 35.0}} if entry == "rule" else {}))
    silo.refused("ledger", Propose(plan=MB))
    path.write_bytes(tight)
    silo.refused("ledger", Hello())
    backup.execute("ROLLBACK")
    backup.close()
    silo.refused("not-allowed", Propose(plan=MB))
    assert silo.service.policy.approval.mode == "manual"
    assert silo.service._ledger.rule.epsilon == 30.0
    assert len(kinds(silo)) == length
    edit(silo)
    assert silo.propose(MB).state == "consented"


def test_a_policy_that_others_may_write_by_now_answers_nothing(make, caplog):
    """Its words have not changed, but whose they are cannot be told any more."""
    silo = make()
    silo.propose(MB)
    path = silo.home.folder / "policy.toml"
    for mode in (0o620, 0o666, 0o604):
        path.chmod(mode)
        silo.refused("policy", *silo.ask(MB, 0))
    assert f"chmod 600 {path}" in caplog.text
    path.chmod(0o600)
    silo.answer(MB, 0)


def test_a_policy_that_others_can_write_does_not_take_effect(make):
    silo = make()
    silo.propose(MB)
    edit(silo, budget={"epsilon": 35.0})
    (silo.home.folder / "policy.toml").chmod(0o660)
    silo.refused("policy", *silo.ask(MB, 0))
    (silo.home.folder / "policy.toml").chmod(0o600)
    silo.answer(MB, 0)


@pytest.mark.parametrize(
    "change", [{"name": "b"}, {"data": {"file": "others.npz"}}, {"key": "k"}, {"counter": "c"}, {"test": True}]
)
def test_what_cannot_change_while_the_daemon_runs_needs_a_restart(make, caplog, change):
    silo = make()
    silo.propose(MB)
    edit(silo, **change)
    silo.refused("policy", *silo.ask(MB, 0))
    assert "restart needed" in caplog.text


def test_differences_are_told_field_by_field():
    before, after = {"a": {"b": 1.0, "c": ["x"]}, "d": None}, {"a": {"b": 2.5, "c": ["x", "y"]}, "d": None, "e": True}
    assert differences(before, after) == ["a.b: 1 -> 2.5", "a.c: [x] -> [x, y]", "e: nothing -> True"]


def test_refusals_are_counted_by_code_and_proposer(make):
    silo = make()
    for _ in range(3):
        silo.refused("unknown-study", *silo.ask(MB, 0))
    stranger = LocalClient(silo.service)
    stranger._proposer = OTHER
    silo.client, usual = stranger, silo.client
    silo.refused("proposer", Hello())
    silo.client = usual
    silo.reopen()
    found = {(row["code"], row["proposer"]): row["count"] for row in refusals(silo.home.ledger)}
    assert found == {("unknown-study", "tester"): 3, ("proposer", ""): 1}
    ledger = silo.service._ledger
    for day in range(1200):
        silo.time += DAY / 10
        ledger.count_refusals({(f"code{day}", ""): 1})
    assert len(refusals(silo.home.ledger)) == 1000
    assert refusals(silo.home.ledger)[0]["code"] == "code1199"


def test_a_study_ends_even_if_its_receipt_cannot_be_priced(make, monkeypatch, caplog):
    silo = make()
    silo.propose(POISSON)
    silo.answer(POISSON, 0)

    def fail(*args, **kwargs):
        raise FloatingPointError

    monkeypatch.setattr("tacit.deploy.silo.service.price", fail)
    receipt = silo.client.ask(Finish(study=POISSON.study))[0]
    # What was answered was reserved under the plan's own epsilon.
    assert (receipt.epsilon, receipt.answers) == (POISSON.epsilon, 1)
    assert not silo.service._ledger.accounts[POISSON.study].live
    assert "cannot be priced" in caplog.text


def test_who_decides_is_told_even_behind_sudo(monkeypatch):
    name = myself()
    monkeypatch.setenv("SUDO_USER", "anna")
    assert myself() == f"anna as {name}"
    monkeypatch.setattr(os, "geteuid", lambda: 987_654)
    assert myself() == "anna as user 987654"


def test_a_daemon_obeys_its_owner_with_the_next_request(tmp_path):
    """Over the socket, with the commands that an owner types."""
    folder = tmp_path / "clinic"
    make_home(folder, RECORDS)
    app = typer.Typer()
    app.add_typer(silo_app)

    def run(*words):
        found = CliRunner().invoke(app, ["silo", *map(str, words)], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return " ".join(found.output.split())

    daemon = Daemon(folder, fork_server())
    client = daemon.client(60.0)
    try:
        specs, payload = broadcast_of(MB)
        client.ask(Propose(plan=MB))
        client.ask(Answer(study=MB.study, round=0, arrays=specs), payload)
        (folder / "policy.toml").write_text(tomli_w.dumps(policy_tree("clinic", allow={"max_epsilon_per_study": 0.5})))
        with pytest.raises(RefusalError, match=r"epsilon at most 0\.5, got 1"):
            client.ask(Answer(study=MB.study, round=1, arrays=specs), payload)
        (folder / "policy.toml").write_text(tomli_w.dumps(policy_tree("clinic")))
        client.ask(Answer(study=MB.study, round=1, arrays=specs), payload)
        assert "from its next request on" in run("close", folder, "test")
        with pytest.raises(RefusalError, match="owner has closed this study"):
            client.ask(Answer(study=MB.study, round=2, arrays=specs), payload)
    finally:
        client.close()
        daemon.stop()
    assert [entry.kind for entry in inspect(folder / "ledger.sqlite")] == [
        *("open", "reserve", "debit", "policy", "policy", "debit", "close")
    ]
    assert "does not run" in run("revoke", folder, MB.study[:10])


def test_whoever_does_not_own_the_folder_is_told_as_whom_to_decide(make, monkeypatch):
    """Root could write there, but the daemon could not read it."""
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    own = silo.home.folder.stat().st_uid
    monkeypatch.setattr("os.geteuid", lambda: own + 1)
    for decision in (lambda: approve(silo.home.folder, MB.study), lambda: end(silo.home.folder, MB.study, "reject")):
        with pytest.raises(TacitError, match=r"runuser -u|setpriv --reuid"):
            decision()
    assert not silo.home.approved.exists()
    assert not silo.home.decided.exists()


def test_a_file_that_the_daemon_cannot_read_is_named_once(make, monkeypatch, caplog):
    silo = make(approval={"mode": "manual"})

    def shut(self, study):
        raise PermissionError(13, "Permission denied", str(self.home.approved / study))

    monkeypatch.setattr("tacit.deploy.silo.service.SiloService._is_approved", shut)
    for _ in range(3):
        refusal = silo.refused("unable", Propose(plan=MB))
    assert str(silo.home.approved) not in str(refusal)
    assert caplog.text.count(f"PermissionError at {silo.home.approved}") == 1
    monkeypatch.undo()
    assert silo.propose(MB).state == "pending"


def test_what_a_door_cannot_release_is_refused_for_good(make, monkeypatch):
    silo = make()
    silo.propose(MB)

    def fail(*args, **kwargs):
        raise DoorError("no such release")

    monkeypatch.setattr("tacit.deploy.silo.answering.Worker.answer", fail)
    silo.refused("unable", *silo.ask(MB, 0))
    assert "unable" in coordinator._FINAL & coordinator._MENDABLE


def test_status_says_that_an_approved_study_waits_for_the_server(make):
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    folder = str(silo.home.folder)
    waits = CliRunner().invoke(silo_app, ["status", folder]).output
    assert "test waits for approval" in waits
    assert f"approve {folder}" in waits.replace("\n", "")
    # A name or a beginning could be that of another plan by now, so it is shown first.
    asked = CliRunner().invoke(silo_app, ["approve", folder, "test"], input="n\n").output
    assert f"approve {folder} {MB.study}" in asked
    assert silo.propose(MB).state == "pending"
    told = CliRunner().invoke(silo_app, ["approve", folder, MB.study[:8]], input="y\n").output
    assert f"Approved test ({MB.study}), which tester proposes" in told
    after = CliRunner().invoke(silo_app, ["status", folder]).output
    assert "test is approved; it waits for the server" in after
    assert "waits for approval" not in after
    assert silo.propose(MB).state == "consented"


def test_an_open_study_is_closed_although_a_proposal_has_its_name(make):
    silo = make()
    silo.propose(MB)
    edit(silo, approval={"mode": "manual"})
    twin = MB.model_copy(update={"nonce": "07"})
    assert silo.propose(twin).state == "pending"
    assert waiting_study(silo.home.folder, "test")["study"] == twin.study
    assert end(silo.home.folder, "test", "close")["study"] == MB.study


def test_status_shows_the_rest_although_the_policy_cannot_be_used(make):
    silo = make()
    silo.propose(MB)
    path = silo.home.folder / "policy.toml"
    path.write_text("name = \n")
    shown = CliRunner().invoke(silo_app, ["status", str(silo.home.folder)]).output
    assert "cannot be used" in shown
    assert str(path) in shown.replace("\n", "")
    assert MB.study[:16] in shown


def test_a_proposal_that_is_withdrawn_is_no_refusal_in_the_log(make, caplog):
    caplog.set_level("INFO", logger="tacit.silo")
    silo = make(approval={"mode": "manual"})
    silo.propose(MB)
    silo.refused("unknown-study", Finish(study=MB.study))
    assert [record.levelname for record in caplog.records if "withdrawn" in record.message] == ["INFO"]
    assert MB.study not in silo.service._ledger.pending()
    # The end that is asked for again is that of a study that is not known.
    silo.refused("unknown-study", Finish(study=MB.study))
