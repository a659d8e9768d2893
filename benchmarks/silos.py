"""Very many silos of which a thousand come to a round: ``python -m benchmarks.silos``.

Logistic regression at silos whose rows lie in one folder (`open_ragged`). Every point is a process of its own; time is
that of a round, the median of several runs, memory what a whole run has held at most. Growth is the exponent of a power
law between the smallest and the largest point of an axis. Writes results/benchmarks/silos.md.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROUNDS, REPEATS, WRITTEN_AT_ONCE = 10, 7, 1 << 20
PAGE = Path("results/benchmarks/silos.md")


class Point(NamedTuple):
    """Silos with between ``least`` and ``most`` records, of which ``come`` come to a round with all their records."""

    axis: str
    silos: int
    least: int = 10
    most: int = 20
    features: int = 20
    come: int = 1000


POINTS = (
    *(Point("silos", silos) for silos in (10**4, 10**5, 10**6)),
    *(Point("records", 10**4, most // 2, most) for most in (10, 100, 1000)),
    *(Point("parameters", 10**4, features=features) for features in (10, 100, 1000)),
    *(Point("silos that come", 10**5, come=come) for come in (100, 1000, 10_000)),
)


def main() -> None:
    """All points, one after another, and the page."""
    rows = []
    for point in POINTS:
        command = [sys.executable, "-m", "benchmarks.silos", json.dumps(point)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows.append({**point._asdict(), **json.loads(done.stdout)})
        print(json.dumps(rows[-1]), flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")


def one(point: Point) -> dict[str, Any]:
    """Time of a round in seconds, and memory in megabytes."""
    import jax
    import numpy as np

    from tacit import Terms, mb_sgd
    from tacit.objectives import Objective, Problem, linear, logistic
    from tacit.silo import open_ragged
    from tacit.simulate.participation import participation
    from tacit.simulate.program import advance, split_keys, start, turns_of

    problem = Problem(Objective(linear(point.features, 1), logistic()))
    terms = Terms(clip_norm=1.0, noise_multiplier=1.0, batch_size=None, sampling="full")
    algorithm = mb_sgd(step_size=0.5, num_rounds=ROUNDS)(problem, terms)
    params, keys = problem.objective.init(jax.random.key(0)), split_keys(jax.random.key(1))
    who = participation(point.silos, participants=point.come)
    with tempfile.TemporaryDirectory() as folder:
        write(point, Path(folder))
        silos = open_ragged(Path(folder))

        turns = turns_of(algorithm, 0, who, silos.number, keys)

        def run(params: Any) -> Any:
            carry = start(algorithm, params, silos, who=who, noise="summed")
            return advance(algorithm, silos, keys, carry, turns, who=who, noise="summed", measure=None)[0].state

        compiled = jax.jit(run).lower(params).compile()
        jax.block_until_ready(compiled(params))
        seconds = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            jax.block_until_ready(compiled(params))
            seconds.append((time.perf_counter() - began) / ROUNDS)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": float(np.median(seconds)), "megabytes": held}


def write(point: Point, folder: Path) -> None:
    """The silos' rows, some at a time."""
    import numpy as np

    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(point.least, point.most + 1, point.silos))])
    np.save(folder / "offsets.npy", offsets)
    total = int(offsets[-1])
    for field, shape, dtype in (("x", (total, point.features), np.float32), ("y", (total,), np.int32)):
        np.lib.format.open_memmap(folder / f"{field}.npy", "w+", dtype, shape)
        step = max(1, WRITTEN_AT_ONCE // math.prod(shape[1:]))
        for first in range(0, total, step):
            # Mapped anew each time, so that what was written does not count as this process's memory.
            part = np.lib.format.open_memmap(folder / f"{field}.npy", "r+")[first : first + step]
            part[:] = rng.standard_normal(part.shape, np.float32) if field == "x" else rng.integers(0, 2, part.shape)


def growth(rows: list[dict[str, Any]], axis: str, by: str) -> str:
    """The exponent with which time grows along an axis."""
    own = [row for row in rows if row["axis"] == axis]
    first, last = own[0], own[-1]
    return f"{math.log(last['seconds'] / first['seconds']) / math.log(last[by] / first[by]):.2f}"


AXES = {"silos": "silos", "records": "most", "parameters": "features", "silos that come": "come"}


def page(rows: list[dict[str, Any]]) -> str:
    """What was measured, for people."""
    few, *_, many = [row for row in rows if row["axis"] == "silos"]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    lines = [
        "# Very many silos",
        "",
        f"`python -m benchmarks.silos` on {today}, {platform.platform()}, seed 0, one process for each row. Logistic "
        "regression; the silos that come to a round bring all their records, which are read from disk.",
        "",
        "| axis | silos | records of a silo | parameters | silos that come | ms a round | MB at most |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        sizes = f"{row['least']} to {row['most']} | {row['features'] + 1:,} | {row['come']:,}"
        measured = f"{1e3 * row['seconds']:.1f} | {row['megabytes']:.0f}"
        lines.append(f"| {row['axis']} | {row['silos']:,} | {sizes} | {measured} |")
    ratio, held = many["seconds"] / few["seconds"], many["megabytes"] / 1024
    lines += [
        "",
        f"A round of {many['silos']:,} silos takes {ratio:.2f} times that of {few['silos']:,} with as many that come "
        f"(the bar is 1.3), in {held:.2f} GB (the bar is 2). Exponents of growth: "
        + ", ".join(f"{growth(rows, axis, by)} with {axis}" for axis, by in AXES.items())
        + ".",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(one(Point(*json.loads(sys.argv[1])))))
    else:
        main()
