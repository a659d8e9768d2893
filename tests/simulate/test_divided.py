"""Divisions: the same numbers wherever features and attributes lie, typed messages, noise by the share of a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.objectives import Objective, Problem, ermi, linear, logistic
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tests.simulate.divided import AttributesDivision, FairGradients, FeaturesDivision, Outputs, train_divided

N, STRENGTH, SHARES = 30, 0.8, (0.4, 0.6)
PROBLEM = Problem(Objective(linear(3, 1), logistic()), lipschitz=3.0, smoothness=2.0)
TERM = ermi(PROBLEM.objective.model, 2, SHARES)


def records(seed=0):
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, N)
    x = rng.normal(size=(N, 3)) + s[:, None]
    return {"x": np.float32(x), "y": np.int32(rng.random(N) < 0.5), "s": np.int32(s)}


def built(noise=0.0, rounds=4, **changes):
    terms = {"step_size": 0.5, "clip_norm": 10.0, "batch_size": None, "sampling": "full"}
    terms |= {"protects": "sensitive-attribute", **changes}
    return find("steffle").build(
        PROBLEM, num_rounds=rounds, noise_multiplier=noise, strength=STRENGTH, frequencies=SHARES, **terms
    )


def holders(table, features, attributes, seed=0):
    """Records dealt to so many features and, in another order, to so many attributes divisions."""
    rng = np.random.default_rng(seed)
    index = rng.permutation(1000)[:N]
    left = [
        FeaturesDivision(f"f{i}", index[rows], table["x"][rows], table["y"][rows])
        for i, rows in enumerate(np.array_split(rng.permutation(N), features))
    ]
    right = [
        AttributesDivision(f"a{i}", index[rows], table["s"][rows], jax.random.key(i))
        for i, rows in enumerate(np.array_split(rng.permutation(N), attributes))
    ]
    return left, right


def test_where_records_lie_changes_nothing_but_noise():
    table = records()
    start = PROBLEM.objective.init(jax.random.key(0))
    pooled = simulate(built(), start, enrol([table]), key=jax.random.key(0)).params
    left, right = holders(table, 2, 3)
    found = train_divided(built(), PROBLEM, TERM, left, right, start, strength=STRENGTH)
    for a, b in zip(jax.tree.leaves(pooled), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_what_crosses_is_typed_and_features_do_not_know_the_attribute():
    table = records()
    [left], [right] = holders(table, 1, 1)
    assert not hasattr(left, "s")
    assert not hasattr(right, "x")
    algorithm = built()
    work = algorithm.rounds["step"].server.ask(algorithm.init(PROBLEM.objective.init(jax.random.key(0))))

    def crossing():
        heard = left.outputs(TERM, work.params, left.index)
        return heard, right.gradients(TERM, algorithm.rounds["step"].silo, work, STRENGTH, [heard], N, 0)

    heard, said = jax.eval_shape(crossing)
    assert isinstance(heard, Outputs)
    assert heard.jacobian["linear"]["w"].shape == (N, 2, 3, 1)
    assert isinstance(said, FairGradients)


def test_an_idle_division_says_noise_that_looks_like_any_other():
    """The batch has no record of the second division; the deviations of both messages are the same."""
    table = records()
    left, right = holders(table, 1, 2)
    algorithm = built(noise=3.0)
    work = algorithm.rounds["step"].server.ask(algorithm.init(PROBLEM.objective.init(jax.random.key(0))))
    batch = right[0].index
    heard = [left[0].outputs(TERM, work.params, batch)]
    silo, rounds = algorithm.rounds["step"].silo, jnp.arange(30)

    def duals(part):
        return jax.jit(jax.vmap(lambda r: part.gradients(TERM, silo, work, STRENGTH, heard, 15, r).duals))(rounds)

    said = [np.asarray(duals(part)) for part in right]
    clip = float(silo.release.clip(work)["duals"])
    expected = 3.0 * 2**0.5 * 2 * clip / 15
    for values in said:
        assert values.std(ddof=1) == pytest.approx(expected, rel=0.25)
    assert abs(said[1].mean()) < 4 * expected / said[1].size ** 0.5


def test_batches_are_used_as_told():
    table = records()
    left, right = holders(table, 1, 1)
    start = PROBLEM.objective.init(jax.random.key(0))
    everything = np.concatenate([part.index for part in left])
    halves = [everything[:15], everything[15:]]
    one = train_divided(built(rounds=2), PROBLEM, TERM, left, right, start, strength=STRENGTH, batches=halves)
    other = train_divided(built(rounds=2), PROBLEM, TERM, left, right, start, strength=STRENGTH, batches=halves[::-1])
    whole = train_divided(built(rounds=2), PROBLEM, TERM, left, right, start, strength=STRENGTH)
    gaps = [float(jnp.abs(a["linear"]["w"] - whole["linear"]["w"]).max()) for a in (one, other)]
    assert min(gaps) > 1e-4


def test_what_is_refused():
    table = records()
    left, right = holders(table, 2, 2)
    start = PROBLEM.objective.init(jax.random.key(0))
    with pytest.raises(TacitError, match="in several"):
        train_divided(built(), PROBLEM, TERM, [left[0], left[0]], right, start, strength=STRENGTH)
    with pytest.raises(TacitError, match="same indices"):
        train_divided(built(), PROBLEM, TERM, left, right[:1], start, strength=STRENGTH)
    with pytest.raises(TacitError, match="sensitive-attribute"):
        train_divided(built(protects="record"), PROBLEM, TERM, left, right, start, strength=STRENGTH)
