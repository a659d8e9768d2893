"""Pools: records set aside for ever, and an account for each pool."""

import json

import numpy as np
import pytest

from tacit.privacy import Event
from tacit.silo.chain import Limit, replay
from tacit.silo.ledger import Ledger, inspect
from tacit.silo.pools import POOLS, TRAINING, VALIDATION, Split, drawn
from tacit.silo.spending import LedgerError

LIMIT = Limit(2.0, 1e-5, "gdp", "gdp")
IDENTITY = {"records": 100, "digest": "d", "test": False}


def event(records, multiplier=10.0):
    return (Event(kind="g", noise_multiplier=multiplier, count=1, records=records, batch=records, sampling="full"),)


def opened(folder, limit=LIMIT):
    return Ledger(folder / "ledger.sqlite", folder / "apart" / "counter", IDENTITY, limit)


def reserve(ledger, study, records, pool, multiplier=10.0):
    terms = {"delta_set_aside": 0.0, "samples": 0, "expires": 1e12, "state": b""}
    return ledger.reserve(study, "{}", event(records, multiplier), pool=pool, **terms)


def test_every_record_is_in_one_pool_whatever_it_says():
    split = drawn(1000, 0.2)
    rows = [split.rows(pool) for pool in POOLS]
    assert [len(own) for own in rows] == [800, 200] == [split.size(pool) for pool in POOLS]
    assert sorted(np.concatenate(rows).tolist()) == list(range(1000))
    assert (split.rows(VALIDATION) == Split(*split).rows(VALIDATION)).all()
    table = {"x": np.arange(1000)[:, None], "y": np.arange(1000)}
    before = split.records(table, TRAINING)["y"]
    table["y"] = table["y"].copy()
    table["y"][before[0]] = -1
    after = split.records(table, TRAINING)["y"]
    assert (before != after).sum() == 1


def test_positions_are_drawn_anew_and_uniformly():
    hits = np.zeros(50)
    for _ in range(400):
        hits[drawn(50, 0.2).rows(VALIDATION)] += 1
    # Each of 50 positions is in 80 of 400 on average, with a deviation of 8.
    assert abs(hits - 80).max() < 5 * 8


@pytest.mark.parametrize("share", [0.001, 0.9999])
def test_a_pool_without_records_is_refused(share):
    with pytest.raises(ValueError, match="records on both sides"):
        drawn(100, share)


def test_a_release_of_one_pool_costs_the_other_nothing(tmp_path):
    ledger = opened(tmp_path)
    ledger.set_aside(100, 0.2)
    one = reserve(ledger, "train", 80, TRAINING)
    assert ledger.charged_in(TRAINING) == one > 0
    assert ledger.charged_in(VALIDATION) == 0.0
    two = reserve(ledger, "test", 20, VALIDATION)
    assert (ledger.charged_in(TRAINING), ledger.charged_in(VALIDATION)) == (one, two)
    assert ledger.charged == max(one, two)
    both = reserve(ledger, "all", 100, None)
    assert both == pytest.approx(ledger.charged_in(TRAINING)) == pytest.approx(ledger.charged_in(VALIDATION))
    ledger.close()
    ledger = opened(tmp_path)
    assert ledger.charged_in(VALIDATION) == pytest.approx(both)
    assert {s: a.pool for s, a in ledger.accounts.items()} == {"train": TRAINING, "test": VALIDATION, "all": None}
    ledger.close()


def test_each_account_ends_at_its_own_budget(tmp_path):
    ledger = opened(tmp_path)
    ledger.set_aside(100, 0.2)
    reserve(ledger, "train", 80, TRAINING, multiplier=2.2)
    with pytest.raises(LedgerError) as refused:
        reserve(ledger, "more", 80, TRAINING, multiplier=2.2)
    assert refused.value.code == "over-budget"
    reserve(ledger, "test", 20, VALIDATION, multiplier=2.2)
    with pytest.raises(LedgerError):
        reserve(ledger, "both", 100, None, multiplier=2.2)
    ledger.close()


def test_a_silo_with_earlier_releases_starts_both_accounts_with_them(tmp_path):
    ledger = opened(tmp_path)
    before = reserve(ledger, "earlier", 100, None)
    ledger.set_aside(100, 0.2)
    assert ledger.charged_in(TRAINING) == ledger.charged_in(VALIDATION) == before
    after = reserve(ledger, "train", 80, TRAINING)
    assert after == pytest.approx(2 * before)
    assert ledger.charged_in(VALIDATION) == before
    ledger.close()


def test_a_ledger_is_split_once(tmp_path):
    ledger = opened(tmp_path)
    ledger.set_aside(100, 0.0)
    assert ledger.notes.split is None
    ledger.set_aside(100, 0.2)
    split = ledger.notes.split
    ledger.set_aside(100, 0.2)
    for share in (0.0, 0.3):
        with pytest.raises(LedgerError, match=r"data\.validation = 0\.2"):
            ledger.set_aside(100, share)
    ledger.close()
    ledger = opened(tmp_path)
    ledger.set_aside(100, 0.2)
    assert ledger.notes.split == split
    ledger.close()
    entries = inspect(tmp_path / "ledger.sqlite")
    assert [e.kind for e in entries] == ["open", "pools"]
    assert json.loads(entries[1].body)["validation"] == 20
    assert replay(entries) == {}


def test_one_joint_price_cannot_hold_studies_from_before_a_split(tmp_path):
    ledger = opened(tmp_path, Limit(2.0, 1e-5, "fixed-in-advance", "gdp"))
    reserve(ledger, "earlier", 100, None)
    with pytest.raises(LedgerError, match="fixed-in-advance"):
        ledger.set_aside(100, 0.2)
    ledger.close()
