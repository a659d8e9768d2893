"""Validation at the door: what a record can move, whatever model a server sends, and what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.validation import validation
from tacit.counting.request import StatisticsError
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.privacy.strategy import FRESH
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND

GROUP = [{"name": "sex", "kind": "category", "levels": ["f", "m"], "place": 1}]
CASES = {
    "binary": (logistic(), 1, lambda rng, n: rng.integers(0, 2, n).astype(np.int32)),
    "multiclass": (softmax(), 3, lambda rng, n: rng.integers(0, 3, n).astype(np.int32)),
    "regression": (squared(), 1, lambda rng, n: rng.random(n).astype(np.float32)),
}


def door_of(case, records=60, **own):
    loss, outputs, targets = CASES[case]
    rng = np.random.default_rng(0)
    values = np.array([0, 1, -1, 30, -30, 1e30, np.inf, np.nan], np.float32)
    x = rng.choice(values, (records, 4)).astype(np.float32)
    x = np.where(np.isfinite(x), x, 0.0)
    columns = rng.choice(np.array([0.0, 1.0, 2.0, -1.0, 9.0], np.float32), (records, 2))
    problem = Problem(Objective(linear(4, outputs), loss))
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    silo = validation(asked={"groups": ["sex"], **own}, columns=GROUP)(problem, terms).rounds["validation"].silo
    door = Door(silo, {"x": x, "y": targets(rng, records), "columns": columns}, silo_index=0, form=False)
    return door, problem


@pytest.mark.parametrize("weight", [0.0, 1.0, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("case", CASES)
def test_no_two_records_are_further_apart_than_the_price_says(case, weight):
    """Brute force over all pairs, for models that a hostile server may send, in exact integers."""
    door, problem = door_of(case)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, weight), problem.objective.init(jax.random.key(0)))
    mechanism = DiscreteGaussian(door.engine, door.multiplier, no_noise, FRESH, NO_PAST, nonnegative=True)
    clips = dict.fromkeys(door.multiplier, 1.0)
    rows = []
    for place in range(door.count):
        present = np.arange(door.count) == place
        rows.append({n: own.formed for n, own in mechanism.sums(params, door.records, present, clips).items()})
    for name in rows[0]:
        table = np.stack([row[name] for row in rows]).astype(object)
        squares = (table * table).sum(axis=1)
        apart = squares[:, None] + squares[None, :] - 2 * (table @ table.T)
        assert (table >= 0).all()
        assert apart.max() <= 2 * BOUND**2, name
        assert (table.sum(axis=1) > 0.99999 * BOUND).all(), "every record is in some cell"


def test_a_door_says_the_exact_counts_without_noise():
    door, _ = door_of("binary", 200)
    params = {"linear": {"w": jnp.array([[1.0], [0.5], [0.0], [0.0]]), "b": jnp.zeros(1)}}
    batch = door.batch(0, None)
    said = door.answer(params, (), batches=[batch], sampler=no_noise, past=NO_PAST).message
    with np.errstate(over="ignore"):
        score = 1 / (1 + np.exp(-(door.records["x"] @ np.array([1.0, 0.5, 0.0, 0.0]))))
    counts = np.asarray(said["s00"]).reshape(20, 2) * 200
    for label in (0, 1):
        assert counts[10:, label].sum() == pytest.approx(
            ((score >= 0.5) & (door.records["y"] == label)).sum(), abs=0.01
        )
    by = np.asarray(said["s01"]).reshape(4, 20, 2).sum(axis=(1, 2)) * 200
    codes = door.records["columns"][:, 1]
    assert by == pytest.approx([(codes == 0).sum(), (codes == 1).sum(), (codes >= 2).sum(), (codes < 0).sum()], abs=0.1)


def test_a_loss_that_is_no_count_is_refused():
    from tacit.objectives.survival import hazards, piecewise_exponential

    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    with pytest.raises(StatisticsError, match="no count of single records"):
        validation(asked={})(Problem(Objective(hazards(4, 5), piecewise_exponential(5))), terms)
