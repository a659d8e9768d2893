"""One rule for the life of a ledger, whatever its owner's policy says later; ledgers of version 0.1 get one."""

import dataclasses
import json
import math
import sqlite3
from pathlib import Path

import pytest

from tacit.privacy import PricingError, gdp_mu, price
from tacit.privacy.filter import conversion, cost, rule_for
from tacit.silo.chain import Limit, promised, replay, rules_in, settled
from tacit.silo.ledger import inspect
from tacit.silo.pools import POOLS, TRAINING
from tacit.silo.spending import Charge, over_budget, pool_shares, share
from tests.silo.books import Home, debit, event, refused, reserve

POISSON = {"sampling": "poisson", "batch": 10}
RENYI = Limit(2.0, 1e-5, None, "renyi")
OLD = Path(__file__).with_name("ledger-0.1.sql")


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_the_rule_stands_in_the_chain_before_the_first_study(home):
    ledger = home.open(limit=RENYI)
    assert ledger.rule == rule_for("renyi", 2.0, 1e-5)
    ledger.close()
    [opened] = inspect(home.path)
    assert opened.data["rule"] == dataclasses.asdict(ledger.rule)
    assert rules_in([opened]) == [ledger.rule]


def test_until_the_first_study_the_owner_may_choose(home):
    home.open(limit=RENYI).close()
    ledger = home.open(limit=Limit(3.0, 1e-6, "gdp", "renyi"))
    assert ledger.rule == rule_for("gdp", 3.0, 1e-6)
    reserve(ledger)
    ledger.close()
    refused("rule", home.open, limit=RENYI)
    assert [entry.kind for entry in inspect(home.path)] == ["open", "rule", "reserve"]
    assert promised(inspect(home.path), ledger.rule) == 3.0


@pytest.mark.parametrize("old", ["gdp", "renyi", "fixed-in-advance"])
def test_rule_and_delta_cannot_be_switched_after_a_study(home, old):
    """Switching by outcome is what breaks a filter, so no switch is taken at all, and nothing is written."""
    first = Limit(2.0, 1e-5, old, "renyi")
    ledger = home.open(limit=first)
    reserve(ledger)
    debit(ledger, 0)
    ledger.finish("s", "finished")
    ledger.close()
    before = inspect(home.path)
    for name in {"gdp", "renyi", "fixed-in-advance"} - {old}:
        words = str(refused("rule", home.open, limit=dataclasses.replace(first, rule=name)))
        assert f'"{old}" since before its first study' in words
        assert f'Set budget.rule = "{old}"' in words
    for delta in (1e-6, 1e-4):
        assert "Set budget.delta = 1e-05" in str(
            refused("rule", home.open, limit=dataclasses.replace(first, delta=delta))
        )
    assert inspect(home.path) == before
    # A policy that leaves the rule open goes on with the ledger's, whatever its default would be by now.
    for default in ("gdp", "renyi"):
        home.open(limit=dataclasses.replace(first, rule=None, default=default)).close()
    assert inspect(home.path) == before


def test_epsilon_may_change_at_the_same_order_and_every_change_is_an_entry(home):
    ledger = home.open(limit=RENYI)
    fresh = ledger.rule
    reserve(ledger, events=(event(20.0, 10),))
    debit(ledger, 0)
    ledger.close()
    lowered = home.open(limit=dataclasses.replace(RENYI, epsilon=1.6))
    assert lowered.rule == dataclasses.replace(fresh, epsilon=1.6)
    assert lowered.rule.order == fresh.order != rule_for("renyi", 1.6, 1e-5).order
    assert lowered.rule.limit == pytest.approx(1.6 - conversion(fresh.order, 1e-5 * 0.99))
    assert lowered.charged == pytest.approx(ledger.charged * fresh.limit / lowered.rule.limit)
    lowered.close()
    home.open(limit=dataclasses.replace(RENYI, epsilon=1.6)).close()
    raised = home.open(limit=dataclasses.replace(RENYI, epsilon=2.5))
    raised.close()
    again = home.open(limit=RENYI)
    again.close()
    entries = inspect(home.path)
    assert [entry.kind for entry in entries] == ["open", "reserve", "debit", "rule", "rule", "rule"]
    assert [rule.epsilon for rule in rules_in(entries)] == [2.0, 1.6, 2.5, 2.0]
    # What holds is the largest that the account ever had.
    assert promised(entries, again.rule) == 2.5


def test_an_epsilon_too_small_for_the_order_grants_nothing(home):
    ledger = home.open(limit=RENYI)
    reserve(ledger)
    debit(ledger, 0)
    ledger.close()
    ledger = home.open(limit=dataclasses.replace(RENYI, epsilon=0.1))
    assert ledger.rule.limit == 0.0
    words = str(refused("over-budget", debit, ledger, 1))
    assert "overdrawn" in words
    assert "Nothing more is granted" in words
    refused("over-budget", reserve, ledger, "more", (event(1e6, 1),))
    ledger.close()


def test_a_smaller_account_stops_studies_that_are_running(home):
    limit = Limit(2.0, 1e-5, "gdp", "renyi")
    ledger = home.open(limit=limit)
    reserve(ledger, events=(event(5.0, 4),))
    debit(ledger, 0)
    ledger.close()
    ledger = home.open(limit=dataclasses.replace(limit, epsilon=1.0))
    assert ledger.charged > 1.0 > ledger.spent()
    refused("over-budget", debit, ledger, 1)
    # What was not used goes back at the end of the study, and the rest of the smaller account is there again.
    ledger.finish("s", "stopped by its owner")
    assert ledger.charged == pytest.approx((1 / 25) / gdp_mu(1.0, 1e-5 * (1 - 1e-3)) ** 2)
    reserve(ledger, "next", (event(30.0, 4),))
    ledger.close()


def test_a_rule_of_another_version_is_not_guessed_at(home):
    ledger = home.open(limit=RENYI)
    row = {**dataclasses.asdict(ledger.rule), "more": 1}
    with ledger._write("rule", "", {"rule": row}):
        pass
    ledger.close()
    refused("ledger", home.open, limit=RENYI)


def old_ledger(home):
    """A ledger as version 0.1 wrote it: four studies that are over, one unused, one open; no rule."""
    home.path.parent.mkdir(parents=True, mode=0o700)
    home.counter.parent.mkdir(parents=True)
    database = sqlite3.connect(home.path)
    database.executescript(OLD.read_text(encoding="utf-8"))
    [head] = database.execute("SELECT seq, hash FROM entries ORDER BY seq DESC LIMIT 1")
    database.close()
    home.path.chmod(0o600)
    home.counter.write_text(json.dumps({"seq": head[0], "hash": head[1]}))
    home.clock.time = 2000.0
    return head[0]


def test_a_ledger_of_version_0_1_is_priced_again_by_its_new_rule(home):
    length = old_ledger(home)
    before = replay(inspect(home.path))
    assert settled(inspect(home.path), RENYI) == rule_for("renyi", 2.0, 1e-5)
    ledger = home.open(limit=RENYI)
    entries = inspect(home.path)
    assert [entry.kind for entry in entries[length:]] == ["rule"]
    assert replay(entries) == before == dict(ledger.accounts)
    rule = ledger.rule
    # Entry by entry: a study that is over costs what it released, a pass is whole, an open study costs all of it.
    expected = [
        [event(20.0, 4)],
        [event(3.0, 30, **POISSON)],
        [event(8.0, 8, sampling="one-pass", batch=10)],
        [],
        [event(25.0, 6)],
        [event(30.0, 6), event(60.0, 5, kind="h")],
    ]
    assert ledger.charged == pytest.approx(sum(cost(rule, events).loss for events in expected) / rule.limit, rel=1e-12)
    assert ledger.accounts["shuffled"].delta_set_aside == 1e-12
    assert {a.delta_set_aside for name, a in ledger.accounts.items() if name != "shuffled"} == {0.0}
    # It goes on: the open study is answered, and a new one reserved, until the account is used up.
    debit(ledger, 3, "running")
    ledger.finish("running", "finished")
    left = 1 - ledger.charged
    reserve(ledger, "new", (event((rule.order / 2 / (0.9 * left * rule.limit)) ** 0.5, 1),))
    refused("over-budget", reserve, ledger, "one more", (event((rule.order / 2 / (0.2 * rule.limit)) ** 0.5, 1),))
    ledger.close()
    home.open(limit=RENYI).close()
    refused("rule", home.open, limit=dataclasses.replace(RENYI, rule="gdp"))


def test_a_past_beyond_the_budget_grants_nothing_more(home):
    """By the joint price of 0.1 it had cost 1.04 of 1.1; by a filter it is more than that."""
    old_ledger(home)
    limit = dataclasses.replace(RENYI, epsilon=1.1)
    made = [e for account in replay(inspect(home.path)).values() for e in account.debited()]
    assert price(made, delta=1e-5).epsilon < 1.1
    ledger = home.open(limit=limit)
    assert ledger.charged > 1.0
    words = str(refused("over-budget", reserve, ledger, "new", (event(1e5, 1),)))
    assert "is overdrawn" in words
    assert "Nothing more is granted" in words
    refused("over-budget", debit, ledger, 3, "running")
    assert ledger.stored("running", 2) is not None
    ledger.close()


def test_a_past_that_a_rule_cannot_price_is_refused(home):
    length = old_ledger(home)
    words = str(refused("rule", home.open, limit=dataclasses.replace(RENYI, rule="gdp")))
    assert 'cannot price: Expected full batches or one pass, of Gaussian releases, under the rule "gdp"' in words
    assert len(inspect(home.path)) == length


def test_a_past_fixed_in_advance_gives_nothing_back(home):
    old_ledger(home)
    ledger = home.open(limit=dataclasses.replace(RENYI, rule="fixed-in-advance"))
    reserved = [e for account in ledger.accounts.values() for e in account.events]
    plain = [e for e in reserved if e.sampling == "full"]
    least = price([e for e in reserved if e.sampling != "one-pass"], delta=1e-5).epsilon / 2.0
    assert price(plain, delta=1e-5).epsilon / 2.0 < least < ledger.charged
    assert ledger.charged > ledger.spent()
    ledger.close()


def test_the_share_of_an_account_is_one_silo_s():
    rule = rule_for("gdp", 1.0, 1e-5)
    one, other = (Charge((own,), 0.0) for own in (event(), event(records=50, batch=50)))
    for pool in (None, *POOLS):
        with pytest.raises(PricingError, match="one value of records"):
            pool_shares(rule, [(pool, one), (pool, other)])
    # Studies of all records, from before a split, stand beside those of a pool: costs of a filter add up.
    assert pool_shares(rule, [(None, one), (TRAINING, other)])[TRAINING] == share(rule, [one, other])


def test_a_refusal_has_no_numbers_that_are_none():
    """An account whose studies cannot be added up any more: what one more would take is not known."""
    rule = RENYI.fresh
    assert set(over_budget(rule, math.inf, math.inf).numbers) == {"left", "epsilon", "delta"}
    assert set(over_budget(rule, 0.5, 1.5).numbers) == {"takes", "left", "epsilon", "delta"}
