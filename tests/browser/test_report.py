"""The report in a real browser: it renders on wide and narrow screens, light and dark, and on paper, by itself."""

import base64
import json
import shutil

import pytest

from tacit.plans.spec import load_study
from tacit.studies.folder import new_folder, write
from tacit.studies.report import write_report
from tacit.studies.run import run
from tests.browser.chromium import need_browser, open_browser


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A small real run."""
    study = load_study("heart-disease", ["run.seeds=2", "algorithm.num_rounds=6"])
    folder = new_folder(tmp_path_factory.mktemp("runs"), study)
    write(run(study), folder)
    return folder


def changed(folder, to, change):
    """The same run with another result: the page is a function of its folder."""
    shutil.copytree(folder, to)
    path = to / "not-private" / "result.json"
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))
    return to


def shuffled(result):
    result["channel"] = "shuffled-reports"
    for silo in result["silos"]:
        silo["epsilon_without_shuffler"] = 12.5


def fair(result):
    score = {"mean": 0.05, "std": 0.01}
    names = [f"test_{name}" for name in ("parity_violation", "parity_gap", "odds_gap", "opportunity_gap", "divergence")]
    rows = [result["baselines"][name] for name in ("non_private", "converged")]
    for scores in (result["metrics"], *rows, *result["baselines"]["alone"].values()):
        scores |= dict.fromkeys(names, score)
    message = {"sender": "holder of all attributes", "receiver": "server", "message": "FairGradients", "numbers": 30}
    result["crossings"] = [{**message, "promise": "with noise, priced"}]
    result["centralisation"] = "central-sensitive"


def crowded(result):
    result["channel"] = "trusted"
    result["silos"] = [{**result["silos"][0], "name": f"A very long name of a silo, number {i}"} for i in range(40)]


def not_private(result):
    result["channel"] = "open"
    result["baselines"]["alone"] = {}
    for silo in result["silos"]:
        silo |= {"epsilon": None, "epsilon_spent": None, "delta": None, "risk": None, "noise_multiplier": {}}


def deployed(result):
    """What a server knows: no baselines, no schedule of a silo; a page about who took part."""
    del result["guarantee"], result["parties"]
    result["baselines"] = {"non_private": {}, "converged": {}, "alone": {}}
    result |= {"scores": {}, "gains": {}}
    for silo in result["silos"]:
        del silo["epsilon_without_shuffler"], silo["user_level"]
        silo |= {"risk": None, "answers": 2, "ledger_entry": 5, "ledger_hash": "abcdef0123456789"}
    rounds = [
        {"round": r, "kind": "gradient", "silos": ["cleveland", "va"], "missed": [], "seconds": 1.5} for r in (1, 2)
    ]
    result["deployment"] = {"rounds": rounds}


VARIANTS = {
    "plain": None,
    "deployed": deployed,
    "shuffled": shuffled,
    "fair": fair,
    "crowded": crowded,
    "not private": not_private,
}
SAYS = {
    "plain": ("each silo trusts itself alone", "Clip and schedule cost", "gain by training together", "Reliability"),
    "deployed": ("Who took part", "abcdef012345"),
    "shuffled": ("mixes reports", "12.500"),
    "fair": ("Equalized odds", "FairGradients"),
    "crowded": ("37 more", "All 40 silos"),
    "not private": ("This run adds no noise", "nothing is protected"),
}


@pytest.fixture(scope="module")
def pages(plain, tmp_path_factory):
    home = tmp_path_factory.mktemp("variants")
    folders = {name: changed(plain, home / name, change or (lambda result: None)) for name, change in VARIANTS.items()}
    return {name: write_report(folder) for name, folder in folders.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_page_says_what_fits_the_run(pages, name):
    text = pages[name].read_text(encoding="utf-8")
    for said in SAYS[name]:
        assert said in text
    assert "<script" not in text
    assert "http" not in text.replace("https://www.w3.org", "")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(need_browser(), tmp_path_factory.mktemp("profile")) as page:
        yield page


def brightness(colour):
    red, green, blue = (int(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3])
    return (red + green + blue) / 3


@pytest.mark.parametrize("name", VARIANTS)
def test_it_renders_by_itself_at_every_width_in_both_schemes(browser, pages, name):
    path = pages[name]
    for width, dark, phone in ((1200, False, False), (360, False, True), (1200, True, False), (360, True, True)):
        browser.look(path, width=width, dark=dark, phone=phone)
        assert browser.complaints() == []
        assert browser.requests() == [path.resolve().as_uri()]
        assert browser.ask("document.documentElement.scrollWidth") <= width
        shown = "[...document.querySelectorAll('figure svg')].every(s => s.getBoundingClientRect().height > 20)"
        assert browser.ask(f"document.querySelectorAll('figure svg').length > 1 && {shown}")
        style = "getComputedStyle(document.body)"
        paper, ink = (brightness(browser.ask(f"{style}.{key}")) for key in ("backgroundColor", "color"))
        assert (paper < 60 < 180 < ink) if dark else (ink < 60 < 240 < paper)
        assert browser.ask(UNREADABLE) == []


UNREADABLE = """[...document.querySelectorAll('svg')].flatMap(svg => {
    const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter(text => {
        const own = text.getBoundingClientRect();
        const wide = own.left < box.left - 1 || own.right > box.right + 1;
        return wide || own.top < box.top - 2 || own.bottom > box.bottom + 2;
    }).map(text => text.textContent);
})"""
"""Texts of drawings that stick out of them."""


CUT = """[...document.querySelectorAll('details')].forEach(one => { one.open = true; }),
[...document.querySelectorAll('.scroll')].flatMap(box => {
    const edge = box.getBoundingClientRect();
    const cells = [...box.querySelectorAll('td')].filter(cell => cell.getBoundingClientRect().right > edge.right + 1);
    return box.scrollWidth > box.clientWidth + 1 ? [box.textContent] : cells.map(cell => cell.textContent);
})"""
"""Tables, and cells of tables, that go beyond the edge."""


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True)])
def test_no_table_is_cut_on_a_screen_or_a_phone(browser, pages, name, width, phone):
    browser.look(pages[name], width=width, phone=phone)
    assert browser.ask(CUT) == []


def test_a_constant_has_a_colour_of_its_own_and_is_in_the_legend(browser, pages):
    for dark in (False, True):
        browser.look(pages["plain"], width=1200, dark=dark)
        fills = "[...new Set([...document.querySelectorAll('.bar')].map(bar => getComputedStyle(bar).fill))]"
        keys = "[...new Set([...document.querySelectorAll('.key')].map(key => getComputedStyle(key).backgroundColor))]"
        assert len(browser.ask(fills)) == 5
        assert sorted(browser.ask(fills)) == sorted(browser.ask(keys))


def test_it_can_be_printed(browser, pages):
    browser.look(pages["plain"], width=1200, dark=True)
    raw = base64.b64decode(browser.send("Page.printToPDF")["data"])
    assert raw.startswith(b"%PDF")
    assert 2 <= raw.count(b"/Type /Page\n") + raw.count(b"/Type /Page ") + raw.count(b"/Type /Page/") <= 9
