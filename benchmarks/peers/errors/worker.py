"""A process that holds one trainer: ``python -m benchmarks.peers.errors.worker TRAINER THREADS``.

It reads the path of a task, then commands, one a line: ``train SEED PATH RECIPE``. Each answer is a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.peers.worker import limit_threads


def serve(name: str, threads: int) -> None:
    """Answer until the input ends. Programs are never read from a disk."""
    limit_threads(threads)
    os.environ["TACIT_CACHE"] = ""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for answer in _answers(name):
        print(json.dumps(answer), file=answers, flush=True)


def _answers(name: str) -> Any:
    from benchmarks.peers.errors.recipes import TRAINERS, from_json
    from benchmarks.peers.errors.tasks import saved

    task = saved(sys.stdin.readline().strip())
    module = import_module(
        f"benchmarks.peers.errors.{'torch_trainer' if name == 'reference' else TRAINERS[name].module}"
    )
    train = module.reference if name == "reference" else module.train
    yield {}
    for line in sys.stdin:
        _, seed, path, recipe = line.split(maxsplit=3)
        found = train(task, from_json(recipe), int(seed))
        layers = [found.layers(kept) for kept in found.kept]
        stacked = {f"{n}/{k}": np.stack([own[n][k] for own in layers]) for n in layers[0] for k in layers[0][n]}
        np.savez(path, **stacked)
        yield {"setup": found.setup, "seconds": found.seconds}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(sys.argv[1], int(sys.argv[2]))
