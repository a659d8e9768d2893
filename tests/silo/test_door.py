"""A real silo's door, as it ships: what one record can move, whatever the server says, and the noise on it."""

from dataclasses import dataclass, field
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.algorithm import Release, Silo
from tacit.objectives import (
    GradientQuery,
    Objective,
    SaddleQuery,
    cnn,
    gradient_at,
    gradient_difference,
    lifted,
    linear,
    logistic,
    mlp,
    softmax,
    squared,
)
from tacit.silo import door as shipped
from tacit.silo.batches import SecretBatch
from tacit.silo.door import LARGEST_NOISE, DiscreteGaussian, Door, DoorError, no_noise, noise_scale
from tacit.silo.integers import BOUND, FACTOR, MOST_RECORDS, IntegerFactors, Integers, Sums, quantise
from tacit.silo.sampler import MOST_DISTANCE, discrete_gaussian, distance

COUNT = 4
FULL = SecretBatch(np.arange(COUNT), np.ones(COUNT, bool))

LOGISTIC = Objective(linear(4, 1), logistic())
SQUARED = Objective(linear(4, 1), squared())
NARROW = Objective(mlp((4, 1, 2)), softmax())
WIDE = Objective(mlp((4, 16, 3)), softmax())
DEEP = Objective(mlp((4, 16, 16, 2)), softmax())
IMAGES = Objective(cnn((6, 6, 1), channels=(2,), hidden=(12,), outputs=3, kernel=3), softmax())


def combination(objective):
    """Any combination of three gradients, whose weights the server says."""
    return GradientQuery(objective, lambda work: work["points"], lambda work: tuple(work["weights"]))


def saddle(objective):
    return SaddleQuery(lifted(objective), lambda work: (work["points"][0], work["weights"][0]))


QUERIES = {
    "one gradient": gradient_at(WIDE, lambda work: work["points"][0]),
    "difference": gradient_difference(WIDE, lambda work: work["points"][0], lambda work: work["points"][1]),
    "logistic": combination(LOGISTIC),
    "squared": combination(SQUARED),
    "narrow": combination(NARROW),
    "wide": combination(WIDE),
    "deep": combination(DEEP),
    "images": combination(IMAGES),
    "saddle": saddle(WIDE),
}


def release_of(blocks: bool, **changes) -> Release:
    noise = {"params": 1.0, "duals": 1.0} if blocks else 1.0
    terms = {"clip": lambda work: work["clip"], "noise_multiplier": noise, "batch_size": None, "sampling": "full"}
    return Release(**{**terms, **changes})


@lru_cache
def door_of(name: str) -> Door:
    """One door for each query, so that each is compiled once; tests put other records behind it."""
    silo = Silo(QUERIES[name], release_of(name == "saddle"))
    return Door(silo, records_of(name, 0), silo_index=0, form=False)


def objective_of(name: str) -> Objective:
    query = QUERIES[name]
    return query.saddle if isinstance(query, SaddleQuery) else query.objective


def records_of(name: str, seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (6, 6, 1) if name == "images" else (4,)
    y = rng.normal(size=COUNT) if name == "squared" else rng.integers(0, 2, COUNT)
    with np.errstate(over="ignore"):
        x = (rng.normal(size=(COUNT, *shape)) * scale).astype(np.float32)
    return {"x": x, "y": y.astype(np.float32 if name == "squared" else np.int32)}


def work_of(name: str, seed: int, *, scale=1.0, apart=1.0, weights=(1.0, -1.0, 0.5), clip=1.0):
    """A broadcast: three points that are ``apart``, weights, and a clip for each block."""
    leaves, form = jax.tree.flatten(objective_of(name).init(jax.random.key(0)))
    rng = np.random.default_rng(seed)
    first = [rng.normal(size=leaf.shape) * scale for leaf in leaves]
    with np.errstate(over="ignore"):
        points = tuple(
            form.unflatten([(p + i * apart * rng.normal(size=p.shape) * scale).astype(np.float32) for p in first])
            for i in range(3)
        )
    clip = {"params": clip, "duals": 2 * clip} if name == "saddle" else clip
    return {"points": points, "weights": np.asarray(weights, np.float32), "clip": clip}


@dataclass(frozen=True)
class Watched(DiscreteGaussian):
    """The mechanism as it is, whose exact sums can be looked at."""

    seen: list = field(default_factory=list)

    def sums(self, *args):
        self.seen.append(super().sums(*args))
        return self.seen[-1]


def sums_of(door: Door, records, work, batch=FULL) -> dict[str, np.ndarray]:
    """The integers of each block before noise, as Python integers; the message must be made of them."""
    door.records = records
    mechanism = Watched(door.engine, door.silo.release.noise_multiplier, no_noise, None, nonnegative=False)
    message = door.release(work, batch, mechanism).statistic
    [found] = mechanism.seen
    totals = {}
    for name, own in found.items():
        leaves = jax.tree.leaves(door.engine.blocks(work, records)[name].assemble(own))
        totals[name] = np.concatenate([leaf.ravel() for leaf in leaves]).astype(object)
        clip = float(work["clip"][name] if name else work["clip"])
        clip = clip if 2.0**-60 <= clip <= 2.0**60 else 0.0
        told = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(message[name] if name else message)])
        expected = totals[name].astype(float) * (clip / (BOUND * door.size))
        np.testing.assert_allclose(told, expected, rtol=2e-7, atol=1e-37)
    return totals


def too_far(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> bool:
    """Whether two sums are further apart than 2 BOUND in any block, in exact integers."""
    return any(sum(int(x) ** 2 for x in before[name] - after[name]) > (2 * BOUND) ** 2 for name in before)


def violates(name: str, records, work, row: int, replacement) -> bool:
    """Whether replacing one record moves the door's sum by more than its sensitivity."""
    door = door_of(name)
    neighbour = {key: column.copy() for key, column in records.items()}
    neighbour["x"][row], neighbour["y"][row] = replacement
    return too_far(sums_of(door, records, work), sums_of(door, neighbour, work))


SCALES = [10.0**e for e in (-30, -12, -4, 0, 1, 4, 12, 19, 30)]
ODD = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, 0.0]


@pytest.mark.parametrize("name", QUERIES)
@settings(deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    at=st.sampled_from(SCALES),
    of=st.sampled_from(SCALES),
    other=st.one_of(st.sampled_from(SCALES), st.sampled_from(ODD)),
    apart=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]),
    weights=st.tuples(*3 * [st.sampled_from([0.0, 1.0, -1.0, 0.5, 1e8, -1e8, 1e30, np.nan, np.inf])]),
    clip=st.sampled_from([1e-6, 0.3, 1.0, 1e6]),
    spoilt=st.one_of(st.none(), st.sampled_from(ODD)),
)
def test_replacing_one_record_moves_the_sum_by_at_most_its_sensitivity(
    name, seed, at, of, other, apart, weights, clip, spoilt
):
    records, rng = records_of(name, seed, of), np.random.default_rng(seed)
    work = work_of(name, seed, scale=at, apart=apart, weights=weights, clip=clip)
    if spoilt is not None:
        leaf = jax.tree.leaves(work["points"][rng.integers(3)])[0]
        leaf.reshape(-1)[rng.integers(leaf.size)] = spoilt
    with np.errstate(over="ignore", invalid="ignore"):
        x = (rng.normal(size=records["x"][0].shape) * other).astype(np.float32)
    assert not violates(name, records, work, int(rng.integers(COUNT)), (x, 1 - records["y"][0]))


@pytest.mark.parametrize("name", ["logistic", "squared", "narrow", "wide", "deep", "images"])
@pytest.mark.parametrize("seed", range(3))
def test_equal_points_with_large_weights_move_nothing(name, seed):
    """The broadcast that broke version 0.1: its norm was zero, its sum was rounding of products of any size."""
    for scale in (1.0, 1e10, 1e18):
        work = work_of(name, seed, scale=scale, apart=0.0, weights=(1e8, -1e8, 0.0))
        records = records_of(name, seed, scale)
        assert not violates(name, records, work, 0, (-records["x"][1], records["y"][1]))


@pytest.mark.parametrize("name", ["wide", "images"])
def test_the_sum_is_that_of_the_clipped_vectors(name):
    """The bound alone would hold for a door that says nothing."""
    work, records = work_of(name, 1, scale=0.5), records_of(name, 1)
    found = sums_of(door_of(name), records, work)[""].astype(float) / BOUND
    values = jax.jit(jax.vmap(QUERIES[name], in_axes=(None, 0)))(work, records)
    rows = np.concatenate([np.asarray(v, float).reshape(COUNT, -1) for v in jax.tree.leaves(values)], axis=1)
    clipped = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), work["clip"])
    np.testing.assert_allclose(found, clipped.sum(axis=0), atol=1e-4)
    assert np.linalg.norm(found) > 0.5


def test_the_sensitivity_is_reached():
    """Otherwise the attacks of these tests would stay far from what they guard."""
    work = work_of("logistic", 0, weights=(1.0, 0.0, 0.0), clip=1e-3)
    records, other = (records_of("logistic", 0) for _ in range(2))
    other["y"][0] = 1 - other["y"][0]
    before, after = (sums_of(door_of("logistic"), some, work)[""] for some in (records, other))
    assert 1.999 < np.linalg.norm((before - after).astype(float)) / BOUND <= 2.0


def everything(integers: Integers, present, limit, *, nonnegative) -> Sums:
    """A check that leaves nothing out."""
    layers = {n: np.einsum("tri,tro->io", *(s.astype(np.int64) for s in own)) for n, own in integers.layers.items()}
    return Sums(integers.formed.sum(axis=0), layers)


def unclipped(vectors, clip, limit) -> Integers:
    """Integers of any size, as a broken program before the check might leave them."""
    formed = np.clip(np.rint(vectors.formed * BOUND), -BOUND, BOUND).astype(np.int64)
    layers = {
        name: IntegerFactors(*(np.clip(np.rint(side * FACTOR), -FACTOR, FACTOR).astype(np.int32) for side in own))
        for name, own in vectors.layers.items()
    }
    return Integers(formed, layers)


@pytest.mark.parametrize("name", ["wide", "images", "saddle"])
def test_only_the_check_is_trusted(name, monkeypatch):
    """Whatever is stored before it, the bound holds; without it, the guard of these tests fails."""
    records, work = records_of(name, 0), work_of(name, 0, scale=1e3, clip=1e-3)
    attack = (records, work, 0, (records["x"][0] * 100, 1 - records["y"][0]))
    monkeypatch.setattr(shipped, "quantise", unclipped)
    assert not violates(name, *attack)
    monkeypatch.setattr(shipped, "checked_sum", everything)
    assert violates(name, *attack)


@pytest.mark.parametrize("clip", [np.nan, 0.0, -1.0, np.inf, 1e-30, 1e30])
def test_a_hostile_clip_makes_zeros_whatever_the_records(clip):
    for name in ("wide", "saddle"):
        door = door_of(name)
        for seed in range(2):
            found = sums_of(door, records_of(name, seed, 1e10), work_of(name, seed, clip=clip))
            assert not any(total.any() for total in found.values())
            mechanism = DiscreteGaussian(
                door.engine, door.silo.release.noise_multiplier, discrete_gaussian, None, nonnegative=False
            )
            said = door.release(work_of(name, seed, clip=clip), FULL, mechanism)
            # Not even noise: there is no unit to say it in.
            assert not any(np.any(leaf) for leaf in jax.tree.leaves(said))


def test_absent_slots_add_nothing():
    door, work = door_of("wide"), work_of("wide", 0)
    records = records_of("wide", 0)
    present = np.array([True, False, True, False])
    some = sums_of(door, records, work, FULL._replace(present=present))
    records["x"][~present] = np.nan
    again = sums_of(door, records, work, FULL._replace(present=present))
    assert (some[""] == again[""]).all()
    none = sums_of(door, records, work, FULL._replace(present=np.zeros(COUNT, bool)))
    assert not none[""].any()
    alone = [sums_of(door, records, work, FULL._replace(present=np.arange(COUNT) == row))[""] for row in (0, 2)]
    assert (some[""] == sum(alone)).all()


@pytest.mark.parametrize("name", QUERIES)
def test_a_record_is_stored_alike_beside_any_others(name):
    """Bit for bit, its vector and its integers: the price of sampled batches rests on it."""
    door, work = door_of(name), work_of(name, 3)

    def stored(records):
        [(vectors, _)] = list(door.engine.stored(work, records, FULL.present))
        integers = {block: quantise(own, 1.0, BOUND) for block, own in vectors.items()}
        rows = jax.tree.map(lambda leaf: leaf[..., 2, :], (vectors, integers))
        return [leaf.tobytes() for leaf in jax.tree.leaves(rows)]

    records = records_of(name, 5)
    kept = stored(records)
    assert any(any(leaf) for leaf in kept)
    for seed, scale in enumerate((1e-20, 1.0, 1e5, 1e20, 1e38, np.inf, np.nan)):
        with np.errstate(invalid="ignore"):
            others = records_of(name, seed, scale)
        for key in others:
            others[key][2] = records[key][2]
        assert stored(others) == kept


# Micro-batches.


def mean_silo(size=None, sampling="full", noise=1.0, **changes) -> Silo:
    """The mean of the records' own vectors, which eighths of the clip add up to exactly."""
    return Silo(lambda work, record: record["x"], Release(lambda work: 1.0, noise, size, sampling, **changes))


def eighths(count: int, width: int = 3) -> dict[str, np.ndarray]:
    return {"x": (np.random.default_rng(0).integers(-4, 5, (count, width)) / 8).astype(np.float32)}


@pytest.mark.parametrize(
    ("constant", "limit"),
    [*(("_MOST_AT_ONCE", n) for n in (1, 3, 9, 10, 11)), ("_STORED_FLOATS", 4), ("MOST_TERMS", 6)],
)
def test_micro_batches_add_up_to_the_batch(constant, limit, monkeypatch):
    monkeypatch.setattr(shipped, constant, limit * (3 if constant == "_STORED_FLOATS" else 1))
    records = eighths(10)
    door = Door(mean_silo(size=10, sampling="wor"), records, silo_index=0, form=False)
    sizes = [len(there) for _, there in door.engine.stored(None, records, np.ones(10, bool))]
    assert sizes == [min(limit, 10)] * -(-10 // min(limit, 10))
    batch = SecretBatch(np.arange(10)[::-1].copy(), np.arange(10) != 7)
    found = door.release(None, batch, DiscreteGaussian(door.engine, 1.0, no_noise, None, nonnegative=False)).statistic
    expected = np.where(np.arange(10)[:, None] != 2, records["x"], 0).sum(axis=0) / 10
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_micro_batches_of_factors_add_up_to_the_batch(monkeypatch):
    work, records = work_of("deep", 0), records_of("deep", 0)
    whole = sums_of(door_of("deep"), records, work)[""]
    monkeypatch.setattr(shipped, "_MOST_AT_ONCE", 3)
    door = Door(Silo(QUERIES["deep"], release_of(False)), records, silo_index=0, form=False)
    parts = sums_of(door, records, work)[""]
    # A row may be rounded otherwise in another slot: by a unit of a factor, of which there are 2^18.
    np.testing.assert_allclose(parts.astype(float) / BOUND, whole.astype(float) / BOUND, atol=2e-5)


def test_layers_are_in_factors_where_that_is_less():
    """So that the attacks above reach both ways of adding, and both at once."""
    found = {name: door_of(name).engine.blocks(work_of(name, 0), records_of(name, 0)) for name in QUERIES}
    layers = {name: {layer for own in blocks.values() for layer in own.factored} for name, blocks in found.items()}
    assert layers["logistic"] == layers["squared"] == layers["narrow"] == set()
    assert layers["one gradient"] == layers["saddle"] == {"layer_1", "layer_2"}
    assert layers["wide"] == {"layer_1"}
    assert layers["deep"] == {"layer_1", "layer_2"}
    assert layers["images"] == {"dense_1"}
    assert found["images"][""].terms == 5


@pytest.mark.parametrize("name", ["wide", "images", "saddle"])
def test_formed_vectors_are_those_in_factors(name):
    """Mechanisms that speak about single records form every vector."""
    door, work, records = door_of(name), work_of(name, 4), records_of(name, 4)
    formed = Door(door.silo, records, silo_index=0, form=True)
    assert not any(own.factored for own in formed.engine.blocks(work, records).values())
    assert any(own.factored for own in door.engine.blocks(work, records).values())
    one, other = (sums_of(d, records, work) for d in (door, formed))
    for block in one:
        np.testing.assert_allclose(one[block].astype(float) / BOUND, other[block].astype(float) / BOUND, atol=2e-4)


# Noise.


def answered(door: Door, *, sampler, work=None, previous=None, batches=None):
    batches = [door.batch(0, None)] if batches is None else batches
    return door.answer(work, (), batches=batches, sampler=sampler, previous=previous)


def test_the_noise_has_the_deviation_that_is_promised():
    blocks = {"a": 0.7, "b": 3.0}
    silo = Silo(
        lambda work, record: {"a": record["x"], "b": 2 * record["x"]},
        Release(lambda work: {"a": 0.5, "b": 4.0}, blocks, None, "full"),
    )
    records = {"x": np.full((10, 4000), 1e-3, np.float32)}
    message = answered(Door(silo, records, silo_index=0, form=False), sampler=discrete_gaussian).message
    for name, mean, clip in (("a", 1e-3, 0.5), ("b", 2e-3, 4.0)):
        noise = np.asarray(message[name], float) - mean
        assert stats.kstest(noise, "norm", args=(0, blocks[name] * 2 * clip / 10)).pvalue > 1e-6


def test_the_sampler_is_told_the_priced_deviation_and_not_a_rounded_one():
    """In float32, in which terms are traced, this multiplier is less."""
    told = []

    def sampler(size, sigma):
        told.append(sigma)
        return no_noise(size, sigma)

    priced = float(np.float32(0.3)) * (1 + 2.0**-26)
    assert float(np.float32(priced)) < priced
    for multiplier in (priced, np.asarray([5.0, priced])):
        answered(Door(mean_silo(noise=multiplier), eighths(4), silo_index=1, form=False), sampler=sampler)
    assert told == [priced * 2 * BOUND] * 2


def test_the_sampler_is_as_close_as_is_priced_at_every_noise_that_fits():
    for exponent in np.linspace(3, 56, 300):
        assert distance(float(2.0**exponent)) <= MOST_DISTANCE
    assert noise_scale(LARGEST_NOISE / (2 * BOUND), 2.0) == LARGEST_NOISE
    for multiplier in (0.0, -1.0, 7 / (2 * BOUND), 2.0**20, np.nan, np.inf):
        with pytest.raises(DoorError, match="noise multiplier"):
            noise_scale(multiplier, 2.0)


def test_no_64_bits_overflow_at_the_largest_noise_and_the_most_records():
    assert MOST_RECORDS * BOUND + 2 * 28 * LARGEST_NOISE < 2**63


def test_a_running_sum_keeps_only_the_last_noise():
    rng = np.random.default_rng(0)
    drawn = []

    def sampler(size, sigma):
        drawn.append(np.rint(rng.normal(size=size) * sigma).astype(np.int64))
        return drawn[-1]

    records = eighths(4)
    silo = mean_silo(mechanism="cumulative", noise=10.0)
    door, previous, total = Door(silo, records, silo_index=0, form=False), None, 0.0
    for number in range(1, 7):
        found = answered(door, sampler=sampler, previous=previous)
        previous, total = found.noise, total + np.asarray(found.message, float)
        assert (found.noise[""] == drawn[-1]).all()
        unit = 1.0 / (BOUND * 4)
        np.testing.assert_allclose(total, number * records["x"].mean(axis=0) + drawn[-1] * unit, atol=1e-4)
    assert np.linalg.norm(total - 6 * records["x"].mean(axis=0)) > 0.1
    # Of other releases no noise is kept: beside a stored message it would give it away.
    assert answered(Door(mean_silo(), records, silo_index=0, form=False), sampler=sampler).noise == {}


def test_a_running_sum_whose_clip_is_not_usable_says_nothing_and_keeps_its_noise():
    silo = Silo(
        lambda work, record: record["x"], Release(lambda work: np.nan, 1.0, None, "full", mechanism="cumulative")
    )
    door, earlier = Door(silo, eighths(4), silo_index=0, form=False), {"": np.arange(3)}
    found = answered(door, sampler=discrete_gaussian, previous=earlier)
    assert not np.any(found.message)
    assert (found.noise[""] == earlier[""]).all()
    assert not answered(door, sampler=discrete_gaussian).noise[""].any()


def test_local_steps_absorb_a_release_for_each_batch():
    counting = Silo(
        lambda work, record: record["x"] + 0 * work,
        mean_silo(size=2, sampling="one-pass").release,
        local_steps=2,
        absorb=lambda work, released: work + released,
        report=lambda work, memory: (work, memory + 1),
    )
    records = eighths(4)
    door = Door(counting, records, silo_index=0, form=False)
    batches = [door.batch(position, np.array([3, 1, 0, 2])) for position in (0, 2)]
    found = door.answer(jnp.zeros(3), jnp.zeros(()), batches=batches, sampler=no_noise, previous=None)
    np.testing.assert_allclose(found.message, records["x"].sum(axis=0) / 2, rtol=1e-6)
    assert float(found.memory) == 1
    with pytest.raises(DoorError, match="each of 2 local steps"):
        door.answer(jnp.zeros(3), jnp.zeros(()), batches=batches[:1], sampler=no_noise, previous=None)


# What is refused.


@pytest.mark.parametrize("change", [{"channel": "trusted"}, {"channel": "open"}, {"noise": None}])
def test_a_silo_that_adds_no_noise_says_nothing(change):
    with pytest.raises(DoorError, match="noise"):
        answered(Door(mean_silo(**change), eighths(4), silo_index=0, form=False), sampler=discrete_gaussian)


@pytest.mark.parametrize("wrong", [lambda n, s: np.zeros(n), lambda n, s: np.zeros(n + 1, np.int64), lambda n, s: 0])
def test_noise_that_is_not_of_integers_for_every_coordinate_is_refused(wrong):
    with pytest.raises(DoorError, match="64-bit integers of noise"):
        answered(Door(mean_silo(), eighths(4), silo_index=0, form=False), sampler=wrong)


def test_more_records_than_add_up_in_64_bits_are_refused():
    with pytest.raises(DoorError, match="records"):
        Door(mean_silo(), {"x": np.zeros((MOST_RECORDS + 1, 0), np.float32)}, silo_index=0, form=False)
