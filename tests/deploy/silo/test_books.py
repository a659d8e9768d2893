"""The ledger in its owner's words: names, people, what promises rest on; on the terminal, in JSON, as a page."""

import json
import re
from html.parser import HTMLParser

import pytest
import typer
from typer.testing import CliRunner

from tacit.channel.sealing import new_secret
from tacit.cli.books import rests_on
from tacit.cli.silo import ledger_command, silo_app
from tacit.deploy.silo.owner import myself
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Answer, Finish, Propose, RefusalError, Shuffle, Status
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, records_of

app = typer.Typer()
app.add_typer(silo_app)
app.command("ledger")(ledger_command)
SEALS = {name: str(new_secret().public) for name in ("anna", "bert")}
SHUFFLE = Shuffle(records=(40,) * 4, min_silos=4, honest=0.75, shufflers=SEALS)
DIRECT = plan_of({"name": "mb-sgd"}, name="blood-pressure", purpose="Who needs <b>treatment</b>?")
SUM = plan_of(
    {"name": "mb-sgd", "sampling": "full", "channel": "shuffled-sum", "num_rounds": 2},
    name="in-a-crowd",
    shuffle=SHUFFLE,
    epsilon=3.0,
)
TURNED_AWAY = plan_of({"name": "mb-sgd"}, name="turned-away")
HOSTILE = plan_of({"name": "mb-sgd"}, name="waits")


def run(*words):
    found = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False, env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A silo that has been through everything: two channels, an end of each kind, a refusal, a change, a study that
    waits."""
    records, root = records_of(0, 40), tmp_path_factory.mktemp("books") / "clinic"
    shuffle = {"shufflers": SEALS, "colluding": 1}
    allow = {"channels": ["direct", "shuffled-sum"]}
    home, policy = make_home(root, records, approval={"mode": "manual"}, shuffle=shuffle, allow=allow)
    service = SiloService(policy, records, home)
    client = LocalClient(service)
    for plan in (DIRECT, SUM):
        client.ask(Propose(plan=plan))
        run("silo", "approve", root, plan.study)
        specs, payload = broadcast_of(plan)
        client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)
    client.ask(Propose(plan=TURNED_AWAY))
    run("silo", "reject", root, "turned-away")
    run("silo", "close", root, "in-a-crowd")
    client.ask(Finish(study=DIRECT.study))
    with pytest.raises(RefusalError):
        client.ask(Status(study="0" * 64))
    text = (root / "policy.toml").read_text()
    (root / "policy.toml").write_text(text.replace("epsilon = 30.0", "epsilon = 25.0"))
    client.ask(Propose(plan=HOSTILE))
    service.close()
    return root


@pytest.fixture(scope="module")
def found(folder):
    return json.loads(run("ledger", folder, "--json"))


def test_every_study_says_who_asked_who_let_it_in_and_who_ended_it(found):
    rows = {row["name"]: row for row in found["studies"]}
    assert set(rows) == {"blood-pressure", "in-a-crowd", "turned-away"}
    direct, crowd, away = (rows[name] for name in ("blood-pressure", "in-a-crowd", "turned-away"))
    assert (direct["proposer"], direct["approved"]["who"]) == ("tester", myself())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", direct["approved"]["when"])
    assert (direct["ended"]["how"], direct["ended"]["who"]) == ("finished", "tester")
    assert (crowd["ended"]["how"], crowd["ended"]["who"]) == ("closed", myself())
    assert (away["state"], away["ended"]["how"], away["ended"]["who"]) == ("refused", "rejected", myself())
    assert away["proposer"] == "tester"
    assert (direct["purpose"], crowd["purpose"]) == (DIRECT.purpose, None)
    assert (direct["asked_epsilon"], crowd["asked_epsilon"]) == (1.0, 3.0)
    assert [row["name"] for row in found["pending"]] == ["waits"]


def test_what_a_promise_rests_on_is_told_apart(found):
    rows = {row["name"]: row for row in found["studies"]}
    assert (rows["blood-pressure"]["channel"], rows["blood-pressure"]["rests_on"]) == (
        "direct",
        "nothing but this silo",
    )
    crowd = rows["in-a-crowd"]
    assert crowd["channel"] == "shuffled-sum"
    assert "at least 3 of 4 silos keep their noise secret" in crowd["rests_on"]
    assert "one of the shufflers anna, bert does not collude" in crowd["rests_on"]
    direct, shuffled = sorted(found["by_trust"], key=lambda row: row["rests_on"] != "nothing but this silo")
    assert (direct["channels"], shuffled["channels"]) == (["direct"], ["shuffled-sum"])
    # Each number is that of its own releases; together they are more than either.
    together = found["epsilon_if_fixed_in_advance"]
    assert max(row["epsilon_if_fixed_in_advance"] for row in (direct, shuffled)) < together
    reports = json.loads(SUM.model_copy(update={"algorithm": {"channel": "shuffled-reports"}}).model_dump_json())
    assert "the first shuffler, anna, does not collude with the server" in rests_on(reports)


def test_the_limit_in_force_and_its_change_are_shown(folder, found):
    assert found["account"]["epsilon"] == 25.0
    [change] = [row for row in found["entries"] if row["what"] == "policy"]
    assert change["changed"] == ["budget.epsilon: 30 -> 25"]
    assert change["who"]
    # While the policy on disk cannot be used, the last one that could is in force.
    path = folder / "policy.toml"
    usual = path.read_text()
    path.write_text("nonsense")
    try:
        broken = json.loads(run("ledger", folder, "--json"))
        assert "not valid TOML" in broken["policy_problem"]
        assert broken["account"] == found["account"]
        assert "everything is refused" in run("ledger", folder)
    finally:
        path.write_text(usual)


def test_the_terminal_tells_the_same(folder, found):
    shown = " ".join(run("ledger", folder, "--rounds").split())
    for row in found["studies"]:
        assert row["name"] in shown
        assert row["study"][:16] in shown
    assert f"tester; {myself()}, " in shown
    assert f"closed by {myself()}" in shown
    assert "resting on: nothing but this silo" in shown
    assert "These epsilons are not one number" in shown
    assert "Refused: 1 request." in shown
    assert f"The chain of {found['length']} entries holds" in shown


def test_refusals_are_listed(found):
    [row] = found["refusals"]
    assert (row["code"], row["proposer"], row["count"]) == ("unknown-study", "tester", 1)


class Page(HTMLParser):
    """What a page loads, its cells without a label for narrow screens, and its text."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.bare, self.tags, self.text = [], 0, set(), ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        names = dict(attributes)
        self.tags.add(tag)
        self.loads += [names[name] for name in ("src", "href", "srcset", "action", "data") if name in names]
        self.bare += tag == "td" and not names.get("data-label")

    def handle_data(self, data):
        self.text += data


def test_the_page_stands_by_itself_and_says_everything(folder, found, tmp_path):
    path = tmp_path / "ledger.html"
    run("ledger", folder, "--report", path)
    assert "Who needs &lt;b&gt;treatment&lt;/b&gt;?" in path.read_text()
    raw = path.read_text(encoding="utf-8")
    assert path.stat().st_mode & 0o077 == 0
    page = Page(raw)
    assert page.loads == []
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert "url(" not in raw
    assert "@import" not in raw
    assert "width=device-width" in raw
    assert "@media print" in raw
    assert page.bare == 0
    text = " ".join(page.text.split())
    for row in found["studies"]:
        assert row["name"] in text
    for words in (
        "40 records are served",
        "at most epsilon 25 at delta 1e-05",
        f"The chain of {found['length']} entries was verified",
        found["head"],
        "at least 3 of 4 silos keep their noise secret",
        "unknown-study",
        "budget.epsilon: 30 -> 25",
        "Waiting for the owner: waits",
        f"closed by {myself()}",
        "rejected by",
    ):
        assert words in text, words
    assert f"{found['studies'][0]['own_epsilon']:.4f}" in text


def test_a_page_is_not_written_by_what_others_say(tmp_path):
    """Names come from proposers and their form is checked; what an owner's file says is escaped."""
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, approval={"mode": "manual"})
    service = SiloService(policy, records, home)
    client = LocalClient(service)
    client.ask(Propose(plan=DIRECT))
    home.decided.mkdir(mode=0o700)
    (home.decided / f"{DIRECT.study}.reject").write_text("<script>alert(1)</script>\x1b[2J")
    with pytest.raises(RefusalError):
        client.ask(Propose(plan=DIRECT))
    service.close()
    run("ledger", home.folder, "--report", tmp_path / "page.html")
    raw = (tmp_path / "page.html").read_text()
    assert "<script" not in raw
    assert "&lt;script&gt;" in raw
    assert "\x1b" not in raw


def test_a_page_of_a_silo_that_never_ran(tmp_path):
    make_home(tmp_path / "clinic", records_of(0, 40))
    run("ledger", tmp_path / "clinic", "--report", tmp_path / "page.html")
    assert "no study was ever let in" in (tmp_path / "page.html").read_text()
