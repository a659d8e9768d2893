"""``python -m soak.forge --forgeries 100000``: requests that no proposer has made, to a real daemon over its socket."""

from __future__ import annotations

import argparse
import contextlib
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tacit.deploy.client import Client
from tacit.deploy.signing import digest_of, opened_reply
from tacit.deploy.silo.service import Home
from tacit.deploy.wire import Hello, Welcome, frame, parse_response, unframed
from tacit.silo.chain import Counter as Longest
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tests.deploy.silo.consortium import PROPOSER, make_home, pins, plan_of, records_of, wait_for
from tests.deploy.silo.forging import Silo, forge

_STUDIES = 30


@contextlib.contextmanager
def _served(home: Home) -> Iterator[None]:
    """``tacit silo serve`` as a process of its own, until it is asked to end."""
    with (home.folder.parent / "log").open("w") as log:
        command = [sys.executable, "-m", "tacit", "silo", "serve", str(home.folder)]
        daemon = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        if not wait_for(lambda: home.socket.exists() or daemon.poll() is not None, 120.0) or daemon.poll() is not None:
            raise RuntimeError((home.folder.parent / "log").read_text())
        yield
        if daemon.poll() is not None:
            raise RuntimeError(f"The daemon has ended with code {daemon.poll()}.")
    finally:
        daemon.terminate()
        daemon.wait(60.0)


def _silo(home: Home, client: Client, database: sqlite3.Connection) -> Silo:
    """The silo behind the socket; its ledger is looked at from outside."""
    name = home.folder.name
    raw = PROPOSER.request(Hello(), silo=name)
    _, header = opened_reply(*client.exchange(raw), request=digest_of(*unframed(raw)), silos=pins(name))
    welcome = parse_response(header)
    assert isinstance(welcome, Welcome)
    newest = "SELECT hash FROM entries ORDER BY seq DESC LIMIT 1"
    return Silo(
        name,
        welcome.ledger,
        lambda forgery: frame(*client.exchange(forgery)),
        lambda: str(database.execute(newest).fetchone()[0]),
    )


def _attack(folder: Path, forgeries: int, seed: int) -> Counter[tuple[str, str]]:
    """What was refused; afterwards the ledger holds what the honest requests between have cost, and no more."""
    home, _ = make_home(folder / "clinic", records_of(0, 40), budget={"epsilon": 40.0})
    plans = [plan_of({"name": "mb-sgd"}, nonce=f"{i:02x}") for i in range(_STUDIES)]
    with _served(home), contextlib.closing(Client(home.socket, 60.0)) as client:
        reading = sqlite3.connect(f"{home.ledger.as_uri()}?mode=ro", uri=True, isolation_level=None)
        with contextlib.closing(reading) as database:
            found = forge(_silo(home, client, database), plans, forgeries, seed=seed)
    entries = inspect(home.ledger)
    Longest(home.counter).check(entries)
    accounts = replay(entries)
    assert {plan.study for plan in plans} == set(accounts)
    assert all(account.answers == 1 and not account.live for account in accounts.values())
    assert sum(entry.kind == "debit" for entry in entries) == len(plans)
    return found


def main() -> None:
    """Forge, and print how many of each kind got what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--forgeries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = _attack(Path(folder), chosen.forgeries, chosen.seed)
    print("| forged | replied | how often |\n| --- | --- | --- |")
    for (kind, reply), count in sorted(found.items()):
        print(f"| {kind} | {reply} | {count:,} |")
    print(
        f"{found.total():,} forgeries around the {5 * _STUDIES + 1} requests of {_STUDIES} studies in "
        f"{time.monotonic() - begun:.0f} s: every one was refused, or was the latest request and got the stored reply; "
        f"no entry of the ledger came from any, and it shows {_STUDIES} debits for the {_STUDIES} answers."
    )


if __name__ == "__main__":
    main()
