"""DP-mu^2: the paper's recursion, the running sum's noise, a hostile server, a trusted one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.algorithms.mu2_sgd import Mu2Points
from tacit.geometry import l2_ball
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find
from tacit.privacy import gdp_epsilon, price
from tacit.privacy.plan import events_of
from tacit.silo import SLACK, Previous, answer, enrol, exact_statistic, pass_order, rows_of, view_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tacit.simulate.program import silo_before, silo_key, split_keys
from tests.algorithms.table import CASES, LOGISTIC, largest_difference, start, tables

PROBLEM = Problem(Objective(linear(5, 1, bias=False), logistic()), l2_ball(1.5))


def mu2(**changes):
    terms = {"step_size": 0.05, "num_rounds": 12, "clip_norm": 2.0, "noise_multiplier": 0.5, "batch_size": 1}
    return find("mu2-sgd").build(PROBLEM, **{**terms, "sampling": "one-pass", **changes})


def test_without_noise_it_is_the_papers_recursion():
    """Algorithm 1 in numpy, with d_t, beta_t = 1/t and both gradients at the record of round t."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 5)), rng.integers(0, 2, 12)
    table = {"x": x.astype(np.float32), "y": y}
    key = jax.random.key(2)
    found = simulate(mu2(clip_norm=1e4, noise_multiplier=0.0), start(PROBLEM), enrol([table]), key=key).params
    order = np.asarray(pass_order(jax.random.fold_in(split_keys(key).passes, 0), 12, 12))

    def gradient(point, record):
        return (1 / (1 + np.exp(-x[record] @ point)) - y[record]) * x[record]

    w = point = before = d = np.zeros(5)
    for t, record in enumerate(order, start=1):
        d = gradient(point, record) + (1 - 1 / t) * (d - gradient(before, record))
        w = w - 0.05 * t * d
        w = w * min(1, 1.5 / np.linalg.norm(w))
        output, before = point, point
        point = point + (t + 1) / ((t + 1) * (t + 2) / 2) * (w - point)
    np.testing.assert_allclose(np.asarray(found["linear"]["w"])[:, 0], output, rtol=2e-4, atol=1e-6)


def increments(sums, size=400):
    """A silo of zeros with a cumulative release of noise one, asked in the rounds of ``sums``."""
    release = Release(lambda work: 1.0, 0.5, None, "full", mechanism="cumulative")
    silo = Silo(lambda work, record: record["x"], release)
    desk = view_of({"x": jnp.zeros((1, size)), "y": jnp.zeros(1)}, 1, None, 0)
    keys = split_keys(jax.random.key(0))
    last, said = -1, []
    for number in sums:
        terms = {"key": silo_key(keys, 0, number), "previous": silo_before(keys, 0, last), "position": 0}
        said.append(np.asarray(answer(silo, (), (), desk, **terms)[0]))
        last = number
    return np.asarray(said)


@pytest.mark.parametrize("rounds", [(0, 1, 2, 3, 4), (0, 3, 4, 9, 11)], ids=["every round", "some rounds"])
def test_every_running_sum_has_fresh_noise_of_the_same_size(rounds):
    said = increments(rounds)
    sums = np.cumsum(said, axis=0)
    for noise in sums:
        assert stats.kstest(noise, "norm", args=(0, 1 + SLACK)).pvalue > 1e-3
    assert np.abs(np.corrcoef(sums) - np.eye(len(rounds))).max() < 0.2
    assert said[1].std() == pytest.approx(np.sqrt(2), abs=0.15)


def test_all_ways_of_drawing_noise_agree_on_the_servers_sum():
    """The noise of the server's running sum after three rounds: sigma/sqrt(N), or sigma/N from a trusted server."""
    silos = enrol(tables(sizes=(30, 30, 30)))
    seeds = [Seed(jax.random.key(s), start(PROBLEM), silos) for s in range(200)]
    sigma = 50.0 * 2 * 2.0

    def total(channel, noise, multiplier=50.0):
        def build():
            return mu2(num_rounds=3, noise_multiplier=multiplier, channel=channel)

        return np.asarray(simulate_grid(build, {}, seeds, noise=noise).state.total["linear"]["w"]).ravel()

    for channel, noise, scale in (
        ("direct", "each", 3**-0.5),
        ("direct", "summed", 3**-0.5),
        ("trusted", "each", 1 / 3),
        ("trusted", "summed", 1 / 3),
    ):
        # Increments are a thousandth of the noise.
        assert stats.kstest(total(channel, noise), "norm", args=(0, sigma * scale)).pvalue > 1e-3


@pytest.mark.parametrize("mechanism", ["gaussian", "cumulative"])
def test_a_trusted_server_in_the_plain_loop_is_the_same(mechanism):
    if mechanism == "cumulative":
        problem, algorithm = PROBLEM, mu2(channel="trusted")
    else:
        noise = np.asarray([0.2, 0.4, 0.1], np.float32)
        problem, algorithm = LOGISTIC, CASES["mb-sgd"].build(LOGISTIC, channel="trusted", noise_multiplier=noise)
    silos, key = enrol(tables()), jax.random.key(4)
    who = participation(3, None if mechanism == "cumulative" else 2, weights=(0.5, 0.2, 0.3))
    fast = simulate(algorithm, start(problem), silos, key=key, who=who, noise="each")
    slow = debug(algorithm, start(problem), [rows_of(silos, i) for i in range(3)], key=key, who=who)
    assert largest_difference(fast.params, slow.params) < 1e-5


def test_a_trusted_server_hides_a_record_of_the_most_exposed_silo():
    """Noise on the mean is the largest of weight x multiplier x 2C/n over silos, so each gets at least its own."""
    noise = np.asarray([[1.0, 4.0, 1.0]], np.float32)

    def build(noise_multiplier):
        terms = {"num_rounds": 1, "step_size": 1.0, "output": "last", "channel": "trusted"}
        return CASES["mb-sgd"].build(LOGISTIC, noise_multiplier=noise_multiplier, **terms)

    seeds = [Seed(jax.random.key(s), start(LOGISTIC), enrol(tables())) for s in range(300)]
    who = participation(3, weights=(0.2, 0.5, 0.3))
    noisy, plain = (
        np.asarray(simulate_grid(build, {"noise_multiplier": z}, seeds, who=who).params["linear"]["w"]).ravel()
        for z in (noise, 0 * noise)
    )
    sigma = max(w * z * 2 * 0.7 / n for w, z, n in zip((0.2, 0.5, 0.3), noise[0], (30, 17, 24), strict=True))
    assert stats.kstest(noisy - plain, "norm", args=(0, sigma)).pvalue > 1e-3


def sensitivity(clip_norm):
    """How far a hostile server can make one record's increments move: it jumps across the set with a large weight."""
    silo = mu2(clip_norm=clip_norm, noise_multiplier=1.0).rounds["increment"].silo
    far = {"linear": {"w": 1.5 * jnp.eye(5)[:, :1]}}
    near = {"linear": {"w": -1.5 * jnp.eye(5)[:, :1]}}
    attack = Mu2Points(far, near, jnp.asarray(600.0))
    pair = [{"x": 3.0 * jnp.eye(5)[i : i + 1], "y": jnp.zeros(1)} for i in (0, 1)]
    means = [
        exact_statistic(silo, attack, view_of(r, 1, jnp.arange(1), 0), key=jax.random.key(0), position=0)[0]
        for r in pair
    ]
    return float(jnp.linalg.norm(means[0]["linear"]["w"] - means[1]["linear"]["w"]))


def test_a_hostile_server_cannot_move_a_record_further_than_is_priced():
    """The paper's S = G + 2LD trusts the server to move its points slowly; ours is a clip at the silo."""
    lipschitz, smooth, diameter = 3.0, 9.0 / 4, 3.0
    claimed = lipschitz + 2 * smooth * diameter
    assert sensitivity(1e6) > 20 * 2 * claimed
    assert sensitivity(claimed) <= 2 * claimed * (1 + SLACK)


def test_the_price_is_that_of_running_sums():
    events = events_of(mu2(noise_multiplier=3.0), silo_index=0, silos=3, records=24)
    assert price(events, delta=1e-5).epsilon == pytest.approx(gdp_epsilon(12**0.5 / 3.0, 1e-5))
    capped = events_of(mu2(noise_multiplier=3.0), silo_index=0, silos=3, records=24, max_participations=5)
    assert price(capped, delta=1e-5).epsilon == pytest.approx(gdp_epsilon(5**0.5 / 3.0, 1e-5))


def test_what_cannot_be_private_is_refused():
    release = Release(lambda work: work["norm"], 1.0, None, "full", mechanism="cumulative")
    desk = view_of({"x": jnp.ones((2, 3)), "y": jnp.zeros(2)}, 2, None, 0)
    key = jax.random.key(0)
    with pytest.raises(TypeError, match="NoneType"):  # a clip that follows the broadcast
        exact_statistic(Silo(lambda w, r: r["x"], release), {"norm": 1.0}, desk, key=key, position=0)
    with pytest.raises(ValueError, match="one local step"):
        Silo(lambda w, r: r["x"], release, local_steps=2)
    fixed = Release(lambda work: 1.0, 1.0, None, "full", mechanism="cumulative")
    with pytest.raises(ValueError, match="previous answer"):
        answer(Silo(lambda w, r: r["x"], fixed), (), (), desk, key=key, position=0)
    trusted = Release(lambda work: 1.0, 1.0, None, "full", channel="trusted")
    with pytest.raises(ValueError, match="noise on the sum"):
        answer(Silo(lambda w, r: r["x"], trusted), (), (), desk, key=key, position=0, previous=Previous(key, False))
    with pytest.raises(ValueError, match="every silo in every round"):
        simulate(
            mu2(channel="trusted"), start(PROBLEM), enrol(tables()), key=key, who=participation(3, 2), noise="each"
        )
