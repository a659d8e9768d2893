"""Daemons as processes of their own, and plans for them; shared by the tests and the long runs.

Daemons are forked from a small server process that has imported everything and started nothing, so that a daemon that
was killed is back in a moment.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tomli_w

from tacit.deploy.client import Client
from tacit.deploy.contract import builder_from, record_of
from tacit.deploy.permissions import write_secret
from tacit.deploy.server.transport import SignedTransport, SocketTransport
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.silo.policy import Policy, load_policy
from tacit.deploy.silo.server import serve
from tacit.deploy.silo.service import NOISE_OFF, Home, SiloService, home_of
from tacit.deploy.wire import Bundle, Hello, Plan, frame, parse_signed_reply, read_frame, write_arrays
from tacit.plans.assemble import coordinates, shapes_of
from tacit.plans.catalogue import ALGORITHMS
from tacit.privacy.binomial import grid_for

SEED = 7
PROPOSER = Proposer("tester", Signer(hashlib.sha256(b"tester").digest()))


def silo_key(name: str) -> bytes:
    """The signing key of a silo of the tests."""
    return hashlib.sha256(b"silo " + name.encode()).digest()


def led_by(folder: Path, *names: str) -> dict[str, Any]:
    """What a deployment says of its proposer and silos; the key is written into the folder."""
    if not (folder / "proposer.key").exists():
        write_secret(folder / "proposer.key", hashlib.sha256(b"tester").digest())
    return {"proposer": PROPOSER.name, "key": str(folder / "proposer.key"), "pins": pins(*names)}


def pins(*names: str) -> dict[str, str]:
    """The public keys of silos of the tests."""
    return {name: Signer(silo_key(name)).public for name in names}


def peers_of(name: str, names: Iterable[str]) -> dict[str, str]:
    """The public keys of all others, as a silo's policy pins them."""
    return pins(*(other for other in names if other != name))


def fork_server() -> Any:
    """The context that daemons are started from; what is in the environment at the first call is theirs."""
    os.environ[NOISE_OFF] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tacit.deploy.silo.server"])
    return context


def policy_tree(name: str = "silo", **changes: Any) -> dict[str, Any]:
    """A permissive policy for tests."""
    tree: dict[str, Any] = {
        "name": name,
        "budget": {"epsilon": 30.0, "delta": 1e-5},
        "allow": {"algorithms": sorted(ALGORITHMS), "min_silos": 2},
        "approval": {"mode": "auto"},
        "data": {"file": "records.npz", "task": "binary", "classes": 2},
        "proposers": {PROPOSER.name: PROPOSER.signer.public},
        "counter": "../apart/counter-" + name,
        "pad_seconds": 0.0,
    }
    for key, value in changes.items():
        both = {**tree[key], **value} if isinstance(tree.get(key), dict) else value
        tree[key] = {k: v for k, v in both.items() if v is not None} if isinstance(both, dict) else both
    return tree


def records_of(seed: int, size: int, features: int = 5, classes: int = 2) -> dict[str, np.ndarray]:
    """Random records."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(size, features)).astype(np.float32),
        "y": rng.integers(0, classes, size).astype(np.int32),
    }


def make_home(folder: Path, records: dict[str, np.ndarray], **changes: Any) -> tuple[Home, Policy]:
    """A silo's folder with a policy and records."""
    folder.mkdir(parents=True, mode=0o700)
    np.savez(folder / "records.npz", allow_pickle=False, **records)
    (folder / "records.npz").chmod(0o600)
    write_secret(folder / "policy.toml", tomli_w.dumps(policy_tree(folder.name, **changes)))
    write_secret(folder / "sign.key", silo_key(folder.name))
    policy = load_policy(folder / "policy.toml")
    return home_of(folder, policy), policy


class LocalTransport(SignedTransport):
    """Daemons on this machine, each in the folder of its name; what is changed around it was said by server or silo."""

    def __init__(self, sockets: list[Path]) -> None:
        self._direct = SocketTransport(sockets)
        super().__init__(self._direct, PROPOSER, pins(*(path.parent.parent.name for path in sockets)))

    def close(self) -> None:
        """Stop the threads."""
        self._direct.close()


class Daemon:
    """A daemon process."""

    def __init__(self, folder: Path, context: Any, *, noise_off: bool = False) -> None:
        self.folder, self._context, self._noise_off = folder, context, noise_off
        self.home = home_of(folder, load_policy(folder / "policy.toml"))
        self.start()

    def start(self) -> None:
        """Start it; `ready` waits until it serves."""
        target, options = serve, {"noise_off": self._noise_off}
        self._process = self._context.Process(target=target, args=(self.folder,), kwargs=options, daemon=True)
        self._process.start()

    def ready(self, patience: float = 60.0) -> None:
        """Wait until it answers."""
        client = self.client(patience)
        try:
            client.ask(Hello())
        finally:
            client.close()

    def client(self, patience: float = 0.0) -> Client:
        """A connection to it."""
        return Client(self.home.socket, patience, proposer=PROPOSER, silo=self.folder.name)

    def kill(self) -> None:
        """End it as a power cut would."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(30)

    def stop(self) -> None:
        """Ask it to end."""
        self._process.terminate()
        self._process.join(30)
        if self._process.is_alive():
            self.kill()

    @property
    def exit_code(self) -> int | None:
        """How it ended."""
        self._process.join(0)
        return self._process.exitcode


@contextlib.contextmanager
def running(folders: Iterable[Path], *, noise_off: bool = False) -> Iterator[list[Daemon]]:
    """Daemons of these folders, once all of them answer; they are stopped at the end."""
    context, daemons = fork_server(), list[Daemon]()
    try:
        for folder in folders:
            daemons.append(Daemon(folder, context, noise_off=noise_off))
        for daemon in daemons:
            daemon.ready()
        yield daemons
    finally:
        for daemon in daemons:
            daemon.stop()


def said(client: Client, request: Any, payload: bytes = b"") -> tuple[bytes, bytes]:
    """Header and payload of the reply to a signed request, refusals included."""
    signed, body = client.exchange(client.signed(frame(request, payload)))
    return parse_signed_reply(signed).reply.encode(), body


class LocalClient(Client):
    """A client of a steward in this process; every reply is checked to be one well-formed frame."""

    def __init__(self, service: SiloService) -> None:
        super().__init__(service.home.socket, proposer=PROPOSER, silo=service.policy.name)
        self.service = service

    def exchange(self, raw: bytes) -> tuple[bytes, bytes]:
        found = read_frame(io.BytesIO(raw).read)
        assert found is not None
        reply = io.BytesIO(self.service.handle(*found))
        answer = read_frame(reply.read)
        assert answer is not None
        assert reply.read() == b""
        return answer


def broadcast_of(plan: Plan, value: float = 0.0, kind: str | None = None) -> tuple[Any, bytes]:
    """A broadcast of the right shape, filled with one value."""
    builder = builder_from(plan, 100)
    algorithm = builder.build(noise_multiplier=1.0)
    shapes = shapes_of(algorithm, builder.problem, record_of(plan)).broadcasts[kind or algorithm.schedule[0]]
    return write_arrays([np.full(leaf.shape, value, leaf.dtype) for leaf in jax.tree.leaves(shapes)])


def plan_of(algorithm: dict[str, Any], objective: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """A plan for records with five features and two classes."""
    common = {"num_rounds": 4, "step_size": 0.2, "clip_norm": 0.7}
    terms = {
        "name": "test",
        "features": (5,),
        "task": "binary",
        "classes": 2,
        "objective": {} if objective is None else objective,
        "algorithm": {k: v for k, v in {**common, **algorithm}.items() if v is not None},
        "epsilon": 1.0,
        "delta": 1e-6,
        "silos": 4,
        "silo_index": 0,
        "proposer": PROPOSER.name,
    }
    return Plan.model_validate({**terms, **changes})


def as_direct(plan: Plan) -> Plan:
    """The same study with direct messages: what shuffled sums stand for, before their random rounding."""
    algorithm = {name: value for name, value in plan.algorithm.items() if name != "channel"}
    return plan.model_copy(update={"algorithm": algorithm, "shuffle": None})


def rounding_of(plan: Plan) -> float:
    """How far rounding may move the model of a study without noise: hardly in direct messages, six deviations in sums.

    A record is rounded at random to a grid, by at most half a step in deviation; every round adds a step's worth.
    """
    if plan.shuffle is None:
        return 1e-5
    builder, sizes = builder_from(plan, 100), plan.shuffle.records
    shapes = shapes_of(builder.noised(1.0), builder.problem, record_of(plan))
    step = 2 * plan.algorithm["clip_norm"] / grid_for(sum(sizes), coordinates(shapes.params))
    _, each = plan.shuffle.record_weights(None)
    deviation = step / 2 * math.sqrt(sum(sizes)) * float(each)
    return float(plan.algorithm["num_rounds"] * plan.algorithm["step_size"] * 6 * deviation)


def wait_for(condition: Any, seconds: float) -> bool:
    """Whether a condition comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def bundle_of(study: str, **changed: bytes) -> tuple[Bundle, bytes]:
    """A small bundle for a study; ``changed`` are other contents by the names weights, description and card."""
    header = b'{"linear.b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    contents = {
        "weights": len(header).to_bytes(8, "little") + header + bytes(4),
        "description": b'{"format": 1}',
        "card": b"# A model\n",
    } | changed
    names = ("model.safetensors", "model.json", "README.md")
    files = tuple(
        {"name": name, "size": len(raw), "digest": hashlib.sha256(raw).hexdigest()}
        for name, raw in zip(names, contents.values(), strict=True)
    )
    return Bundle.model_validate({"study": study, "files": files}), b"".join(contents.values())
