"""A new version of Tacit in the middle of a study: what goes on, what is refused, and what older files still mean."""

import dataclasses

import numpy as np
import pytest

from tacit.cli.books import account_of
from tacit.cli.status import status_of
from tacit.deploy.permissions import write_secret
from tacit.deploy.silo import service as daemon
from tacit.deploy.silo.consent import terms_of
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Hello, Message, Plan, Propose, RefusalError, Status, write_arrays
from tacit.privacy import strategy
from tests.deploy.silo.consortium import LocalClient, make_home, plan_of, records_of

PLAN = plan_of({"name": "mb-sgd"})
BEFORE_PURPOSES = "7900fb96db8688febf332646fba574d5718c29a1d01e050a15ca6c5d3fd522cd"
"""The identity of this plan before plans had a purpose."""


def answered(client, number):
    arrays = write_arrays([np.zeros(1, np.float32), np.zeros((5, 1), np.float32)])
    return client.ask(Answer(study=PLAN.study, round=number, arrays=arrays[0]), arrays[1])


@pytest.fixture
def stopped(tmp_path):
    """A silo that was stopped after the first round of a study, and how to start it."""
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records)
    first = SiloService(policy, records, home)
    client = LocalClient(first)
    client.ask(Propose(plan=PLAN))
    reply = answered(client, 0)
    first.close()
    return home, reply, lambda: SiloService(policy, records, home)


def test_a_study_goes_on_after_an_upgrade_that_changes_nothing_about_it(stopped, monkeypatch):
    home, before, start = stopped
    monkeypatch.setattr(daemon, "__version__", "9.9.9")
    upgraded = start()
    client = LocalClient(upgraded)
    assert client.ask(Hello())[0].tacit == "9.9.9"
    # What was answered is answered again from the books, and costs nothing; then comes the next round.
    assert answered(client, 0)[1] == before[1]
    assert isinstance(answered(client, 1)[0], Message)
    upgraded.close()
    [study] = account_of(home.folder)["studies"]
    assert study["answers"] == 2


def test_a_study_that_would_mean_something_else_is_refused_and_costs_no_more(stopped, monkeypatch):
    home, _, start = stopped
    consider = daemon.consider

    def otherwise(*args, **kwargs):
        """A version in which the same plan has other releases."""
        offer = consider(*args, **kwargs)
        events = tuple(
            dataclasses.replace(event, noise_multiplier=2 * event.noise_multiplier) for event in offer.events
        )
        return dataclasses.replace(offer, events=events)

    monkeypatch.setattr(daemon, "consider", otherwise)
    upgraded = start()
    client = LocalClient(upgraded)
    with pytest.raises(RefusalError) as refusal:
        answered(client, 1)
    assert refusal.value.code == "changed"
    upgraded.close()
    [study] = account_of(home.folder)["studies"]
    assert study["answers"] == 1
    assert study["state"] == "open"


def test_noise_that_remembers_keeps_the_strategy_that_it_began_with(tmp_path, monkeypatch):
    """A version with another strategy must neither go on with what the old one remembers, nor price it as its own."""
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records)
    plan = plan_of({"name": "dp-ftrl", "sampling": "one-pass", "batch_size": 10})
    running = SiloService(policy, records, home)
    LocalClient(running).ask(Propose(plan=plan))
    arrays = write_arrays([np.zeros(1, np.float32), np.zeros((5, 1), np.float32)])
    LocalClient(running).ask(Answer(study=plan.study, round=0, arrays=arrays[0]), arrays[1])
    charged = running._opened().charged
    running.close()

    monkeypatch.setattr(strategy, "_DAMPINGS", (0.5,))
    strategy.correlated.cache_clear()
    upgraded = SiloService(policy, records, home)
    assert upgraded._opened().charged == charged
    with pytest.raises(RefusalError) as refusal:
        LocalClient(upgraded).ask(Answer(study=plan.study, round=1, arrays=arrays[0]), arrays[1])
    assert refusal.value.code == "changed"
    upgraded.close()
    strategy.correlated.cache_clear()


def test_a_server_of_another_protocol_is_told_so(stopped):
    _, _, start = stopped
    running = start()
    with pytest.raises(RefusalError) as refusal:
        LocalClient(running).ask(Hello(version=1))
    assert refusal.value.code == "version"
    running.close()


def test_plans_without_a_purpose_are_the_studies_that_they_were():
    assert PLAN.study == BEFORE_PURPOSES
    assert "purpose" not in PLAN.model_dump_json()
    named = PLAN.model_copy(update={"purpose": "to find out"})
    assert named.study != PLAN.study
    assert terms_of(named) == terms_of(PLAN)
    assert Plan.model_validate_json(named.model_dump_json()) == named


def test_decisions_that_an_earlier_version_wrote_still_count(tmp_path):
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, approval={"mode": "manual"})
    running = SiloService(policy, records, home)
    client = LocalClient(running)
    client.ask(Propose(plan=PLAN))
    home.approved.mkdir(mode=0o700, exist_ok=True)
    # Name and terms, without the line of a note.
    write_secret(home.approved / PLAN.study, "somebody\n")
    assert [row["approved"] for row in status_of(home.folder)["pending"]] == [True]
    client.ask(Status(study=PLAN.study))
    home.decided.mkdir(mode=0o700, exist_ok=True)
    write_secret(home.decided / f"{PLAN.study}.revoke", f"somebody\n{terms_of(PLAN)}")
    with pytest.raises(RefusalError) as refusal:
        answered(client, 0)
    assert refusal.value.code == "revoked"
    running.close()
    [study] = account_of(home.folder)["studies"]
    assert study["approved"]["who"] == "somebody"
    assert "note" not in study["approved"]
