"""A stranger's whole attack on a consortium of real processes, from the network and from the server's own machine.

He has the authority's certificate, knows every port, and brings a Flower app of his own. The app marks a file wherever
it is loaded. At the end no file is marked, no ledger has moved, and the consortium works.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="flwr is not installed")

import httpx
from flwr.proto import control_pb2, fleet_pb2, runtime_pb2
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient

from experiments.parties import PROPOSER
from tacit.deploy.client import Connection
from tacit.deploy.flower.commands import node_key, read_control
from tacit.deploy.flower.leader import connected
from tacit.deploy.flower.private import FLEET_PATHS, PUSH_PATH, Fleet, Link, _deflated
from tacit.deploy.flower.silos import silos_of
from tacit.deploy.permissions import read_secret
from tacit.deploy.server.coordinator import Patience, meet
from tacit.deploy.server.transport import SignedTransport
from tacit.deploy.signing import Proposer, Signer, new_signing_key
from tacit.deploy.wire import Propose, RefusalError, frame, parse_signed_reply
from tacit.silo.ledger import inspect
from tests.deploy.flower.drive import consortium_of
from tests.deploy.flower.messages import pushed
from tests.deploy.silo.consortium import plan_of

NOBODY = 65534
SIZES = {"north": 30, "south": 40}

APP = """
import pathlib, os
pathlib.Path({marker!r}).joinpath(str(os.getpid())).write_text(open("/proc/self/cmdline").read())
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server = ServerApp()
client = ClientApp()
"""
PYPROJECT = """
[project]
name = "stranger"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "stranger:server"
clientapp = "stranger:client"
"""


@functools.cache
def another_user() -> dict[str, object]:
    """How a process is started as another user with an interpreter of his; empty where that cannot be."""
    for python in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        env = {"PYTHONPATH": sysconfig.get_path("purelib"), "PATH": "/usr/bin:/bin"}
        options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": env}
        try:
            found = subprocess.run([python, "-c", "import flwr"], capture_output=True, check=False, **options)
        except (OSError, ValueError):
            continue
        if found.returncode == 0:
            return {"python": python, "options": options}
    return {}


@pytest.fixture(scope="module")
def world():
    # Not pytest's own folder, which shuts everybody out by itself.
    root = Path(tempfile.mkdtemp(prefix="tacit-stranger-"))
    root.chmod(0o711)
    consortium = consortium_of(root, sizes=SIZES)
    consortium.root.chmod(0o711)
    try:
        consortium.start_all()
        with connected(consortium.control) as transport:
            while len(transport.present()) < len(SIZES):
                consortium.check()
                time.sleep(0.1)
        own = root / "stranger"
        for folder in (own, own / "marked", own / "home", own / "app"):
            folder.mkdir()
            folder.chmod(0o777)
        (own / "app" / "stranger.py").write_text(APP.format(marker=str(own / "marked")))
        (own / "app" / "pyproject.toml").write_text(PYPROJECT)
        entries = {name: len(inspect(consortium.folder(name) / "ledger.sqlite")) for name in SIZES}
        yield SimpleNamespace(consortium=consortium, own=own, entries=entries, control=read_control(consortium.control))
    finally:
        consortium.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def unharmed(world):
    """After every attack: nothing of his was loaded, no ledger has moved, and both silos still answer."""
    yield
    assert list((world.own / "marked").iterdir()) == []
    for name, length in world.entries.items():
        assert len(inspect(world.consortium.folder(name) / "ledger.sqlite")) == length
    entries = world.consortium.proposer_entries
    rows = silos_of(world.consortium.control, PROPOSER, Path(entries["key"]), entries["pins"], 30.0)
    assert [row["silo"] for row in rows if row["silo"]] == sorted(SIZES)
    assert list((world.own / "marked").iterdir()) == []


def flwr_run(world, address: str, certificate: str) -> subprocess.CompletedProcess[str]:
    """``flwr run`` of his app, as another user where that can be."""
    home = world.own / "home"
    (home / "ca.pem").write_text(certificate)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "it"\n\n[superlink.it]\naddress = "{address}"\n'
        f'root-certificates = "{home / "ca.pem"}"\n'
    )
    found = another_user()
    options = dict(found.get("options", {"env": dict(os.environ)}))
    off = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    options["env"] = {**options["env"], **off, "FLWR_HOME": str(home), "HOME": str(home)}
    command = [found.get("python", sys.executable), "-c", "from flwr.cli.app import app; app()", "run"]
    command += [str(world.own / "app"), "it"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL, cwd=home, **options
    )


def test_his_app_marks_wherever_it_is_loaded(world):
    """Otherwise the other tests could not fail."""
    subprocess.run([sys.executable, str(world.own / "app" / "stranger.py")], check=True)
    [marked] = (world.own / "marked").iterdir()
    marked.unlink()


def test_from_the_network_nothing_can_be_started(world):
    authority = world.consortium.authority.certificate
    done = flwr_run(world, world.consortium.superlink, authority.read_text())
    assert done.returncode != 0
    assert "404" in done.stdout + done.stderr
    trusted = ssl.create_default_context(cafile=str(authority))
    with httpx.Client(base_url=f"https://{world.consortium.superlink}", verify=trusted) as http:
        for path in ("control/start-run", "control/register-node", "control/stop-run", "runtime/acquire-task"):
            assert http.post(f"/v1/{path}", content=b"").status_code == 404
        assert http.post("/v1/fleet/get-fab", content=b"").status_code == 404
        assert http.get("/docs").status_code == 404
        # Without a registered key a node gets nothing of what it may ask.
        kind = {"content-type": "application/protobuf"}
        asked = {path: pushed() if path == PUSH_PATH else b"" for path in FLEET_PATHS}
        assert {http.post(path, content=body, headers=kind).status_code for path, body in asked.items()} == {401}
        # What is no reply to the server does not even reach the SuperLink.
        assert http.post(PUSH_PATH, content=b"", headers=kind).status_code == 403


def test_from_the_network_a_node_of_his_own_cannot_join(world, tmp_path):
    node_key(tmp_path / "his.key")
    fleet = Fleet(world.consortium.superlink, world.consortium.authority.certificate, tmp_path / "his.key")
    with pytest.raises(httpx.HTTPStatusError, match="412"):
        fleet.join()
    # Nor as the node of a silo, whose id he knows.
    with Link(world.control) as link:
        fleet.node = link.nodes()[0].node
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        fleet.receive()
    assert not fleet.beat()
    fleet.close()


def test_on_the_servers_machine_his_run_is_executed_by_nobody(world):
    host, port = world.control.address.split(":")
    certificate = ssl.get_server_certificate((host, int(port)))
    done = flwr_run(world, world.control.address, certificate)
    assert re.search(r"run[ _-]?(id)?\W*\d+", done.stdout + done.stderr, re.IGNORECASE), done.stdout + done.stderr
    assert done.returncode == 0
    # It waits, the oldest; a proposer who begins then neither executes it nor is held up (`unharmed`).
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    guess = SuperExecAuthHttpInterceptor(
        master_secret=b"guess" * 8, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    request = runtime_pb2.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    for extra in ([], [guess]):
        with (
            RuntimeHttpClient.from_server_address(
                world.control.address, False, certificate.encode(), [version, *extra]
            ) as runtime,
            pytest.raises(httpx.HTTPStatusError, match="401"),
        ):
            runtime.AcquireTask(request)


def test_on_the_servers_machine_he_can_stop_runs_and_they_begin_anew(world):
    certificate = world.control.certificate.encode()
    version = RuntimeVersionHttpInterceptor(component_name="cli")
    with connected(world.consortium.control) as transport:
        assert len(transport.present()) == len(SIZES)
        with ControlHttpClient.from_server_address(world.control.address, False, certificate, [version]) as his:
            assert his.StopRun(control_pb2.StopRunRequest(run_id=transport._run._run)).success
        assert transport.present() == []
        assert len(transport.present()) == len(SIZES)


def test_a_node_of_his_sends_couriers_nothing(world, tmp_path):
    """Flower takes from any registered node a message in the server's name, whose frames never come; fronts do not."""
    node_key(tmp_path / "his.key")
    with Link(world.control) as link, connected(world.consortium.control) as transport:
        silos = [int(at) for at in transport.present()]
        link.register("his", (tmp_path / "his.key.pub").read_bytes())
        fleet = Fleet(world.consortium.superlink, world.consortium.authority.certificate, tmp_path / "his.key")
        fleet.join()
        for count in range(3):
            for silo in silos:
                message = transport._run._message(silo, [b"%d" % count], 60.0)
                with _deflated([message]) as (heads, trees, _):
                    request = fleet_pb2.PushMessagesRequest(
                        node=fleet._self, messages_list=heads, message_object_trees=trees
                    )
                    with pytest.raises(httpx.HTTPStatusError, match="403"):
                        fleet._client.PushMessages(request)
        entries = world.consortium.proposer_entries
        signed = SignedTransport(
            transport, Proposer(PROPOSER, Signer(read_secret(Path(entries["key"])))), entries["pins"]
        )
        begun = time.monotonic()
        # His own node stays silent, and nobody waits for it.
        found = meet(signed, len(SIZES), Patience(120.0, 120.0), lambda *_: None, sorted(SIZES))
        assert sorted(found) == sorted(SIZES)
        assert time.monotonic() - begun < 20.0
        fleet.leave()
        link.unregister(fleet.node)
        fleet.close()


def test_he_can_read_no_key(world):
    """Also where folders are open: the modes of the files hold by themselves."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    consortium = world.consortium
    link = consortium.control.parent
    kept = [link / name for name in ("control.toml", "executor.secret", "loopback.key", "superlink.sqlite")]
    kept += [consortium.root / "proposer.key"]
    for name in SIZES:
        kept += [consortium.folder(name) / file for file in ("sign.key", "node.key", "policy.toml", "ledger.sqlite")]
    folders = [link, *map(consortium.folder, SIZES)]
    modes = {folder: folder.stat().st_mode & 0o777 for folder in folders}
    try:
        for folder in folders:
            folder.chmod(0o755)
        public = consortium.folder("north") / "node.key.pub"
        assert as_nobody("cat", public).returncode == 0
        for path in kept:
            found = as_nobody("cat", path)
            assert found.returncode != 0, path
            assert b"Permission denied" in found.stderr, path
        for name in SIZES:
            door = consortium.folder(name) / "door" / "silo.sock"
            code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(door)!r})"
            assert as_nobody("/usr/bin/python3", "-c", code).returncode != 0
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)


def as_nobody(*command):
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    return subprocess.run(list(map(str, command)), capture_output=True, check=False, cwd="/", **options)


class Bare(Connection):
    """A connection with the courier's rights, which sends what it likes."""

    def __init__(self, path):
        super().__init__(0.0)
        self._path = path

    def connect(self):
        import socket

        plain = socket.socket(socket.AF_UNIX)
        plain.connect(str(self._path))
        return plain


def test_a_courier_taken_over_is_refused_by_the_daemon_with_a_reason(world):
    request = Propose(plan=plan_of({"name": "mb-sgd"}, features=(3,)))
    his = Signer(new_signing_key())
    honest = Proposer(PROPOSER, Signer(read_secret(world.consortium.root / "proposer.key")))
    forged = honest.request(request, silo="north")
    sent = {
        "unsigned": frame(request),
        "proposer": Proposer("stranger", his).request(request, silo="north"),
        "signature": Proposer(PROPOSER, his).request(request, silo="north"),
        "addressed": forged,
    }
    for name in SIZES:
        line = Bare(world.consortium.folder(name) / "door" / "silo.sock")
        for code, raw in sent.items():
            if (name, code) == ("north", "addressed"):
                continue
            with pytest.raises(RefusalError) as refusal:
                refused(line, raw)
            assert refusal.value.code == code, name
        line.close()


def refused(line, raw):
    response = line.parse(parse_signed_reply(line.exchange(raw)[0]).reply.encode())
    raise RefusalError(response.code, response.text)
