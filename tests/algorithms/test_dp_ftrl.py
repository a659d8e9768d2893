"""DP-FTRL: minibatch SGD whose noise remembers. Its program, its noise, what it gains, and what is refused."""

import math

import jax
import numpy as np
import pytest

from tacit.plans.catalogue import find
from tacit.privacy import calibrate
from tacit.privacy.plan import events_of
from tacit.privacy.strategy import correlated
from tacit.silo import enrol, rows_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, least_squares, start, tables

ROUNDS = 8


def ftrl(problem=LOGISTIC, **changes):
    terms = {"num_rounds": ROUNDS, "batch_size": 2, **changes}
    return CASES["dp-ftrl"].build(problem, **terms)


@pytest.mark.parametrize("channel", ["direct", "trusted"])
@pytest.mark.parametrize("passes", [1, 2])
def test_simulate_equals_the_plain_loop(channel, passes):
    algorithm = ftrl(MLP, channel=channel, passes=passes, num_rounds=ROUNDS * passes)
    silos, key = enrol(tables()), jax.random.key(1)
    fast = simulate(algorithm, start(MLP), silos, key=key, noise="each")
    slow = debug(algorithm, start(MLP), [rows_of(silos, i) for i in range(3)], key=key)
    assert largest_difference(fast.params, slow.params) < 1e-5


def noise_of_sums(noise, rounds, size=0, **changes):
    """The noise that is left after all rounds, over that of one round; steps are one, and gradients next to nothing."""
    made, problem, _ = least_squares(sizes=(size or rounds,) * 2)
    seeds = [Seed(jax.random.key(s), start(problem), enrol(made)) for s in range(150)]
    multiplier, clip = 50.0, 1.0

    def build():
        terms = {"batch_size": 1, "step_size": 1.0, "num_rounds": rounds, "clip_norm": clip}
        return find(changes.get("name", "dp-ftrl")).build(
            problem, sampling="one-pass", noise_multiplier=multiplier, **terms, **changes.get("own", {})
        )

    found = np.asarray(simulate_grid(build, {}, seeds, noise=noise).params["linear"]["w"])
    return found.std() / (multiplier * 2 * clip / math.sqrt(2))


@pytest.mark.parametrize("noise", ["each", "summed"])
def test_the_noise_of_all_steps_is_that_of_the_strategy(noise):
    assert noise_of_sums(noise, 40) == pytest.approx(correlated(40, 40).sums[-1], rel=0.1)


@pytest.mark.parametrize("noise", ["each", "summed"])
def test_the_noise_of_several_passes_is_that_of_bands(noise):
    assert not correlated(20, 5).decays
    found = noise_of_sums(noise, 20, size=5, own={"passes": 4})
    assert found == pytest.approx(correlated(20, 5).sums[-1], rel=0.1)


def test_fresh_noise_is_the_other_case():
    own = {"output": "last"}
    assert noise_of_sums("each", 40, name="mb-sgd", own=own) == pytest.approx(math.sqrt(40), rel=0.1)


def test_without_noise_it_is_minibatch_sgd():
    silos, key = enrol(tables()), jax.random.key(2)
    plain = CASES["mb-sgd"].build(
        LOGISTIC, num_rounds=ROUNDS, batch_size=2, sampling="one-pass", noise_multiplier=0.0, output="last"
    )
    found = [simulate(a, start(LOGISTIC), silos, key=key).params for a in (ftrl(noise_multiplier=0.0), plain)]
    assert largest_difference(*found) < 1e-6


def test_several_passes_converge_to_the_known_solution():
    made, problem, solution = least_squares()
    algorithm = ftrl(problem, batch_size=4, passes=100, num_rounds=1000, noise_multiplier=0.0, clip_norm=1e3)
    found = simulate(algorithm, start(problem), enrol(made), key=jax.random.key(0)).params["linear"]["w"]
    np.testing.assert_allclose(np.asarray(found)[:, 0], solution, atol=0.03)


def priced(name, epsilon, **changes):
    """The algorithm with the noise that this budget buys a silo of 400 records in batches of ten."""
    problem = least_squares()[1]
    common = {"num_rounds": 40, "batch_size": 10, "sampling": "one-pass", "step_size": 0.5, "clip_norm": 2.0}

    def build(noise_multiplier):
        return find(name).build(problem, **{**common, "noise_multiplier": noise_multiplier, **changes})

    events = events_of(build(1.0), silo_index=0, silos=3, records=400)
    [paid] = calibrate(events, epsilon=epsilon, delta=1e-5)
    return build(paid.noise_multiplier), paid


def test_at_one_price_it_errs_less_than_fresh_noise_in_one_pass():
    made, problem, solution = least_squares(sizes=(400,) * 3)
    errors = []
    for name, own in (("mb-sgd", {"output": "last"}), ("dp-ftrl", {})):
        algorithm, _ = priced(name, 1.0, **own)
        seeds = [Seed(jax.random.key(s), start(problem), enrol(made)) for s in range(30)]
        found = np.asarray(simulate_grid(lambda a=algorithm: a, {}, seeds).params["linear"]["w"])[:, 0, :, 0]
        errors.append(np.linalg.norm(found - solution, axis=1).mean())
    assert errors[1] < 0.75 * errors[0]


def test_it_is_priced_for_all_of_its_passes():
    once, again = (priced("dp-ftrl", 1.0, passes=p, num_rounds=40 * p)[1] for p in (1, 2))
    assert once.noise_multiplier < again.noise_multiplier < 2 * once.noise_multiplier
    assert (once.mechanism, once.rounds, again.rounds) == ("correlated", 40, 80)


def test_silos_that_stay_away_are_refused_in_simulations():
    with pytest.raises(ValueError, match="every silo in every round for correlated"):
        simulate(ftrl(), start(LOGISTIC), enrol(tables()), key=jax.random.key(0), who=participation(3, 2))


@pytest.mark.parametrize("change", [{"sampling": "poisson"}, {"sampling": "wor"}, {"channel": "pairwise"}])
def test_what_has_no_price_is_refused(change):
    with pytest.raises(ValueError, match="Expected"):
        ftrl(**change)


def test_another_mechanism_is_refused():
    with pytest.raises(ValueError, match='"gaussian" or "correlated"'):
        CASES["mb-sgd"].build(LOGISTIC, mechanism="cumulative")
