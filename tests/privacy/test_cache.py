"""The cache makes pricing faster, never wrong or impossible."""

import json
import os

import pytest

from tacit.privacy import Event, cache, calibrate, price
from tacit.privacy.curve import curve_of

SAMPLED = Event(kind="g", noise_multiplier=1.0, count=20, records=200, batch=20, sampling="poisson")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path))
    cache.forget()
    return tmp_path / "prices"


def counted(value=1.25):
    calls = []

    def compute():
        calls.append(1)
        return value

    return compute, calls


def test_a_price_is_computed_once_and_read_back(folder):
    first = price([SAMPLED], delta=1e-6).epsilon
    [file] = folder.glob("*.json")
    cache.forget()
    curve_of.cache_clear()
    file.write_text(file.read_text().replace(repr(first), "0.125"))
    assert price([SAMPLED], delta=1e-6).epsilon == 0.125  # it really was read from the file


def test_calibration_is_kept_but_still_checked_by_pricing(folder):
    [tuned] = calibrate([SAMPLED], epsilon=1.0, delta=1e-6)
    cache.forget()
    stored = [f for f in folder.glob("*.json") if "calibrate" in f.read_text()]
    assert len(stored) == 1
    body = json.loads(stored[0].read_text())
    assert body["value"] == tuned.noise_multiplier
    stored[0].write_text(json.dumps(body | {"value": 0.5 * body["value"]}))
    [again] = calibrate([SAMPLED], epsilon=1.0, delta=1e-6)
    assert price([again], delta=1e-6).epsilon <= 1.0


def test_keys_depend_on_everything_but_the_name(folder, monkeypatch):
    compute, calls = counted()
    import dataclasses

    cache.remember("epsilon", [SAMPLED], 1e-6, compute)
    cache.remember("epsilon", [dataclasses.replace(SAMPLED, kind="other")], 1e-6, compute)
    assert len(calls) == 1
    cache.remember("epsilon", [SAMPLED], 1e-5, compute)
    cache.remember("tpr", [SAMPLED], 1e-6, compute)
    cache.remember("epsilon", [SAMPLED.scaled(2.0)], 1e-6, compute)
    cache.remember("epsilon", [dataclasses.replace(SAMPLED, capacity=30)], 1e-6, compute)
    assert len(calls) == 5
    monkeypatch.setattr(cache, "ACCOUNTING_VERSION", cache.ACCOUNTING_VERSION + 1)
    cache.remember("epsilon", [SAMPLED], 1e-6, compute)
    assert len(calls) == 6


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "3.0",
        '{"value": 1.0}',
        '{"asked": "another question", "value": 1.0}',
        '{"asked": ASKED, "value": "1.0"}',
        '{"asked": ASKED, "value": -1.0}',
        '{"asked": ASKED, "value": NaN}',
        '{"asked": ASKED, "value": true}',
        '{"asked": ASKED}',
    ],
)
def test_corrupted_entries_are_ignored_and_repaired(folder, content):
    compute, calls = counted()
    cache.remember("epsilon", [SAMPLED], 1e-6, compute)
    [file] = folder.glob("*.json")
    asked = json.loads(file.read_text())["asked"]
    file.write_text(content.replace("ASKED", json.dumps(asked)))
    cache.forget()
    assert cache.remember("epsilon", [SAMPLED], 1e-6, compute) == 1.25
    assert len(calls) == 2
    cache.forget()
    assert cache.remember("epsilon", [SAMPLED], 1e-6, compute) == 1.25
    assert len(calls) == 2


def test_infinite_prices_survive(folder):
    compute, calls = counted(float("inf"))
    for _ in range(2):
        assert cache.remember("epsilon", [SAMPLED], 1e-6, compute) == float("inf")
        cache.forget()
    assert len(calls) == 1


def test_an_unwritable_folder_is_ignored(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("TACIT_CACHE", str(blocked))
    compute, calls = counted()
    assert cache.remember("epsilon", [SAMPLED], 1e-6, compute) == 1.25
    assert len(calls) == 1


def test_a_failed_write_leaves_nothing_behind(folder, monkeypatch):
    def fail(*_arguments, **_options):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fdopen", fail)
    compute, _ = counted()
    assert cache.remember("epsilon", [SAMPLED], 1e-6, compute) == 1.25
    assert list(folder.glob("*.json")) == []
    assert list(folder.glob("*.tmp")) == []


def test_an_empty_setting_means_no_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TACIT_CACHE", "")
    monkeypatch.chdir(tmp_path)
    compute, calls = counted()
    for _ in range(2):
        cache.remember("epsilon", [SAMPLED], 1e-6, compute)
        cache.forget()
    assert len(calls) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_default_folder_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("TACIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compute, _ = counted()
    cache.remember("epsilon", [SAMPLED], 1e-6, compute)
    assert len(list((tmp_path / "tacit" / "prices").glob("*.json"))) == 1
