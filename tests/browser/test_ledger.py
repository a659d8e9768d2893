"""The page of a ledger in a real browser: by itself, on a desk, on a telephone, and on paper."""

import pytest

from tacit.cli.books import write_page
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Propose
from tests.browser.chromium import BEYOND, need_browser, open_browser
from tests.deploy.silo.consortium import LocalClient, make_home, plan_of, records_of


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root, records = tmp_path_factory.mktemp("ledger"), records_of(0, 40)
    home, policy = make_home(root / "a-hospital-with-a-long-name", records)
    service = SiloService(policy, records, home)
    for number in range(3):
        LocalClient(service).ask(Propose(plan=plan_of({"name": "mb-sgd"}, name="n" * 60, nonce=f"0{number}")))
    service.close()
    write_page(home.folder, root / "ledger.html")
    return root / "ledger.html"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_ledger_fits_every_screen_and_loads_nothing(page, tmp_path, width):
    with open_browser(need_browser(), tmp_path) as browser:
        browser.look(page, width=width, dark=False, phone=width < 500)
        assert browser.complaints() == []
        assert browser.requests() == [page.resolve().as_uri()]
        assert browser.ask("document.documentElement.scrollWidth") <= width
        assert browser.ask(BEYOND) == []
        # No word of a number's column is broken: its cells are as wide as their longest word.
        assert browser.ask(BROKEN) == []


BROKEN = """[...document.querySelectorAll('th, td[data-label="released"], td[data-label$="epsilon"]')].filter(
    cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.textContent)"""
