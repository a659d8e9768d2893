"""A process that holds one peer: it prepares, shows where it moves the model, and plays when told to.

``python -m benchmarks.peers.worker PEER`` reads a work and then commands from its standard input, one line each, and
answers each with one line of JSON. All peers of a work live at the same time and play in turn, so that what else
happens on the machine happens to all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.peers import PEERS
from benchmarks.peers.works import Layers, Work, from_json


def limit_threads(threads: int) -> None:
    """The same cores for everybody: jax looks at the affinity, torch and numpy at their variables."""
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(len(cores))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def serve(name: str, threads: int) -> None:
    """Answer until the input ends."""
    limit_threads(threads)
    # Libraries print what they like; the answers have a stream of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work = from_json(sys.stdin.readline())
    for answer in _answers(name, work):
        print(json.dumps(answer), file=answers, flush=True)


def _answers(name: str, work: Work) -> Any:
    peer = PEERS[name]
    rounds = min(work.rounds, peer.most_rounds or work.rounds)
    own = dataclasses.replace(work, rounds=rounds + rounds % 2 if work.algorithm == "spider" else rounds)
    began = time.perf_counter()
    prepared = peer.prepare(own)
    yield {"prepared": time.perf_counter() - began, "compile": prepared.compile_seconds}
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "check":
            save(rest[0], prepared.moved())
            yield {}
        elif command == "play":
            began = time.perf_counter()
            told = prepared.step()
            seconds = time.perf_counter() - began if told is None else told
            yield {"seconds": seconds / own.rounds, "peak_megabytes": peak_megabytes()}


def peak_megabytes() -> float:
    """The most memory that this process held, on Linux; ``getrusage`` never says less than its parent had held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def save(path: str, layers: Layers) -> None:
    """Layers to a file."""
    leaves: dict[str, Any] = {f"{name}/{k}": leaf for name, layer in layers.items() for k, leaf in layer.items()}
    np.savez(path, **leaves)


def load(path: str) -> Layers:
    """Layers from a file."""
    found: Layers = {}
    with np.load(path) as stored:
        for key in stored.files:
            name, leaf = key.split("/")
            found.setdefault(name, {})[leaf] = stored[key]
    return found


def write_references(folder: str) -> None:
    """Where the loop in float64 moves the model, with the work's clip and without: two files in a folder."""
    from benchmarks.peers.torch_loop import reference

    limit_threads(2)
    work = from_json(sys.stdin.readline())
    save(f"{folder}/private.npz", reference(work, work.clip))
    save(f"{folder}/plain.npz", reference(work, math.inf))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        if sys.argv[1] == "--references":
            write_references(sys.argv[2])
        else:
            serve(sys.argv[1], int(sys.argv[2]))
