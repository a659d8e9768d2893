"""The shuffled sum: bits against sums, simulation against the plain loop, central error, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from experiments.vector_sums import VectorSum, sum_multiplier
from tacit.algorithm import GUARANTEES
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find
from tacit.plans.price import plan_silos
from tacit.plans.spec import load_study
from tacit.privacy.binomial import bits_for, grid_for, rounding_bound
from tacit.privacy.plan import Budget
from tacit.silo import AnonymityCounts, answer, enrol, rows_of, view_of
from tacit.silo.shuffled import (
    centred_binomial,
    centred_rounding,
    flips_each,
    grid_steps,
    reach_of,
)
from tacit.simulate.compiled import simulate
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tacit.studies.run import prepare
from tests.algorithms.table import LOGISTIC, MLP, largest_difference, least_squares, start, tables
from tests.channel.shufflers import SumShuffler, TooFewError, analyse, contributor_bits, shuffle_bits

COMMON = {"step_size": 0.3, "clip_norm": 0.7, "noise_multiplier": 0.5, "batch_size": None, "sampling": "full"}


def test_the_analyser_is_unbiased_and_has_the_stated_deviation():
    """Also where some contributors never arrive: what is taken off belongs to those that did."""
    rng = np.random.default_rng(0)
    terms = {"bound": 2.0, "grid": 6, "bits": 20, "chance": 0.3}
    vectors = [np.array([1.2, -1.6]), np.array([0.0, 0.5]), np.array([-2.0, 0.0])]
    reach = rounding_bound(6, 2)
    for arrived in (3, 2):
        found = np.array(
            [
                analyse(
                    shuffle_bits(rng, [contributor_bits(rng, v, **terms, reach=reach) for v in vectors[:arrived]]),
                    **terms,
                )
                for _ in range(4000)
            ]
        )
        error = found.mean(axis=0) - sum(vectors[:arrived])
        spread = 2 * 2.0 / 6 * np.sqrt(arrived * (20 * 0.3 * 0.7 + 0.25))
        assert np.all(np.abs(error) < 4 * spread / 4000**0.5)
        assert np.all(found.std(axis=0) <= spread * 1.05)


def test_drawing_the_sum_at_once_is_the_bits_in_distribution():
    """Bit by bit against rounding plus one binomial: the two samples of integers are alike."""
    rng = np.random.default_rng(1)
    vector, grid, bits, reach = np.array([0.37, -0.8]), 4, 12, rounding_bound(4, 2)
    terms = {"bound": 1.0, "grid": grid, "bits": bits, "chance": 0.5}
    slow = np.array([contributor_bits(rng, vector, **terms, reach=reach).sum(axis=1) for _ in range(6000)])
    keys = jax.random.split(jax.random.key(0), (6000, 2))

    def one(pair):
        whole = centred_rounding(pair[0], jnp.asarray(vector, jnp.float32), jnp.float32(grid))
        return whole + centred_binomial(pair[1], jnp.float32(bits), 2)

    fast = np.asarray(jax.vmap(one)(keys)) + grid / 2 + bits / 2
    for j in range(2):
        both = np.array([np.bincount(s[:, j].astype(int), minlength=grid + bits + 1) for s in (slow, fast)])
        both = both[:, both.sum(axis=0) > 10]
        assert stats.chi2_contingency(both).pvalue > 1e-3


def test_the_closed_forms_of_silo_and_accountant_agree():
    """The silo adds at least the noise that is priced, in float32."""
    for anonymity, d, z in ((71, 12, 0.5), (30850, 3394, 21.5), (1000, 100, 4.2), (50, 3, 0.01)):
        grid = float(grid_steps(anonymity, d))
        assert grid == grid_for(anonymity, d)
        assert float(reach_of(jnp.float32(grid), d)) == pytest.approx(rounding_bound(int(grid), d), rel=1e-5)
        flips = float(flips_each(z, jnp.float32(grid), d, anonymity))
        assert bits_for(z, int(grid), d, anonymity) <= flips <= 1.0001 * bits_for(z, int(grid), d, anonymity) + 1
        protocol = VectorSum(contributors=anonymity, honest=anonymity, dimension=d, grid=int(grid), bits=int(flips))
        assert sum_multiplier(protocol) >= z


THROUGH = {"channel": "shuffled-sum", **COMMON}


@pytest.mark.parametrize(
    ("algorithm", "problem", "participants"),
    [
        (find("mb-sgd").build(MLP, num_rounds=3, **THROUGH), MLP, None),
        (
            find("prox-spider").build(LOGISTIC, num_rounds=4, phase_length=2, difference_slope=1.0, **THROUGH),
            LOGISTIC,
            2,
        ),
        (
            find("prox-svrg").build(
                LOGISTIC, num_rounds=4, phase_length=2, **{**THROUGH, "batch_size": 6, "sampling": "wor"}
            ),
            LOGISTIC,
            None,
        ),
    ],
    ids=["gradients, everyone", "differences, two of three", "batches, everyone"],
)
def test_simulate_equals_the_plain_loop(algorithm, problem, participants):
    silos, who = enrol(tables()), participation(3, participants)
    fast = simulate(algorithm, start(problem), silos, key=jax.random.key(1), who=who)
    slow = debug(algorithm, start(problem), [rows_of(silos, i) for i in range(3)], key=jax.random.key(1), who=who)
    assert largest_difference(fast.params, slow.params) < 1e-5


def spread_of(channel, honest=1.0):
    """The deviation of the first step's noise, over many coordinates, and that of a central Gaussian."""
    rng = np.random.default_rng(0)
    made = [{"x": rng.normal(size=(100, 300)), "y": rng.integers(0, 2, 100)} for _ in range(10)]
    problem = Problem(Objective(linear(300, 1, bias=False), logistic()))
    common = {**COMMON, "step_size": 1.0, "noise_multiplier": 4.0, "clip_norm": 1.0, "num_rounds": 1, "output": "last"}
    who = participation(10, honest=honest)

    def weights(**changes):
        algorithm = find("mb-sgd").build(problem, channel=channel, **{**common, **changes})
        found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(2), who=who).params
        return np.asarray(found["linear"]["w"])[:, 0]

    clean = find("mb-sgd").build(problem, **{**common, "noise_multiplier": 0.0})
    base = np.asarray(simulate(clean, start(problem), enrol(made), key=jax.random.key(2)).params["linear"]["w"])[:, 0]
    return np.sqrt(np.mean((weights() - base) ** 2)), 4.0 * 2.0 / 1000


def test_the_error_is_that_of_a_trusted_server_and_grows_with_collusion():
    found, central = spread_of("shuffled-sum")
    assert 0.9 * central < found < 1.15 * 1.1 * central
    direct, _ = spread_of("direct")
    assert direct > 2.5 * found
    half, _ = spread_of("shuffled-sum", honest=0.5)
    assert half == pytest.approx(found * 2**0.5, rel=0.1)


def test_it_is_priced_with_room_for_short_tails_and_stated_as_shuffle_dp():
    _, problem, _ = least_squares()

    def build(noise, channel="shuffled-sum"):
        return find("mb-sgd").build(problem, channel=channel, num_rounds=5, **{**COMMON, "noise_multiplier": noise})

    plans, noise = plan_silos(
        build, ["a", "b"], [40, 40], Budget(epsilon=1.0, delta=1e-6, honest=1.0, min_silos=2), dimensions={}
    )
    assert plans[0].price.epsilon <= 1.0
    assert plans[0].price.delta == 1e-6
    alone = plan_silos(lambda z: build(z, "trusted"), ["a"], [40], Budget(epsilon=1.0, delta=1e-6), dimensions={})
    assert noise[0] == pytest.approx(alone[1][0], rel=1e-5)
    assert "shuffle DP" in GUARANTEES["shuffled-sum"]
    with pytest.raises(ValueError, match="short tails"):
        plan_silos(build, ["a"], [40], Budget(epsilon=1.0, delta=1e-10, honest=1.0, min_silos=1), dimensions={})


def test_a_study_says_its_channel_and_its_honest_share():
    prepared = prepare(load_study("heart-disease", ["algorithm.channel=shuffled-sum", "run.honest=0.75"]))
    assert prepared.builder.fixed["channel"] == "shuffled-sum"
    assert prepared.who.honest == 0.75


def test_a_silo_says_nothing_without_a_crowd_nor_with_a_random_batch():
    _, problem, _ = least_squares()
    desk = view_of({k: jnp.asarray(v) for k, v in least_squares()[0][0].items()}, 40, None, 0)
    own = {"key": jax.random.key(0), "position": 0}
    alone = find("mb-sgd").build(problem, channel="shuffled-sum", num_rounds=1, **COMMON).rounds["gradient"].silo
    with pytest.raises(ValueError, match="anonymity set"):
        answer(alone, start(problem), (), desk, **own)
    random = find("mb-sgd").build(
        problem, channel="shuffled-sum", num_rounds=1, **{**COMMON, "sampling": "poisson", "batch_size": 4}
    )
    with pytest.raises(ValueError, match="poisson"):
        answer(
            random.rounds["gradient"].silo,
            start(problem),
            (),
            desk,
            anonymity=AnonymityCounts(9.0, 9.0, jnp.ones(1)),
            **own,
        )


def test_the_shuffler_stays_shut_below_the_crowd_it_was_planned_for():
    shuffler = SumShuffler(min_silos=3)
    for _ in range(2):
        for name in ("a", "b"):
            shuffler.receive(name, np.ones(2))
    with pytest.raises(TooFewError, match="at least 3 contributors, got 2"):
        shuffler.open()
    shuffler.receive("c", np.ones(2))
    assert shuffler.open().tolist() == [3.0, 3.0]
