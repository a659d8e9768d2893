"""Memory on a dense model of a million parameters: of clipped sums, as the compiler reserves it, and of the door."""

import itertools
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Release, Silo
from tacit.objectives import Objective, gradient_at, gradient_difference, mlp, softmax
from tacit.silo import clipped_sum
from tacit.silo.door import NO_PAST, Door
from tacit.silo.sampler import discrete_gaussian

SIZES = (1000, 990, 10)
OBJECTIVE = Objective(mlp(SIZES), softmax())
WIDTHS = sum(SIZES)
PARAMETERS = sum((a + 1) * b for a, b in itertools.pairwise(SIZES))
BATCHES = (64, 192)


def floats_per_record(run, *points):
    """How many floats more are reserved for one record more."""
    taken = []
    for batch in BATCHES:
        records = {
            "x": jax.ShapeDtypeStruct((batch, SIZES[0]), jnp.float32),
            "y": jax.ShapeDtypeStruct((batch,), jnp.int32),
        }
        analysis = jax.jit(run).lower(points, records).compile().memory_analysis()
        taken.append(analysis.temp_size_in_bytes / 4)
    return (taken[1] - taken[0]) / (BATCHES[1] - BATCHES[0])


@pytest.fixture(scope="module")
def shapes():
    return jax.eval_shape(OBJECTIVE.init, jax.random.key(0))


def test_there_are_a_million_parameters():
    assert PARAMETERS > 1_000_000 > 300 * WIDTHS


@pytest.mark.parametrize("kind", ["gradient", "difference"])
def test_memory_grows_with_the_widths_of_layers_and_not_with_parameters(shapes, kind):
    """A few floats for each unit of each layer and point, whatever lies between the layers."""
    query = gradient_at(OBJECTIVE, lambda work: work[0])
    points = 1
    if kind == "difference":
        query, points = gradient_difference(OBJECTIVE, lambda work: work[0], lambda work: work[1]), 2

    def run(work, records):
        return clipped_sum(query, work, records, jnp.ones(len(records["y"]), bool), jnp.float32(1.0))

    grown = floats_per_record(run, *[shapes] * points)
    assert 0 < grown < 6 * points * WIDTHS
    assert grown < PARAMETERS / 40


def test_materialised_gradients_would_grow_with_parameters(shapes):
    """What the measure says of the memory that the taps save."""

    def run(work, records):
        gradients = jax.vmap(lambda record: jax.grad(OBJECTIVE.loss)(work[0], record))(records)
        squares = sum(jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients))
        return jax.tree.map(lambda leaf: jnp.tensordot(1.0 / jnp.sqrt(squares), leaf, 1), gradients)

    assert floats_per_record(run, shapes) > 0.9 * PARAMETERS


@pytest.mark.parametrize("records", [64, 200])
def test_an_answer_at_the_door_takes_three_times_the_model_and_a_micro_batch(records):
    """The sum in 64 bits and what is said in 32; and a micro-batch as floats, as integers and as 64-bit floats."""
    rng, params = np.random.default_rng(0), jax.tree.map(np.asarray, OBJECTIVE.init(jax.random.key(0)))
    own = {"x": rng.normal(size=(records, SIZES[0])).astype(np.float32), "y": rng.integers(0, 10, records)}
    silo = Silo(gradient_at(OBJECTIVE), Release(lambda work: 0.5, 1.0, None, "full"))
    door = Door(silo, own, silo_index=0, form=False)

    def answer():
        return door.answer(params, (), batches=[door.batch(0, None)], sampler=discrete_gaussian, past=NO_PAST)

    answer()
    tracemalloc.start()
    try:
        answer()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    micro_batch = records * (WIDTHS + SIZES[1] + len(SIZES) - 1) * (4 + 4 + 8)
    assert 3 * 4 * PARAMETERS < peak < 3 * 4 * PARAMETERS + micro_batch
