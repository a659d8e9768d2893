"""Through both shuffled channels a round's mean is sum_i p_i mean_i, simulated and deployed, for silos of any sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.channel.sealing import new_secret
from tacit.channel.shuffled_reports import ReportTerms, mean_of_reports
from tacit.channel.shuffled_sum import ShareTerms, mean_of_total
from tacit.deploy.contract import record_of
from tacit.deploy.server.shuffles import _coinless, counted_each
from tacit.deploy.silo.answering import TEST_BUILD, Worker
from tacit.deploy.silo.consent import consider
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.wire import Shuffle
from tacit.plans.catalogue import find
from tacit.privacy.anonymity import record_weights
from tacit.silo import enrol, rows_of
from tacit.silo.batches import SecretBatch
from tacit.silo.door import Door
from tacit.silo.local_reports import LocalReports
from tacit.silo.release import usable_clips
from tacit.silo.shares import BinomialShare, no_coins
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tests.algorithms.table import least_squares
from tests.deploy.silo.consortium import plan_of, records_of

WEIGHTS = (0.8, 0.1, 0.1)
SIZES = (24, 9, 40)
CLIP = 1.5


def world():
    made, problem, _ = least_squares(sizes=SIZES)
    # Silos that differ: weights that are lost show.
    for i, table in enumerate(made):
        table["x"] += np.float32(0.5)
        table["y"] = (table["y"] + 4.0 * (i - 1)).astype(np.float32)
    point = {"linear": {"w": np.full((4, 1), 0.3, np.float32)}}
    return made, problem, point


def clipped_mean(table, point):
    """A silo's mean of clipped gradients of (<x, w> - y)^2 / 2, written out."""
    w = point["linear"]["w"][:, 0].astype(float)
    rows = (table["x"] @ w - table["y"])[:, None] * table["x"].astype(float)
    return (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True) / CLIP, 1.0)).mean(axis=0)


def expected(weights):
    made, _, point = world()
    return sum(p * clipped_mean(table, point) for p, table in zip(weights, made, strict=True))


def moved(params, point):
    """The mean that a step of size one was taken along, with the seeds in front."""
    return np.asarray(point["linear"]["w"] - params["linear"]["w"])[..., 0]


def algorithm_of(channel, noise):
    _, problem, _ = world()
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": CLIP, "output": "last", "noise_multiplier": noise}
    return find("mb-sgd").build(problem, channel=channel, **terms, batch_size=None, sampling="full")


def simulated(channel, noise, weights, seeds):
    made, _, point = world()
    who = participation(3, weights=weights)
    every = [Seed(jax.random.key(s), jax.tree.map(jnp.asarray, point), enrol(made)) for s in range(seeds)]
    found = simulate_grid(lambda: algorithm_of(channel, noise), {}, every, who=who).params
    return moved({"linear": {"w": np.asarray(found["linear"]["w"])[:, 0]}}, point)


def test_the_objectives_differ_so_that_lost_weights_would_show():
    by_records = expected(np.asarray(SIZES) / sum(SIZES))
    for one, other in ((expected(WEIGHTS), by_records), (expected(WEIGHTS), expected([1 / 3] * 3))):
        assert np.linalg.norm(one - other) > 0.6


@pytest.mark.parametrize("weights", [WEIGHTS, None])
def test_reports_without_a_randomiser_are_the_weighted_mean(weights):
    found = simulated("shuffled-reports", 0.0, weights, 1)
    np.testing.assert_allclose(found[0], expected(weights or [1 / 3] * 3), atol=1e-4)


@pytest.mark.parametrize(
    ("channel", "noise", "seeds"),
    [("shuffled-sum", 0.0, 40), ("shuffled-sum", 0.3, 150), ("shuffled-reports", 0.1, 150)],
)
def test_simulated_means_are_weighted_on_average(channel, noise, seeds):
    found = simulated(channel, noise, WEIGHTS, seeds)
    error = found.mean(axis=0) - expected(WEIGHTS)
    spread = found.std(axis=0, ddof=1) / np.sqrt(seeds)
    assert np.all(np.abs(error) < 6 * spread + 1e-4)
    # So small a spread could tell other weights.
    assert 6 * np.linalg.norm(spread) < 0.5


def test_the_plain_loop_weighs_alike_whoever_comes():
    made, _, point = world()
    silos, algorithm = enrol(made), algorithm_of("shuffled-sum", 0.2)
    own = {"key": jax.random.key(0), "who": participation(3, 2, WEIGHTS)}
    fast = simulate(algorithm, point, silos, **own).params
    slow = debug(algorithm, point, [rows_of(silos, i) for i in range(3)], **own).params
    np.testing.assert_allclose(moved(fast, point), moved(slow, point), atol=1e-5)


# Deployed.


def doors_of(channel):
    made, _, point = world()
    silo = algorithm_of(channel, 1.0).rounds["gradient"].silo
    return [Door(silo, table, silo_index=silo_index, form=True) for silo_index, table in enumerate(made)], point


@pytest.mark.parametrize("weights", [WEIGHTS, None, (0.2, 0.8, 0.0)])
@pytest.mark.parametrize("size", [None, 6])
def test_shares_decode_to_the_weighted_mean(weights, size):
    """Of all records, or of as many of each silo."""
    doors, point = doors_of("shuffled-sum")
    sizes = np.asarray(SIZES) if size is None else np.full(3, size)
    relative, largest = record_weights(weights, sizes)
    assert relative.max() == 1.0
    terms, total, truth = ShareTerms(grid=2**20, coins=0, dimension=4), 0, 0
    for door, weight, own, p in zip(doors, relative, sizes, weights or [1 / 3] * 3, strict=True):
        door.records = {name: column[:own] for name, column in door.records.items()}
        batch = SecretBatch(np.arange(own), np.ones(own, bool))
        total = total + door.release(point, batch, BinomialShare(door.engine, terms, no_coins, float(weight)))
        truth = truth + p * clipped_mean(door.records, point)
    own = {"records": int(sizes.sum()), "each": float(largest)}
    found = mean_of_total(total, usable_clips(doors[0].silo.release, point), point, terms, **own)
    np.testing.assert_allclose(found["linear"]["w"][:, 0], truth, atol=1e-4)


def test_reports_decode_to_the_weighted_mean():
    doors, point = doors_of("shuffled-reports")
    relative, largest = record_weights(WEIGHTS, np.asarray(SIZES))
    terms, many = {"": ReportTerms(30.0, 4)}, 120
    reports = []
    for door, weight in zip(doors, relative, strict=True):
        # Each record many times over: that is the same mean, of many reports.
        batch = SecretBatch(np.tile(np.arange(door.count), many), np.ones(door.count * many, bool))
        door.records = {name: column[batch.rows] for name, column in door.records.items()}
        reports += door.release(point, batch, LocalReports(door.engine, terms, float(weight)))[""]
    found = mean_of_reports(
        {"": reports}, usable_clips(doors[0].silo.release, point), point, terms, each=float(largest) / many
    )
    # A report has a deviation of about the clip times 1.25 in each coordinate.
    spread = 1.3 * CLIP * float(largest) * np.sqrt(sum(SIZES) / many)
    assert spread < 0.06
    assert np.all(np.abs(np.asarray(found["linear"]["w"])[:, 0] - expected(WEIGHTS)) < 6 * spread)


@pytest.mark.parametrize("weights", ["equal", "records"])
@pytest.mark.parametrize("arrived", [(0, 1, 2), (0, 2)])
def test_a_plan_says_its_weights_and_daemons_and_server_follow_it(weights, arrived):
    """The answers of silos of unlike sizes, decoded as the server does; whoever is away, nothing changes on average."""
    sizes = (30, 17, 24)
    keys = {name: str(new_secret().public) for name in "ab"}
    shuffle = Shuffle(records=sizes, min_silos=2, honest=1.0, shufflers=keys, weights=weights)
    algorithm = {"name": "mb-sgd", "sampling": "full", "channel": "shuffled-sum", "num_rounds": 2}
    plan = plan_of(algorithm, shuffle=shuffle, silos=3, epsilon=6.0, everyone=False)
    allow = AllowSection(algorithms=["mb-sgd"], channels=["shuffled-sum"], min_silos=2)
    policy = ShuffleSection(shufflers=keys, colluding=0)
    total, means, point = 0, {}, {"linear": {"w": np.full((5, 1), 0.2, np.float32), "b": np.zeros(1, np.float32)}}
    for silo_index in arrived:
        own = plan.model_copy(update={"silo_index": silo_index})
        table = records_of(silo_index, sizes[silo_index])
        offer = consider(own, records=sizes[silo_index], record=record_of(plan), allow=allow, shuffle=policy)
        worker = Worker(offer, table, TEST_BUILD)
        [door] = worker._doors.values()
        total = total + worker.share(0, point, worker.begin())
        rows = (1 / (1 + np.exp(-table["x"].astype(float).sum(axis=1) * 0.2)) - table["y"])[:, None] * np.c_[
            np.ones(sizes[silo_index]), table["x"]
        ]
        means[silo_index] = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True) / 0.7, 1.0)).mean(axis=0)
    terms = _coinless(offer.shares["gradient"])
    each = counted_each(plan, None, len(arrived))
    count = sum(sizes[silo_index] for silo_index in arrived)
    found = mean_of_total(total, usable_clips(door.silo.release, point), point, terms, records=count, each=each)[
        "linear"
    ]
    p = np.full(3, 1 / 3) if weights == "equal" else np.asarray(sizes) / sum(sizes)
    truth = sum(p[silo_index] * means[silo_index] for silo_index in arrived) * 3 / len(arrived)
    step = 2 * 0.7 / terms.grid * each
    assert np.abs(np.r_[found["b"], found["w"][:, 0]] - truth).max() < 6 * step / 2 * np.sqrt(count)
