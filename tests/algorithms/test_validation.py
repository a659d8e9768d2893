"""Validation at the door: what a record can move, whatever model a server sends, and what comes out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.mr_mtl import OwnModel
from tacit.algorithms.validation import HAS_OWN, validation
from tacit.audit.stored_engine import StoredEngine
from tacit.counting.estimate import Noisy
from tacit.counting.performance import CONCORDANCE, OVER_SHARED, own_performance, performance
from tacit.counting.request import StatisticsError, noise_ratios
from tacit.counting.residuals import RMSE
from tacit.counting.scored import scored
from tacit.objectives import Loss, Objective, Problem, huber, linear, logistic, poisson, softmax, squared
from tacit.objectives.survival import concordance, hazards, piecewise_exponential
from tacit.privacy.strategy import FRESH
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND

KEY = jax.random.key(0)
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


def rows_at(door, work):
    """Each block's rows of all records in exact integers, and how far every two are apart, squared."""
    mechanism = DiscreteGaussian(door.engine, door.multiplier, no_noise, FRESH, NO_PAST, nonnegative=True)
    clips = dict.fromkeys(door.multiplier, 1.0)
    rows, found = [], {}
    for place in range(door.count):
        present = np.arange(door.count) == place
        rows.append({n: own.formed for n, own in mechanism.sums(work, door.records, present, clips).items()})
    for name in rows[0]:
        table = np.stack([row[name] for row in rows]).astype(object)
        squares = (table * table).sum(axis=1)
        found[name] = table, squares[:, None] + squares[None, :] - 2 * (table @ table.T)
    return found


@pytest.mark.parametrize("weight", [0.0, 1.0, 1e30, np.inf, np.nan])
@pytest.mark.parametrize("case", CASES)
def test_no_two_records_are_further_apart_than_the_price_says(case, weight):
    """Brute force over all pairs, for models that a hostile server may send, in exact integers."""
    door, problem = door_of(case)
    params = jax.tree.map(lambda leaf: jnp.full(leaf.shape, weight), problem.objective.init(jax.random.key(0)))
    for name, (table, apart) in rows_at(door, params).items():
        assert (table >= 0).all()
        assert apart.max() <= 2 * BOUND**2, name
        assert (table.sum(axis=1) > 0.99999 * BOUND).all(), "every record is in some cell"


STUDY = "ab" * 32


@pytest.mark.parametrize("case", CASES)
def test_both_models_together_move_no_further_than_one_release_may(case):
    """All blocks in units of their own noise, for all pairs of records: a record is in both models' blocks."""
    door, problem = door_of(case, 40, own=STUDY)
    like = lambda value: jax.tree.map(lambda leaf: jnp.full(leaf.shape, value), problem.objective.init(KEY))  # noqa: E731
    blocks, ratios = len(door.multiplier), door.multiplier  # of noise multiplier 1
    width = {"binary": 1, "multiclass": 2, "regression": 2, "survival": 1}[case]
    assert blocks == 3 * width + (case != "survival"), "by all, by sex, of the own model; and what compares both"
    assert sum(float(ratio) ** -2 for ratio in ratios.values()) == pytest.approx(1.0)
    furthest = 0.0
    for shared, own in ((1.0, -1.0), (0.1, 0.0), (np.nan, 1.0), (1.0, np.inf)):
        work = door.silo.start(like(shared), OwnModel(like(own), jnp.ones((), bool)))
        found = rows_at(door, work)
        together = sum(apart / float(ratios[name]) ** 2 for name, (_, apart) in found.items())
        furthest = max(furthest, float(together.max()))
        assert all((table.sum(axis=1) > 0.99999 * BOUND).all() for table, _ in found.values())
    assert furthest <= 2 * BOUND**2 * (1 + 1e-9)
    if case in ("binary", "multiclass", "survival"):
        assert furthest > 1.99 * BOUND**2, "two records that differ in every block: nothing is overpaid"


def test_a_door_counts_the_silos_own_model_and_says_whether_it_has_one():
    """Exact, without noise: each model's counts, and how many records each gets right where the other does not."""
    rng = np.random.default_rng(5)
    x, y = rng.uniform(-1, 1, (150, 4)).astype(np.float32), rng.integers(0, 2, 150).astype(np.int32)
    problem = Problem(Objective(linear(4, 1), logistic()))
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    algorithm = validation(asked={"own": STUDY})(problem, terms)
    door = Door(algorithm.rounds["validation"].silo, {"x": x, "y": y}, silo_index=0, form=False)
    shared, own = rng.normal(size=(2, 4, 1)).astype(np.float32)
    params, mine = ({"linear": {"w": jnp.asarray(w), "b": jnp.zeros(1)}} for w in (shared, own))

    def answer(memory):
        return door.answer(params, memory, batches=[door.batch(0, None)], sampler=no_noise, past=NO_PAST).message

    said = answer(OwnModel(mine, jnp.ones((), bool)))
    right = [((x @ w)[:, 0] >= 0) == (y == 1) for w in (shared, own)]
    wanted = scored("binary", 2, own=True)
    noisy = [Noisy(np.asarray(said[f"s{i:02}"], float), 1e-9, 150) for i in range(3)]
    rows = {row.measure: float(row.value) for row in own_performance(wanted, noisy)}
    assert float(said[HAS_OWN]) == 1.0
    assert rows["accuracy"] == pytest.approx(right[1].mean(), abs=1e-5)
    assert rows[OVER_SHARED] == pytest.approx(right[1].mean() - right[0].mean(), abs=1e-5)
    without = answer(algorithm.memory(params))
    assert float(without[HAS_OWN]) == 0.0
    np.testing.assert_allclose(without["s01"], said["s00"], atol=1e-6)
    assert noise_ratios(wanted.tables)["s00"] == pytest.approx(np.sqrt(3))


def test_own_models_need_direct_messages_and_a_study():
    problem = Problem(Objective(linear(4, 1), logistic()))
    terms = Terms(clip_norm=None, noise_multiplier=1.0, batch_size=None, sampling="full")
    with pytest.raises(StatisticsError, match="a sum over silos"):
        validation(asked={"own": STUDY})(problem, dataclasses.replace(terms, channel="pairwise"))
    for named in (True, "../../policy", "AB" * 32):
        with pytest.raises(StatisticsError, match="64 hexadecimal digits"):
            validation(asked={"own": named})(problem, terms)


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
