"""Noise at the right scale, means over the fixed batch size, terms that differ by silo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.silo import SLACK, RecordsError, answer, enrol, privatise, rows_of, step_keys, view_of
from tacit.silo.simulated import standard_deviation


def mean_query(work, record):
    return record["x"]


def silo(**changes):
    terms = {"clip": lambda work: 2.0, "noise_multiplier": 3.0, "batch_size": None, "sampling": "full"}
    return Silo(mean_query, Release(**{**terms, **changes}))


RECORDS = {"x": jnp.ones((10, 400)) * 0.01, "y": jnp.zeros(10)}


def test_noise_has_the_priced_standard_deviation():
    desk = view_of(RECORDS, 10, None, 0)
    keys = jax.random.split(jax.random.key(0), 50)
    released = jax.vmap(lambda k: privatise(silo(), (), desk, keys=step_keys(k, 1)[0], position=0)[0])(keys)
    noise = np.asarray(released).ravel() - 0.01
    sigma = 3.0 * 2 * 2.0 / 10 * (1 + SLACK)
    assert stats.kstest(noise, "norm", args=(0, sigma)).pvalue > 1e-3


def test_the_mean_divides_by_the_fixed_batch_size():
    release = {"noise_multiplier": 0.0, "batch_size": 4, "sampling": "poisson", "capacity": 10}
    desk = view_of(RECORDS, 10, None, 0)
    keys = jax.random.split(jax.random.key(1), 300)
    means = jax.vmap(lambda k: privatise(silo(**release), (), desk, keys=step_keys(k, 1)[0], position=0)[0][0])(keys)
    sizes = np.asarray(means) / 0.01 * 4
    assert np.abs(sizes - sizes.round()).max() < 1e-3
    assert len(set(sizes.round().tolist())) > 3


def test_terms_may_differ_by_silo():
    release = {"noise_multiplier": np.asarray([0.0, 5.0]), "clip": lambda work: jnp.asarray([0.05, 2.0])}
    loud, quiet = (
        answer(silo(**release), (), (), view_of(RECORDS, 10, None, i), key=jax.random.key(0), position=0)[0]
        for i in (1, 0)
    )
    assert abs(float(jnp.linalg.norm(quiet)) - 0.05) < 1e-4
    assert float(jnp.std(loud)) > 1.0


def test_local_steps_absorb_releases_in_turn():
    counting = Silo(
        mean_query,
        silo(noise_multiplier=0.0).release,
        local_steps=3,
        start=lambda broadcast, memory: broadcast,
        absorb=lambda work, released: work + released,
        report=lambda work, memory: (work, memory + 1),
    )
    desk = view_of(RECORDS, 10, None, 0)
    message, memory, _ = answer(counting, jnp.zeros(400), jnp.zeros(()), desk, key=jax.random.key(0), position=0)
    np.testing.assert_allclose(message, 0.03, rtol=1e-4)
    assert float(memory) == 1


def test_blocks_need_a_multiplier_each():
    with pytest.raises(ValueError, match="each block"):
        standard_deviation({"a": 1.0, "b": 1.0}, 2.0, 10, 2.0)
    with pytest.raises(ValueError, match="each block"):
        standard_deviation(1.0, {"a": 2.0}, 10, 2.0)
    assert set(standard_deviation({"a": 1.0}, {"a": 2.0}, 10, 2.0)) == {"a"}


def test_a_private_release_without_noise_is_refused():
    with pytest.raises(ValueError, match="noise multiplier"):
        privatise(
            silo(noise_multiplier=None),
            (),
            view_of(RECORDS, 10, None, 0),
            keys=step_keys(jax.random.key(0), 1)[0],
            position=0,
        )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "at least one record"),
        ({"x": np.asarray([[1.0, np.nan]]), "y": np.zeros(1)}, "1 missing"),
        ({"x": np.asarray([["a"]]), "y": np.zeros(1)}, "encode"),
        ({"x": np.zeros((2, 2)), "y": np.zeros(3)}, "3 rows"),
        ({"x": np.zeros((2, 2))}, "'y'"),
        ({"x": np.full((1, 2), 1e300), "y": np.zeros(1)}, "float32"),
        ({"x": np.zeros((2, 5)), "y": np.zeros(2)}, "shape"),
    ],
)
def test_bad_records_are_refused_with_a_reason(table, message):
    good = {"x": np.zeros((2, 2)), "y": np.zeros(2)}
    with pytest.raises(RecordsError, match=message):
        enrol([good, table], ["first", "second"])


def test_enrolled_records_come_back():
    tables = [{"x": np.arange(6.0).reshape(3, 2), "y": np.arange(3)}, {"x": np.ones((1, 2)), "y": np.ones(1, int)}]
    silos = enrol(tables)
    np.testing.assert_array_equal(rows_of(silos, 0)["x"], tables[0]["x"])
    assert rows_of(silos, 1)["y"].shape == (1,)
