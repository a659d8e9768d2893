"""Only the sensitive attribute is protected: it moves a sum by no more than is priced, and all else passes."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.algorithm import Release, Silo
from tacit.objectives import GradientQuery, Objective, Problem, SaddleQuery, ermi, linear, logistic, mlp, softmax
from tacit.objectives.query import Saddle
from tacit.plans.catalogue import find
from tacit.privacy import events_of
from tacit.silo import SLACK, answer, clipped_sum, exact_statistic, view_of
from tacit.silo.attribute import attribute_sum

N = 12


def game(model, cost, classes, groups, strength=0.7):
    term = ermi(model, classes, tuple(np.arange(1, groups + 1) / np.arange(1, groups + 1).sum()))

    def values(params, duals, records, tap):
        outputs = model.apply(params, records["x"], tap)
        return cost.value(outputs, records["y"]) + strength * term.values_at(term.chances(outputs), duals, records)

    return Saddle(model, cost, term.init(), values)


GAMES = {
    "logistic, two groups": (game(linear(3, 1), logistic(), 2, 2), 2, 2),
    "softmax, four groups": (game(linear(3, 3, bias=False), softmax(), 3, 4), 3, 4),
    "network, three groups": (game(mlp((3, 4, 2)), softmax(), 2, 3), 2, 3),
}


def some(game, classes, groups, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    records = {
        "x": jnp.asarray(rng.normal(size=(N, 3)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, classes, N), jnp.int32),
        "s": jnp.asarray(rng.integers(0, groups, N), jnp.int32),
    }
    shapes = game.model.init(jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), jnp.float32), shapes)
    duals = jnp.asarray(rng.normal(size=game.init_duals.shape), jnp.float32)
    return records, (params, duals)


def by_hand(query, work, records, present, bound, groups):
    """The definition, record by record, in float64."""
    totals, query = None, jax.jit(query.__call__)
    for i in range(N):
        if not present[i]:
            continue
        record = {name: column[i] for name, column in records.items()}
        values = [query(work, {**record, "s": jnp.asarray(r)}) for r in range(groups)]
        blocks = {}
        for name in values[0]:
            flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(v[name])]).astype(float) for v in values]
            middle = np.mean(flat, axis=0)
            widest = max(np.linalg.norm(a - b) for a in flat for b in flat)
            factor = min(1.0, 2 * bound[name] / widest) if widest > 0 else 1.0
            blocks[name] = middle + factor * (flat[int(record["s"])] - middle)
        totals = blocks if totals is None else {name: totals[name] + blocks[name] for name in blocks}
    return totals


def flat(block):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(block)])


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("bound", [0.05, 50.0])
def test_the_tapped_path_is_the_definition(name, bound):
    own, classes, groups = GAMES[name]
    records, work = some(own, classes, groups)
    query, present = SaddleQuery(own, lambda work: work), jnp.arange(N) < N - 3
    limits = {"params": bound, "duals": 2 * bound}
    found = jax.jit(lambda r: whole(attribute_sum(query, work, r, present, limits, groups=groups)))(records)
    expected = by_hand(query, work, records, present, limits, groups)
    for block in expected:
        np.testing.assert_allclose(flat(found[block]), expected[block], rtol=2e-4, atol=2e-4)


@lru_cache
def compiled(name):
    own, _, groups = GAMES[name]
    query = SaddleQuery(own, lambda work: work)
    return jax.jit(
        lambda work, records, limits: attribute_sum(query, work, records, jnp.ones(N, bool), limits, groups=groups)
    )


def whole(parts):
    return jax.tree.map(jnp.add, *parts)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(GAMES)),
    st.integers(0, 2**31 - 1),
    st.sampled_from([1e-3, 0.3, 20.0]),
    st.sampled_from([1e-2, 1.0, 100.0]),
)
def test_the_attribute_moves_a_sum_by_no_more_than_twice_the_bound(name, seed, bound, scale):
    own, classes, groups = GAMES[name]
    records, work = some(own, classes, groups, seed, scale)
    other = {**records, "s": records["s"].at[0].set((records["s"][0] + 1) % groups)}
    limits = {"params": bound, "duals": bound}
    (known, one), (same, zero) = (compiled(name)(work, r, limits) for r in (records, other))
    np.testing.assert_array_equal(flat(known), flat(same))
    for block in limits:
        moved = np.linalg.norm(flat(one[block]).astype(float) - flat(zero[block]).astype(float))
        assert moved <= 2 * bound * (1 + SLACK)


def test_what_is_not_protected_passes_whole():
    """A query that does not read the attribute is summed as if there were no clip."""
    objective = Objective(linear(3, 1), logistic())
    query = GradientQuery(objective, lambda work: (work,), lambda work: (1.0,))
    records, (params, _) = some(GAMES["logistic, two groups"][0], 2, 2)
    present = jnp.ones(N, bool)
    kept, hidden = attribute_sum(query, params, records, present, 1e-6, groups=2)
    plain = clipped_sum(query, params, records, present, 1e6)
    np.testing.assert_allclose(flat(kept), flat(plain), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(flat(hidden), 0.0)
    assert np.linalg.norm(flat(plain)) > 0.1


@pytest.mark.parametrize("poison", [np.inf, np.nan, 1e30])
def test_a_record_that_is_not_finite_for_some_group_adds_nothing_for_any(poison):
    """Which groups overflow is known from the features; whether the record counts must not tell its own group."""

    def query(work, record):
        return jnp.where(record["s"] == 1, poison * record["x"] ** 3, record["x"])

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(N, 3)), jnp.float32).at[1:, 0].set(0.0)
    x = x.at[0].set(1e10).at[1:].set(0.0)
    for s in (0, 1):
        records = {"x": x, "y": jnp.zeros(N), "s": jnp.zeros(N, jnp.int32).at[0].set(s)}
        total = attribute_sum(query, (), records, jnp.arange(N) < 1, 1.0, groups=2)
        np.testing.assert_array_equal(np.asarray(total[0] + total[1]), 0.0)


def test_a_hostile_bound_silences_the_attribute_and_nothing_else():
    own, classes, groups = GAMES["logistic, two groups"]
    records, work = some(own, classes, groups)
    other = {**records, "s": 1 - records["s"]}
    for bound in (np.nan, np.inf, -1.0, 1e-30):
        limits = {"params": bound, "duals": bound}
        one, zero = (compiled("logistic, two groups")(work, r, limits) for r in (records, other))
        np.testing.assert_array_equal(flat(one), flat(zero))


def test_a_query_that_is_not_handed_the_attribute_cannot_read_it_and_costs_nothing():
    release = Release(lambda work: 1.0, None, None, "full", channel="open", protects="sensitive-attribute", groups=2)
    silo = Silo(lambda work, record: record["s"], release, reads=("x", "y"))
    assert silo.is_free
    records, _ = some(GAMES["logistic, two groups"][0], 2, 2)
    with pytest.raises(KeyError, match="s"):
        answer(silo, (), (), view_of(records, N, None, 0), key=jax.random.key(0), position=0)
    plain = find("mb-sgd").build(
        Problem(Objective(linear(3, 1), logistic())),
        step_size=1.0,
        num_rounds=2,
        clip_norm=1.0,
        noise_multiplier=None,
        batch_size=None,
        sampling="full",
        channel="open",
    )
    part = plain.rounds["gradient"]
    free = dataclasses.replace(
        plain, rounds={"gradient": dataclasses.replace(part, silo=dataclasses.replace(part.silo, release=release))}
    )
    assert events_of(free, silo_index=0, silos=1, records=N)[0].noise_multiplier == 0.0
    silo = dataclasses.replace(part.silo, release=release, reads=("x", "y"))
    free = dataclasses.replace(plain, rounds={"gradient": dataclasses.replace(part, silo=silo)})
    assert events_of(free, silo_index=0, silos=1, records=N) == ()


def test_passes_use_each_record_once_in_each_pass_and_are_priced_so():
    release = Release(lambda work: 1e6, 0.0, 3, "one-pass", passes=2)
    silo = Silo(lambda work, record: record["x"], release)
    records = {"x": jnp.eye(10), "y": jnp.zeros(10)}
    desk = view_of(records, 10, jnp.asarray([3, 1, 4, 0, 5, 9, 2, 6, 8, 7]), 0)
    seen = [3 * np.asarray(exact_statistic(silo, (), desk, key=jax.random.key(0), position=3 * r)[0]) for r in range(6)]
    np.testing.assert_allclose(sum(seen[:3]), sum(seen[3:]))
    used = sum(seen)
    assert sorted(np.rint(used).astype(int)) == [0] + [2] * 9
    for first, second in zip(seen[:3], seen[3:], strict=True):
        np.testing.assert_allclose(first, second)


def test_what_is_refused():
    with pytest.raises(ValueError, match="groups"):
        Release(lambda work: 1.0, 1.0, None, "full", protects="sensitive-attribute")
    with pytest.raises(ValueError, match="passes"):
        Release(lambda work: 1.0, 1.0, 3, "wor", passes=2)
    with pytest.raises(ValueError, match="shuffled"):
        Release(lambda work: 1.0, 1.0, 3, "wor", channel="shuffled-sum", protects="sensitive-attribute", groups=2)
    with pytest.raises(ValueError, match="'s'"):
        attribute_sum(lambda w, r: r["x"], (), {"x": jnp.ones((2, 1))}, jnp.ones(2, bool), 1.0, groups=2)
