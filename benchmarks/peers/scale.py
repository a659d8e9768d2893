"""How Tacit's time and memory grow: silos, records (in memory and on disk), parameters; and what random numbers cost.

Every point is a process of its own: ``python -m benchmarks.peers.scale POINT`` prints one JSON object.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROUNDS, REPEATS = 5, 5
Axis = Literal["silos", "records", "records on disk", "parameters"]


@dataclass(frozen=True)
class Point:
    """One setting: an MLP or, with two sizes, logistic regression, at silos of equal size."""

    axis: Axis
    value: int
    sizes: tuple[int, ...]
    silos: int
    records: int
    batch: int


def points(quick: bool) -> list[Point]:
    """Everything that is measured, smallest first."""
    silos = [Point("silos", n, (20, 1), n, 100, 10) for n in (10, 100, 1000, 10_000)]
    memory = [Point("records", n, (200, 1), 10, n // 10, 10) for n in (10**2, 10**3, 10**4, 10**5, 10**6)]
    disk = [dataclasses.replace(point, axis="records on disk") for point in memory]
    widths = ((10, 8, 2), (50, 19, 2), (1000, 10, 10), (1000, 99, 10), (1000, 990, 10), (1000, 9891, 10))
    wide = [Point("parameters", _parameters(sizes), sizes, 10, 64, 32) for sizes in widths]
    return [silos[0], disk[0], wide[0]] if quick else [*silos, *memory, *disk, *wide]


def _parameters(sizes: tuple[int, ...]) -> int:
    return sum((a + 1) * b for a, b in itertools.pairwise(sizes))


def measure(quick: bool) -> list[dict[str, Any]]:
    """All points, one after the other."""
    found = []
    for point in points(quick):
        command = [sys.executable, "-m", "benchmarks.peers.scale", json.dumps(dataclasses.asdict(point))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append({**dataclasses.asdict(point), **json.loads(done.stdout)})
        print(f"  {point.axis} {point.value:,}: {1e3 * found[-1]['seconds']:.2f} ms a round", flush=True)
    return found


def _one(point: Point) -> dict[str, Any]:
    import jax
    import numpy as np

    from tacit.objectives import Objective, Problem, linear, logistic, mlp, softmax
    from tacit.plans.catalogue import find
    from tacit.simulate.participation import participation
    from tacit.simulate.program import advance, split_keys, start, turns_of

    plain = len(point.sizes) == 2
    model = linear(*point.sizes) if plain else mlp(point.sizes)
    problem = Problem(Objective(model, logistic() if plain else softmax()))
    terms: dict[str, Any] = {"batch_size": min(point.batch, point.records), "sampling": "wor", "output": "last"}
    algorithm = find("mb-sgd").build(
        problem, step_size=0.1, num_rounds=ROUNDS, clip_norm=1.0, noise_multiplier=1.0, **terms
    )
    keys, who = split_keys(jax.random.key(0)), participation(point.silos)
    turns = turns_of(algorithm, 0, who, point.silos, keys)
    params = problem.objective.init(jax.random.key(0))
    with tempfile.TemporaryDirectory() as folder:
        silos = _silos(point, Path(folder))

        def run(params: Any, records: Any) -> Any:
            own = silos if records is None else silos._replace(records=records)
            carry = start(algorithm, params, own, who=who, noise="summed")
            return advance(algorithm, own, keys, carry, turns, who=who, noise="summed", measure=None)[0].state

        records = None if point.axis == "records on disk" else silos.records
        began = time.perf_counter()
        compiled = jax.jit(run).lower(params, records).compile()
        taken = time.perf_counter() - began
        jax.block_until_ready(compiled(params, records))
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(compiled(params, records))
            seconds.append((time.perf_counter() - began) / ROUNDS)
    low, middle, high = (float(q) for q in np.quantile(seconds, (0.25, 0.5, 0.75)))
    analysis: Any = compiled.memory_analysis()
    temporary = analysis.temp_size_in_bytes / 2**20
    sizes = {"temporary_megabytes": temporary, "own_megabytes": _own_megabytes()}
    return {"seconds": middle, "quartiles": [low, high], "compile": taken, **sizes}


def _silos(point: Point, folder: Path) -> Any:
    """Records in memory, or in files that are written one silo at a time."""
    import numpy as np

    from tacit.silo import enrol, open_silos

    def table(i: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(i)
        x = rng.standard_normal((point.records, point.sizes[0]), np.float32)
        return {"x": x, "y": rng.integers(0, 2, point.records, np.int32)}

    if point.axis != "records on disk":
        return enrol([table(i) for i in range(point.silos)])
    for i in range(point.silos):
        (folder / str(i)).mkdir()
        for field, column in table(i).items():
            np.save(folder / str(i) / f"{field}.npy", column)
    return open_silos([folder / str(i) for i in range(point.silos)])


def _own_megabytes() -> float:
    """What the process holds in memory of its own; pages of mapped files are the system's to drop."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), float("nan"))


def generators(quick: bool) -> dict[str, float]:
    """Seconds for a million normals with each of jax's generators; Tacit draws with threefry, which is reproducible."""
    import jax
    import numpy as np

    found = {}
    for name in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = jax.random.key(0, impl=name)
        draw = jax.jit(lambda key: jax.random.normal(key, (10**6,)))
        jax.block_until_ready(draw(key))
        seconds = []
        for _ in range(2 if quick else 11):
            began = time.perf_counter()
            jax.block_until_ready(draw(key))
            seconds.append(time.perf_counter() - began)
        found[name] = float(np.median(seconds))
    return found


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    told = json.loads(sys.argv[1])
    result = generators(told["quick"]) if "quick" in told else _one(Point(**{**told, "sizes": tuple(told["sizes"])}))
    print(json.dumps(result), file=answers, flush=True)
