"""Non-private minibatch SGD as one would write it by hand in jax: the floor."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array

from benchmarks.peers.jax_common import losses_of, rounds_of
from benchmarks.peers.works import Prepared, Work


def prepare(work: Work) -> Prepared:
    """Rounds without clip and noise."""

    def gradient(params: Any, x: Array, y: Array) -> Any:
        return jax.grad(lambda p: losses_of(work, p, x, y).mean())(params)

    def change(points: Any, x: Array, y: Array) -> Any:
        new, old = (gradient(point, x, y) for point in points)
        return jax.tree.map(lambda a, b: a - b, new, old)

    return rounds_of(work, gradient, change, private=False)
