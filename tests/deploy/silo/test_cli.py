"""The owner's commands: a folder to start from, approval, and a ledger that adds up."""

import json
import re
import sqlite3

import pytest
import typer
from typer.testing import CliRunner

from tacit.cli.plan import plan_command
from tacit.cli.silo import ledger_command, silo_app
from tacit.cli.status import _asks
from tacit.deploy.silo.policy import load_policy
from tacit.deploy.silo.server import SiloServer
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Finish, Propose
from tacit.errors import TacitError
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, records_of

app = typer.Typer()
app.add_typer(silo_app)
app.command("ledger")(ledger_command)
app.command("plan")(plan_command)
PLAN = plan_of({"name": "mb-sgd"})


def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture
def silo(tmp_path):
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, approval={"mode": "manual"}, budget={"epsilon": 3.0})
    service = SiloService(policy, records, home)
    yield service
    service.close()


def test_a_study_is_proposed_approved_answered_and_shown(silo):
    folder, client = silo.home.folder, LocalClient(silo)
    client.ask(Propose(plan=PLAN))
    shown = json.loads(run("silo", "status", folder, "--json"))
    assert [row["study"] for row in shown["pending"]] == [PLAN.study]
    assert shown["pending"][0]["plan"]["epsilon"] == 1.0
    shown = run("silo", "status", folder)
    assert f"tacit silo approve {folder} {PLAN.study}\n" in shown
    assert len(PLAN.study) == 64
    with pytest.raises(TacitError, match="no study of this silo"):
        run("silo", "approve", folder, "0" * 64)
    shown = run("silo", "approve", folder, PLAN.study)
    assert re.search(r"own price +epsilon (0\.99\d+|1) at delta 1e-06 \(it asks for epsilon 1\)", shown)
    assert re.search(r"account +takes \d+\.\d% of this account \(epsilon 3 at delta 1e-05, rule renyi of order", shown)
    specs, payload = broadcast_of(PLAN)
    for number in range(2):
        client.ask(Answer(study=PLAN.study, round=number, arrays=specs), payload)
    shown = json.loads(run("silo", "status", folder, "--json"))
    assert (shown["open"][0]["answers"], shown["pending"]) == (2, [])
    found = json.loads(run("ledger", folder, "--json"))
    assert found["studies"][0]["releases"] == {"gradient": 2}
    account = found["account"]
    assert (account["epsilon"], account["rule"], account["promised_epsilon"]) == (3.0, "renyi", 3.0)
    assert 0 < account["spent_share"] < account["charged_share"] == pytest.approx(1 - account["left_share"])
    assert found["studies"][0]["takes_share"] == pytest.approx(account["charged_share"])
    client.ask(Finish(study=PLAN.study))
    found = json.loads(run("ledger", folder, "--json"))
    account = found["account"]
    assert account["spent_share"] == account["charged_share"]
    assert found["studies"][0]["own_epsilon"] == pytest.approx(found["epsilon_if_fixed_in_advance"])
    assert [row["what"] for row in found["entries"]] == ["open", "reserve", "debit", "debit", "close"]
    shown = " ".join(run("ledger", folder, "--rounds").split())
    assert "The chain of 5 entries holds" in shown
    spent, own = f"{100 * account['spent_share']:.1f}%", f"{found['studies'][0]['own_epsilon']:.4f}"
    assert f"The account: epsilon 3 at delta 1e-05, rule renyi of order {account['order']:g}. Spent {spent}" in shown
    assert f"would cost epsilon {own} together" in shown


def test_an_owner_sees_what_a_waiting_study_asks_for_and_what_it_would_leave(silo):
    folder, client = silo.home.folder, LocalClient(silo)
    client.ask(Propose(plan=PLAN))
    run("silo", "approve", folder, PLAN.study)
    client.ask(Propose(plan=PLAN))
    second = PLAN.model_copy(update={"name": "second", "nonce": "ab"})
    consent, _ = client.ask(Propose(plan=second))
    (row,) = json.loads(run("silo", "status", folder, "--json"))["pending"]
    assert row["own_epsilon"] == consent.epsilon < 1.001
    # What studies take adds up, and is what the ledger will reserve.
    assert row["takes_share"] == pytest.approx(consent.takes) == pytest.approx(row["account"]["charged_share"])
    assert row["left_share"] == consent.left == pytest.approx(1 - 2 * consent.takes)
    shown = run("silo", "status", folder)
    for text in (
        "second waits",
        "mb-sgd, 4 rounds",
        "linear, binary, 5 features",
        "4, all of them",
        "it asks for epsilon 1",
    ):
        assert text in shown
    assert f"own price  epsilon {consent.epsilon:.4g} at delta 1e-06" in shown
    taken, left = (f"{100 * part:.1f}%" for part in (consent.takes, consent.left))
    assert f"takes {taken} of this account (epsilon 3 at delta 1e-05, rule renyi of order" in shown
    assert f"{taken} is used or reserved now, {left} would be left" in shown
    run("silo", "approve", folder, second.study)
    client.ask(Propose(plan=second))
    account = json.loads(run("ledger", folder, "--json"))["account"]
    assert account["left_share"] == pytest.approx(row["left_share"], rel=1e-9)


def test_a_question_for_validation_says_what_for_and_about_which_model(tmp_path):
    records = records_of(0, 100)
    allow = {"algorithms": ["validation"], "min_silos": 2}
    approval = {"mode": "manual"}
    home, policy = make_home(tmp_path / "aside", records, allow=allow, approval=approval, data={"validation": 0.2})
    service = SiloService(policy, records, home)
    asked = {"name": "validation", "asked": {}, "num_rounds": 1, "step_size": 1.0, "clip_norm": None}
    plan = plan_of(asked, purpose="Test the finished model of heart, which predicts disease, on records set aside.")
    try:
        LocalClient(service).ask(Propose(plan=plan))
        shown = run("silo", "status", home.folder)
    finally:
        service.close()
    for line in (
        f"purpose    {plan.purpose}",
        "asks       one question, channel direct: how many records have which score and truth, in all, with noise",
        "model      linear, binary, 5 features; a finished one, which comes with the question",
        "of the account of records set aside",
        f"compare    {plan.compared}\n  by phone   read the line above to another silo's owner, and hear the same",
    ):
        assert line in shown
    assert len(plan.compared.split()) == 12


def test_statistics_are_said_by_their_names_and_of_no_model():
    asked = [{"kind": "histogram", "columns": ["age"], "bins": 10}, {"kind": "counts", "columns": ["ill"], "by": "sex"}]
    plan = {"algorithm": {"name": "statistics", "statistics": asked, "num_rounds": 1}, "objective": {}}
    words = "one question, channel direct: histogram of age, counts of ill by sex, with noise"
    assert _asks(plan) == {"asks": words}


def test_what_would_not_fit_any_more_is_said_before_it_is_approved(silo):
    folder, client = silo.home.folder, LocalClient(silo)
    plans = [PLAN.model_copy(update={"nonce": nonce, "epsilon": 2.5}) for nonce in ("aa", "bb")]
    for plan in plans:
        client.ask(Propose(plan=plan))
    run("silo", "approve", folder, plans[0].study)
    client.ask(Propose(plan=plans[0]))
    assert "would be refused: Expected a study that fits the account" in run("silo", "status", folder)


def test_owners_of_different_silos_see_the_same_number_to_compare(silo, tmp_path):
    records = records_of(1, 40)
    home, policy = make_home(tmp_path / "other", records, approval={"mode": "manual"})
    other = SiloService(policy, records, home)
    try:
        found = []
        for silo_index, service in enumerate((silo, other)):
            LocalClient(service).ask(Propose(plan=PLAN.model_copy(update={"silo_index": silo_index})))
            found += json.loads(run("silo", "status", service.home.folder, "--json"))["pending"]
    finally:
        other.close()
    assert found[0]["study"] != found[1]["study"]
    assert found[0]["comparison"] == found[1]["comparison"]
    assert found[0]["comparison"] in run("silo", "status", silo.home.folder)
    changed = PLAN.model_copy(update={"epsilon": 0.5})
    assert changed.compared != found[0]["comparison"]


def test_status_says_whether_the_daemon_runs_and_that_nothing_waits(silo):
    folder = silo.home.folder
    shown = run("silo", "status", folder)
    assert f"The daemon is not running; start it with: tacit silo serve {folder}" in shown
    assert "No studies wait for approval." in shown
    door = SiloServer(silo, silo.home.socket)
    try:
        assert "The daemon is running." in run("silo", "status", folder)
        assert json.loads(run("silo", "status", folder, "--json"))["daemon"] is True
    finally:
        door.close()
    assert json.loads(run("silo", "status", folder, "--json"))["daemon"] is False


def test_before_the_first_serve_nothing_has_been_spent(tmp_path):
    folder = tmp_path / "clinic"
    make_home(folder, records_of(0, 40), budget={"epsilon": 3.0})
    assert "nothing has been spent" in run("silo", "status", folder)
    found = json.loads(run("silo", "status", folder, "--json"))
    assert (found["daemon"], found["open"], found["pending"]) == (False, [], [])
    assert "Nothing has been spent of epsilon 3 at delta" in run("ledger", folder)
    found = json.loads(run("ledger", folder, "--json"))
    account = found["account"]
    assert (account["spent_share"], account["charged_share"], account["left_share"]) == (0, 0, 1)
    assert (account["epsilon"], account["rule"], found["length"]) == (3, "renyi", 0)
    assert (found["studies"], found["entries"]) == ([], [])
    assert not (folder / "ledger.sqlite").exists()


def test_a_lost_ledger_is_not_taken_for_one_that_never_was(silo):
    silo.close()
    silo.home.ledger.unlink()
    for command in (("silo", "status"), ("ledger",)):
        with pytest.raises(TacitError, match="tacit silo write-off"):
            run(*command, silo.home.folder)


def test_a_forged_ledger_is_found(silo):
    silo.close()
    database = sqlite3.connect(silo.home.ledger)
    database.execute("DROP TRIGGER entries_keep")
    database.execute("UPDATE entries SET body = '{}'")
    database.commit()
    database.close()
    with pytest.raises(TacitError, match="altered"):
        run("ledger", silo.home.folder)


def test_a_restored_ledger_is_found(silo):
    silo.close()
    copy = silo.home.ledger.read_bytes()
    again = SiloService(silo.policy, records_of(0, 40), silo.home)
    silo.home.approved.mkdir()
    (silo.home.approved / PLAN.study).touch()
    LocalClient(again).ask(Propose(plan=PLAN))
    again.close()
    silo.home.ledger.write_bytes(copy)
    with pytest.raises(TacitError, match="restored from a backup"):
        run("ledger", silo.home.folder)
    with pytest.raises(TacitError, match="restored from a backup"):
        SiloService(silo.policy, records_of(0, 40), silo.home)


def test_init_writes_a_policy_that_can_be_read(tmp_path):
    run("silo", "init", tmp_path / "clinic")
    policy = load_policy(tmp_path / "clinic" / "policy.toml")
    assert (policy.name, policy.approval.mode, policy.test) == ("clinic", "manual", False)
    with pytest.raises(TacitError, match="exists"):
        run("silo", "init", tmp_path / "clinic")


@pytest.mark.parametrize("mode", ["666", "nonsense", "7777"])
def test_the_socket_shuts_out_others(tmp_path, mode):
    with pytest.raises(TacitError, match="socket-mode"):
        run("silo", "serve", tmp_path, "--socket-mode", mode)


def test_every_command_has_an_example():
    for name in ("init", "serve", "status", "approve"):
        assert f"Example: tacit silo {name}" in " ".join(run("silo", name, "--help").split())
    assert "Example: tacit ledger" in " ".join(run("ledger", "--help").split())


def test_an_overdrawn_account_says_so_in_words(silo):
    folder, client = silo.home.folder, LocalClient(silo)
    client.ask(Propose(plan=PLAN))
    run("silo", "approve", folder, PLAN.study)
    client.ask(Propose(plan=PLAN))
    client.ask(Propose(plan=PLAN.model_copy(update={"name": "second", "nonce": "ab"})))
    text = (folder / "policy.toml").read_text(encoding="utf-8").replace("epsilon = 3.0", "epsilon = 1.8")
    (folder / "policy.toml").write_text(text, encoding="utf-8")
    for command in (("silo", "status"), ("ledger",)):
        shown = " ".join(run(*command, folder).split())
        assert "It is overdrawn: nothing more is granted." in shown
    # The daemon has not been started again, so its chain has only the larger budget; it is what holds.
    assert "It has had epsilon 3, which is what holds for all messages together." in shown
    (folder / "policy.toml").write_text(text.replace("[budget]", '[budget]\nrule = "gdp"'), encoding="utf-8")
    with pytest.raises(TacitError, match='rule is "renyi" since before its first study'):
        run("ledger", folder)


def test_a_plan_shows_its_own_price_and_what_it_takes_from_an_account(silo):
    words = ("plan", "heart-disease", "--set", "algorithm.num_rounds=5", "--set", "privacy.delta=1e-5")
    policy = silo.home.folder / "policy.toml"
    found = json.loads(run(*words, "--policy", policy, "--json"))
    account = found["account"]
    assert [row["name"] for row in account["silos"]] == [row["name"] for row in found["silos"]]
    for row, silo_row in zip(account["silos"], found["silos"], strict=True):
        assert row["own_epsilon"] == silo_row["epsilon"] == pytest.approx(1.0, rel=1e-3)
        assert row["takes_share"] == pytest.approx(1 - row["left_share"])
        assert 0.1 < row["takes_share"] < 0.3
    shown = run(*words, "--policy", policy)
    assert re.search(r"own epsilon.*of the account.*left then", shown)
    assert f"{100 * account['silos'][0]['takes_share']:.1f}%" in shown
    client = LocalClient(silo)
    client.ask(Propose(plan=PLAN))
    run("silo", "approve", silo.home.folder, PLAN.study)
    taken = client.ask(Propose(plan=PLAN))[0].takes
    after = json.loads(run(*words, "--policy", policy, "--json"))["account"]["silos"][0]
    assert after["left_share"] == pytest.approx(account["silos"][0]["left_share"] - taken)
    assert "account" not in json.loads(run(*words, "--json"))


def test_a_plan_that_a_rule_cannot_price_says_why(tmp_path):
    folder = tmp_path / "clinic"
    make_home(folder, records_of(0, 40), budget={"epsilon": 3.0, "delta": 1e-5, "rule": "gdp"})
    sets = (
        "--set",
        "algorithm.batch_size=20",
        "--set",
        "algorithm.sampling=poisson",
        "--set",
        "algorithm.num_rounds=3",
    )
    found = json.loads(run("plan", "heart-disease", *sets, "--policy", folder / "policy.toml", "--json"))
    assert 'under the rule "gdp", not sampling "poisson"' in found["account"]["silos"][0]["refusal"]
