"""What the processes of a deployment load: a daemon what its study needs, a shuffler neither jax nor scipy."""

import signal
import subprocess
import sys
import time

import numpy as np
import tomli_w

from tacit.deploy.client import Client
from tacit.deploy.permissions import write_secret
from tacit.deploy.wire import Answer, Consent, Message, Propose, write_arrays
from tests.deploy.silo.consortium import PROPOSER, plan_of, policy_tree, silo_key

TELLING = """
import atexit, sys
atexit.register(lambda: print("loaded:", *sys.modules))
sys.argv = ["tacit", *sys.argv[1:]]
from tacit.__main__ import main
main()
"""
"""The command, which says at its end what it has loaded."""


def modules_in(report: str) -> set[str]:
    """What a telling process has loaded."""
    return set(report.partition("loaded:")[2].split())


def test_a_daemon_has_loaded_few_modules_after_a_round(tmp_path):
    folder, report = tmp_path / "silo", tmp_path / "report.txt"
    folder.mkdir(mode=0o700)
    (folder / "policy.toml").write_text(tomli_w.dumps(policy_tree("silo")))
    x = np.eye(3, dtype=np.float32)[np.arange(40) % 3]
    np.savez(folder / "records.npz", allow_pickle=False, x=x, y=np.arange(40, dtype=np.int32) % 2)
    write_secret(folder / "sign.key", silo_key("silo"))
    for file in folder.iterdir():
        file.chmod(0o600)
    plan = plan_of({"name": "mb-sgd"}, features=(3,))
    arrays = write_arrays([np.zeros(1, np.float32), np.zeros((3, 1), np.float32)])
    command = [sys.executable, "-c", TELLING, "silo", "serve", str(folder)]
    with report.open("w") as out, subprocess.Popen(command, stderr=out, stdout=out) as daemon:
        try:
            client = Client(folder / "door" / "silo.sock", 60.0, proposer=PROPOSER, silo="silo")
            wait_for(folder / "door" / "silo.sock", daemon, report)
            assert isinstance(client.ask(Propose(plan=plan))[0], Consent)
            assert isinstance(client.ask(Answer(study=plan.study, round=0, arrays=arrays[0]), arrays[1])[0], Message)
            client.close()
        finally:
            daemon.send_signal(signal.SIGTERM)
    modules = modules_in(report.read_text())
    own = {name for name in modules if name.split(".")[0] == "tacit"}
    assert "tacit.algorithms.mb_sgd" in own
    assert len(own) <= 63, "\n".join(sorted(own))
    assert not {name.split(".")[1] for name in own if "." in name} & {"data", "simulate", "studies", "theory"}
    assert not {"sklearn", "pandas", "matplotlib", "flwr", "torch", "flax", "equinox"} & {
        name.split(".")[0] for name in modules
    }


def wait_for(socket, daemon, report):
    until = time.monotonic() + 60
    while not socket.exists():
        assert daemon.poll() is None, report.read_text()[-2000:]
        assert time.monotonic() < until
        time.sleep(0.1)


def test_a_shuffler_loads_neither_jax_nor_scipy():
    loads = "import tacit.deploy.shuffler.server\n"
    command = [sys.executable, "-c", loads + TELLING, "shuffler", "serve", "--help"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = modules_in(run.stdout)
    assert {"tacit.deploy.shuffler.service", "tacit.cli.shuffler"} <= modules
    assert not {"jax", "jaxlib", "scipy", "sklearn"} & {name.split(".")[0] for name in modules}
