"""Statistics of columns: their sensitivity by brute force, their noise, and what is read from them."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.column_statistics import column_bound, column_statistics
from tacit.algorithms.validation_score import validation_score
from tacit.objectives import Objective, linear, logistic, squared
from tacit.privacy.plan import events_of
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.studies.standardise import shares_of_tree

KINDS = ("moments", "quantiles", "histogram")


def once(noise):
    return Terms(clip_norm=None, noise_multiplier=noise, batch_size=None, sampling="full")


def statistics(kind, columns, bins=8, noise=1.0):
    return column_statistics(once(noise), columns=range(columns), statistic=kind, bins=bins)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [1, 2])
def test_replacing_one_record_moves_a_mean_by_no_more_than_is_priced(kind, columns):
    silo = statistics(kind, columns).rounds["statistics"].silo
    values = np.linspace(-1.5, 1.5, 25 if columns == 1 else 9)
    points = np.array(list(itertools.product(values, repeat=columns)), np.float32)
    found = np.asarray(jax.vmap(lambda x: silo.query(None, {"x": x}).reshape(-1))(jnp.asarray(points)))
    bound = float(silo.release.clip(None))
    assert np.linalg.norm(found, axis=1).max() <= bound + 1e-5
    apart = np.linalg.norm(found[:, None] - found[None, :], axis=2).max()
    assert apart <= 2 * bound + 1e-5
    # Moments and trees are priced exactly; a histogram by at most the root of two too much.
    assert apart == pytest.approx(2 * math.sqrt(columns), rel=1e-5) if kind == "moments" else apart >= 1.41 * bound


def test_without_noise_statistics_are_those_of_the_records():
    generator = np.random.default_rng(0)
    tables = [{"x": generator.uniform(-1, 1, (n, 3)).astype(np.float32), "y": np.zeros(n)} for n in (40, 40)]
    x = np.concatenate([table["x"] for table in tables])
    got = {
        kind: np.asarray(
            simulate(
                column_statistics(once(1e-7), columns=(0, 2), statistic=kind, bins=8),
                jnp.zeros(()),
                enrol(tables),
                key=jax.random.key(0),
            ).params
        )
        for kind in KINDS
    }
    np.testing.assert_allclose(got["moments"][1], [x[:, 2].mean(), (x[:, 2] ** 2).mean() - 1], atol=1e-4)
    shares = np.stack([np.histogram(x[:, j], bins=8, range=(-1, 1))[0] / 80 for j in (0, 2)])
    np.testing.assert_allclose(got["histogram"] + 1 / 8, shares, atol=1e-4)
    np.testing.assert_allclose([shares_of_tree(row) for row in got["quantiles"]], shares, atol=1e-4)


@pytest.mark.parametrize("kind", ["moments", "quantiles"])
def test_noise_is_that_of_the_event_that_is_priced(kind):
    records, z = 50, 3.0
    algorithm = statistics(kind, 2, noise=z)
    [event] = events_of(algorithm, silo_index=0, silos=1, records=records)
    assert (event.noise_multiplier, event.count, event.sampling, event.batch) == (z, 1, "full", records)
    silos = enrol([{"x": np.zeros((records, 2)), "y": np.zeros(records)}])
    seeds = [Seed(jax.random.key(i), jnp.zeros(()), silos) for i in range(300)]
    released = np.asarray(simulate_grid(lambda: algorithm, {}, seeds, noise="each").params).reshape(300, -1)
    deviation = z * 2 * column_bound(kind, 8) * math.sqrt(2) / records
    assert released.std(axis=0).mean() == pytest.approx(deviation, rel=0.05)


def test_bins_must_be_a_power_of_two():
    with pytest.raises(ValueError, match="power of two"):
        column_bound("quantiles", 12)
    with pytest.raises(ValueError, match="one of"):
        column_bound("median", 16)


@pytest.mark.parametrize("loss", [logistic(), squared()], ids=["classes", "numbers"])
def test_a_score_moves_by_one_over_n(loss):
    objective = Objective(linear(2, 1), loss)
    silo = validation_score(objective, once(1.0)).rounds["score"].silo
    params = jax.tree.map(lambda leaf: leaf + 3.0, objective.init(jax.random.key(0)))
    records = [{"x": jnp.asarray(x), "y": jnp.asarray(y)} for x in ([1.0, 1.0], [-1.0, -1.0]) for y in (0.0, 1.0)]
    found = [float(silo.query(params, record)) for record in records]
    assert max(found) - min(found) <= 1.0 == 2 * silo.release.clip(None)
    assert max(abs(value) for value in found) == 0.5


def test_a_score_without_noise_is_the_error():
    objective = Objective(linear(2, 1), logistic())
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(30, 2)).astype(np.float32), generator.integers(0, 2, 30)
    params = {"linear": {"w": jnp.ones((2, 1)), "b": jnp.zeros(1)}}
    algorithm = validation_score(objective, once(1e-7))
    got = simulate(algorithm, params, enrol([{"x": x, "y": y}]), key=jax.random.key(0)).params
    assert float(got) == pytest.approx(((x.sum(axis=1) > 0) != y).mean(), abs=1e-4)
