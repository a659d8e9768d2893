"""The ledger: nothing is released that it does not show, whatever happens to the file, the clock and the disk."""

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import PricingError, gdp_mu, price
from tacit.silo.chain import Counter, Limit, replay
from tacit.silo.ledger import YEAR, Ledger, Reply, inspect
from tacit.silo.spending import Account, Charge, LedgerError, joint_price, share
from tests.silo.books import IDENTITY, LIMIT, Home, debit, event, refused, reserve

RULES = ["gdp", "renyi", "fixed-in-advance"]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_what_is_written_is_there_after_reopening(home):
    ledger = home.open()
    reserve(ledger)
    debit(ledger, 0)
    debit(ledger, 1)
    before = ledger.accounts["s"], ledger.head
    ledger.close()
    again = home.open()
    assert (again.accounts["s"], again.head) == before
    assert again.accounts["s"].made == {"g": 2}
    assert again.stored("s", 1) == Reply("request 1", "{}", b"noise")
    assert again.state("s") == b"after 1"
    assert [entry.kind for entry in inspect(home.path)] == ["open", "reserve", "debit", "debit"]
    again.close()


@pytest.mark.parametrize(("room", "kept"), [(1, [3, 4]), (15, [2, 3, 4]), (1 << 30, [0, 1, 2, 3, 4])])
def test_old_replies_make_room_and_their_rounds_are_not_answered_again(home, monkeypatch, room, kept):
    monkeypatch.setattr("tacit.silo.ledger.REPLY_BYTES", room)
    ledger = home.open()
    reserve(ledger, events=(event(count=9),))
    for number in range(5):
        debit(ledger, number)
    assert [number for number in range(5) if ledger.stored("s", number)] == kept
    before = ledger.accounts["s"]
    for number in range(5):
        with pytest.raises(LedgerError, match="Expected a round after 4"):
            debit(ledger, number)
    assert ledger.accounts["s"] == before
    ledger.close()


def test_a_commit_is_on_disk_when_it_returns(home):
    ledger = home.open()
    modes = [ledger._database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2]
    ledger.close()


def test_only_its_owner_may_read_it(home):
    ledger = home.open()
    reserve(ledger)
    for path in home.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(home.path.parent.stat().st_mode) == 0o700
    ledger.close()


def test_no_more_is_released_than_was_reserved(home):
    ledger = home.open()
    reserve(ledger, events=(event(count=2), event(count=4, kind="h")))
    debit(ledger, 0)
    debit(ledger, 1, kind="h", releases=3)
    refused("round", debit, ledger, 1)
    refused("exhausted", debit, ledger, 2, kind="h", releases=2)
    refused("exhausted", debit, ledger, 2, kind="other")
    refused("exhausted", debit, ledger, 2, releases=0)
    debit(ledger, 2)
    refused("exhausted", debit, ledger, 3)
    refused("study", debit, ledger, 3, study="unknown")
    ledger.finish("s", "finished")
    refused("closed", debit, ledger, 4, kind="h")
    ledger.close()


def test_a_study_that_does_not_fit_leaves_no_trace(home):
    ledger = home.open()
    reserve(ledger, "one", (event(20.0, 10),))
    before = ledger.head
    error = refused("over-budget", reserve, ledger, "two", (event(5.0, 10),))
    # mu*^2 is what (2, 1e-5) allows less the part of delta that is set aside: 10/400 of it is charged, 10/25 is asked.
    most = gdp_mu(2.0, 1e-5 * (1 - 1e-3)) ** 2
    assert error.numbers == pytest.approx(
        {"takes": 0.4 / most, "left": 1 - 0.025 / most, "epsilon": 2.0, "delta": 1e-5}, rel=1e-9
    )
    assert f"{40 / most:.1f}% of it, and {100 - 2.5 / most:.1f}% is left" in str(error)
    assert ledger.head == before
    assert set(ledger.accounts) == {"one"}
    refused("over-budget", reserve, ledger, "free", (event(0.0, 1),))
    with pytest.raises(PricingError, match="records"):
        reserve(ledger, "other records", (event(batch=50, records=50),))
    ledger.close()


@pytest.mark.parametrize("rule", RULES)
def test_two_studies_at_once_share_the_budget_and_only_a_filter_gives_back_what_is_unused(home, rule):
    ledger = home.open(limit=dataclasses.replace(LIMIT, rule=rule))
    # Each alone fits, both together do not.
    half = (event(2.6 * 10**0.5, 10),)
    assert reserve(ledger, "one", half) < 1.0
    refused("over-budget", reserve, ledger, "two", half)
    debit(ledger, 0, "one")
    before = ledger.charged
    ledger.finish("one", "finished")
    if rule == "fixed-in-advance":
        assert ledger.charged == before
        refused("over-budget", reserve, ledger, "two", half)
    else:
        assert ledger.charged == pytest.approx(before / 10)
        assert reserve(ledger, "two", half) == pytest.approx(1.1 * before)
        assert ledger.spent() == pytest.approx(before / 10)
    assert ledger.stored("one", 0) is None
    ledger.close()


MIXED = [
    (event(40.0, 9),),
    (event(6.0, 20, sampling="wor", batch=10),),
    (event(6.0, 7, sampling="wor", batch=10), event(60.0, 3, kind="anchor")),
]


def test_three_studies_fixed_in_advance_cost_what_the_accountant_says_they_cost_together(home):
    ledger = home.open(limit=Limit(9.0, 1e-5, "fixed-in-advance", "renyi"))
    for number, events in enumerate(MIXED):
        reserve(ledger, f"study {number}", events)
        for round_number in range(4):
            debit(ledger, round_number, f"study {number}")
        ledger.finish(f"study {number}", "finished")
    made = [dataclasses.replace(e, count=4 if e.kind == "g" else 0) for events in MIXED for e in events]
    joint = price(made, delta=1e-5).epsilon
    assert 9.0 * ledger.spent() == pytest.approx(joint, rel=2e-3)
    assert 9.0 * ledger.charged == pytest.approx(price([e for m in MIXED for e in m], delta=1e-5).epsilon, rel=2e-3)
    assert joint < 0.8 * sum(price([e], delta=1e-5).epsilon for e in made)
    ledger.close()


def test_passes_of_different_studies_are_not_one_pass():
    """A record is in one batch of each study's pass, so two studies cost more than one."""
    one = event(5.0, 4, sampling="one-pass", batch=10)
    alone = joint_price([[one]], delta=1e-5).epsilon
    assert alone == pytest.approx(price([one], delta=1e-5).epsilon)
    both = joint_price([[one], [one]], delta=1e-5).epsilon
    assert both == pytest.approx(price([event(5.0, 2)], delta=1e-5).epsilon)
    sums = event(5.0, 4, sampling="one-pass", batch=10, mechanism="cumulative")
    twice = joint_price([[sums], [sums]], delta=1e-5).epsilon
    assert twice == pytest.approx(price([event(5.0, 8)], delta=1e-5).epsilon)


def test_a_second_daemon_is_refused(home):
    ledger = home.open()
    words = str(refused("locked", home.open))
    assert (
        f"Another `tacit silo serve` is running on the silo's folder {home.path.parent} (process {os.getpid()})"
        in words
    )
    assert f"stop it first, with: kill {os.getpid()}" in words
    assert ".lock" not in words
    copy = home.path.with_name("copy.sqlite")
    shutil.copy(home.path, copy)
    words = str(refused("locked", Ledger, copy, home.counter, IDENTITY, LIMIT))
    assert f"with the same counter, {home.counter} (process {os.getpid()})" in words
    ledger.close()
    home.open().close()


def test_a_lock_that_is_a_link_is_not_written_through(home, tmp_path):
    home.open().close()
    lock, precious = home.path.with_name(home.path.name + ".lock"), tmp_path / "precious"
    precious.write_text("kept", encoding="utf-8")
    lock.unlink()
    lock.symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        home.open()
    assert precious.read_text(encoding="utf-8") == "kept"


def test_a_restored_backup_is_refused(home, tmp_path):
    ledger = home.open()
    reserve(ledger)
    debit(ledger, 0)
    ledger.close()
    shutil.copytree(home.path.parent, tmp_path / "backup")
    ledger = home.open()
    debit(ledger, 1)
    ledger.close()
    newest = tmp_path / "newest"
    shutil.move(home.path.parent, newest)
    shutil.copytree(tmp_path / "backup", home.path.parent)
    refused("restored", home.open)
    shutil.rmtree(home.path.parent)
    refused("restored", home.open)
    # The refusal to start afresh may have made an empty file; the newest ledger put back is accepted.
    shutil.rmtree(home.path.parent)
    shutil.copytree(newest, home.path.parent)
    home.open().close()
    home.counter.unlink()
    refused("counter", home.open)
    home.counter.write_text("nonsense")
    refused("counter", home.open)


def test_a_branch_of_the_same_length_is_refused(home, tmp_path):
    ledger = home.open()
    reserve(ledger)
    ledger.close()
    shutil.copytree(home.path.parent, tmp_path / "backup")
    counter = home.counter.read_bytes()
    ledger = home.open()
    debit(ledger, 0)
    ledger.close()
    newest = home.counter.read_bytes()
    shutil.rmtree(home.path.parent)
    shutil.copytree(tmp_path / "backup", home.path.parent)
    home.counter.write_bytes(counter)
    home.clock.time += 1
    ledger = home.open()
    debit(ledger, 0)
    ledger.close()
    home.counter.write_bytes(newest)
    refused("restored", home.open)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entries SET body = replace(body, '\"count\": 5', '\"count\": 9') WHERE seq = 2",
        "UPDATE entries SET time = time + 1 WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 3",
        "UPDATE entries SET study = 't' WHERE seq = 3",
    ],
)
def test_an_altered_entry_is_found(home, change):
    ledger = home.open()
    reserve(ledger)
    debit(ledger, 0)
    debit(ledger, 1)
    ledger.close()
    database = sqlite3.connect(home.path)
    with pytest.raises(sqlite3.Error, match="append only"):
        database.execute(change)
    database.execute("DROP TRIGGER entries_keep")
    database.execute("DROP TRIGGER entries_stay")
    assert database.execute(change).rowcount == 1
    database.commit()
    database.close()
    refused("ledger", home.open)
    refused("ledger", inspect, home.path)


def test_other_records_or_another_build_are_refused(home):
    home.open().close()
    words = str(refused("identity", home.open, {**IDENTITY, "digest": "other"}))
    assert "put the files back as they were" in words
    assert "new folder (tacit silo init)" in words
    assert "the budgets of both ledgers add up" in words
    assert "test build" in str(refused("identity", home.open, {**IDENTITY, "test": True}))


def test_a_full_disk_releases_nothing_and_recovers(home):
    ledger = home.open()
    reserve(ledger, events=(event(400.0, 50),))
    debit(ledger, 0)
    pages = ledger._database.execute("PRAGMA page_count").fetchone()[0]
    ledger._database.execute(f"PRAGMA max_page_count = {pages}")
    refused("ledger", debit, ledger, 1, payload=bytes(100_000))
    assert ledger.accounts["s"].made == {"g": 1}
    assert ledger.stored("s", 1) is None
    refused("ledger", debit, ledger, 1)
    ledger.close()
    ledger = home.open()
    debit(ledger, 1, payload=bytes(100_000))
    ledger.close()


def test_the_clock_cannot_bring_an_expired_study_back(home):
    ledger = home.open()
    reserve(ledger)
    debit(ledger, 0)
    home.clock.time = 2500.0
    refused("expired", debit, ledger, 1)
    ledger.expire()
    assert not ledger.accounts["s"].live
    home.clock.time = 10.0
    refused("expired", debit, ledger, 1)
    assert ledger.now() >= 2500.0
    assert ledger.accounts["s"].charged(ledger.rule).events[0].count == 1
    ledger.close()


class Killed(BaseException):
    pass


def test_dying_between_the_disk_and_the_counter_loses_nothing(home, monkeypatch):
    ledger = home.open()
    reserve(ledger)

    def die(self, entry, promised):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Counter, "advance", die)
        with pytest.raises(Killed):
            debit(ledger, 0)
    ledger.close()
    again = home.open()
    assert again.accounts["s"].made == {"g": 1}
    assert again.stored("s", 0) is not None
    assert Counter(home.counter).read() == (again.head.seq, again.head.hash)
    again.close()


def test_dying_while_a_ledger_is_made_leaves_it_usable(home, monkeypatch):
    def die(self, entry, promised):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Counter, "advance", die)
        with pytest.raises(Killed):
            home.open()
    home.open().close()


def test_somebody_else_writing_is_noticed(home):
    ledger = home.open()
    reserve(ledger)
    other = sqlite3.connect(home.path)
    other.execute("INSERT INTO entries VALUES(3, 0, 'close', 's', '{}', '', '')")
    other.commit()
    other.close()
    refused("ledger", debit, ledger, 0)
    refused("ledger", debit, ledger, 1)
    ledger.close()


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["reserve", "debit", "finish"])), max_size=25)


@settings(max_examples=12, deadline=None)
@given(steps=STEPS)
def test_the_chain_adds_up_to_the_accounts(tmp_path_factory, steps):
    """Any order of acts, accepted or refused: what the chain replays is what the ledger thinks."""
    home = Home(tmp_path_factory.mktemp("home"))
    ledger = home.open()
    for number, (study, act) in enumerate(steps):
        with contextlib.suppress(LedgerError):
            if act == "reserve":
                reserve(ledger, study, (event(60.0, 3),))
            elif act == "debit":
                debit(ledger, number, study)
            elif study in ledger.accounts:
                ledger.finish(study, "finished")
    assert replay(inspect(home.path)) == dict(ledger.accounts)
    assert all(sum(a.made.values()) == a.answers <= 3 for a in ledger.accounts.values())
    ledger.close()


def test_an_account_charges_its_reservation_while_it_lives_and_by_a_filter_what_was_made_after():
    account = Account((event(count=5),), 1.0, delta_set_aside=1e-12).after("g", 2, 0)
    gdp, fixed = (dataclasses.replace(LIMIT, rule=rule).fresh for rule in ("gdp", "fixed-in-advance"))
    assert account.charged(gdp) == account.charged(fixed) == account.closed().charged(fixed)
    assert account.charged(gdp).events[0].count == 5
    assert account.debited()[0].count == 2
    assert account.closed().charged(gdp) == account.spent() == Charge(account.debited(), 1e-12)


def test_passes_and_running_sums_are_charged_whole_from_the_first_answer():
    """Where they end may follow messages, and their price is not a sum over releases."""
    passing = event(5.0, 8, sampling="one-pass", batch=10)
    for whole in ([passing], [passing, event(9.0, 2, kind="h", sampling="one-pass", batch=10)]):
        plain = event(50.0, 6, kind="plain")
        account = Account((*whole, plain), 1.0)
        assert all(e.count == 0 for e in account.closed().spent().events)
        assert account.after("plain", 1, 0).closed().spent().events == (
            *(dataclasses.replace(e, count=0) for e in whole),
            dataclasses.replace(plain, count=1),
        )
        begun = account.after("plain", 1, 0).after("g", 1, 1).closed().spent().events
        assert begun == (*whole, dataclasses.replace(plain, count=1))
    running = Account((event(90.0, 6, mechanism="cumulative"),), 1.0).after("g", 1, 0).closed()
    assert running.spent().events == running.events


@pytest.mark.parametrize("rule", ["gdp", "renyi"])
def test_what_a_study_keeps_of_delta_is_paid_from_what_the_rule_sets_aside(home, rule):
    ledger = home.open(limit=dataclasses.replace(LIMIT, rule=rule))
    kept = ledger.rule.set_aside
    assert reserve(ledger, "tails", (event(1e4, 1),), kept=0.6 * kept) == pytest.approx(0.6)
    refused("over-budget", reserve, ledger, "more tails", (event(1e4, 1),), kept=0.6 * kept)
    assert reserve(ledger, "fewer tails", (event(1e4, 1),), kept=0.3 * kept) == pytest.approx(0.9)
    ledger.finish("tails", "nothing was ever said")
    assert ledger.charged == pytest.approx(0.3)
    ledger.close()


def test_a_limit_on_answers_holds_for_all_kinds_together(home):
    ledger = home.open()
    terms = {"count": 4, "participations": 5, "steps": 2}
    reserve(ledger, events=(event(40.0, **terms), event(30.0, kind="h", **terms)))
    for number, kind in enumerate("ghgh"):
        debit(ledger, number, kind=kind, releases=2)
    refused("exhausted", debit, ledger, 4, kind="h", releases=2)
    ledger.close()
    ledger = home.open()
    reserve(ledger, "capped", events=(event(40.0, 9, participations=10), event(30.0, 9, kind="h", participations=10)))
    # The dearest ten answers: nine of h and one of g.
    assert ledger.charged - share(ledger.rule, [ledger.accounts["s"].charged(ledger.rule)]) == pytest.approx(
        (9 / 900 + 1 / 1600) / ledger.rule.limit
    )
    for number in range(10):
        debit(ledger, number, "capped", kind="gh"[number % 2])
    assert "at most 10 answers" in str(refused("exhausted", debit, ledger, 10, "capped"))
    ledger.close()


def test_no_ledger_is_made_by_looking(tmp_path):
    refused("ledger", inspect, tmp_path / "none.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_clock_far_ahead_is_refused_and_leaves_no_trace(home):
    """What is written under a false time could never be taken back; the true time goes on as if nothing had been."""
    ledger = home.open()
    reserve(ledger)
    home.clock.time += YEAR + 1.0
    for act in (ledger.now, ledger.expire, lambda: ledger.finish("s", "over"), lambda: ledger.hold("b", "{}", "p")):
        assert "clock_checked = 1971" in str(refused("clock", act))
    ledger.close()
    refused("clock", home.open)
    home.clock.time -= YEAR
    again = home.open()
    assert again.accounts["s"].live
    debit(again, 0)
    again.close()
    home.clock.time += YEAR + 1.0
    vouched = Ledger(home.path, home.counter, IDENTITY, LIMIT, home.clock, checked=home.clock.time)
    vouched.expire()
    assert not vouched.accounts["s"].live
    vouched.close()


def test_a_clock_that_a_refused_limit_vouches_for_is_not_believed(home):
    ledger = home.open()
    reserve(ledger)
    home.clock.time += 2 * YEAR
    refused("rule", ledger.adopt, dataclasses.replace(LIMIT, rule="renyi"), home.clock.time)
    refused("clock", ledger.now)
    ledger.adopt(LIMIT, home.clock.time)
    assert ledger.now() == home.clock.time
    ledger.close()
