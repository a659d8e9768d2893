"""What the peers in jax share: losses of the model, written without Tacit, and rounds in a scan."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from benchmarks.peers.works import CHECK_STEP, KERNEL, Layers, Prepared, Work, data, difference, start
from tacit.silo import draw

Gradient = Callable[[Any, Array, Array], Any]


def outputs_of(work: Work, params: Any, x: Array) -> Array:
    """The model on a batch."""
    if not work.sizes:
        return _cnn(params, x)
    *hidden, last = params
    for name in hidden:
        x = jax.nn.relu(x @ params[name]["w"] + params[name]["b"])
    return x @ params[last]["w"] + params[last]["b"]


def _cnn(params: Any, x: Array) -> Array:
    for name in ("conv_1", "conv_2"):
        kernel = params[name]["w"].reshape(KERNEL, KERNEL, x.shape[-1], -1)
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.lax.reduce_window(x + params[name]["b"], -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(x)
    x = x.reshape(x.shape[0], -1)
    for name in ("dense_1", "dense_2"):
        x = jax.nn.relu(x @ params[name]["w"] + params[name]["b"])
    return x @ params["dense_3"]["w"] + params["dense_3"]["b"]


def losses_of(work: Work, params: Any, x: Array, y: Array) -> Array:
    """One loss per record."""
    outputs = outputs_of(work, params, x)
    if work.outputs == 1:
        return jnp.logaddexp(0.0, outputs[:, 0]) - y * outputs[:, 0]
    chosen = jnp.take_along_axis(outputs, y[:, None], axis=1)[:, 0]
    return jax.nn.logsumexp(outputs, axis=1) - chosen


def rounds_of(work: Work, gradient: Gradient, change: Gradient, private: bool) -> Prepared:
    """Rounds of ``gradient(params, x, y)`` and, in SPIDER, ``change((new, old), x, y)``, on all silos at once."""
    x, y = (jnp.asarray(leaf) for leaf in data(work))
    before = start(work)
    # A dict goes through jit sorted by name; a model's layers must stay in order.
    names = list(before)
    params = {name: {k: jnp.asarray(v) for k, v in before[name].items()} for name in names}

    def ordered(tree: Any) -> Any:
        return {name: tree[name] for name in names}

    def play(params: Any, key: Array, count: int, step: float, x: Array, y: Array, noise: bool, full: bool) -> Any:
        def turn(carry: Any, now: Any) -> Any:
            new, old, estimate = carry
            number, key = now
            key_batch, key_noise = jax.random.split(key)
            some_x, some_y = _batch(work, key_batch, x, y, full)
            if work.algorithm == "spider":
                fresh = jax.lax.cond(
                    number % 2 == 0,
                    lambda: ordered(gradient(ordered(new), some_x, some_y)),
                    lambda: _add(estimate, ordered(change((ordered(new), ordered(old)), some_x, some_y))),
                )
            else:
                fresh = ordered(gradient(ordered(new), some_x, some_y))
            if noise:
                fresh = _noisy(key_noise, fresh, work.deviation)
            moved = jax.tree.map(lambda w, g: w - step * g, new, fresh)
            return (moved, new, fresh), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        turns = (jnp.arange(count), jax.random.split(key, count))
        return jax.lax.scan(turn, (params, params, zeros), turns)[0][0]

    began = time.perf_counter()
    timed = jax.jit(lambda p, k, x, y: play(p, k, work.rounds, work.step_size, x, y, private, False))
    compiled = timed.lower(params, jax.random.key(0), x, y).compile()
    taken = time.perf_counter() - began
    state = {"key": jax.random.key(1)}

    def step() -> None:
        state["key"], key = jax.random.split(state["key"])
        jax.block_until_ready(compiled(params, key, x, y))

    def moved() -> Layers:
        own = (x[:, : work.batch], y[:, : work.batch])
        check = jax.jit(lambda p, k, x, y: play(p, k, work.check_rounds, CHECK_STEP, x, y, False, True))
        return difference(before, jax.tree.map(np.asarray, check(params, jax.random.key(0), *own)))

    return Prepared(moved, step, taken)


def _batch(work: Work, key: Array, x: Array, y: Array, full: bool) -> tuple[Array, Array]:
    """Of every silo a batch without replacement, all in one."""
    if not full:
        # The sampler of Tacit, so that no floor is slow for the sake of its sampling.
        sizes = {"count": work.records, "batch_size": work.batch, "capacity": work.batch, "slots": work.batch}
        terms: dict[str, Any] = {**sizes, "padded": work.records, "order": None, "position": 0}
        rows = jax.vmap(lambda own: draw(own, "wor", **terms).rows)(jax.random.split(key, work.silos))
        x, y = (jax.vmap(lambda own, some: own[some])(leaf, rows) for leaf in (x, y))
    return x.reshape(-1, *work.features), y.reshape(-1)


def _noisy(key: Array, tree: Any, deviation: float) -> Any:
    flat, restore = ravel_pytree(tree)
    return restore(flat + deviation * jax.random.normal(key, flat.shape))


def _add(one: Any, other: Any) -> Any:
    return jax.tree.map(jnp.add, one, other)
