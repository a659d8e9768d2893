"""jax-privacy: at each silo its sampler, its clipped gradient, its noise; the server steps along the mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax_privacy import batch_selection, clipped_grad, noise_addition

from benchmarks.peers.errors.clock import Clock, Trained
from benchmarks.peers.errors.recipes import ADAM, MOMENTUM, Recipe
from benchmarks.peers.errors.tasks import Task, initial
from benchmarks.peers.jax_common import losses_of


def train(task: Task, recipe: Recipe, seed: int) -> Trained:
    """One run; one program plays a round of all silos, one after the other, and is compiled anew."""
    jax.clear_caches()
    clock = Clock()
    names, keys = list(initial(task, seed)), jax.random.split(jax.random.key(seed), len(task.train))
    params = jax.tree.map(jnp.asarray, initial(task, seed))
    momentum = MOMENTUM if recipe.server == "momentum" else None
    server = optax.adam(recipe.step, **ADAM) if recipe.server == "adam" else optax.sgd(recipe.step, momentum)
    privatizer = partial(noise_addition.gaussian_privatizer, stddev=1.0)
    noise = jax.vmap(lambda key: privatizer(prng_key=key).init(params))(keys)
    state, batches, records = server.init(params), _batches(task, recipe, seed), _padded(task)
    sizes = jnp.asarray(recipe.batch, jnp.float32)
    scales = jnp.maximum(2.0 * jnp.asarray(recipe.noise) * recipe.clip, 1e-20)

    def loss(params: Any, x: Array, y: Array) -> Array:
        return losses_of(task.work, {name: params[name] for name in names}, x, y).mean()

    clipped = clipped_grad(loss, l2_clip_norm=recipe.clip, batch_argnums=(1, 2))

    def step(params: Any, state: Any, noise: Any, records: Any, rows: Array) -> Any:
        def answer(own: Any) -> Any:
            (x, y), rows, remembered, size, scale = own
            total = clipped(params, x[rows], y[rows], is_padding_example=rows < 0)
            scaled = jax.tree.map(lambda leaf: leaf / scale, total)
            noisy, after = privatizer(prng_key=keys[0]).update(scaled, remembered)
            return jax.tree.map(lambda leaf: leaf * scale / size, noisy), after

        messages, after = jax.lax.map(answer, (records, rows, noise, sizes, scales))
        updates, state = server.update(jax.tree.map(lambda leaf: leaf.mean(0), messages), state, params)
        return optax.apply_updates(params, updates), state, after

    compiled = jax.jit(step).lower(params, state, noise, records, jnp.asarray(batches[0])).compile()
    clock.ready()
    for rows in batches:
        params, state, noise = jax.block_until_ready(compiled(params, state, noise, records, jnp.asarray(rows)))
        clock.ended(params)
    return clock.trained(lambda kept: {name: jax.tree.map(np.asarray, kept[name]) for name in names})


def _batches(task: Task, recipe: Recipe, seed: int) -> np.ndarray:
    """Rows of every round and silo, -1 where there is none: (rounds, silos, slots)."""
    drawn = []
    for silo, count in enumerate(task.records):
        scheme = batch_selection.CyclicPoissonSampling(recipe.batch[silo] / count, recipe.rounds)
        drawn.append(list(scheme.batch_iterator(count, np.random.default_rng([seed, silo]))))
    most = max(len(rows) for own in drawn for rows in own)
    filled = np.full((recipe.rounds, len(drawn), most), -1, np.int32)
    for silo, own in enumerate(drawn):
        for number, rows in enumerate(own):
            filled[number, silo, : len(rows)] = rows
    return filled


def _padded(task: Task) -> tuple[Array, Array]:
    """All silos' records as two arrays, filled up with zeros."""
    most = max(task.records)
    x = np.zeros((len(task.train), most, task.sizes[0]), np.float32)
    y = np.zeros((len(task.train), most), np.int32)
    for silo, (own_x, own_y) in enumerate(task.train):
        x[silo, : len(own_y)], y[silo, : len(own_y)] = own_x, own_y
    return jnp.asarray(x), jnp.asarray(y)
