"""Pairwise sums: masks cancel exactly where all silos agree, and what does not cancel is uniform."""

import dataclasses
import hmac
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

from tacit.algorithm import CHANNELS
from tacit.channel.pairwise import (
    BlockSum,
    Member,
    PairwiseError,
    check_key,
    context_of,
    in_order,
    masks_of,
    mean_of_total,
    new_study_key,
    public_key,
)
from tacit.channel.shuffled_sum import joined
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import ALGORITHMS, find
from tacit.privacy.anonymity import record_weights
from tacit.privacy.strategy import FRESH
from tacit.silo import enrol, rows_of
from tacit.silo.door import NO_PAST, Door, DoorError, no_noise
from tacit.silo.integers import BOUND
from tacit.silo.pairwise import PairwiseShare, share_scale, weighted_bound
from tacit.silo.release import usable_clips
from tacit.silo.sampler import discrete_gaussian
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.simulate.loop import debug
from tacit.simulate.participation import participation
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, start, tables
from tests.algorithms.test_conformance import DISTINCT
from tests.channel.test_weights import CLIP, SIZES, WEIGHTS, clipped_mean, expected, moved, world

BROADCAST, STUDY = b"b" * 32, b"s" * 32
TERMS = {"": BlockSum(1.0, 2.0, 6)}
AGREED = {
    "version": 3,
    "study": STUDY,
    "noise": True,
    "terms": TERMS,
    "kind": "gradient",
    "round_index": 3,
    "attempt": 1,
    "broadcast": BROADCAST,
}


class Silo:
    """A name, an identity and a study key."""

    def __init__(self, name):
        self.secret = new_study_key()
        self.member = Member(name, name.encode().ljust(32, b"."), public_key(self.secret))


def silos_of(count):
    return [Silo(f"silo-{i}") for i in range(count)]


def said(silo, silos, values, **changes):
    """A silo's message: its values under the masks for what it was told."""
    roster = in_order([other.member for other in silos], silo.member)
    context = context_of(**{**AGREED, "roster": roster, **changes})
    with np.errstate(over="ignore"):
        return values.view(np.uint64) + masks_of(silo.secret, roster, context, values.size)


def values_of(count, coordinates=6):
    return np.random.default_rng(0).integers(-(2**60), 2**60, (count, coordinates)) // count


@pytest.mark.parametrize("count", [2, 3, 7])
def test_masks_cancel_in_the_sum_and_nowhere_before(count):
    silos, values = silos_of(count), values_of(count)
    messages = [said(silo, silos, own) for silo, own in zip(silos, values, strict=True)]
    assert (joined(messages) == values.sum(axis=0)).all()
    for size in range(1, count):
        for some in itertools.combinations(range(count), size):
            assert (joined(messages[i] for i in some) != values[list(some)].sum(axis=0)).all()


def test_masks_do_not_depend_on_the_chunks_of_a_stream():
    """Long streams are made in parts; a prefix is that of a shorter one."""
    one, other = silos_of(2)
    roster = in_order([one.member, other.member], one.member)
    context = context_of(**AGREED, roster=roster)
    long = masks_of(one.secret, roster, context, 3 * 2**17 + 5)
    with np.errstate(over="ignore"):
        assert (long + masks_of(other.secret, roster, context, long.size) == 0).all()
    assert (long[:1000] == masks_of(one.secret, roster, context, 1000)).all()
    assert len(np.unique(long)) == long.size


def ladder(scalar, point):
    """X25519 as RFC 7748 writes it, with integers."""
    prime, k = 2**255 - 19, int.from_bytes(scalar, "little") & ~7 & (2**255 - 1) | 2**254
    x1, x2, z2, x3, z3, swap = point, 1, 0, point, 1, 0
    for bit in (k >> t & 1 for t in reversed(range(255))):
        x2, z2, x3, z3 = (x3, z3, x2, z2) if swap ^ bit else (x2, z2, x3, z3)
        swap, a, b, c, d = bit, x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % prime, x1 * (d * a - c * b) ** 2 % prime
        x2, z2 = a * a * b * b % prime, (a * a - b * b) * (a * a + 121665 * (a * a - b * b)) % prime
    x2, z2 = (x3, z3) if swap else (x2, z2)
    return (x2 * pow(z2, prime - 2, prime) % prime).to_bytes(32, "little")


def slow_masks(secret, roster, context, coordinates):
    """`masks_of` as docs/protocol.md says it: RFC 7748, RFC 5869, and AES of one counter after the other."""
    own, total = ladder(secret, 9), np.zeros(coordinates, np.uint64)
    counters = b"".join(n.to_bytes(16, "big") for n in range(-(-coordinates // 2)))
    for key in (member.key for member in roster if member.key != own):
        extracted = hmac.digest(bytes(32), ladder(secret, int.from_bytes(key, "little")), "sha256")
        info = b"tacit pairwise mask 1" + context + b"".join(sorted([own, key]))
        derived = hmac.digest(extracted, info + b"\1", "sha256")
        stream = np.frombuffer(Cipher(AES256(derived), ECB()).encryptor().update(counters), "<u8")[:coordinates]
        total = total + stream if own < key else total - stream
    return total


@pytest.mark.parametrize("coordinates", [0, 1, 2, 7, 2**14 + 1, 3 * 2**17 + 5])
def test_masks_are_those_of_the_protocol_bit_for_bit(coordinates, monkeypatch):
    """Whether one thread makes them or three do, whose parts begin in the middle of a stream."""
    monkeypatch.setattr("tacit.channel.pairwise._THREADS", 3)
    silos = silos_of(3)
    roster = in_order([silo.member for silo in silos], silos[0].member)
    context = context_of(**AGREED, roster=roster)
    for silo in silos:
        masks = masks_of(silo.secret, roster, context, coordinates)
        assert (masks == slow_masks(silo.secret, roster, context, coordinates)).all()


CHANGES = {
    "version": 4,
    "study": b"t" * 32,
    "noise": False,
    "terms": {"": BlockSum(0.5, 2.0, 6)},
    "kind": "estimate",
    "round_index": 4,
    "attempt": 0,
    "broadcast": b"c" * 32,
}


def is_uniform(bits):
    """Whether words of 64 bits look uniform: ones among all bits, and in each place, within six deviations."""
    words = np.asarray(bits, np.uint64)
    places = ((words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).sum(axis=0)
    spread = 0.5 * np.sqrt(len(words))
    return bool(np.all(np.abs(places - len(words) / 2) < 6 * spread))


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_silos_that_were_told_different_things_add_up_to_nothing(what):
    """One silo of three is told something else: no combination of the answers is less than uniform."""
    silos, values = silos_of(3), np.zeros((3, 4096), np.int64)
    messages = [said(silo, silos, own) for silo, own in zip(silos[:2], values, strict=False)]
    messages.append(said(silos[2], silos, values[2], **{what: CHANGES[what]}))
    honest = said(silos[2], silos, values[2])
    assert (joined([*messages[:2], honest]) == 0).all()
    for signs in itertools.product((-1, 0, 1), repeat=3):
        if any(signs):
            with np.errstate(over="ignore"):
                mixed = joined(m * np.uint64(s % 2**64) for m, s in zip(messages, signs, strict=True))
            assert is_uniform(mixed.view(np.uint64))


def test_every_agreed_term_is_tried():
    assert set(CHANGES) == set(AGREED)


def test_rosters_and_attempts_have_masks_of_their_own():
    """Two rosters of one round: the difference of a silo's two messages is uniform, so nobody who left is revealed."""
    silos, zeros = silos_of(4), np.zeros(4096, np.int64)
    first = [said(silo, silos, zeros, attempt=0) for silo in silos[:3]]
    second = [said(silo, silos[:3], zeros, attempt=1) for silo in silos[:3]]
    assert (joined(second) == 0).all()
    with np.errstate(over="ignore"):
        gone = joined(first) - joined(second)
        assert is_uniform(gone.view(np.uint64))
        assert all(is_uniform(one - two) for one, two in zip(first, second, strict=True))


def test_a_silo_without_a_key_in_the_roster_is_not_masked_by_a_stranger():
    """With another study key of one silo nothing cancels."""
    silos, zeros = silos_of(3), np.zeros(4096, np.int64)
    told = [silos[0], silos[1], Silo("silo-2")]
    messages = [said(silos[0], told, zeros), said(silos[1], told, zeros), said(silos[2], silos, zeros)]
    assert is_uniform(joined(messages).view(np.uint64))


LOW_ORDER = [
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


@pytest.mark.parametrize("raw", LOW_ORDER, ids=lambda raw: raw.hex()[:6])
def test_keys_of_low_order_are_refused(raw):
    """Before anything is computed with them, and once more when their secret is zeros."""
    with pytest.raises(PairwiseError, match="low order"):
        check_key(raw)
    one, bad = Silo("one"), Member("bad", b"b" * 32, raw)
    with pytest.raises(PairwiseError, match="low order"):
        masks_of(one.secret, [one.member, bad], b"c" * 32, 4)


@pytest.mark.parametrize("wrong", ["top bit", "above the prime", "short", "long"])
def test_keys_have_one_encoding(wrong):
    key = public_key(new_study_key())
    flipped = key[:31] + bytes([key[31] | 0x80])
    assert int.from_bytes(flipped, "little") != int.from_bytes(key, "little")
    above = (2**255 - 19 + 9).to_bytes(32, "little")
    with pytest.raises(PairwiseError):
        check_key({"top bit": flipped, "above the prime": above, "short": key[:31], "long": key + b"\0"}[wrong])
    check_key(key)


def test_rosters_are_refused_that_count_somebody_twice_or_leave_oneself_out():
    one, two, three = (silo.member for silo in silos_of(3))
    assert in_order([three, one, two], one) == in_order([one, two, three], one)
    for wrong in (
        [one, two, two],
        [one, two, three._replace(silo=two.silo)],
        [one, two, three._replace(identity=two.identity)],
        [one, two, three._replace(key=two.key)],
        [two, three],
        [one._replace(key=public_key(new_study_key())), two],
        [one._replace(silo="other"), two],
        [one, one, two],
        [],
    ):
        with pytest.raises(PairwiseError):
            in_order(wrong, one)


# The door.


def shares_of(silo, data, weights, point, size, sampler=no_noise, colluding=1):
    """Each silo's masked message about full batches."""
    silos = silos_of(len(data))
    relative, _ = record_weights(weights, np.asarray([len(table["y"]) for table in data]))
    found = []
    for i, table in enumerate(data):
        door = Door(silo, table, silo_index=i, form=False)
        roster = in_order([other.member for other in silos], silos[i].member)
        masks = masks_of(silos[i].secret, roster, context_of(**AGREED, roster=roster), size)
        own = (len(data), colluding, float(relative[i]), masks)
        mechanism = PairwiseShare(door.engine, door.multiplier, sampler, FRESH, NO_PAST, False, *own)
        found.append(door.release(point, door.batch(0, None), mechanism))
    return found


@pytest.mark.parametrize("weights", [WEIGHTS, None])
def test_the_door_without_noise_says_the_weighted_mean(weights):
    made, problem, point = world()
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": CLIP, "output": "last", "noise_multiplier": 1.0}
    algorithm = find("mb-sgd").build(problem, channel="pairwise", **terms, batch_size=None, sampling="full")
    said = shares_of(algorithm.rounds["gradient"].silo, made, weights, point, 4)
    total = joined(own.values for own in said)
    _, largest = record_weights(weights, np.asarray(SIZES))
    clip = float(usable_clips(algorithm.rounds["gradient"].silo.release, point))
    found = mean_of_total(total, {"": BlockSum(1.0, 2.0, 4)}, {"": clip}, unit=BOUND, each=float(largest))[""]
    np.testing.assert_allclose(found, expected(weights or [1 / 3] * 3), atol=3e-5 * CLIP)
    for own in said:
        assert np.abs(own.values.view(np.int64)).max() > 2**50


def test_the_share_of_noise_is_drawn_and_masked():
    """The sum has the noise of all silos; each share is z 2 BOUND / sqrt(m - c)."""
    made, problem, point = world()
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": CLIP, "noise_multiplier": 2.0}
    algorithm = find("mb-sgd").build(problem, channel="pairwise", **terms, batch_size=None, sampling="full")
    asked = []

    def sampler(size, sigma):
        asked.append(sigma)
        return np.full(size, 7, np.int64)

    silo = algorithm.rounds["gradient"].silo
    quiet = joined(own.values for own in shares_of(silo, made, None, point, 4))
    loud = joined(own.values for own in shares_of(silo, made, None, point, 4, sampler))
    assert (loud - quiet == 3 * 7).all()
    assert asked == [pytest.approx(2.0 * 2 * BOUND / np.sqrt(2))] * 3
    assert all(sigma * np.sqrt(2) >= 2.0 * 2 * BOUND for sigma in asked)


@pytest.mark.parametrize("slope", [0.0, float("nan"), float("inf"), 2.0**-200])
def test_a_silo_that_cannot_use_its_clip_still_adds_the_noise_that_others_count_on(slope):
    """Clips are computed in floats, at each silo: one that has no usable clip still hides others' records."""
    made, problem, point = world()
    terms = {"step_size": 1.0, "num_rounds": 2, "clip_norm": CLIP, "noise_multiplier": 2.0}
    own = {"phase_length": 2, "difference_slope": slope, "batch_size": None, "sampling": "full"}
    algorithm = find("prox-spider").build(problem, channel="pairwise", **terms, **own)
    work = type(algorithm.rounds["difference"].server.ask(algorithm.init(point)))(point, point)
    drawn = []

    def sampler(size, sigma):
        drawn.append(discrete_gaussian(size, sigma))
        return drawn[-1]

    said = shares_of(algorithm.rounds["difference"].silo, made, None, work, 4, sampler)
    assert (joined(own.values for own in said) == sum(drawn)).all()
    assert len(drawn) == len(made)
    assert all(np.abs(noise).min() > 0 for noise in drawn)


def test_a_silo_of_small_weight_cannot_say_more_than_its_bound():
    """Rows are tested against BOUND x weight: an engine that ignores weights is left out."""
    made, problem, point = world()
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": 1e-3, "noise_multiplier": 2.0}
    algorithm = find("mb-sgd").build(problem, channel="pairwise", **terms, batch_size=None, sampling="full")
    door = Door(algorithm.rounds["gradient"].silo, made[0], silo_index=0, form=False)
    mechanism = PairwiseShare(
        door.engine, door.multiplier, no_noise, FRESH, NO_PAST, False, 3, 1, 0.125, np.zeros(4, np.uint64)
    )
    assert mechanism.limit == BOUND // 8
    sums = door.release(point, door.batch(0, None), mechanism).values.view(np.int64)
    assert 0 < np.linalg.norm(sums.astype(float)) <= len(made[0]["y"]) * BOUND / 8
    with pytest.raises(DoorError):
        weighted_bound(1.5)


def test_a_share_is_never_rounded_down_and_never_narrow():
    for sigma, silos, colluding in ((2.0**37, 4, 1), (3.7e11, 25, 2), (1e12, 10, 3)):
        assert share_scale(sigma, silos, colluding) ** 2 * (silos - colluding) >= sigma**2
    with pytest.raises(DoorError, match="at least 1024"):
        share_scale(1024.0, 5, 1)


# The simulator.

KEEPING = ("local-sgd", "fedfdp", "mr-mtl")
"""What says something else than its release, or keeps it."""
ONE_STEP = [name for name in DISTINCT if not ALGORITHMS[name].reads_attribute and name not in KEEPING]
"""Algorithms whose messages are their releases, or rounds of one silo in turn."""


@pytest.mark.parametrize("name", ONE_STEP)
def test_the_program_is_the_plain_loop(name):
    data = [{key: table[key] for key in "xy"} for table in tables(sizes=(20, 20, 20))]
    algorithm = CASES[name].build(LOGISTIC, channel="pairwise", noise_multiplier=0.5)
    silos, own = enrol(data), {"key": jax.random.key(3)}
    fast = simulate(algorithm, start(LOGISTIC), silos, **own).params
    slow = debug(algorithm, start(LOGISTIC), [rows_of(silos, i) for i in range(3)], **own).params
    assert largest_difference(fast, slow) < 2e-5
    without = CASES[name].build(LOGISTIC, channel="direct", noise_multiplier=0.0)
    quiet = CASES[name].build(LOGISTIC, channel="pairwise", noise_multiplier=0.0)
    exact = simulate(without, start(LOGISTIC), silos, **own).params
    assert largest_difference(simulate(quiet, start(LOGISTIC), silos, **own).params, exact) < 2e-5
    assert largest_difference(fast, exact) > 1e-3


def statistic_of(part, broadcast, table):
    """Each record's statistic, flat, block by block."""
    rows = jax.vmap(lambda record: part.silo.query(broadcast, record))(jax.tree.map(jnp.asarray, table))
    blocks = rows if isinstance(part.silo.release.noise_multiplier, dict) else {"": rows}
    return {
        name: np.concatenate([np.asarray(leaf, float).reshape(20, -1) for leaf in jax.tree.leaves(tree)], axis=1)
        for name, tree in blocks.items()
    }


@pytest.mark.parametrize("name", ONE_STEP)
def test_the_door_says_the_mean_of_clipped_statistics(name):
    """Every kind of round: without noise the sum of masked messages about full batches is the mean, written out."""
    data = [{key: table[key] for key in "xy"} for table in tables(sizes=(20, 20, 20))]
    algorithm = CASES[name].build(MLP, channel="pairwise", noise_multiplier=1.0)
    state, apart = algorithm.init(start(MLP)), np.random.default_rng(1)
    for part in algorithm.rounds.values():
        if part.silo.release.channel != "pairwise":
            continue
        # What is asked at a point apart from the first: differences of gradients are not zero there.
        broadcast = jax.tree.map(
            lambda leaf: leaf + jnp.asarray(0.1 * apart.normal(size=leaf.shape), leaf.dtype), part.server.ask(state)
        )
        release = dataclasses.replace(part.silo.release, sampling="full", batch_size=None, capacity=None, passes=1)
        part = dataclasses.replace(part, silo=dataclasses.replace(part.silo, release=release))
        rows = [statistic_of(part, broadcast, table) for table in data]
        terms = {block: BlockSum(1.0, 2.0, own.shape[1]) for block, own in rows[0].items()}
        said = shares_of(part.silo, data, None, broadcast, sum(own.dimension for own in terms.values()))
        clips = usable_clips(release, None if release.mechanism == "cumulative" else broadcast)
        limits = clips if isinstance(clips, dict) else {"": clips}
        found = mean_of_total(joined(own.values for own in said), terms, limits, unit=BOUND, each=1 / 60)
        for block, limit in limits.items():
            flat = np.concatenate([own[block] for own in rows])
            scale = np.minimum(1.0, limit / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-30))
            np.testing.assert_allclose(found[block], (scale * flat).mean(axis=0), atol=6e-5 * limit)
            assert np.abs(found[block]).max() > 1e-4 * limit


@pytest.mark.parametrize("colluding", [1, 2])
@pytest.mark.parametrize("silos", [4, 10, 25])
def test_the_noise_of_the_mean_is_central_but_for_the_colluding(silos, colluding):
    """Simulated, and drawn at the door: within 1% of central x sqrt(m / (m - c))."""
    wide = Problem(Objective(linear(4000, 1), logistic()))
    zeros = {"x": np.zeros((20, 4000), np.float32), "y": np.zeros(20, np.int32)}
    terms = {"num_rounds": 1, "noise_multiplier": 3.0, "sampling": "full", "batch_size": None, "clip_norm": 0.7}
    algorithm = find("mb-sgd").build(wide, step_size=1.0, output="last", channel="pairwise", **terms)
    params, enrolled = wide.objective.init(jax.random.key(0)), enrol([zeros] * silos)
    seeds = [Seed(jax.random.key(s), params, enrolled) for s in range(8)]
    who = participation(silos, colluding=colluding)
    found = simulate_grid(lambda: algorithm, {}, seeds, who=who).params["linear"]["w"]
    ratio = np.sqrt(silos / (silos - colluding))
    central = 3.0 * 2 * 0.7 / (20 * silos)
    assert float(np.std(np.asarray(found))) / central == pytest.approx(ratio, rel=0.01)
    drawn = sum(discrete_gaussian(40_000, share_scale(3.0 * 2 * BOUND, silos, colluding)) for _ in range(silos))
    at_the_door = drawn.astype(float).std() * 0.7 / BOUND / (20 * silos)
    assert at_the_door / central == pytest.approx(ratio, rel=0.01)


def test_weights_hold_whoever_comes():
    made, problem, point = world()
    terms = {"step_size": 1.0, "num_rounds": 1, "clip_norm": CLIP, "output": "last", "noise_multiplier": 0.2}
    algorithm = find("mb-sgd").build(problem, channel="pairwise", **terms, batch_size=None, sampling="full")
    silos, own = enrol(made), {"key": jax.random.key(0), "who": participation(3, 2, WEIGHTS)}
    fast = simulate(algorithm, point, silos, **own).params
    slow = debug(algorithm, point, [rows_of(silos, i) for i in range(3)], **own).params
    np.testing.assert_allclose(moved(fast, point), moved(slow, point), atol=1e-5)
    quiet = find("mb-sgd").build(
        problem, channel="pairwise", **{**terms, "noise_multiplier": 0.0}, batch_size=None, sampling="full"
    )
    every = simulate(quiet, point, silos, key=jax.random.key(0), who=participation(3, None, WEIGHTS)).params
    means = sum(p * clipped_mean(table, point) for p, table in zip(WEIGHTS, made, strict=True))
    np.testing.assert_allclose(moved(every, point), means, atol=1e-4)


def test_local_steps_and_lone_silos_are_refused():
    for name in KEEPING:
        with pytest.raises(ValueError, match="one local step"):
            CASES[name].build(LOGISTIC, channel="pairwise", noise_multiplier=1.0)
    data = [{key: table[key] for key in "xy"} for table in tables(sizes=(20, 20))]
    algorithm = CASES["mb-sgd"].build(LOGISTIC, channel="pairwise", noise_multiplier=1.0)
    with pytest.raises(ValueError, match="colluding=1 < 1"):
        simulate(algorithm, start(LOGISTIC), enrol(data), key=jax.random.key(0), who=participation(2, 1))


def test_the_channel_is_one_of_all():
    assert "pairwise" in CHANNELS
