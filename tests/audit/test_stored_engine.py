"""An engine that remembers says what the engine says that ships, slot by slot."""

import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Release, Silo
from tacit.audit.stored_engine import StoredEngine
from tacit.objectives import Objective, gradient_at, mlp, squared
from tacit.silo.door import Engine

OBJECTIVE = Objective(mlp((2, 3, 1)), squared())
SILO = Silo(gradient_at(OBJECTIVE), Release(lambda work: 1.0, 1.0, None, "full"))
POINT = {
    "layer_1": {"w": jnp.ones((2, 3)), "b": jnp.ones(3)},
    "layer_2": {"w": jnp.ones((3, 1)), "b": jnp.ones(1)},
}


def same(one, other):
    for (blocks, there), (others, also) in zip(one, other, strict=True):
        np.testing.assert_array_equal(there, also)
        np.testing.assert_array_equal(blocks[""].formed, others[""].formed)
        for name, (left, right) in blocks[""].layers.items():
            np.testing.assert_array_equal(left, others[""].layers[name].left)
            np.testing.assert_array_equal(right, others[""].layers[name].right)


def test_stored_rows_are_those_that_would_be_computed():
    random = np.random.default_rng(0)
    table = {"x": random.normal(size=(3, 2)).astype(np.float32), "y": random.normal(size=3).astype(np.float32)}
    plain, stored = Engine(SILO, form=False), StoredEngine(SILO, form=False)
    for _ in range(20):
        rows, present = random.integers(3, size=5), random.random(5) < 0.7
        batch = {name: column[rows] for name, column in table.items()}
        same(stored.stored(POINT, batch, present), plain.stored(POINT, batch, present))
        same(stored.integers(POINT, batch, present, {"": 1.0}), plain.integers(POINT, batch, present, {"": 1.0}))
    assert {len(shelf._filled) for shelf in stored._shelves.values()} == {4}


def test_another_clip_or_another_work_is_not_mistaken():
    batch, present = {"x": np.ones((2, 2), np.float32), "y": np.ones(2, np.float32)}, np.ones(2, bool)
    plain, stored = Engine(SILO, form=False), StoredEngine(SILO, form=False)
    other = {name: {leaf: 2 * value for leaf, value in layer.items()} for name, layer in POINT.items()}
    for work, clip in [(POINT, 1.0), (other, 1.0), (POINT, 0.5)] * 3:
        same(stored.integers(work, batch, present, {"": clip}), plain.integers(work, batch, present, {"": clip}))
