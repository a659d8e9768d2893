"""SPIDER, SVRG and proximal SGD: special cases, the paper's own loops in numpy, and what a record can add."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit import geometry
from tacit.objectives import Problem
from tacit.plans.catalogue import find
from tacit.privacy import events_of, price
from tacit.silo import clipped_sum, enrol
from tacit.simulate.compiled import simulate
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, least_squares, start, tables

COMMON = {"step_size": 0.3, "clip_norm": 0.7, "noise_multiplier": 0.2, "batch_size": None, "sampling": "full"}
LASSO = Problem(LOGISTIC.objective, geometry.l1(0.05))


def run(algorithm, problem, silos=None, noise="each"):
    silos = enrol(tables()) if silos is None else silos
    return simulate(algorithm, start(problem), silos, key=jax.random.key(5), noise=noise).params


@pytest.mark.parametrize("name", ["prox-spider", "prox-svrg"])
def test_phases_of_one_round_are_proximal_minibatch_sgd_exactly(name):
    special = find(name).build(LASSO, num_rounds=5, phase_length=1, difference_slope=1.0, **COMMON)
    plain = find("mb-sgd").build(LASSO, num_rounds=5, output="last", **COMMON)
    assert largest_difference(run(special, LASSO), run(plain, LASSO)) == 0.0


def quadratic(sizes=(20, 20)):
    """Least squares as plain numpy: gradients of each record, and the problem."""
    made, problem, _ = least_squares(sizes=sizes, features=3)
    x, y = (np.concatenate([t[k] for t in made]).astype(np.float64) for k in ("x", "y"))
    problem = Problem(problem.objective, geometry.l1(0.02))
    return enrol(made), problem, lambda w: x.T @ (x @ w - y) / len(y)


def shrink(w, step):
    return np.sign(w) * np.maximum(np.abs(w) - 0.02 * step, 0.0)


OPEN = {"step_size": 0.7, "clip_norm": None, "noise_multiplier": None, "batch_size": None, "sampling": "full"}


def found_by(name, **parameters):
    silos, problem, _ = quadratic()
    algorithm = find(name).build(problem, channel="open", **{**OPEN, **parameters})
    return np.asarray(run(algorithm, problem, silos)["linear"]["w"])[:, 0]


def test_spider_follows_the_loop_of_the_paper():
    gradient = quadratic()[2]
    w = before = h = np.zeros(3)
    for r in range(7):
        h = gradient(w) if r % 3 == 0 else h + gradient(w) - gradient(before)
        before, w = w, shrink(w - 0.7 * h, 0.7)
    np.testing.assert_allclose(
        found_by("prox-spider", num_rounds=7, phase_length=3, difference_slope=1.0), w, atol=1e-6
    )


def test_alternate_spider_follows_the_two_updates_of_the_paper():
    """Written as in the paper: w2 and its fresh gradient v2, then w1, then the difference, then w2 again."""
    gradient = quadratic()[2]
    w2 = np.zeros(3)
    v2 = gradient(w2)
    for _ in range(3):
        w0, w1 = w2, shrink(w2 - 0.7 * v2, 0.7)
        v1 = gradient(w1) - gradient(w0) + v2
        w2 = shrink(w1 - 0.7 * v1, 0.7)
        v2 = gradient(w2)
    np.testing.assert_allclose(found_by("alternate-spider", num_rounds=6), w2, atol=1e-6)


def test_svrg_with_restarts_follows_the_loop_of_the_paper():
    gradient = quadratic()[2]
    handed, picks = np.zeros(3), (4, 2)
    for pick in picks:
        w, iterates = handed, [handed]
        for _ in range(2):
            anchor, g = w, gradient(w)
            for _ in range(3):
                w = shrink(w - 0.7 * (gradient(w) - gradient(anchor) + g), 0.7)
                iterates.append(w)
        handed = iterates[pick]
    got = found_by("prox-svrg", num_rounds=12, phase_length=3, restarts=2, picks=picks)
    np.testing.assert_allclose(got, handed, atol=1e-6)


def test_the_picked_iterate_is_the_one_of_a_shorter_run():
    parameters = {"phase_length": 3, "difference_slope": 1.0}
    np.testing.assert_array_equal(
        found_by("prox-spider", num_rounds=7, output=4, **parameters),
        found_by("prox-spider", num_rounds=4, **parameters),
    )
    np.testing.assert_array_equal(found_by("prox-spider", num_rounds=3, output=0, **parameters), np.zeros(3))


@pytest.mark.parametrize("name", ["prox-spider", "prox-svrg"])
def test_measurements_by_round_follow_the_iterates(name):
    silos, problem, gradient = quadratic()
    algorithm = find(name).build(problem, channel="open", num_rounds=4, phase_length=2, difference_slope=None, **OPEN)
    outcome = simulate(
        algorithm, start(problem), silos, key=jax.random.key(0), measure=lambda p: {"w": p["linear"]["w"][0, 0]}
    )
    w = np.zeros(3)
    for measured in outcome.trace["w"]:
        w = shrink(w - 0.7 * gradient(w), 0.7)
        assert measured == pytest.approx(w[0], abs=1e-6)


def test_a_difference_of_nearby_points_is_clipped_to_its_own_small_bound():
    """In float64 no record adds more than min(2C, C_s ||dw||), and the bound shrinks with the distance."""
    algorithm = find("prox-spider").build(MLP, num_rounds=2, phase_length=2, difference_slope=0.4, **COMMON)
    silo = algorithm.rounds["difference"].silo
    new = start(MLP)
    step = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape), new)
    records = tables(sizes=(40,))[0]
    work_of = type(algorithm.rounds["difference"].server.ask(algorithm.init(new)))

    @jax.jit
    def added(work, i):
        return clipped_sum(silo.query, work, records, jnp.arange(40) == i, silo.release.clip(work))

    for size in (1e-3, 1e-1, 30.0):
        old = jax.tree.map(lambda w, s, size=size: w + size * s, new, step)
        work = work_of(new, old)
        distance = np.sqrt(sum(float(jnp.sum((a - b) ** 2)) for a, b in zip(*map(jax.tree.leaves, work), strict=True)))
        bound = min(2 * 0.7, 0.4 * distance)
        assert float(silo.release.clip(work)) == pytest.approx(bound, rel=1e-5)
        worst = 0.0
        for i in range(40):
            alone = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(added(work, i))]
            norm = np.sqrt(sum(float(np.sum(leaf**2)) for leaf in alone))
            assert norm <= bound * (1 + 1e-4)
            worst = max(worst, norm)
        assert worst > 0.5 * bound or size == 30.0


def test_every_release_is_priced_and_the_constant_differences_are_not_made():
    """E anchors and E (Q-1) differences for SVRG; every q-th of R is a gradient for SPIDER."""
    shape = {"silo_index": 0, "silos": 3, "records": 30}
    parameters = {**COMMON, "noise_multiplier": 8.0, "difference_noise": 0.5, "phase_length": 4}
    svrg = events_of(find("pl-svrg").build(MLP, num_rounds=24, restarts=2, **parameters), **shape)
    assert [(e.kind, e.count, e.noise_multiplier) for e in svrg] == [("anchor", 6, 8.0), ("difference", 18, 4.0)]
    spider = events_of(find("prox-spider").build(MLP, num_rounds=9, difference_slope=1.0, **parameters), **shape)
    assert [(e.kind, e.count) for e in spider] == [("difference", 6), ("gradient", 3)]
    assert price(spider, delta=1e-6).mu == pytest.approx(np.sqrt(3 / 8.0**2 + 6 / 4.0**2))


def test_differences_may_be_sampled_otherwise_than_anchors():
    algorithm = find("prox-svrg").build(
        MLP, num_rounds=4, phase_length=2, difference_sampling="poisson", difference_batch_size=6, **COMMON
    )
    anchor, difference = events_of(algorithm, silo_index=0, silos=1, records=30)
    assert (anchor.sampling, anchor.batch, difference.sampling, difference.batch) == ("full", 30, "poisson", 6)


def test_proximal_sgd_takes_the_step_of_its_theorem():
    made, problem, solution = least_squares(sizes=(400, 400))
    known = Problem(problem.objective, problem.regulariser, smoothness=1.0)
    parameters = {"num_rounds": 40, "clip_norm": 1e3, "noise_multiplier": 0.0, "batch_size": 10, "sampling": "one-pass"}
    theorem = run(find("prox-sgd").build(known, **parameters), known, enrol(made))
    written = run(find("prox-sgd").build(problem, step_size=0.5, **parameters), problem, enrol(made))
    assert largest_difference(theorem, written) == 0.0
    assert np.linalg.norm(np.asarray(theorem["linear"]["w"])[:, 0] - solution) < 0.2 * np.linalg.norm(solution)
    with pytest.raises(ValueError, match="smoothness"):
        find("prox-sgd").build(problem, **parameters)
    with pytest.raises(ValueError, match="one-pass"):
        find("prox-sgd").build(known, **{**parameters, "sampling": "full"})


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("prox-spider", {"phase_length": 0, "difference_slope": 1.0}, "at least one round"),
        ("prox-spider", {"phase_length": 2, "difference_slope": 1.0, "output": 5}, "output=5"),
        ("prox-svrg", {"num_rounds": 5, "phase_length": 2, "restarts": 2}, "multiple of restarts"),
        ("prox-svrg", {"phase_length": 2, "restarts": 2, "picks": [3, 1]}, "from 0 to 2"),
        ("pl-svrg", {"phase_length": 2, "restarts": 1}, "prox-svrg"),
    ],
)
def test_mistakes_are_named(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        find(name).build(MLP, **{"num_rounds": 4, **COMMON, **parameters})


@pytest.mark.parametrize("name", ["prox-spider", "prox-svrg"])
def test_batches_of_differences_need_a_sampling_of_their_own(name):
    with pytest.raises(ValueError, match="batch_size=5"):
        CASES[name].build(MLP, difference_batch_size=5)
