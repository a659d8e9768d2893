"""A ledger's files in a test's folder, and short ways to use them."""

from typing import Any

import pytest

from tacit.privacy import Event
from tacit.silo.chain import Limit
from tacit.silo.ledger import Ledger, Reply
from tacit.silo.spending import LedgerError

IDENTITY = {"records": 100, "digest": "abc", "test": False}
LIMIT = Limit(2.0, 1e-5, "gdp", "renyi")


def event(z: float = 40.0, count: int = 5, kind: str = "g", **changes: Any) -> Event:
    """Releases of a silo of a hundred records."""
    terms = {"records": 100, "batch": 100, "sampling": "full", **changes}
    return Event(kind=kind, noise_multiplier=z, count=count, **terms)


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


class Home:
    """A ledger's files, and a way to open them."""

    def __init__(self, folder):
        self.path, self.counter, self.clock = folder / "silo" / "ledger.sqlite", folder / "apart" / "c", Clock()

    def open(self, identity=IDENTITY, limit=LIMIT):
        return Ledger(self.path, self.counter, identity, limit, self.clock)


def reserve(ledger, study="s", events=None, expires=2000.0, kept=0.0):
    terms = {"delta_set_aside": kept, "samples": 0, "expires": expires, "state": b"start"}
    return ledger.reserve(study, "{}", events or (event(),), **terms)


def debit(ledger, number, study="s", payload=b"noise", kind="g", releases=1):
    reply = Reply(f"request {number}", "{}", payload)
    ledger.debit(study, number, kind, releases, reply=reply, state=b"after %d" % number)


def refused(code, act, *args, **kwargs):
    with pytest.raises(LedgerError) as caught:
        act(*args, **kwargs)
    assert caught.value.code == code
    return caught.value
