"""Watching a party from beside it: metrics for Prometheus, and word when something happens.

A process of its own reads the party's books: the daemon, which holds the records, does nothing for it. What it tells
comes from accounts, names and counts of requests. Formal guarantee: no number here depends on a record. Durations are
left out, because work on records takes as long as it takes.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import shlex
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tacit.deploy.permissions import replace_secret
from tacit.errors import TacitError, printable

_log = logging.getLogger("tacit.watch")
MARKS = (0.5, 0.8, 0.95)
"""Shares of the budget whose passing is told."""
_RUNS = 20
_SECONDS = 30.0


class Sample(NamedTuple):
    """One number with its labels."""

    name: str
    about: str
    value: float
    labels: Mapping[str, str] = {}


class Event(NamedTuple):
    """Something that somebody should know of. ``key`` tells it apart from others, so that it is told once."""

    what: str
    key: str
    text: str


class Look(NamedTuple):
    """What was seen of a party at one moment."""

    samples: list[Sample]
    events: list[Event]


def look_at_silo(folder: Path) -> Look:
    """A silo by its books: whether its daemon runs, its account, studies and refusals."""
    from tacit.cli.books import account_of
    from tacit.cli.status import status_of

    status, books = status_of(folder), account_of(folder)
    account = books["account"]
    charged = 1.0 if account["charged_share"] is None else account["charged_share"]
    spent = 1.0 if account["spent_share"] is None else account["spent_share"]
    samples = [
        Sample("tacit_silo_up", "Whether the daemon listens.", float(status["daemon"])),
        Sample("tacit_silo_policy_usable", "Whether the policy on disk counts.", float(not status["policy_problem"])),
        Sample("tacit_silo_budget_epsilon", "The account's epsilon.", account["epsilon"]),
        Sample("tacit_silo_budget_delta", "The account's delta.", account["delta"]),
        Sample("tacit_silo_spent_share", "Share of the account that is spent.", spent),
        Sample("tacit_silo_charged_share", "Share of the account that is spent or reserved.", charged),
        Sample("tacit_silo_ledger_entries", "Entries of the ledger's chain.", books["length"]),
        Sample("tacit_silo_studies_open", "Studies that are open.", len(status["open"])),
        Sample("tacit_silo_studies_waiting", "Studies that wait for approval.", len(_waiting(status))),
    ]
    samples += [
        Sample("tacit_silo_answers", "Answers to a study.", row["answers"], {"study": row["study"][:16]})
        for row in books["studies"]
    ]
    counts: dict[str, int] = {}
    for row in books["refusals"]:
        counts[row["code"]] = counts.get(row["code"], 0) + row["count"]
    samples += [Sample("tacit_silo_refusals", "Refusals by code.", n, {"code": code}) for code, n in counts.items()]
    return Look(samples, list(_silo_events(status, books, counts, charged)))


def _waiting(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in status["pending"] if not row["approved"]]


def _silo_events(
    status: Mapping[str, Any], books: Mapping[str, Any], counts: Mapping[str, int], charged: float
) -> Iterator[Event]:
    silo = books["silo"]
    for row in _waiting(status):
        name = printable(row["plan"]["name"])
        yield Event("waiting", row["study"], f"{silo}: study {name} of {row['proposer']} waits for approval")
    for row in books["studies"]:
        if row["ended"] is not None:
            yield Event("ended", row["study"], f"{silo}: study {printable(row['name'])} is {row['ended']['how']}")
    for code, count in counts.items():
        yield Event("refused", f"{code} {count}", f"{silo}: {count} requests were refused with {code}")
    for mark in MARKS:
        if charged >= mark:
            held = f"{books['account']['epsilon']:g}"
            yield Event("budget", f"{mark} of {held}", f"{silo}: {mark:.0%} of the budget (epsilon {held}) is used")


def look_at_server(runs: Path) -> Look:
    """The runs of a server's folder, the newest ones, by their journals."""
    from tacit.deploy.flower.watch import View

    journals = sorted(runs.glob("*/progress.jsonl"), key=lambda path: path.stat().st_mtime)[-_RUNS:]
    samples, events = [Sample("tacit_server_runs", "Run folders that are looked at.", len(journals))], []
    for journal in journals:
        view, run = View(journal), journal.parent.name
        rows = view.read()
        facts, labels = view.facts, {"run": run}
        missed = view.rows[-1]["missed"] if view.rows else []
        agreed = {row["silo"] for row in rows if row["event"] == "consent"}
        spent = [row["epsilon"] for row in view.rows if row.get("epsilon") is not None]
        samples += [
            Sample("tacit_server_round", "The round that is through.", facts["round"], labels),
            Sample("tacit_server_rounds", "Rounds of the study.", facts["rounds"] or 0, labels),
            Sample("tacit_server_missed", "Silos that the last round went without.", len(missed), labels),
            Sample("tacit_server_epsilon", "The largest epsilon spent, as silos say.", max(spent, default=0.0), labels),
            Sample("tacit_server_failed", "Whether the run has stopped.", float(facts["state"] == "failed"), labels),
        ]
        for number, row in enumerate(rows):
            if row["event"] in ("finished", "failed"):
                events.append(Event("ended", f"{run} {number}", f"run {run} has {row['event']}"))
            if row["event"] == "refusal":
                text = f"run {run}: {row['silo']} refuses ({row['code']})"
                events.append(Event("refused", f"{run} {row['silo']} {row['code']}", text))
            if row["event"] == "waiting" and facts["state"] == "started" and row["silo"] not in agreed:
                events.append(
                    Event("waiting", f"{run} {row['silo']}", f"run {run}: {row['silo']} waits for {row['for']}")
                )
    return Look(samples, events)


def look_at_shuffler(folder: Path) -> Look:
    """A shuffler by its books: what it has released, and whether it listens."""
    import socket

    from tacit.deploy.shuffler.config import load_terms

    terms, books = load_terms(folder), folder / "shuffler.sqlite"
    host = "127.0.0.1" if terms.host in ("0.0.0.0", "::") else terms.host
    try:
        socket.create_connection((host, terms.port), 2.0).close()
        up = 1.0
    except OSError:
        up = 0.0
    released = 0
    if books.is_file():
        with sqlite3.connect(f"file:{books}?mode=ro", uri=True) as database:
            [released] = database.execute("SELECT COUNT(*) FROM released").fetchone()
        database.close()
    samples = [
        Sample("tacit_shuffler_up", "Whether the shuffler listens.", up),
        Sample("tacit_shuffler_silos", "Silos whose keys are pinned.", len(terms.silos)),
        Sample("tacit_shuffler_studies", "Studies of which a round was released.", released),
    ]
    return Look(samples, [])


class Collector:
    """What Prometheus collects: a fresh look each time."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look

    def collect(self) -> Iterator[Any]:
        """Families of samples, as the client library writes them."""
        from prometheus_client.core import GaugeMetricFamily

        families: dict[str, Any] = {}
        for sample in self._look().samples:
            names = sorted(sample.labels)
            if sample.name not in families:
                families[sample.name] = GaugeMetricFamily(sample.name, sample.about, labels=names)
            families[sample.name].add_metric([sample.labels[name] for name in names], sample.value)
        yield from families.values()


def serve_metrics(look: Callable[[], Look], port: int) -> tuple[Any, Any]:
    """Serve metrics on loopback; returns the library's server and its thread."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise TacitError("prometheus-client is not installed; install it with: pip install 'tacit[metrics]'.") from None
    registry = CollectorRegistry()
    registry.register(Collector(look))
    try:
        return start_http_server(port, addr="127.0.0.1", registry=registry)
    except OSError as error:
        raise TacitError(f"Expected a free port at 127.0.0.1:{port}: {error}; choose another.") from None


class Told:
    """Which events were told, over restarts: a file that only its owner reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = set(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def new(self, events: Iterable[Event]) -> list[Event]:
        """Those that were not told yet; of a party that is watched for the first time, only what waits."""
        events = list(events)
        keys = {f"{event.what} {event.key}" for event in events}
        first = self._known is None
        known = self._known or set()
        fresh = [e for e in events if f"{e.what} {e.key}" not in known and (not first or e.what == "waiting")]
        if first or keys - known:
            self._known = known | keys
            replace_secret(self._path, json.dumps(sorted(self._known)))
        return fresh


def tell(event: Event, webhook: str | None, command: str | None) -> None:
    """Send word of an event: a POST of JSON, and a command that gets the same on its standard input.

    What fails is logged, and stops nothing.
    """
    body = json.dumps({"event": event.what, "text": event.text}).encode()
    _log.info("%s: %s", event.what, event.text)
    if webhook is not None:
        try:
            asked = urllib.request.Request(webhook, body, {"Content-Type": "application/json"})
            urllib.request.urlopen(asked, timeout=10.0).close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            _log.warning("the webhook does not answer: %s", printable(str(error), 200))
    if command is not None:
        words, env = shlex.split(command), {**os.environ, "TACIT_EVENT": event.what, "TACIT_TEXT": event.text}
        try:
            done = subprocess.run(words, input=body, env=env, timeout=60.0)
            if done.returncode:
                _log.warning("%s has ended with code %d", words[0], done.returncode)
        except (OSError, subprocess.TimeoutExpired) as error:
            _log.warning("%s cannot be run: %s", words[0], error)


def watch(
    look: Callable[[], Look],
    told: Path,
    *,
    metrics: int | None,
    webhook: str | None,
    command: str | None,
    times: int | None = None,
    seconds: float = _SECONDS,
) -> None:
    """Look again and again, and tell what is new, until stopped (or for so many ``times``)."""
    from tacit.deploy.listener import log_to_terminal

    log_to_terminal(_log)
    if metrics is not None:
        serve_metrics(look, metrics)
        _log.info("metrics at http://127.0.0.1:%d/metrics", metrics)
    known = Told(told)
    while times is None or times > 0:
        try:
            for event in known.new(look().events):
                tell(event, webhook, command)
        except (ValueError, KeyError, OSError, sqlite3.Error) as error:
            _log.warning("cannot look: %s", printable(str(error)))
        times = None if times is None else times - 1
        if times != 0:
            time.sleep(seconds)
