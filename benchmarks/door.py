"""The integer door against the floating-point door of version 0.1: ``python -m benchmarks.door``.

One release of a full batch of a thousand records, without noise, which both add alike: stored integers, checked and
added exactly, beside the clipped sum in float64, compiled as one program, which version 0.1 had. Everything is
interleaved in one run and compared by medians; the bar is 2 for dense models. The last line is one JSON object.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from tacit.algorithm import Release, Silo
from tacit.objectives import Objective, cnn, linear, logistic, mlp, softmax
from tacit.objectives.query import gradient_at, gradient_difference
from tacit.silo import exact_statistic, view_of
from tacit.silo.door import NO_PAST, Door, no_noise

RECORDS, REPEATS, CLIP = 1000, 15, 0.5
MODELS = {
    "logistic 50-1": (lambda: linear(50, 1), logistic, (50,), 2),
    "MLP 50-64-2": (lambda: mlp((50, 64, 2)), softmax, (50,), 2),
    "MLP 784-256-10": (lambda: mlp((784, 256, 10)), softmax, (784,), 10),
    "CNN of 62,006 parameters": (lambda: cnn(), softmax, (32, 32, 3), 10),
}


def doubled(tree: Any) -> Any:
    return jax.tree.map(lambda a: a.astype(jnp.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)


def before(silo: Silo, work: Any, records: Any) -> Callable[[], Any]:
    """The door of version 0.1: start, then everything in float64 in one program, then absorb and report."""

    def exact(work: Any, records: Any) -> Any:
        view = view_of(doubled(records), RECORDS, None, 0)
        return exact_statistic(silo, doubled(work), view, key=jax.random.key(0), position=0)

    compiled = jax.jit(exact)
    start, absorb, report = jax.jit(silo.start), jax.jit(silo.absorb), jax.jit(silo.report)

    def run() -> Any:
        begun = start(work, ())
        with jax.enable_x64(True):
            mean, _ = compiled(begun, records)
        said = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float32)), mean)
        return jax.block_until_ready(report(absorb(begun, said), ()))[0]

    return run


def now(silo: Silo, work: Any, records: Any) -> Callable[[], Any]:
    door = Door(silo, records, silo_index=0, form=False)

    def run() -> Any:
        batches = [door.batch(0, None)]
        return door.answer(work, (), batches=batches, sampler=no_noise, past=NO_PAST).message

    return run


def cases() -> dict[str, tuple[Silo, Any, Any]]:
    rng, found = np.random.default_rng(0), {}
    for name, (model, loss, shape, classes) in MODELS.items():
        objective = Objective(model(), loss())
        params = objective.init(jax.random.key(0))
        other = jax.tree.map(lambda leaf: leaf + 0.01, params)
        records = {
            "x": rng.normal(size=(RECORDS, *shape)).astype(np.float32),
            "y": rng.integers(0, classes, RECORDS).astype(np.int32),
        }
        release = Release(lambda work: CLIP, 1.0, None, "full")
        found[f"{name}, gradient"] = Silo(gradient_at(objective), release), params, records
        difference = gradient_difference(objective, lambda w: w[0], lambda w: w[1])
        found[f"{name}, difference"] = Silo(difference, release), (params, other), records
    return found


def main() -> None:
    table, rows = Table("release of 1,000 records", "0.1 ms", "now ms", "now / 0.1", "largest difference"), {}
    for name, (silo, work, records) in cases().items():
        old, new = before(silo, work, records), now(silo, work, records)
        pairs = zip(jax.tree.leaves(old()), jax.tree.leaves(new()), strict=True)
        apart = max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)
        times: dict[str, list[float]] = {"old": [], "new": []}
        for _ in range(REPEATS):
            for label, run in (("old", old), ("new", new)):
                start = time.perf_counter()
                run()
                times[label].append(time.perf_counter() - start)
        medians = {label: 1e3 * float(np.median(own)) for label, own in times.items()}
        rows[name] = {**medians, "ratio": medians["new"] / medians["old"], "apart": apart}
        cells = (f"{medians['old']:.1f}", f"{medians['new']:.1f}", f"{rows[name]['ratio']:.2f}", f"{apart:.1e}")
        table.add_row(name, *cells)
    Console().print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
