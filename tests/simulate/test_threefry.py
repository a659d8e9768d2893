"""The generator of simulations draws jax's own numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.simulate.threefry import written_out

SEEDS = st.integers(0, 2**31 - 1)


def same(one, other):
    if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    np.testing.assert_array_equal(one, other)


DRAWS = {
    "bits": lambda key: jax.random.bits(key, (3, 5)),
    "few bits": lambda key: jax.random.bits(key, (7,), jnp.uint8),
    "one": lambda key: jax.random.bits(key, ()),
    "none": lambda key: jax.random.bits(key, (0,)),
    "normal": lambda key: jax.random.normal(key, (41,)),
    "integers": lambda key: jax.random.randint(key, (41,), 0, 1000),
    "order": lambda key: jax.random.permutation(key, 20),
    "split": lambda key: jax.random.split(key, (2, 3)),
    "fold in": lambda key: jax.random.fold_in(key, 2**32 - 1),
    "chain": lambda key: jax.random.normal(jax.random.fold_in(jax.random.split(key)[1], 7), (4,)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_those_of_jax(name):
    key = jax.random.key(2**31 - 5)
    same(DRAWS[name](key), DRAWS[name](written_out(key)))


@settings(deadline=None, max_examples=25)
@given(seed=SEEDS, number=st.integers(0, 2**32 - 1), place=st.integers(0, 2**31 - 1))
def test_streams_of_silos_are_those_of_jax(seed, number, place):
    def stream(key):
        return jax.random.fold_in(jax.random.fold_in(key, jnp.uint32(number)), jnp.uint32(place))

    same(stream(jax.random.key(seed)), stream(written_out(jax.random.key(seed))))


def test_many_keys_at_once():
    keys = jax.random.split(jax.random.key(3), 4)
    draw = jax.vmap(lambda key: jax.random.normal(key, (6,)))
    same(draw(keys), jax.jit(draw)(written_out(keys)))


def test_other_generators_are_left_alone():
    key = jax.random.key(0, impl="rbg")
    assert written_out(key) is key
    once = written_out(jax.random.key(0))
    assert written_out(once) is once


def test_too_much_at_once_is_refused():
    with pytest.raises(ValueError, match="at most"):
        jax.jit(lambda key: jax.random.bits(key, (2**17, 2**16))).lower(written_out(jax.random.key(0)))
