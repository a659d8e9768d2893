"""The shuffled-reports channel: any algorithm through it, and the shuffler's refusals."""

import jax
import numpy as np
import pytest

from tacit.algorithm import GUARANTEES
from tacit.plans.catalogue import find
from tacit.plans.price import plan_silos
from tacit.privacy import AnonymitySet, Budget, PricingError, events_of
from tacit.privacy.randomisers import terms_of
from tacit.silo import answer, enrol, rows_of, view_of
from tacit.silo.local_reports import reports_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tests.algorithms.table import LOGISTIC, MLP, largest_difference, least_squares, start, tables
from tests.channel.shufflers import MismatchError, ReportShuffler, TooFewError, digest, mean_of_reports

COMMON = {"step_size": 0.1, "clip_norm": 1.0, "noise_multiplier": 0.5, "batch_size": None, "sampling": "full"}
CHANNEL = "shuffled-reports"


THROUGH = {"channel": CHANNEL, **COMMON}


@pytest.mark.parametrize(
    ("algorithm", "problem", "who"),
    [
        (find("mb-sgd").build(MLP, num_rounds=2, **THROUGH), MLP, None),
        (
            find("prox-svrg").build(
                LOGISTIC, num_rounds=3, phase_length=2, **{**THROUGH, "sampling": "wor", "batch_size": 6}
            ),
            LOGISTIC,
            (1, 2),
        ),
    ],
    ids=["every record of every silo", "differences of batches of one or two silos"],
)
def test_any_algorithm_runs_through_the_channel_in_both_runtimes(algorithm, problem, who):
    """CE-PSGM, whose rounds have two streams, is run with the other algorithms."""
    silos, key, chosen = enrol(tables()), jax.random.key(1), participation(3, who)
    fast = simulate(algorithm, start(problem), silos, key=key, who=chosen, noise="each")
    slow = debug(algorithm, start(problem), [rows_of(silos, i) for i in range(3)], key=key, who=chosen)
    assert largest_difference(fast.params, slow.params) < 1e-4


def test_the_mean_of_reports_is_the_mean_of_records_with_the_stated_spread():
    made, problem, _ = least_squares()
    terms = {**COMMON, "num_rounds": 1, "output": "last", "step_size": 1.0}
    algorithm = find("mb-sgd").build(problem, channel=CHANNEL, **terms)
    exact = find("mb-sgd").build(problem, **{**terms, "noise_multiplier": 0.0})
    silos, point = enrol(made), start(problem)
    seeds = [Seed(jax.random.key(s), point, silos) for s in range(60)]
    moves = np.asarray(simulate_grid(lambda: algorithm, {}, seeds).params["linear"]["w"])[:, 0, :, 0]
    target = np.asarray(simulate(exact, point, silos, key=jax.random.key(0)).params["linear"]["w"])[:, 0]
    spread = terms_of("auto", 4, 2.0).deviation / 120**0.5
    assert np.abs(moves.mean(axis=0) - target).max() < 4 * spread / 60**0.5 + 1e-3
    assert moves.std(axis=0).mean() == pytest.approx(spread, rel=0.2)


def test_the_price_counts_honest_reports_of_all_silos():
    algorithm = find("mb-sgd").build(MLP, num_rounds=5, channel=CHANNEL, **COMMON)
    [event] = events_of(algorithm, silo_index=0, silos=3, records=24, anonymity_set=AnonymitySet((24, 17, 24), 1.0, 3))
    assert (event.mechanism, event.reports, event.streams) == ("reports", 65, (1.0,))
    [fewer] = events_of(algorithm, silo_index=0, silos=3, records=24, anonymity_set=AnonymitySet((24, 17, 24), 0.7, 3))
    assert fewer.reports == 41
    [pair] = events_of(algorithm, silo_index=0, silos=3, records=24, anonymity_set=AnonymitySet((24, 17, 24), 1.0, 1))
    assert pair.reports == 17
    with pytest.raises(PricingError, match="anonymity_set"):
        events_of(algorithm, silo_index=0, silos=3, records=24)

    def build(noise):
        return find("mb-sgd").build(MLP, num_rounds=5, channel=CHANNEL, **{**COMMON, "noise_multiplier": noise})

    anonymity = Budget(epsilon=1.0, delta=1e-5, honest=1.0, min_silos=3)
    plans, noise = plan_silos(build, ["a", "b", "c"], [24, 17, 24], anonymity, dimensions={})
    assert all(plan.price.epsilon <= 1.0 for plan in plans)
    assert noise.min() > 0.5


def test_what_cannot_be_shuffled_is_refused():
    _, problem, _ = least_squares()
    part = find("mb-sgd").build(problem, num_rounds=1, channel=CHANNEL, **COMMON).rounds["gradient"].silo
    desk = view_of({"x": np.ones((3, 4), np.float32), "y": np.ones(3, np.float32)}, 3, None, 0)
    with pytest.raises(ValueError, match="anonymity set"):
        answer(part, start(problem), (), desk, key=jax.random.key(0), position=0)
    poisson = find("mb-sgd").build(
        problem, num_rounds=1, channel=CHANNEL, **{**COMMON, "sampling": "poisson", "batch_size": 4}
    )
    with pytest.raises(ValueError, match="poisson"):
        simulate(poisson, start(problem), enrol(least_squares()[0]), key=jax.random.key(0))
    with pytest.raises(ValueError, match="running sum"):
        find("mu2-sgd").build(
            problem, num_rounds=2, channel=CHANNEL, **{**COMMON, "sampling": "one-pass", "batch_size": 1}
        )
    assert "shuffle DP" in GUARANTEES[CHANNEL]


def test_the_shuffler_hides_order_and_refuses_what_would_tell_silos_apart():
    generator, terms = np.random.default_rng(0), terms_of("duchi", 3, 1.0)
    x = np.array([0.5, 0.0, -0.5])
    shuffler = ReportShuffler(min_silos=40)
    for silo in ("a", "b"):
        own = [(int.from_bytes(said[:8], "big"), 2 * said[8] - 1) for said in reports_of(np.tile(x, (500, 1)), 1.0)]
        shuffler.receive(silo, digest({"w": np.zeros(3)}), {"gradient": own})
        shuffler.receive(silo, digest({"w": np.zeros(3)}), {"gradient": own})  # a retry adds nothing
    said = shuffler.open(generator)["gradient"]
    assert len(said) == 1000
    error = np.linalg.norm(mean_of_reports(said, terms, 1.0) - x)
    assert error < 4.5 * (terms.error / 1000) ** 0.5
    apart = ReportShuffler(min_silos=2)
    apart.receive("a", digest(np.zeros(3)), {"gradient": [1, 2]})
    apart.receive("b", digest(np.ones(3)), {"gradient": [3, 4]})
    with pytest.raises(MismatchError, match="one broadcast"):
        apart.open(generator)
    few = ReportShuffler(min_silos=3)
    few.receive("a", "d", {"gradient": [1, 2], "difference": [1, 2]})
    with pytest.raises(TooFewError, match="at least 3 reports"):
        few.open(generator)
    with pytest.raises(ValueError, match="every stream"):
        few.receive("b", "d", {"gradient": [1, 2], "difference": [1]})
