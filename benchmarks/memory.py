"""Memory of a silo's daemon by the size of the model: ``python -m benchmarks.memory``.

A daemon as it ships (`tacit silo serve`, a process of its own, with noise) is asked over its socket for rounds of a
dense network of a million parameters, and another one for rounds of a small network. What is read is the resident
memory of the process and its peak (VmRSS and VmHWM of Linux, the peak reset before each round). The first round
compiles and is left out; two daemons of the same model differ by megabytes, so the median of several is told. The bar
is four times the model, in 32-bit floats, and one micro-batch: what is stored of its records at a time, as floats, as
integers and as 64-bit floats. Records and broadcast are the same in every run. ``--torch`` asks for the same network as
a torch module of an installed package, whose process holds what torch does too. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tacit.deploy.client import Client
from tacit.deploy.server.transport import SignedTransport, SocketTransport, response_in
from tacit.deploy.wire import Answer, Hello, Propose, Strict, frame
from tacit.objectives.installed import installed
from tacit.silo.door import _STORED_FLOATS
from tests.deploy.silo.consortium import PROPOSER, broadcast_of, make_home, pins, plan_of, records_of
from tests.deploy.silo.packaged import install

WIDTH, CLASSES = 1000, 10
_SETTLED = 0.5
Ask = Callable[..., Any]


@contextlib.contextmanager
def daemon_of(folder: Path, records: int, most: int, packages: Path | None) -> Iterator[tuple[Ask, int]]:
    """A way to ask a silo's daemon as a server does, and the number of its process."""
    data = {"file": "records.npz", "task": "multiclass", "classes": CLASSES}
    allow: dict[str, Any] = {"max_parameters": most}
    paths = [os.environ.get("PYTHONPATH", "")]
    if packages is not None and (own := installed("chest-net")) is not None:
        allow["models"] = {own.name: {"version": own.version, "digest": own.digest}}
        paths.insert(0, str(packages))
    home, _ = make_home(folder, records_of(0, records, WIDTH, CLASSES), allow=allow, data=data)
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit", "silo", "serve", str(folder)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    sockets = SocketTransport([home.socket])
    transport = SignedTransport(sockets, PROPOSER, pins(folder.name))

    def ask(request: Strict, payload: bytes = b"") -> Any:
        [[reply]] = transport.ask({str(home.socket): [frame(request, payload)]}, 600.0).values()
        return response_in(reply)

    try:
        Client(home.socket, 120.0, proposer=PROPOSER, silo=folder.name).ask(Hello())
        ask(Hello())
        yield ask, process.pid
    finally:
        sockets.close()
        process.terminate()
        process.wait(30)


def memory_of(process: int, kind: str) -> int:
    """The bytes of a process: resident now (``VmRSS``), or at most since its peak was reset (``VmHWM``)."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def parameters_of(hidden: int) -> int:
    """How many parameters a network of so many hidden units has."""
    return (WIDTH + 1) * hidden + (hidden + 1) * CLASSES


def bar_of(hidden: int, records: int) -> int:
    """Four times the model, and one micro-batch, in bytes."""
    stored = WIDTH + 1 + hidden + hidden + 1 + CLASSES
    at_once = min(records, max(1, _STORED_FLOATS // stored))
    return 4 * 4 * parameters_of(hidden) + at_once * stored * (4 + 4 + 8)


def objective_of(hidden: int, packages: Path | None) -> dict[str, Any]:
    """A network of so many hidden units: Tacit's own, or the torch module of a package."""
    if packages is None or (own := installed("chest-net")) is None:
        return {"model": "mlp", "hidden": [hidden], "loss": "softmax"}
    return {"model": own.name, "model_options": {"width": hidden}, "model_digest": own.digest, "loss": "softmax"}


def rounds_of(ask: Ask, process: int, objective: dict[str, Any], rounds: int) -> list[dict[str, float]]:
    """Each round of a study with this objective: seconds, and bytes before, at most and after."""
    shape = {"features": (WIDTH,), "task": "multiclass", "classes": CLASSES}
    plan = plan_of({"name": "mb-sgd", "sampling": "full", "num_rounds": rounds}, objective, **shape)
    specs, payload = broadcast_of(plan, 0.01)
    assert ask(Propose(plan=plan)).type == "consent"
    rows = []
    for number in range(rounds):
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
        before, began = memory_of(process, "VmRSS"), time.perf_counter()
        assert ask(Answer(study=plan.study, round=number, arrays=specs), payload).type == "message"
        seconds, most = time.perf_counter() - began, memory_of(process, "VmHWM")
        time.sleep(_SETTLED)
        rows.append({"seconds": seconds, "before": before, "most": most, "after": memory_of(process, "VmRSS")})
    return rows


def peaks_of(hidden: int, given: argparse.Namespace) -> list[float]:
    """The highest peak of a round but the first, in each of several daemons; what every round took is printed."""
    found = []
    for _ in range(given.daemons):
        with (
            tempfile.TemporaryDirectory(prefix="tacit-") as folder,
            daemon_of(Path(folder) / "silo", given.records, parameters_of(hidden), given.packages) as (ask, process),
        ):
            rows = rounds_of(ask, process, objective_of(hidden, given.packages), given.rounds)
        for number, row in enumerate(rows):
            sizes = ", ".join(f"{key} {row[key] / 1e6:.1f}" for key in ("before", "most", "after"))
            print(f"{parameters_of(hidden)} parameters, round {number + 1}: {row['seconds']:.2f} s; MB {sizes}")
        found.append(max(row["most"] for row in rows[1:]))
    return found


def main() -> None:
    """Print what the rounds of a small and of a large model take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=990)
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--daemons", type=int, default=3)
    parser.add_argument("--torch", action="store_true", help="The network as a torch module.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        given.packages = Path(folder) if given.torch else None
        if given.torch:
            install(given.packages)
            sys.path.insert(0, folder)
        told(given)


def told(given: argparse.Namespace) -> None:
    """Measure, and print what was found."""
    small, large = peaks_of(4, given), peaks_of(given.hidden, given)
    grown, bar = statistics.median(large) - statistics.median(small), bar_of(given.hidden, given.records)
    print(f"a round's peak is {grown / 1e6:.1f} MB above the small model's; the bar is {bar / 1e6:.1f}")
    print(json.dumps({"small": small, "large": large, "grown": grown, "bar": bar}))


if __name__ == "__main__":
    main()
