"""The contract: priced by the silo, consented by its owner, then only the next round, once, for the stored reply."""

import json
import logging
import math
import os
import re
import sqlite3

import numpy as np
import pytest
import tomli_w

from tacit.deploy.listener import MOST_IN_AN_HOUR, RefusalLog
from tacit.deploy.silo import service
from tacit.deploy.silo.answering import Worker, remembered
from tacit.deploy.silo.policy import PolicyError, load_policy, load_records, policy_from
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, Finish, Hello, Propose, RefusalError, Status, read_arrays
from tacit.privacy import gdp_epsilon, price
from tacit.privacy.filter import cost, rule_for
from tacit.privacy.strategy import correlated
from tacit.silo.chain import Counter, WrittenOff, entry_after
from tacit.silo.spending import LedgerError
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, policy_tree, records_of, said

RECORDS = records_of(0, 40)
DAY = 86_400.0


class Silo:
    """A steward in this process, whose clock can be set."""

    def __init__(self, folder, records=RECORDS, **changes):
        self.home, self.policy = make_home(folder, records, **changes)
        self.time, self.records = 1e9, records
        self.open()

    def open(self):
        self.service = SiloService(self.policy, self.records, self.home, clock=lambda: self.time)
        self.client = LocalClient(self.service)

    def reopen(self):
        self.service.close()
        self.open()

    def refused(self, code, request, payload=b""):
        with pytest.raises(RefusalError) as caught:
            self.client.ask(request, payload)
        assert caught.value.code == code, caught.value
        return caught.value

    def propose(self, plan):
        return self.client.ask(Propose(plan=plan))[0]

    def ask(self, plan, number, value=0.0):
        specs, payload = broadcast_of(plan, value)
        return Answer(study=plan.study, round=number, arrays=specs), payload

    def answer(self, plan, number, value=0.0):
        response, body = self.client.ask(*self.ask(plan, number, value))
        return read_arrays(response.arrays, body)


@pytest.fixture
def make(tmp_path):
    made = []

    def one(records=RECORDS, **changes):
        silo = Silo(tmp_path / f"silo{len(made)}", records, **changes)
        made.append(silo)
        return silo

    yield one
    for silo in made:
        silo.service.close()


MB = plan_of({"name": "mb-sgd"})
LOCAL = plan_of({"name": "local-sgd", "local_steps": 2, "num_rounds": 2})
POISSON = plan_of({"name": "mb-sgd", "batch_size": 8})


def test_hello_tells_public_facts_only(make):
    silo = make()
    facts = silo.client.ask(Hello())[0]
    assert (facts.records, facts.features, facts.classes, facts.noise) == (40, (5,), 2, "discrete-gaussian")
    silo.refused("version", Hello(version=1))


def test_a_study_from_proposal_to_receipt(make):
    silo = make()
    consent = silo.propose(MB)
    assert consent.state == "consented"
    assert 0.99 < consent.epsilon <= 1.0
    found = [silo.answer(MB, number) for number in range(4)]
    assert all(np.isfinite(leaf).all() for leaves in found for leaf in leaves)
    receipt = silo.client.ask(Finish(study=MB.study))[0]
    assert receipt.answers == 4
    assert receipt.epsilon == pytest.approx(consent.epsilon)
    assert silo.client.ask(Finish(study=MB.study))[0] == receipt
    assert silo.client.ask(Status(study=MB.study))[0].state == "finished"
    silo.refused("finished", *silo.ask(MB, 3))
    silo.refused("finished", Propose(plan=MB))


def test_noise_is_as_large_as_priced_and_fresh(make):
    """The gradient at zero is bounded by the clip; what leaves has the noise of the consented multiplier."""
    plan = plan_of({"name": "mb-sgd", "num_rounds": 30})
    silo = make()
    z = silo.propose(plan).noise_multipliers["gradient"]
    drawn = np.array([np.concatenate([leaf.ravel() for leaf in silo.answer(plan, r)]) for r in range(30)])
    sigma = z * 2 * 0.7 / 40
    assert 0.75 < (drawn - drawn.mean(axis=0)).std() / sigma < 1.25
    assert len(np.unique(drawn, axis=0)) == len(drawn)


def test_no_noise_is_kept_beside_what_it_hides(make):
    """A running sum needs its noise again; whoever reads the ledger must not find that of any other release."""
    for algorithm, kept in (({"name": "mb-sgd"}, False), ({"name": "mu2-sgd"}, True)):
        silo, plan = make(), plan_of(algorithm)
        silo.propose(plan)
        silo.answer(plan, 0)
        state = remembered(silo.service._opened().state(plan.study))
        assert bool(state.noise) == kept


def test_noise_is_drawn_for_rounds_that_were_not_answered(make):
    """A server that leaves rounds out must not bring the passes of a record closer together than they are priced."""
    terms = {"sampling": "one-pass", "batch_size": 10, "num_rounds": 8, "passes": 2}
    remembers = len(correlated(8, 4).weights)
    assert remembers == 3
    silo, plan = make(), plan_of({"name": "dp-ftrl", **terms}, everyone=False)
    silo.propose(plan)
    for number, drawn in ((0, 1), (4, 5), (7, 8)):
        silo.answer(plan, number)
        state = remembered(silo.service._opened().state(plan.study))
        assert state.drawn == {"gradient": drawn}
        assert all(buffers.shape[0] == remembers for buffers in state.noise["gradient"].values())


@pytest.mark.parametrize(("passes", "vectors"), [(1, 5), (10, 3)])
def test_what_is_kept_of_noise_does_not_grow_with_the_rounds(make, passes, vectors):
    """Five buffers in one pass, a vector less than a pass has batches in ten."""
    terms = {"sampling": "one-pass", "batch_size": 10, "num_rounds": 4 * passes, "passes": passes}
    silo, plan = make(), plan_of({"name": "dp-ftrl", **terms})
    silo.propose(plan)
    sizes = []
    for number in range(4):
        silo.answer(plan, number)
        state = remembered(silo.service._opened().state(plan.study))
        kept = state.noise["gradient"].values()
        assert all((buffers.shape[0], buffers.dtype) == (vectors, np.int64) for buffers in kept)
        assert sum(buffers.shape[1] for buffers in kept) == 6
        sizes.append(len(state.to_bytes()))
    assert len(set(sizes)) == 1


def test_noise_that_could_not_be_remembered_exactly_is_refused_before_it_is_reserved(make):
    terms = {"sampling": "one-pass", "batch_size": 1, "num_rounds": 1000}
    silo = make(records_of(0, 1000))
    refusal = silo.refused("bad-plan", Propose(plan=plan_of({"name": "dp-ftrl", **terms}, epsilon=0.005)))
    assert "must fit 64 bits" in str(refusal)
    assert not silo.service._opened().accounts


def test_poisson_batches_are_priced_alike_at_every_place(make):
    """The physical limit of a batch follows from the silo's own records, wherever it sits."""
    consents = [make().propose(POISSON.model_copy(update={"silo_index": i})) for i in range(2)]
    assert consents[0].epsilon == consents[1].epsilon > 0


def test_a_repeated_request_gets_the_stored_reply(make):
    silo = make()
    silo.propose(MB)
    request, payload = silo.ask(MB, 0)
    first = silo.client.ask(request, payload)
    assert silo.client.ask(request, payload) == first
    silo.reopen()
    assert silo.client.ask(request, payload) == first
    silo.answer(MB, 1)
    assert silo.client.ask(request, payload) == first
    assert silo.client.ask(Status(study=MB.study))[0].answers == 2
    silo.refused("answered", *silo.ask(MB, 0, 1.0))


@pytest.mark.parametrize(
    "allow",
    [{"algorithms": ["local-sgd"]}, {"max_epsilon_per_study": 0.5}, {"sampling": ["poisson"]}, {"min_silos": 9}],
    ids=str,
)
def test_what_the_policy_no_longer_allows_leaves_no_more_though_it_was_debited(make, allow):
    """A courier holds a reply back until the owner has tightened the policy, and then asks for it again."""
    silo = make()
    silo.propose(MB)
    request, payload = silo.ask(MB, 0)
    first = silo.client.ask(request, payload)
    path = silo.home.folder / "policy.toml"
    before = path.read_text()
    path.write_text(tomli_w.dumps(policy_tree(silo.home.folder.name, allow=allow)))
    silo.refused("not-allowed", request, payload)
    path.write_text(before)
    assert silo.client.ask(request, payload) == first
    assert silo.client.ask(Status(study=MB.study))[0].answers == 1


def test_only_the_next_round_is_answered(make):
    silo = make()
    silo.refused("unknown-study", *silo.ask(MB, 0))
    silo.propose(MB)
    silo.refused("round", *silo.ask(MB, 1))
    silo.answer(MB, 0)
    silo.refused("round", *silo.ask(MB, 2))
    silo.refused("round", *silo.ask(MB, 10**6))
    silo.answer(MB, 1)
    assert silo.propose(MB).next_round == 2


def test_rounds_may_be_missed_where_the_plan_says_so_and_not_made_up_for(make):
    plan = plan_of({"name": "mb-sgd", "num_rounds": 6}, everyone=False, max_participations=2)
    silo = make()
    reserved = silo.propose(plan)
    silo.answer(plan, 2)
    silo.refused("round", *silo.ask(plan, 1))
    silo.answer(plan, 5)
    receipt = silo.client.ask(Finish(study=plan.study))[0]
    assert receipt.answers == 2
    assert receipt.epsilon == pytest.approx(reserved.epsilon)
    again = plan.model_copy(update={"nonce": "01"})
    silo.propose(again)
    silo.answer(again, 0)
    silo.answer(again, 1)
    silo.refused("exhausted", *silo.ask(again, 2))


def test_what_the_ledger_will_not_pay_for_is_not_computed(make, monkeypatch):
    plan = plan_of({"name": "mb-sgd", "num_rounds": 6}, everyone=False, max_participations=2)
    silo = make()
    silo.propose(plan)
    silo.answer(plan, 0)
    silo.answer(plan, 1)
    monkeypatch.setattr(service, "_check_turn", lambda *given: None)
    monkeypatch.setattr(Worker, "answer", lambda *given: pytest.fail("computed"))
    silo.refused("exhausted", *silo.ask(plan, 2))


def test_local_steps_are_all_paid_for(make):
    silo = make()
    silo.propose(LOCAL)
    silo.answer(LOCAL, 0)
    account = silo.service._ledger.accounts[LOCAL.study]
    assert account.made == {"local": 2}
    assert account.answers == 1


def test_what_studies_take_from_an_account_adds_up_and_then_it_is_gone(make):
    silo = make(budget={"epsilon": 2.0, "delta": 1e-5, "rule": "gdp"})
    taken, events = [], []
    for plan in (MB, LOCAL, plan_of({"name": "mb-sgd", "num_rounds": 2}, epsilon=0.4)):
        consent = silo.propose(plan)
        taken.append(consent.takes)
        assert consent.rule == "gdp"
        assert consent.left == pytest.approx(1 - sum(taken))
        for number in range(plan.algorithm["num_rounds"]):
            silo.answer(plan, number)
        silo.client.ask(Finish(study=plan.study))
        events += silo.service._ledger.accounts[plan.study].debited()
    ledger = silo.service._ledger
    assert ledger.charged == ledger.spent() == pytest.approx(sum(taken))
    # The filter of Gaussians loses nothing but the part of delta that is set aside.
    joint = price(events, delta=1e-5 * (1 - 1e-3)).epsilon
    assert gdp_epsilon((ledger.spent() * ledger.rule.limit) ** 0.5, 1e-5 * (1 - 1e-3)) == pytest.approx(joint, rel=1e-9)
    assert joint < 0.8 * (1.0 + 1.0 + 0.4)
    refusal = silo.refused("over-budget", Propose(plan=plan_of({"name": "mb-sgd"}, epsilon=1.8)))
    assert refusal.numbers["takes"] > refusal.numbers["left"] == pytest.approx(1 - ledger.charged)


def test_a_consent_tells_the_plan_s_own_price_and_what_it_takes_from_the_account(make):
    """By the Renyi filter a plan takes more than its price: that is what later plans may follow messages for."""
    silo = make(budget={"epsilon": 2.0, "delta": 1e-5})
    consent = silo.propose(POISSON)
    ledger = silo.service._ledger
    assert (consent.rule, ledger.rule.order) == ("renyi", rule_for("renyi", 2.0, 1e-5).order)
    assert (
        consent.takes
        == ledger.charged
        == pytest.approx(cost(ledger.rule, ledger.accounts[POISSON.study].events).loss / ledger.rule.limit)
    )
    assert 0.99 < consent.epsilon <= 1.0
    assert consent.takes + consent.left == pytest.approx(1.0)
    again = silo.propose(POISSON)
    assert (again.takes, again.left) == (consent.takes, consent.left)


def test_batches_that_the_owner_or_the_rule_does_not_allow_are_refused(make):
    silo = make(allow={"sampling": ["full", "one-pass"]})
    assert silo.propose(MB).rule == "gdp"
    assert 'expected sampling "full" or "one-pass"' in str(silo.refused("not-allowed", Propose(plan=POISSON)))
    silo = make(budget={"epsilon": 40.0, "delta": 1e-5, "rule": "gdp"})
    assert 'under the rule "gdp", not sampling "poisson"' in str(silo.refused("not-allowed", Propose(plan=POISSON)))


def test_a_policy_cannot_switch_the_rule_of_a_ledger_in_use(make):
    silo = make(budget={"epsilon": 2.0, "delta": 1e-5})
    silo.propose(MB)
    silo.service.close()
    usual = silo.policy
    for change in ({"rule": "gdp"}, {"rule": "fixed-in-advance"}, {"delta": 1e-6}):
        budget = usual.budget.model_copy(update=change)
        silo.policy = usual.model_copy(update={"budget": budget})
        with pytest.raises(LedgerError, match="since before its first study"):
            silo.open()
    # A default that would be another one today gives way to the ledger's own rule.
    silo.policy = usual.model_copy(update={"allow": usual.allow.model_copy(update={"sampling": ("full",)})})
    silo.open()
    assert silo.policy.limit.default == "gdp"
    assert silo.service._ledger.rule.name == "renyi"


def test_an_account_that_its_owner_has_made_smaller_answers_nothing_more(make, caplog, monkeypatch):
    silo = make(budget={"epsilon": 2.0, "delta": 1e-5})
    silo.propose(MB)
    silo.answer(MB, 0)
    silo.service.close()
    lowered = silo.policy.budget.model_copy(update={"epsilon": 0.8})
    usual, silo.policy = silo.policy, silo.policy.model_copy(update={"budget": lowered})
    caplog.set_level("INFO")
    silo.open()
    assert "the account is overdrawn" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(Worker, "answer", lambda *given: pytest.fail("what nobody pays for was computed"))
        assert "overdrawn" in str(silo.refused("over-budget", *silo.ask(MB, 1)))
    silo.refused("over-budget", Propose(plan=MB))
    silo.refused("over-budget", Propose(plan=LOCAL))
    silo.service.close()
    silo.policy = usual
    silo.open()
    silo.answer(MB, 1)


def test_an_owner_is_told_when_studies_without_a_rule_get_one(make, caplog):
    """As in a ledger of version 0.1: what they cost by their joint price, and what they take by the rule."""
    silo = make(budget={"epsilon": 2.0, "delta": 1e-5})
    silo.propose(MB)
    silo.service.close()
    database = sqlite3.connect(silo.home.ledger)
    database.execute("DROP TRIGGER entries_keep")
    last, rows = None, database.execute("SELECT seq, time, kind, study, body FROM entries ORDER BY seq").fetchall()
    for seq, moment, kind, study, body in rows:
        told = {key: value for key, value in json.loads(body).items() if key != "rule"}
        last = entry_after(last, time=moment, kind=kind, study=study, body=told)
        values = (last.body, last.previous, last.hash, seq)
        database.execute("UPDATE entries SET body = ?, previous = ?, hash = ? WHERE seq = ?", values)
    database.commit()
    database.close()
    Counter(silo.home.counter).advance(last, WrittenOff(2.0, 1e-5))
    caplog.set_level("INFO")
    silo.open()
    ledger = silo.service._ledger
    joint = price(ledger.accounts[MB.study].events, delta=1e-5).epsilon / 2.0
    assert joint != pytest.approx(ledger.charged, rel=0.1)
    told = f"{100 * joint:.1f}% of the account as one joint price, takes {100 * ledger.charged:.1f}% by this rule"
    assert told in caplog.text
    caplog.clear()
    silo.reopen()
    assert "joint price" not in caplog.text


def test_the_owner_is_asked(make):
    silo = make(approval={"mode": "manual"})
    assert silo.propose(MB).state == "pending"
    assert silo.client.ask(Status(study=MB.study))[0].state == "pending"
    silo.refused("pending", *silo.ask(MB, 0))
    assert not silo.service._ledger.accounts
    silo.reopen()
    silo.home.approved.mkdir()
    (silo.home.approved / MB.study).touch()
    silo.answer(MB, 0)
    assert silo.propose(MB).next_round == 1
    silo.refused("over-budget", Propose(plan=plan_of({"name": "mb-sgd"}, epsilon=39.0)))


def test_a_proposal_that_nobody_approves_is_forgotten(make):
    silo = make(approval={"mode": "manual", "study_days": 2.0}, allow={"max_open": 1})
    silo.propose(MB)
    silo.refused("busy", Propose(plan=LOCAL))
    silo.time += 3 * DAY
    assert silo.propose(LOCAL).state == "pending"
    silo.refused("unknown-study", Status(study=MB.study))
    silo.refused("unknown-study", Finish(study=LOCAL.study))
    silo.refused("unknown-study", Status(study=LOCAL.study))


def test_a_study_expires_and_what_it_did_not_use_goes_back(make):
    budget = {"epsilon": 1.05, "delta": 1e-6, "rule": "gdp"}
    silo = make(budget=budget, approval={"mode": "auto", "study_days": 2.0})
    silo.propose(MB)
    silo.answer(MB, 0)
    silo.refused("over-budget", Propose(plan=LOCAL))
    silo.time += 3 * DAY
    half = plan_of({"name": "mb-sgd"}, epsilon=0.8)
    assert silo.propose(half).state == "consented"
    silo.refused("finished", *silo.ask(MB, 1))
    silo.time -= 10 * DAY
    silo.refused("finished", *silo.ask(MB, 1))


def test_an_expired_policy_stays_expired_when_the_clock_is_set_back(make):
    silo = make(expires="2001-09-10T00:00:00Z")
    silo.propose(MB)
    silo.time += 1 * DAY
    silo.refused("expired", *silo.ask(MB, 0))
    silo.time -= 0.5 * DAY
    # Nothing was written since, so the ledger has not seen the later time; once it has, it does not go back.
    silo.answer(MB, 0)
    silo.time += 1 * DAY
    silo.refused("expired", *silo.ask(MB, 1))


def test_a_clock_that_has_jumped_by_years_is_not_believed_until_the_owner_vouches_for_it(make):
    silo = make()
    silo.propose(MB)
    silo.time += 800 * DAY
    silo.refused("clock", *silo.ask(MB, 0))
    silo.refused("clock", Propose(plan=LOCAL))
    silo.time -= 800 * DAY
    silo.answer(MB, 0)
    silo.time += 800 * DAY
    silo.policy = policy_from({**policy_tree("silo0"), "clock_checked": "2003-11-18"})
    silo.reopen()
    silo.refused("finished", *silo.ask(MB, 1))


@pytest.mark.parametrize(
    ("code", "plan"),
    [
        ("not-allowed", plan_of({"name": "unheard-of"})),
        ("not-allowed", plan_of({"name": "local-sgd", "local_steps": 2})),
        ("not-allowed", plan_of({"name": "mb-sgd", "num_rounds": 200_000})),
        ("not-allowed", plan_of({"name": "mb-sgd"}, silos=1)),
        ("not-allowed", plan_of({"name": "mb-sgd", "channel": "open"})),
        ("not-allowed", plan_of({"name": "mb-sgd", "channel": "trusted"})),
        ("not-allowed", plan_of({"name": "mb-sgd"}, {"model": "mlp", "hidden": [900_000]})),
        ("bad-plan", plan_of({"name": "mb-sgd", "noise_multiplier": 0.0})),
        ("bad-plan", plan_of({"name": "mb-sgd", "clip_norm": -1.0})),
        ("bad-plan", plan_of({"name": "mb-sgd", "surprise": 1})),
        ("bad-plan", plan_of({"name": "mb-sgd", "output": "sideways"})),
        ("bad-plan", plan_of({"name": "mb-sgd"}, {"loss": "squared"})),
        ("schema", plan_of({"name": "mb-sgd"}, classes=3, task="multiclass")),
        ("unpriceable", plan_of({"name": "mb-sgd", "batch_size": 41})),
        ("unpriceable", plan_of({"name": "mb-sgd", "batch_size": 8}, delta=1e-12)),
        ("unpriceable", plan_of({"name": "mb-sgd", "sampling": "one-pass", "batch_size": 20})),
    ],
)
def test_plans_that_are_refused(make, code, plan):
    silo = make(allow={"algorithms": ["mb-sgd"]})
    silo.refused(code, Propose(plan=plan))
    assert not silo.service._ledger.accounts


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e-38])
@pytest.mark.parametrize("plan", [MB, LOCAL], ids=["mb-sgd", "local-sgd"])
def test_hostile_broadcasts_are_answered_with_noise_and_paid_for(make, plan, value):
    silo = make()
    silo.propose(plan)
    silo.answer(plan, 0, value)
    assert silo.client.ask(Status(study=plan.study))[0].answers == 1


def test_what_records_hold_changes_no_refusal_and_no_size(make):
    """Neighbouring silos, one with an outrageous record: same codes, same texts, same sizes of every reply."""
    extreme = {"x": RECORDS["x"].copy(), "y": RECORDS["y"].copy()}
    extreme["x"][0] = 3e38
    transcripts = []
    for records in (RECORDS, extreme):
        silo = make(records)
        replies = [said(silo.client, Propose(plan=MB))]
        for number, value in ((0, 0.0), (1, math.nan), (2, 1e30), (9, 0.0), (2, 1.0)):
            request, payload = silo.ask(MB, number, value)
            header, body = said(silo.client, request, payload)
            replies.append((header, len(body)))
        transcripts.append(replies)
    assert transcripts[0] == transcripts[1]


def test_noise_cannot_be_switched_off_by_accident(make, tmp_path, monkeypatch):
    home, policy = make_home(tmp_path / "a", RECORDS)
    test_home, test_policy = make_home(tmp_path / "b", RECORDS, test=True)
    monkeypatch.delenv(NOISE_OFF, raising=False)
    for at, terms in ((home, policy), (test_home, test_policy)):
        with pytest.raises(PolicyError, match="test build only"):
            SiloService(terms, RECORDS, at, noise_off=True)
    monkeypatch.setenv(NOISE_OFF, "1")
    with pytest.raises(PolicyError, match="test build only"):
        SiloService(policy, RECORDS, home, noise_off=True)
    SiloService(test_policy, RECORDS, test_home, noise_off=True).close()
    with pytest.raises(ValueError, match="a test build without noise"):
        SiloService(test_policy, RECORDS, test_home)


def test_logs_hold_no_values(make, caplog, monkeypatch):
    """An error that quotes a record is logged by its kind alone, and the server is told nothing."""
    silo = make()
    silo.propose(MB)

    def fail(*args, **kwargs):
        raise FloatingPointError("record 7 is 3.14159")

    monkeypatch.setattr("tacit.deploy.silo.answering.Worker.answer", fail)
    refusal = silo.refused("internal", *silo.ask(MB, 0))
    assert "3.14159" not in str(refusal)
    assert "FloatingPointError" in caplog.text
    assert "3.14159" not in caplog.text
    monkeypatch.undo()
    silo.answer(MB, 0)


def test_the_log_says_what_waits_and_what_was_refused_with_its_numbers(make, caplog):
    caplog.set_level("INFO", logger="tacit.silo")
    silo = make(approval={"mode": "manual"}, budget={"epsilon": 4.0, "delta": 1e-6})
    dear = plan_of({"name": "mb-sgd"}, epsilon=8.0)
    refusal = silo.refused("over-budget", Propose(plan=dear))
    assert re.search(r"fits the account of epsilon=4 at delta=1e-06 .* it would take \d+\.\d% of it", str(refusal))
    assert re.search(
        r"refused, over-budget: Expected a study that fits .*takes \d.*epsilon 4, delta 1e-06, fits \d[\d.]*\)",
        caplog.text,
    )
    for _ in range(2):
        silo.propose(MB)
        silo.refused("over-budget", Propose(plan=dear))
    assert caplog.text.count("refused, over-budget") == 1
    assert caplog.text.count(f"study {MB.study} ({MB.name}) waits for approval: tacit silo status") == 1


def test_the_log_of_refusals_is_one_line_each_and_cannot_be_flooded(caplog):
    now = [0.0]
    log = RefusalLog(logging.getLogger("tacit.silo"), lambda: now[0])
    log.refuse("bad-plan", "first\nsecond line \x1b[2J")
    assert "first\\nsecond line" in caplog.messages[0]
    for number in range(1000):
        log.refuse("round", f"expected round {number}")
    assert len(caplog.messages) == 1 + MOST_IN_AN_HOUR + 1
    assert "no more are logged" in caplog.messages[-1]
    # A flood of one code hides no other one, and no line that was not seen yet.
    log.refuse("signature", "expected a request that the proposer has signed")
    assert "refused, signature" in caplog.messages[-1]
    now[0] = 3601.0
    log.refuse("round", "expected round 5")
    assert "expected round 5" in caplog.messages[-1]


def test_a_full_disk_is_survived(make):
    plan = plan_of({"name": "mb-sgd"}, {"model": "mlp", "hidden": [800]})
    silo = make()
    silo.propose(plan)
    database = silo.service._ledger._database
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0]}")
    silo.refused("ledger", *silo.ask(plan, 0))
    # The books are opened and verified again, by when there is room.
    assert silo.client.ask(Status(study=plan.study))[0].answers == 0
    silo.answer(plan, 0)
    assert silo.client.ask(Status(study=plan.study))[0].answers == 1


def test_the_server_is_not_told_whose_process_holds_the_ledger(make, caplog):
    silo = make()
    plan = plan_of({"name": "mb-sgd"})
    silo.propose(plan)
    silo.service._ledger.close()
    silo.service._ledger = None
    other = SiloService(silo.policy, silo.records, silo.home, clock=lambda: silo.time)
    told = str(silo.refused("locked", Status(study=plan.study)))
    other.close()
    assert "see the silo's own log" in told
    assert str(os.getpid()) not in told
    assert str(silo.home.folder) not in told
    assert any(f"process {os.getpid()}" in line for line in caplog.messages)


def test_policies_are_checked(tmp_path):
    for change, field in (
        ({"budget": {"epsilon": -1.0}}, "budget.epsilon"),
        ({"allow": {"channels": ["open"]}}, "allow.channels"),
        ({"data": {"name": "heart-disease"}}, "data"),
        ({"surprise": 1}, "surprise"),
        ({"allow": {"algorithms": ["mbsgd"]}}, "allow.algorithms: Unknown algorithm 'mbsgd'; did you mean 'mb-sgd'"),
        ({"allow": {"min_silo": 3}}, "allow.min_silo: Unknown key 'min_silo'; did you mean 'min_silos'"),
        ({"shuffle": {"shufflers": {}, "colluding": 0, "coluding": 1}}, "shuffle.coluding: .*mean 'colluding'"),
        ({"pad_second": 0.1}, "Unknown key 'pad_second'; did you mean 'pad_seconds'"),
    ):
        with pytest.raises(PolicyError, match=field):
            policy_from(policy_tree("a", **change))
    with pytest.raises(PolicyError, match="No policy"):
        load_policy(tmp_path / "policy.toml")


def test_labels_are_those_that_the_policy_names(tmp_path):
    np.savez(tmp_path / "records.npz", allow_pickle=False, x=RECORDS["x"], y=RECORDS["y"] + 1)
    with pytest.raises(PolicyError, match="labels 0 to 1"):
        load_records(policy_from(policy_tree("a")), tmp_path)
