"""The owner's page in a real browser: pending, approve with a note, reject, revoke; shut to who has no token."""

import http.client
import threading
import time
import urllib.error
import urllib.request

import pytest

from tacit.cli.books import account_of
from tacit.cli.status import end, status_of
from tacit.cli.web import opened
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Propose, Status
from tests.browser.chromium import BEYOND, need_browser, open_browser
from tests.deploy.silo.consortium import LocalClient, make_home, plan_of, records_of


def plan_number(number):
    """Plans of other terms: what is revoked is refused under any name."""
    algorithm = {"name": "mb-sgd", "step_size": 0.1 * (number + 1)}
    return plan_of(algorithm, name=f"study-{number}", purpose=f"<b>purpose {number}</b>")


PLANS = [plan_number(number) for number in range(3)]


@pytest.fixture
def silo(tmp_path):
    records = records_of(0, 40)
    home, policy = make_home(tmp_path / "clinic", records, approval={"mode": "manual"})
    service = SiloService(policy, records, home)
    client = LocalClient(service)
    for plan in PLANS:
        client.ask(Propose(plan=plan))
    server, address = opened(home.folder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield home.folder, client, address
    server.shutdown()
    server.server_close()
    service.close()


def press(browser, number, decision, note):
    """Type a note into the form of a study and press a button, as a person would."""
    section = f"document.querySelector('[data-study=\"{PLANS[number].study}\"]')"
    browser.ask(f"{section}.querySelector('[name=note]').value = {note!r}")
    before = len([e for e in browser.events if e.get("method") == "Page.loadEventFired"])
    browser.ask(f"{section}.querySelector('button[value={decision}]').click()")
    until = time.monotonic() + 60
    while len([e for e in browser.events if e.get("method") == "Page.loadEventFired"]) <= before:
        assert time.monotonic() < until
        browser.ask("1")
        time.sleep(0.1)
    return browser.ask("document.querySelector('.message').textContent")


def test_an_owner_decides_in_a_browser(silo, tmp_path):
    folder, client, address = silo
    with open_browser(need_browser(), tmp_path / "profile") as browser:
        browser.visit(address, width=1000)
        text = browser.ask("document.body.innerText")
        for words in ("study-0", "<b>purpose 0</b>", "own price", "rests on", "is left", "nothing but this silo"):
            assert words in text
        assert "token" not in browser.ask("location.href")
        assert browser.ask("document.scripts.length") == 0
        assert browser.ask("document.querySelectorAll('section').length") == 3
        assert "Approved" in press(browser, 0, "approve", "as the board decided")
        assert "reject" in press(browser, 1, "reject", "not our question")
        assert "revoke" in press(browser, 2, "revoke", "never")
        assert browser.complaints() == []
        assert {url.split("/")[2] for url in browser.requests() if not url.startswith("data:")} == {
            address.split("/")[2]
        }
        client.ask(Status(study=PLANS[0].study))
        browser.visit(address, width=390, phone=True)
        assert browser.ask("document.documentElement.scrollWidth") <= 390
        assert browser.ask(BEYOND) == []
        assert "answers; until" in browser.ask("document.body.innerText")
        assert "revoke" in press(browser, 0, "revoke", "changed our mind")
    client.ask(Propose(plan=plan_number(3)))
    studies = {row["name"]: row for row in account_of(folder)["studies"]}
    assert studies["study-0"]["approved"]["note"] == "as the board decided"
    assert (studies["study-0"]["ended"]["how"], studies["study-1"]["ended"]["how"]) == ("revoked", "rejected")
    assert studies["study-1"]["ended"]["note"] == "not our question"
    notes = [row.get("note") for row in account_of(folder)["entries"] if row["what"] in ("close", "refuse")]
    assert sorted(note for note in notes if note) == ["changed our mind", "never", "not our question"]


def fetched(address, data=None, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def entered(address):
    """Where the token leads, and the cookie that it becomes."""
    line = http.client.HTTPConnection(address.split("/")[2])
    line.request("GET", "/" + address.rpartition("/")[2])
    found = line.getresponse()
    place, cookie = found.getheader("Location"), found.getheader("Set-Cookie")
    line.close()
    return place, cookie


def test_a_cookie_goes_to_no_other_server_of_this_machine(silo):
    # Browsers send cookies to all ports of a host, but only below their path: so that is a secret too.
    _, _, address = silo
    root, token = address.split("?token=")
    place, cookie = entered(address)
    assert cookie == f"tacit={token}; HttpOnly; SameSite=Strict; Path={place}"
    assert len(place) > 20
    assert token not in place
    for elsewhere in (root, root + "x/", root[:-1] + place[:-2] + "/"):
        assert fetched(elsewhere, Cookie=f"tacit={token}") == (403, "Nothing here.")


def test_without_the_token_there_is_nothing_to_see_or_press(silo):
    folder, _, address = silo
    root, token = address.split("?token=")
    base = root[:-1] + entered(address)[0]
    assert fetched(root) == fetched(root + "?token=" + token[:-1]) == (403, "Nothing here.")
    form = f"token={token}&study={PLANS[0].study}&decision=approve&note=".encode()
    cookie = {"Cookie": f"tacit={token}"}
    refused = (403, "Nothing here.")
    assert fetched(base) == refused
    assert fetched(base + "?token=" + token[:-1]) == refused
    assert fetched(base, form) == refused
    assert fetched(base, form, **cookie, Origin="http://elsewhere.example") == refused
    assert fetched(base, form, **cookie, Host="elsewhere.example") == refused
    assert fetched(base, form.replace(token.encode(), b"x"), **cookie) == refused
    assert fetched(base, form, **cookie, **{"Content-Length": "x"}) == refused
    assert fetched(root, form, **cookie) == refused
    assert not [row for row in status_of(folder)["pending"] if row["approved"]]
    status, text = fetched(base, **cookie)
    assert status == 200
    assert "study-0" in text
    assert "<b>purpose" not in text
    assert "Approved" in fetched(base, form, **cookie)[1]
    assert [row["approved"] for row in status_of(folder)["pending"]].count(True) == 1


def test_a_study_is_ended_by_its_identity_though_another_is_called_so(silo):
    folder, client, _ = silo
    client.ask(Propose(plan=plan_number(5).model_copy(update={"name": PLANS[0].study})))
    assert end(folder, PLANS[0].study, "reject")["name"] == "study-0"


def test_it_listens_on_loopback_alone(silo):
    _, _, address = silo
    assert address.startswith("http://127.0.0.1:")
