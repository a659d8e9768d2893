"""Validation at the door: what a record can move, whatever model a server sends, and what comes out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.validation import validation
from tacit.audit.stored_engine import StoredEngine
from tacit.counting.estimate import Noisy
from tacit.counting.performance import CONCORDANCE, performance
from tacit.counting.request import StatisticsError
from tacit.counting.residuals import RMSE
from tacit.counting.scored import scored
from tacit.objectives import Loss, Objective, Problem, huber, linear, logistic, poisson, softmax, squared
from tacit.objectives.survival import concordance, hazards, piecewise_exponential
from tacit.privacy.strategy import FRESH
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND

GROUP = [{"name": "sex", "kind": "category", "levels": ["f", "m"], "place": 1}]
CASES = {
    "binary": (logistic(), 1, lambda rng, n: rng.integers(0, 2, n).astype(np.int32)),
    "multiclass": (softmax(), 3, lambda rng, n: rng.integers(0, 3, n).astype(np.int32)),
    "regression": (squared(), 1, lambda rng, n: rng.random(n).astype(np.float32)),
    "survival": (piecewise_exponential(5), 5, lambda rng, n: rng.choice([-1, -0.5, 0.2, 1.0], n).astype(np.float32)),
}


def door_of(case, records=60, **own):
    loss, outputs, targets = CASES[case]
    rng = np.random.default_rng(0)
    values = np.array([0, 1, -1, 30, -30, 1e30, np.inf, np.nan], np.float32)
    x = rng.choice(values, (records, 4)).astype(np.float32)
    x = np.where(np.isfinite(x), x, 0.0)
    columns = rng.choice(np.array([0.0, 1.0, 2.0, -1.0, 9.0], np.float32), (records, 2))
    problem = Problem(Objective((hazards if case == "survival" else linear)(4, outputs), loss))
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    silo = validation(asked={"groups": ["sex"], **own}, columns=GROUP)(problem, terms).rounds["validation"].silo
    table = {"x": x, "y": targets(rng, records), "columns": columns}
    return Door(silo, table, silo_index=0, form=False, engine=StoredEngine(silo, form=False)), problem


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
    own = Loss(lambda outputs, targets: (outputs[:, 0] - targets) ** 4)
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    with pytest.raises(StatisticsError, match="no count of single records"):
        validation(asked={})(Problem(Objective(linear(4, 1), own)), terms)


def test_survival_is_counted_by_risk_time_and_event_and_its_concordance_is_that_of_all_pairs():
    """At the door without noise, beside the plain definition over all pairs of the same bins."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (120, 2)).astype(np.float32)
    time = np.minimum(rng.exponential(np.exp(-x[:, 0])), 1.0)
    y = np.where((rng.random(120) < 0.6) & (time < 1), time, -time).astype(np.float32)
    problem = Problem(Objective(hazards(2, 4), piecewise_exponential(4)))
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    silo = validation(asked={})(problem, terms).rounds["validation"].silo
    door = Door(silo, {"x": x, "y": y}, silo_index=0, form=False)
    params = {"linear": {"w": jnp.array([[2.0], [0.0]]), "b": jnp.array([3.0, 1.0, 0.0, -1.0])}}
    said = door.answer(params, (), batches=[door.batch(0, None)], sampler=no_noise, past=NO_PAST).message
    wanted = scored("survival", 2)
    rows = performance(wanted, [Noisy(np.asarray(said["s00"], float), 1e-9, 120)])
    [found] = [row for row in rows if row.measure == CONCORDANCE]
    risk = np.floor(10 / (1 + np.exp(-3 * x[:, 0])))
    bins = np.where(np.abs(y) >= 1, 8, np.floor(np.abs(y) * 8))
    first = (y > 0)[:, None] & (bins[:, None] < bins[None, :])
    right = (risk[:, None] > risk[None, :]) + 0.5 * (risk[:, None] == risk[None, :])
    assert float(found.value) == pytest.approx((first * right).sum() / first.sum(), abs=1e-4)
    exact = float(concordance(jnp.asarray(x[:, :1]), jnp.asarray(y)))
    assert abs(float(found.value) - exact) < 0.03
    assert float(found.low) < exact < float(found.high)


def test_poisson_and_huber_models_are_validated_in_the_units_of_their_targets():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (200, 4)).astype(np.float32), rng.random(200).astype(np.float32)
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    for loss, output in ((poisson(), np.log(0.4)), (huber(1.0), 0.4)):
        silo = validation(asked={})(Problem(Objective(linear(4, 1), loss)), terms).rounds["validation"].silo
        door = Door(silo, {"x": x, "y": y}, silo_index=0, form=False)
        params = {"linear": {"w": jnp.zeros((4, 1)), "b": jnp.full(1, output)}}
        said = door.answer(params, (), batches=[door.batch(0, None)], sampler=no_noise, past=NO_PAST).message
        noisy = [Noisy(np.asarray(said[name], float), 1e-9, 200) for name in ("s00", "s01")]
        [rmse] = [row for row in performance(scored("regression", 2), noisy) if row.measure == RMSE]
        assert float(rmse.value) == pytest.approx(np.sqrt(np.mean((y - 0.4) ** 2)), abs=1e-3)
