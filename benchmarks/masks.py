"""The masks of pairwise sums beside the round that they are part of: ``python -m benchmarks.masks``.

A million parameters and 25 silos, each with a daemon as it ships (gradients, checked integers, exact noise, masks,
ledger, signed reply), and a server that leads them; all in this process, one after the other. In a consortium silos
work at the same time, so a round takes what the server takes and one silo's answer: the other 24 answers are
subtracted. Masks are timed inside that one answer, with the keys and signatures of the whole roster. Seconds are of
one run, and so is the work of the processor, which other programs disturb less. Masks are made by up to four threads,
as gradients are: on a machine of one processor seconds are those of the work. The network is not measured: what a
server's link of 1 Gbit/s adds is computed from the bytes. The bar is 5% of a deployed round. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.server.transport import SignedTransport
from tacit.deploy.silo.pairwise import Masker
from tacit.deploy.silo.service import SiloService
from tacit.deploy.wire import Pairwise
from tests.deploy.silo.consortium import PROPOSER, LocalClient, make_home, peers_of, pins, plan_of

SILOS, RECORDS, WIDTH, HIDDEN, CLASSES = 25, 1000, 784, 1250, 10
LINK = 1e9
"""Bits a second of the server's network, through which everything goes."""
NAMES = tuple(f"silo-{i:02d}" for i in range(SILOS))


class Clock(NamedTuple):
    """Seconds, and seconds of work."""

    seconds: float
    work: float

    @classmethod
    def now(cls) -> Clock:
        return cls(time.perf_counter(), time.process_time())

    def since(self, before: Clock) -> Clock:
        return Clock(self.seconds - before.seconds, self.work - before.work)


class Timed:
    """A function, and what its calls took."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call, self.taken = call, [Clock(0.0, 0.0)] * 0

    def __call__(self, *args: Any) -> Any:
        began = Clock.now()
        found = self._call(*args)
        self.taken.append(Clock.now().since(began))
        return found


class InTurn:
    """Daemons in this process, asked one after the other; what all but the first take is counted as ``elsewhere``."""

    def __init__(self, clients: Mapping[str, LocalClient]) -> None:
        self._clients, self.elsewhere, self.bytes = clients, Clock(0.0, 0.0), 0

    def present(self) -> list[str]:
        return list(self._clients)

    def ask(self, requests: Mapping[str, Any], seconds: float, enough: Any = None) -> dict[str, Any]:
        replies = {}
        for name, frames in requests.items():
            began = Clock.now()
            replies[name] = [self._clients[name].exchange(raw) for raw in frames]
            self.bytes += sum(map(len, frames)) + sum(len(part) for reply in replies[name] for part in reply)
            if name != NAMES[0]:
                took = Clock.now().since(began)
                self.elsewhere = Clock(*(a + b for a, b in zip(self.elsewhere, took, strict=True)))
        return replies


def service_of(root: Path, name: str) -> SiloService:
    """A silo's daemon, with noise; the first one has all records, and the others' answers are not counted."""
    rng = np.random.default_rng(NAMES.index(name))
    size = records_of(name)
    records = {
        "x": rng.normal(size=(size, WIDTH)).astype(np.float32),
        "y": rng.integers(0, CLASSES, size).astype(np.int32),
    }
    home, policy = make_home(
        root / name,
        records,
        allow={"channels": ["pairwise"], "max_parameters": 2_000_000},
        pairwise={"peers": peers_of(name, NAMES)},
        data={"file": "records.npz", "task": "multiclass", "classes": CLASSES},
    )
    return SiloService(policy, records, home)


def records_of(name: str) -> int:
    """How many records a silo has."""
    return RECORDS if name == NAMES[0] else 20


def plan_for(rounds: int) -> Any:
    """A network of a million parameters, all silos in every round."""
    sizes = tuple(records_of(name) for name in NAMES)
    among = Pairwise(silos=NAMES, records=sizes, colluding=1, min_silos=SILOS, spare_attempts=0, weights="records")
    algorithm = {"name": "mb-sgd", "sampling": "full", "channel": "pairwise", "num_rounds": rounds}
    objective = {"model": "mlp", "hidden": [HIDDEN], "loss": "softmax"}
    shape = {"features": (WIDTH,), "task": "multiclass", "classes": CLASSES, "silos": SILOS}
    return plan_of(algorithm, objective=objective, pairwise=among, **shape), sizes


def measured(root: Path, rounds: int) -> tuple[list[Clock], list[Clock], float]:
    """What each round takes, the masks of the first silo in it, and its bytes; the first round compiles: left out."""
    services = {name: service_of(root, name) for name in NAMES}
    transport = InTurn({name: LocalClient(service) for name, service in services.items()})
    masks, original = Timed(Masker.masks), Masker.masks
    Masker.masks = lambda own, *args: (masks if own.silo == NAMES[0] else original)(own, *args)  # type: ignore
    signed, patience = SignedTransport(transport, PROPOSER, pins(*NAMES)), Patience(600.0, 600.0)
    met = meet(signed, SILOS, patience, lambda event, facts: None)
    plan, sizes = plan_for(rounds)
    point = Checkpoint(plan, NAMES, sizes, fresh_state(plan, sizes))
    addresses = {name: at for name, (at, _) in met.items()}
    coordinator = Coordinator(point, root / "checkpoint.npz", signed, addresses, patience=patience)
    coordinator.propose()
    taken = []
    for number in range(rounds):
        transport.elsewhere, began = Clock(0.0, 0.0), Clock.now()
        coordinator._play(number)
        taken.append(Clock.now().since(began).since(transport.elsewhere))
    for service in services.values():
        service.close()
    return taken[1:], masks.taken[1:], transport.bytes / rounds


def middle(rows: list[Clock]) -> Clock:
    """The median of each."""
    return Clock(*(statistics.median(getattr(row, kind) for row in rows) for kind in Clock._fields))


def main() -> None:
    """Print what a round and its masks take, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        taken, masks, size = measured(Path(folder), given.rounds)
    found: dict[str, Any] = {"bytes": size, "network_seconds": 8 * size / LINK}
    print(f"{size / 1e6:.0f} MB a round: {found['network_seconds']:.1f} s at 1 Gbit/s, computed and not measured")
    for kind in Clock._fields:
        whole, part = (getattr(middle(rows), kind) for rows in (taken, masks))
        found[kind] = {"round": whole, "masks": part, "share": part / whole}
        linked = part / (whole + found["network_seconds"])
        print(
            f"{kind}: a round {whole:.3f} without network, masks {part:.3f}: {part / whole:.1%}; with it {linked:.1%}"
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
