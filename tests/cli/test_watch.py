"""Watching a silo from beside it: metrics that a client library reads, events told once, and no number of a record."""

import contextlib
import http.server
import json
import logging
import re
import socket
import threading
import urllib.request

import numpy as np
import pytest
import tomli_w
from typer.main import get_command

from tacit.cli import app
from tacit.cli.watch import (
    Collector,
    Event,
    Told,
    look_at_server,
    look_at_shuffler,
    look_at_silo,
    serve_metrics,
    tell,
    watch,
)
from tacit.deploy.consortium.pages import board
from tacit.deploy.listener import JsonLines
from tacit.deploy.permissions import write_secret
from tacit.deploy.shuffler.config import make_keys
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, Propose, RefusalError, write_arrays
from tests.deploy.silo.consortium import LocalClient, make_home, plan_of, records_of

prometheus = pytest.importorskip("prometheus_client")
PLAN = plan_of({"name": "mb-sgd"}, silos=2, epsilon=1.0)


def played(folder, records, **changes):
    """A silo that has answered two rounds of a study, and has refused another one."""
    home, policy = make_home(folder, records, test=True, **changes)
    service = SiloService(policy, records, home, noise_off=True)
    client = LocalClient(service)
    client.ask(Propose(plan=PLAN))
    for number in range(2):
        arrays = write_arrays([np.zeros(1, np.float32), np.full((5, 1), 0.1 * number, np.float32)])
        client.ask(Answer(study=PLAN.study, round=number, arrays=arrays[0]), arrays[1])
    with pytest.raises(RefusalError):
        client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, silos=1)))
    service.close()
    return home.folder


def exported(look):
    registry = prometheus.CollectorRegistry()
    registry.register(Collector(look))
    return prometheus.generate_latest(registry).decode()


def test_metrics_of_neighbouring_data_sets_are_the_same_to_the_last_byte(tmp_path, monkeypatch):
    monkeypatch.setenv(NOISE_OFF, "1")
    records = records_of(0, 40)
    # The other one has a record that is as far away as can be.
    other = {key: value.copy() for key, value in records.items()}
    other["x"][7], other["y"][7] = -1e3 * np.ones(5, np.float32), 1 - other["y"][7]
    texts = []
    for number, table in enumerate((records, other)):
        folder = played(tmp_path / str(number) / "clinic", table)
        texts.append(exported(lambda folder=folder: look_at_silo(folder)))
    assert texts[0] == texts[1]
    assert 'tacit_silo_answers{study="' in texts[0]
    assert "tacit_silo_answers" in texts[0]
    assert re.search(r"tacit_silo_spent_share 0\.\d+", texts[0])
    # Work on records takes as long as it takes: nothing here is a time.
    assert not re.search(r"second|duration|latency|time|bytes", texts[0])


def test_metrics_are_served_on_loopback_as_the_client_library_reads_them(tmp_path, monkeypatch):
    monkeypatch.setenv(NOISE_OFF, "1")
    folder = played(tmp_path / "clinic", records_of(0, 40))
    server, thread = serve_metrics(lambda: look_at_silo(folder), 0)
    try:
        host, port = server.server_address
        assert host == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as found:
            text = found.read().decode()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    from prometheus_client.parser import text_string_to_metric_families

    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert found["tacit_silo_up"][0].value == 0
    assert found["tacit_silo_answers"][0].value == 2
    assert {s.labels["code"]: s.value for s in found["tacit_silo_refusals"]} == {"not-allowed": 1}
    assert found["tacit_silo_ledger_entries"][0].value > 3


def journal(folder):
    folder.mkdir(parents=True)
    row = {"event": "round", "round": 1, "silos": ["a"], "missed": ["b"], "seconds": 3.5, "rounds": 2, "epsilon": 0.4}
    rows = [
        {"event": "started"},
        {"event": "waiting", "silo": "a", "for": "approval", "compare": "0"},
        {"event": "refusal", "silo": "b", "code": "hours", "text": "later"},
        row,
        {"event": "finished"},
    ]
    (folder / "progress.jsonl").write_text("".join(json.dumps({"time": 0.0, **one}) + "\n" for one in rows))


def shuffler(folder):
    folder.mkdir(mode=0o700)
    make_keys(folder, "x25519")
    tls = {"certificate": "c.pem", "key": "c.key", "callers": "ca.pem"}
    terms = {"name": "a", "port": 1, "callers": {}, "silos": {}, "tls": tls}
    write_secret(folder / "shuffler.toml", tomli_w.dumps(terms))


def test_the_board_shows_all_metrics_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setenv(NOISE_OFF, "1")
    journal(tmp_path / "runs" / "one")
    shuffler(tmp_path / "a")
    looks = [look_at_silo(played(tmp_path / "clinic", records_of(0, 40))), look_at_server(tmp_path / "runs")]
    looks += [look_at_shuffler(tmp_path / "a")]
    names = {sample.name for look in looks for sample in look.samples}
    shown = {target["expr"] for panel in json.loads(board())["panels"] for target in panel["targets"]}
    assert shown == names


def test_a_server_tells_of_waiting_refusals_and_ends(tmp_path):
    journal(tmp_path / "one")
    look = look_at_server(tmp_path)
    assert [event.what for event in look.events] == ["refused", "ended"]
    # While it runs it waits for whoever has not consented.
    lines = (tmp_path / "one" / "progress.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "two").mkdir()
    for rows, waits in ((lines[:2], True), ([*lines[:2], '{"event": "consent", "silo": "a"}\n'], False)):
        (tmp_path / "two" / "progress.jsonl").write_text("".join(rows))
        events = [event for event in look_at_server(tmp_path).events if "run two" in event.text]
        assert [event.what for event in events] == ["waiting"] * waits
    assert {s.name: s.value for s in look.samples}["tacit_server_missed"] == 1
    assert not [sample for sample in look.samples if sample.value == 3.5]


def test_the_status_of_a_run_says_who_is_missing_and_who_refused(tmp_path, capsys):
    journal(tmp_path / "one")
    (tmp_path / "one" / "study.toml").touch()
    get_command(app).main(["server", "status", str(tmp_path / "one"), "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["round"], found["rounds"], found["missed"]) == ("finished", 1, 2, ["b"])
    assert [row["code"] for row in found["refusals"]] == ["hours"]
    get_command(app).main(["server", "status", str(tmp_path / "one")], standalone_mode=False)
    assert "refused by b (hours): later" in capsys.readouterr().out


def test_events_are_told_once_by_webhook_and_command(tmp_path, monkeypatch):
    monkeypatch.setenv(NOISE_OFF, "1")
    budget = {"epsilon": 1.2, "delta": 1e-6}
    folder = played(tmp_path / "clinic", records_of(0, 40), budget=budget)
    heard = []

    class Ear(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    write_secret(folder / "told.json", "[]")
    with http.server.HTTPServer(("127.0.0.1", 0), Ear) as ear:
        threading.Thread(target=ear.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{ear.server_address[1]}/"
        command = f"sh -c 'cat >> {tmp_path}/said; echo >> {tmp_path}/said'"
        for _ in range(2):
            watch(
                lambda: look_at_silo(folder),
                folder / "told.json",
                metrics=None,
                webhook=url,
                command=command,
                times=2,
                seconds=0.01,
            )
        ear.shutdown()
    assert [row["event"] for row in heard] == ["refused", "budget", "budget"]
    assert "80% of the budget" in heard[2]["text"]
    assert [json.loads(line) for line in (tmp_path / "said").read_text().splitlines()] == heard
    assert (folder / "told.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("webhook", ["nowhere", "http://127.0.0.1:{port}/"])
def test_a_webhook_that_answers_nonsense_stops_nothing(caplog, webhook):
    with socket.create_server(("127.0.0.1", 0)) as ear:

        def answer():
            # Nobody comes where the address is none.
            with contextlib.suppress(OSError):
                line, _ = ear.accept()
                line.recv(1 << 16)
                line.sendall(b"\x1b[2J\r\n\r\n")
                line.close()

        threading.Thread(target=answer, daemon=True).start()
        with caplog.at_level(logging.WARNING, "tacit.watch"):
            tell(Event("ended", "a", "x"), webhook.format(port=ear.getsockname()[1]), None)
    assert "the webhook does not answer" in caplog.text
    assert "\x1b" not in caplog.text


def test_what_was_there_before_anybody_watched_is_not_told_but_what_waits_is(tmp_path):
    events = [Event("ended", "a", "x"), Event("waiting", "b", "y")]
    told = Told(tmp_path / "told.json")
    assert [event.what for event in told.new(events)] == ["waiting"]
    assert told.new(events) == []
    assert Told(tmp_path / "told.json").new([*events, Event("ended", "c", "z")]) == [Event("ended", "c", "z")]


def test_logs_are_one_json_object_a_line():
    record = logging.LogRecord("tacit.silo", logging.WARNING, "", 0, "refused,\n%s", ("x",), None)
    found = json.loads(JsonLines().format(record))
    assert (found["service"], found["level"], found["text"]) == ("tacit.silo", "WARNING", "refused,\nx")
    assert "\n" not in JsonLines().format(record)
