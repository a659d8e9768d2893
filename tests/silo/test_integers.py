"""The integer fact at the door: attacked with any stored integers, in exact arithmetic; and what stands before it."""

import itertools
import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.silo.integers import (
    BOUND,
    FACTOR,
    LARGEST_CLIP,
    MOST_RECORDS,
    MOST_TERMS,
    SMALLEST_CLIP,
    Factors,
    IntegerFactors,
    Integers,
    Sums,
    Vectors,
    checked_sum,
    quantise,
    quantise_squares,
    unit_vectors,
)

FORMED = 16
"""Columns of the formed part: squares, the largest first, hit any norm exactly with so many."""
LIMITS = (0, 1, 255, 2**18 + 7, BOUND - 1, BOUND)
KINDS = ("small", "large", "cancelling", "any")


def exact(sums: Sums) -> np.ndarray:
    """A sum as one vector of Python integers."""
    parts = [sums.formed, *(sums.layers[name].ravel() for name in sorted(sums.layers))]
    return np.concatenate([np.asarray(part).astype(object) for part in parts])


def squared(vector: np.ndarray) -> int:
    return sum(int(entry) ** 2 for entry in vector)


def vector_of(integers: Integers, row: int) -> np.ndarray:
    """A record's vector in Python integers, computed from nothing but what is stored."""
    parts = [integers.formed[row].astype(object)]
    for name in sorted(integers.layers):
        left, right = (side[:, row].astype(object) for side in integers.layers[name])
        parts.append(sum(np.outer(u, v) for u, v in zip(left, right, strict=True)).ravel())
    return np.concatenate(parts)


def picked(integers: Integers, choose) -> Integers:
    """Every stored array through a function; records are the second axis from the end."""
    layers = {name: IntegerFactors(*map(choose, own)) for name, own in integers.layers.items()}
    return Integers(choose(integers.formed), layers)


def alone(integers: Integers, row: int) -> Integers:
    return picked(integers, lambda side: side[..., row : row + 1, :])


def replaced(integers: Integers, other: Integers, row: int) -> Integers:
    """The same stored integers but for one record's."""
    here = (np.arange(len(integers.formed)) == row)[:, None]
    formed = np.where(here, other.formed, integers.formed)
    layers = {}
    for name, own in integers.layers.items():
        sides = zip(other.layers[name], own, strict=True)
        layers[name] = IntegerFactors(*(np.where(here, new, old) for new, old in sides))
    return Integers(formed, layers)


def violates(adder, integers: Integers, other: Integers, present: np.ndarray, limit: int) -> bool:
    """Whether a sum breaks what `checked_sum` promises about these stored integers, in exact arithmetic.

    Each record adds its own vector or nothing, of norm at most ``limit``; the sum is exact; replacing any one record
    moves it by at most twice the limit.
    """
    total, added = exact(adder(integers, present, limit)), 0
    for row in range(len(present)):
        only = exact(adder(integers, present & (np.arange(len(present)) == row), limit))
        if squared(only) > limit**2 or (only.any() and (only != vector_of(integers, row)).any()):
            return True
        added = added + only
        moved = exact(adder(replaced(integers, other, row), present, limit)) - total
        if squared(moved) > (2 * limit) ** 2:
            return True
    return bool((total != added).any())


def adds(integers: Integers, present: np.ndarray, limit: int) -> Sums:
    """The sum as it ships, of rows of any sign."""
    return checked_sum(integers, present, limit, nonnegative=False)


# How stored integers are made: at random, and tuned to where a check could go wrong.


def squares(total: int, most: int) -> list[int]:
    """Integers of at most ``most`` whose squares add up to ``total``, where they can."""
    found = []
    for _ in range(FORMED):
        found.append(min(math.isqrt(max(total, 0)), most))
        total -= found[-1] ** 2
    return found


def factors(rng, kind: str, shape: tuple[int, int, int, int], limit: int) -> IntegerFactors:
    """Factors of one layer: small beside the limit, as large as they may be, cancelling, or out of range."""
    terms, records, inputs, outputs = shape
    small = max(1, math.isqrt(limit) // (2 * (inputs + outputs)))
    most = {"small": small, "any": 2**31 - 1}.get(kind, FACTOR)
    left, right = (rng.integers(-most, most + 1, (terms, records, width)) for width in (inputs, outputs))
    if kind == "cancelling":
        # Two terms of the largest size that differ by one unit in one entry: their sum is small beside them.
        left, right = (np.where(rng.random(side.shape) < 0.5, -FACTOR, FACTOR) for side in (left, right))
        left[1:], right[1:] = left[0], 0
        right[1:2] = -right[0]
        left[0, :, 0] -= np.sign(left[0, :, 0])
    return IntegerFactors(left.astype(np.int32), right.astype(np.int32))


def stored(seed: int, kind: str, terms: int, widths: list[tuple[int, int]], records: int, limit: int) -> Integers:
    """Stored integers whose formed part brings each record's squared norm to within a few units of the limit's."""
    rng = np.random.default_rng(seed)
    layers = {str(i): factors(rng, kind, (terms, records, *own), limit) for i, own in enumerate(widths)}
    made = Integers(np.zeros((records, FORMED), np.int64), layers)
    for row in range(records):
        beyond = int(rng.integers(-2, 3)) * int(rng.choice([1, 1, 2**20, 2**34]))
        room = limit**2 + beyond - squared(vector_of(made, row))
        made.formed[row] = rng.permutation(squares(room, BOUND)) * rng.choice([-1, 1], FORMED)
    return made


def attacks():
    shapes = ((1, [(3, 2)]), (2, [(8, 8)]), (3, [(2, 1), (1, 5)]), (1, []))
    cases = [(kind, *shape, limit) for kind in KINDS for shape in shapes for limit in (BOUND, BOUND - 1, 2**18 + 7)]
    for seed, (kind, terms, widths, limit) in enumerate(cases):
        made, other = (stored(seed + 1000 * i, kind, terms, widths, 4, limit) for i in (0, 1))
        yield made, other, np.ones(4, bool), limit
    for extreme in (2**36 + 1, -(2**63), 2**63 - 1, 2**32, 2**33 + 1):
        # Squares that wrap in 64 bits, and a number that has no opposite.
        made, other = (Integers(np.full((3, 4), value, np.int64), {}) for value in (extreme, 0))
        yield made, other, np.ones(3, bool), BOUND


def test_the_attacks_stand_at_the_limit():
    """Otherwise they would attack nothing: squared norms on both sides of the limit's, within a few units."""
    gaps = [squared(vector_of(a, row)) - limit**2 for a, _, _, limit in attacks() for row in range(len(a.formed))]
    near = [gap for gap in gaps if abs(gap) <= 2]
    assert set(near) == {-2, -1, 0, 1, 2}
    assert len(near) > 50


def test_no_attack_breaks_the_bound():
    assert not any(violates(adds, *attack) for attack in attacks())


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    terms=st.integers(1, 3),
    widths=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=2),
    limit=st.sampled_from(LIMITS),
    present=arrays(bool, 3),
)
def test_integers_tuned_to_the_limit_do_not_break_the_bound(seed, kind, terms, widths, limit, present):
    made, other = (stored(seed + i, kind, terms, widths, 3, limit) for i in (0, 1))
    assert not violates(adds, made, other, present, limit)


def entries(dtype, most):
    ends = np.iinfo(dtype)
    edges = [most, -most, most + 1, -most - 1, int(ends.min), int(ends.max), 0, 1]
    return st.one_of(st.sampled_from(edges), st.integers(-most, most), st.integers(-9, 9))


@st.composite
def anything(draw):
    records, terms = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    formed = draw(arrays(np.int64, (records, draw(st.integers(0, 3))), elements=entries(np.int64, BOUND)))
    layers = {}
    for i in range(draw(st.integers(0, 2))):
        shapes = [(terms, records, draw(st.integers(1, 3))) for _ in range(2)]
        sides = [draw(arrays(np.int32, shape, elements=entries(np.int32, FACTOR))) for shape in shapes]
        layers[str(i)] = IntegerFactors(*sides)
    return Integers(formed, layers)


@settings(deadline=None, max_examples=100)
@given(integers=anything(), limit=st.sampled_from(LIMITS), data=st.data())
def test_no_integers_at_all_break_the_bound(integers, limit, data):
    present = data.draw(arrays(bool, len(integers.formed)))
    assert not violates(adds, integers, picked(integers, np.zeros_like), present, limit)


@pytest.mark.parametrize("seed", range(4))
def test_wide_layers_whose_terms_cancel_do_not_break_the_bound(seed):
    """Products of the largest size cancel to a norm at the limit: what float64 cannot tell is left out."""
    made, other = (stored(seed + i, "cancelling", 2, [(120, 90)], 2, BOUND) for i in (0, 10))
    assert not violates(adds, made, other, np.ones(2, bool), BOUND)


def test_records_inside_the_limit_are_kept():
    """A check that leaves everything out would be private too."""
    for limit in (2**18 + 7, BOUND - 1, BOUND):
        made = stored(3, "small", 1, [(3, 2)], 5, limit)
        made.formed[np.arange(5), np.argmax(np.abs(made.formed), axis=1)] //= 2
        assert all(squared(vector_of(made, row)) < 0.5 * limit**2 for row in range(5))
        found = exact(adds(made, np.ones(5, bool), limit))
        assert (found == sum(vector_of(made, row) for row in range(5))).all()


# Planted bugs: the guard above must fail on each of them.


def added(integers: Integers, kept: np.ndarray) -> Sums:
    layers = {}
    for name, (left, right) in integers.layers.items():
        u, v = (np.where(kept[:, None], side, 0).astype(np.int64) for side in (left, right))
        layers[name] = np.einsum("tri,tro->io", u, v)
    return Sums(np.where(kept[:, None], integers.formed, 0).sum(axis=0), layers)


def inside(integers: Integers) -> np.ndarray:
    found = (np.abs(integers.formed.astype(float)) <= BOUND).all(axis=1)
    for side in chain.from_iterable(integers.layers.values()):
        found &= (np.abs(side.astype(float)) <= FACTOR).all(axis=(0, 2))
    return found


def norms(integers: Integers, of: type, cross: bool = True) -> np.ndarray:
    """Squared norms with nothing on top for rounding, in some type of number."""
    formed = integers.formed.astype(of)
    total = np.einsum("rj,rj->r", formed, formed)
    for own in integers.layers.values():
        left, right = (np.einsum("sri,tri->rst", side.astype(of), side.astype(of)) for side in own)
        products = left * right if cross else left * right * np.eye(left.shape[1], dtype=of)
        total = total + products.sum(axis=(1, 2), dtype=of)
    return total


def every_row(integers, present, limit):
    """No check at all."""
    return added(integers, present)


def bare_norms(integers, present, limit):
    """Norms in float64, and nothing on top for their rounding."""
    return added(integers, present & inside(integers) & (norms(integers, np.float64) <= float(limit) ** 2))


def short_norms(integers, present, limit):
    """Norms in float32, as jax would compute them."""
    return added(integers, present & inside(integers) & (norms(integers, np.float32) <= np.float32(limit) ** 2))


def wrapped_norms(integers, present, limit):
    """Norms in 64-bit integers, which wrap."""
    return added(integers, present & inside(integers) & (norms(integers, np.int64) <= min(limit**2, 2**63 - 1)))


def no_cross_terms(integers, present, limit):
    """Each term's norm by itself: terms that point the same way add up to more."""
    low = norms(integers, np.float64, cross=False) * (1 + 2.0**-20)
    return added(integers, present & inside(integers) & (low <= float(limit) ** 2))


def cast_once_more(integers, present, limit):
    """What is added went through another store than what was checked."""
    kept = present & inside(integers) & (norms(integers, np.float64) * (1 + 2.0**-20) <= float(limit) ** 2)
    return added(integers._replace(formed=integers.formed.astype(np.int32).astype(np.int64)), kept)


def whole_sum(integers, present, limit):
    """The bound on the sum instead of on each record."""
    found = added(integers, present & inside(integers))
    return found if squared(exact(found)) <= limit**2 else added(integers, present & False)


@pytest.mark.parametrize(
    "planted", [every_row, bare_norms, short_norms, wrapped_norms, no_cross_terms, cast_once_more, whole_sum]
)
def test_the_guard_fails_on_planted_bugs(planted):
    assert any(violates(planted, *attack) for attack in attacks())


def shipped(vectors: Vectors, clip: float) -> Sums:
    there = np.ones(len(vectors.formed), bool)
    return adds(quantise(vectors, clip, BOUND), there, BOUND)


def fused_twin(first: np.ndarray, second: np.ndarray, clip: float) -> Sums:
    """The door of version 0.1: the norm of one evaluation, the sum of another."""
    lengths = np.linalg.norm(first.astype(float), axis=1)
    factor = np.minimum(1.0, clip / np.maximum(lengths, 1e-30))[:, None] * (BOUND / clip)
    return Sums(np.rint(np.clip(second * factor, -(2.0**62), 2.0**62)).astype(np.int64).sum(axis=0), {})


def test_a_fused_twin_breaks_the_bound_and_the_door_does_not():
    """A weighted difference of gradients at equal points, as a compiler may compute it once and again."""
    gradient = (np.random.default_rng(0).normal(size=(1, 8)) * 1e20).astype(np.float32)
    weight = np.float32(1e8)
    first = weight * (gradient - gradient)
    # Only one of the two products is rounded, as a fused multiply-add has it.
    second = (np.float64(weight) * gradient - (weight * gradient).astype(np.float64)).astype(np.float32)
    assert not first.any()
    assert squared(exact(fused_twin(first, second, 1.0))) > (10**6 * 2 * BOUND) ** 2
    for evaluation in (first, second):
        assert squared(exact(shipped(Vectors(evaluation, {}), 1.0))) <= BOUND**2


def norms_of_floats(layer: Factors, clip: float) -> Sums:
    """Norms of the floats, before they are rounded."""
    lengths = np.linalg.norm(layer.left[0].astype(float), axis=1) * np.linalg.norm(layer.right[0].astype(float), axis=1)
    rounded = IntegerFactors(*(np.rint(side * (FACTOR / clip**0.5)).astype(np.int32) for side in layer))
    return added(Integers(np.zeros((len(lengths), 0), np.int64), {"a": rounded}), lengths <= clip)


def test_norms_of_floats_break_the_bound_and_the_door_does_not():
    # A unit vector of so many equal entries, each of which is rounded up to an integer.
    width = next(n for n in range(60, 100) if 0.5 < FACTOR / n**0.5 % 1 < 0.8)
    layer = Factors(*(np.full((1, 1, width), (1 - 1e-6) / width**0.5, np.float32) for _ in range(2)))
    assert squared(exact(norms_of_floats(layer, 1.0))) > BOUND**2
    assert squared(exact(shipped(Vectors(np.zeros((1, 0), np.float32), {"a": layer}), 1.0))) <= BOUND**2


# What is refused.


def good() -> dict:
    return {
        "formed": np.zeros((3, 2), np.int64),
        "left": np.ones((2, 3, 4), np.int32),
        "right": np.ones((2, 3, 5), np.int32),
        "present": np.ones(3, bool),
        "limit": BOUND,
        "layers": 1,
    }


def called(terms: dict) -> Sums:
    layers = {str(i): IntegerFactors(terms["left"], terms["right"]) for i in range(terms["layers"])}
    return adds(Integers(terms["formed"], layers), terms["present"], terms["limit"])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("present", lambda mask: mask.astype(np.int64)),
        ("present", lambda mask: mask[:2]),
        ("present", lambda mask: mask[:, None]),
        ("limit", lambda limit: limit + 1),
        ("limit", lambda limit: -1),
        ("limit", lambda limit: math.nan),
        ("formed", lambda formed: formed.astype(np.int32)),
        ("formed", lambda formed: formed.astype(np.float64)),
        ("formed", lambda formed: formed.astype(np.uint64)),
        ("formed", lambda formed: formed[:, 0]),
        ("formed", lambda formed: formed[:2]),
        ("formed", lambda formed: formed[:, :, None]),
        ("left", lambda side: side.astype(np.int64)),
        ("right", lambda side: side.astype(np.float32)),
        ("left", lambda side: side[:1]),
        ("right", lambda side: side[:, :2]),
        ("left", lambda side: side[0]),
        ("right", lambda side: side[..., None]),
        ("layers", lambda layers: 600),
    ],
)
def test_shapes_and_types_that_the_proof_is_not_about_are_refused(name, change):
    terms = good()
    called(terms)
    with pytest.raises(ValueError, match="Expected"):
        called({**terms, name: change(terms[name])})


@pytest.mark.parametrize(
    ("records", "terms", "inputs"), [(MOST_TERMS + 1, 1, 1), (2**16, 2, 1), (1, 46, 1), (1, 1, 2**17 + 1)]
)
def test_more_than_adds_up_exactly_is_refused(records, terms, inputs):
    layer = IntegerFactors(*(np.zeros((terms, records, width), np.int32) for width in (inputs, 1)))
    with pytest.raises(ValueError, match="fewer records"):
        adds(Integers(np.zeros((records, 0), np.int64), {"a": layer}), np.ones(records, bool), BOUND)


def test_more_records_than_fit_64_bits_are_refused():
    many = MOST_RECORDS + 1
    with pytest.raises(ValueError, match="Expected"):
        adds(Integers(np.zeros((many, 0), np.int64), {}), np.ones(many, bool), BOUND)


def test_the_largest_sums_are_exact():
    """As many records and terms as are let in, with entries as large as they may be."""
    records = MOST_TERMS // 2
    left, right = (np.full((2, records, 1), FACTOR, np.int32) for _ in range(2))
    left[1] = 1 - FACTOR
    made = Integers(np.zeros((records, 0), np.int64), {"a": IntegerFactors(left, right)})
    assert exact(adds(made, np.ones(records, bool), BOUND)).tolist() == [records * FACTOR]


# What stands before it: nothing is promised of `quantise`, but learning needs it to be near, and to lose nothing.


def formed_of(made: Vectors | Integers) -> np.ndarray:
    """All of each record's vector, in float64."""
    parts = [made.formed.astype(np.float64)]
    for name in sorted(made.layers):
        left, right = (side.astype(np.float64) for side in made.layers[name])
        parts.append(sum(u[:, :, None] * v[:, None, :] for u, v in zip(left, right, strict=True)))
    return np.concatenate([part.reshape(len(made.formed), -1) for part in parts], axis=1)


def clipped(vectors: Vectors, clip: float, limit: int) -> np.ndarray:
    """Each record's vector clipped, in units of clip / BOUND, times limit / BOUND."""
    whole = formed_of(vectors)
    return whole * (limit / np.maximum(np.linalg.norm(whole, axis=1, keepdims=True), clip))


def gaussian(seed: int, terms: int, inputs: int, outputs: int, *, scale: float = 1.0, formed: int = 3) -> Vectors:
    rng = np.random.default_rng(seed)
    left, right = (rng.normal(size=(terms, 6, width)) for width in (inputs, outputs))
    # Of about the norm of the clip, before it is scaled.
    left *= 1.0 / np.sqrt(inputs * outputs)
    spread = np.geomspace(0.01, 100.0, 6)[:, None] * scale
    rest = rng.normal(size=(6, formed)) * spread
    return Vectors(
        rest.astype(np.float32), {"a": Factors((left * spread).astype(np.float32), right.astype(np.float32))}
    )


def rounding(vectors: Vectors, clip: float, limit: int, balance) -> np.ndarray:
    """How far rounding may move each record, in units: the module's formula, and half a unit for each formed entry."""
    whole = formed_of(vectors)
    scale = limit / np.maximum(np.linalg.norm(whole, axis=1), clip)
    left, right = (np.linalg.norm(side.astype(float), axis=2) for side in vectors.layers["a"])
    inputs, outputs = (side.shape[2] for side in vectors.layers["a"])
    moved = (np.sqrt(left * right * scale) * balance(inputs, outputs) + 0.25 * np.sqrt(inputs * outputs)).sum(axis=0)
    return moved + 0.5 * np.sqrt(vectors.formed.shape[1]) + 1e-6


WIDTHS = [(1, 1), (5, 1), (1, 7), (40, 30), (2000, 1), (1, 2000), (300, 200)]


@pytest.mark.parametrize(("inputs", "outputs"), WIDTHS)
@pytest.mark.parametrize("limit", [BOUND, BOUND // 9])
def test_integers_are_near_the_clipped_vector(inputs, outputs, limit):
    for terms in (1, 2, 3):
        vectors = gaussian(terms, terms, inputs, outputs)
        found, wanted = formed_of(quantise(vectors, 1.0, limit)), clipped(vectors, 1.0, limit)
        kept = np.einsum("rj,rj->r", found, wanted) / np.einsum("rj,rj->r", wanted, wanted)
        allowed = rounding(vectors, 1.0, limit, lambda i, o: (i * o) ** 0.25)
        gap = np.linalg.norm(found - kept[:, None] * wanted, axis=1)
        assert np.all(gap <= allowed)
        assert np.any(gap > 0.01 * allowed)
        assert np.all(kept <= 1 + allowed / np.linalg.norm(wanted, axis=1))
        # Narrow terms that point apart are made smaller until none has an entry that is too large.
        apart = terms > 1 and min(inputs, outputs) == 1
        assert np.all(kept >= (0 if apart else 1 - 2.0**-15 - allowed / np.linalg.norm(wanted, axis=1)))


@pytest.mark.parametrize(("inputs", "outputs"), [(40, 30), (2000, 1), (2, 900)])
def test_one_large_entry_costs_little(inputs, outputs):
    """Then a factor cannot be scaled as it should be, and the bound is that of the wider side."""
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=(1, 50, width)) for width in (inputs, outputs))
    left[..., 0], right[..., -1] = 1e3, 1e3
    vectors = Vectors(np.zeros((50, 0), np.float32), {"a": Factors(left.astype(np.float32), right.astype(np.float32))})
    for clip in (1.0, 1e7):
        gap = np.linalg.norm(formed_of(quantise(vectors, clip, BOUND)) - clipped(vectors, clip, BOUND), axis=1)
        lengths = np.linalg.norm(clipped(vectors, clip, BOUND), axis=1)
        allowed = rounding(vectors, clip, BOUND, lambda i, o: max(i, o) ** 0.5) + 2.0**-16 * lengths
        assert np.all(gap <= allowed)


def lost(integers: Integers, limit: int) -> int:
    """How many records `checked_sum` leaves out."""
    one, number = np.ones(1, bool), 0
    for row in range(len(integers.formed)):
        own = alone(integers, row)
        found = adds(own, one, limit)
        whole = np.concatenate([found.formed, *(found.layers[name].ravel() for name in sorted(found.layers))])
        number += not np.array_equal(whole, formed_of(own)[0])
    return number


@pytest.mark.parametrize("exponent", [-30, -18, -6, 0, 6, 18, 30])
def test_no_record_is_lost_at_any_scale(exponent):
    for terms in (1, 2, 3):
        for inputs, outputs in ((1, 1), (7, 3), (2000, 1), (60, 50)):
            for clip in (0.3, 1e-12, 1e12):
                vectors = gaussian(terms + inputs, terms, inputs, outputs, scale=10.0**exponent)
                integers = quantise(vectors, clip, BOUND)
                assert lost(integers, BOUND) == 0
                # Not by saying nothing: whatever is not far below the clip is there.
                large = np.linalg.norm(formed_of(vectors), axis=1) > 1e-4 * clip
                assert formed_of(integers)[large].any(axis=1).all()


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (30, 20), (300, 200)])
@pytest.mark.parametrize("apart", [0.3, 1e-2, 1e-4, 1e-7])
def test_no_record_is_lost_where_terms_nearly_cancel(inputs, outputs, apart):
    rng = np.random.default_rng(1)
    left, right = (rng.normal(size=(3, 20, width)) * 1e3 for width in (inputs, outputs))
    left[1], right[1] = left[0] * (1 + apart * rng.normal(size=left[0].shape)), -right[0]
    left[2] *= apart
    vectors = Vectors(np.zeros((20, 0), np.float32), {"a": Factors(left.astype(np.float32), right.astype(np.float32))})
    for limit in (BOUND, BOUND // 100):
        integers = quantise(vectors, 1.0, limit)
        assert lost(integers, limit) == 0
        assert formed_of(integers).any(axis=1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("silo_index", ["formed", "left", "right"])
def test_what_is_not_finite_is_zero_and_changes_nothing_else(bad, silo_index):
    vectors = gaussian(0, 2, 5, 4)
    before = quantise(vectors, 1.0, BOUND)
    sides = {"formed": vectors.formed.copy(), **{n: s.copy() for n, s in vectors.layers["a"]._asdict().items()}}
    sides[silo_index][..., 2, 1] = bad
    layers = {"a": Factors(sides["left"], sides["right"])}
    after = quantise(Vectors(sides["formed"], layers), 1.0, BOUND)
    assert not formed_of(after)[2].any()
    zeroed = replaced(before, picked(before, np.zeros_like), 2)
    assert all(map(np.array_equal, (zeroed.formed, *zeroed.layers["a"]), (after.formed, *after.layers["a"])))


def test_a_record_is_rounded_alike_beside_any_others():
    """Also beside one that must be rounded again, a little smaller."""
    rng = np.random.default_rng(0)
    vectors = gaussian(5, 2, 60, 50)
    for _ in range(20):
        others = gaussian(int(rng.integers(1000)), 2, 60, 50, scale=float(rng.choice([1e-20, 1.0, 1e20])))
        layer = Factors(*(o.copy() for o in others.layers["a"]))
        layer.left[:, 3], layer.right[:, 3] = vectors.layers["a"].left[:, 3], vectors.layers["a"].right[:, 3]
        layer.left[:, 0] = rng.choice([0.0, np.nan, 3e38])
        formed = others.formed.copy()
        formed[3] = vectors.formed[3]
        one, two = (alone(quantise(v, 1.0, BOUND), 3) for v in (vectors, Vectors(formed, {"a": layer})))
        assert all(map(np.array_equal, (one.formed, *one.layers["a"]), (two.formed, *two.layers["a"])))


@pytest.mark.parametrize("clip", [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-30, 1e30, SMALLEST_CLIP / 2, LARGEST_CLIP * 2])
def test_a_clip_that_is_not_usable_makes_zeros(clip):
    vectors = gaussian(0, 2, 5, 4)
    assert not formed_of(quantise(vectors, clip, BOUND)).any()
    assert not unit_vectors(vectors._replace(layers={}), clip).any()


@settings(deadline=None, max_examples=100)
@given(
    formed=arrays(np.float32, (3, 2), elements=st.floats(width=32)),
    left=arrays(np.float32, (2, 3, 2), elements=st.floats(width=32)),
    right=arrays(np.float32, (2, 3, 1), elements=st.floats(width=32)),
    clip=st.floats(2.0**-61, 2.0**61),
    limit=st.sampled_from(LIMITS),
)
def test_any_floats_pass_without_a_warning_and_are_bounded(formed, left, right, clip, limit):
    vectors = Vectors(formed, {"a": Factors(left, right)})
    integers = quantise(vectors, clip, limit)
    assert not violates(adds, integers, picked(integers, np.zeros_like), np.ones(3, bool), limit)
    if limit > 255:
        assert lost(integers, limit) == 0
    units = unit_vectors(Vectors(formed, {}), clip)
    assert np.isfinite(units).all()
    assert np.linalg.norm(units, axis=1).max() <= 1 + 1e-12


def test_unit_vectors_are_clipped_and_divided():
    formed = np.asarray([[3.0, 4.0], [0.1, 0.0], [np.nan, 1.0], [np.inf, 0.0]], np.float32)
    expected = [[0.6, 0.8], [0.2, 0.0], [0.0, 0.0], [0.0, 0.0]]
    np.testing.assert_allclose(unit_vectors(Vectors(formed, {}), 0.5), expected, rtol=1e-6)


def test_nonnegative_rows_move_a_sum_by_the_root_of_two_and_others_add_nothing():
    """Brute force in exact integers, over rows tuned to the limit and with signs of all kinds."""
    rng = np.random.default_rng(0)
    rows = [integers.formed[row] for integers, *_ in attacks() for row in range(len(integers.formed))]
    rows = np.stack([row for row in rows if row.shape == (FORMED,)])
    rows = np.concatenate([rows, np.abs(rows), rng.permuted(np.abs(rows), axis=1), BOUND * np.eye(FORMED, dtype=int)])
    apart = []
    added = []
    for row in rows:
        made = Integers(row[None].astype(np.int64), {})
        [only] = [exact(checked_sum(made, np.ones(1, bool), BOUND, nonnegative=True))]
        assert not only.any() or (min(row) >= 0 and (only == row).all())
        added.append(only)
    for one, other in itertools.combinations(added, 2):
        apart.append(squared(one - other))
    assert max(apart) <= 2 * BOUND**2
    assert max(apart) >= 2 * BOUND**2 - 2**36


def square_attacks():
    """Factors of up to two terms, at the limit and beyond: their sides are the same, opposite, or differ somewhere."""
    rng = np.random.default_rng(1)
    sides = [(FACTOR - 1) * np.eye(3, dtype=int)[i] for i in range(3)] + [-FACTOR * np.eye(3, dtype=int)[0]]
    sides += [rng.integers(-FACTOR, FACTOR + 1, 3) * rng.integers(1, 9) // 9 for _ in range(12)]
    sides += [np.array([181, 181, 0]) * 1000, np.array([185_363, -185_363, 2]), np.array([0, 0, 1])]
    for left in sides:
        for right in (left, -left, left + np.array([0, 1, 0]), left[::-1]):
            yield np.stack([left]), np.stack([right])
    for one, other in itertools.product(sides[:6], repeat=2):
        yield np.stack([one, other // 2]) // 2, np.stack([one, other // 2]) // 2
        yield np.stack([one, other]) // 2, np.stack([other, one]) // 2


def squares_apart(adder) -> tuple[int, list[bool]]:
    """The largest squared distance of what two records add, over all pairs, and whether each added anything."""
    added = []
    for left, right in square_attacks():
        own = IntegerFactors(*(side[:, None].astype(np.int32) for side in (left, right)))
        made = Integers(np.zeros((1, 0), np.int64), {"a": own})
        only = exact(adder(made, np.ones(1, bool), BOUND, nonnegative=True))
        assert not only.any() or (only == vector_of(made, 0)).all()
        added.append(only)
    rows = np.stack(added)
    norms = (rows * rows).sum(axis=1)
    return (norms[:, None] + norms[None, :] - 2 * (rows @ rows.T)).max(), [bool(n) for n in norms]


def test_squares_move_a_sum_by_the_root_of_two_and_factors_that_differ_add_nothing():
    """Brute force over all pairs, in exact integers: (u . v)^2 is never negative."""
    most, kept = squares_apart(checked_sum)
    assert 2 * BOUND**2 * (1 - 2**-15) <= most <= 2 * BOUND**2
    for (left, right), own in zip(square_attacks(), kept, strict=True):
        norm = (np.sum([np.outer(u, u) for u in left.astype(object)], axis=0) ** 2).sum()
        same = (left == right).all() and left.any()
        # What is added on top for rounding leaves out those at the very limit.
        assert own == (same and norm <= BOUND**2) or (own is False and same and norm > BOUND**2 * (1 - 2**-30))


def test_a_sum_that_takes_any_factors_for_squares_is_found():
    def trusting(integers, present, limit, *, nonnegative):
        return checked_sum(integers, present, limit, nonnegative=False)

    assert squares_apart(trusting)[0] > 3.9 * BOUND**2


def test_factors_of_other_widths_are_no_squares():
    layer = IntegerFactors(np.ones((1, 1, 2), np.int32), np.ones((1, 1, 3), np.int32))
    with pytest.raises(ValueError, match="equal factors"):
        checked_sum(Integers(np.zeros((1, 0), np.int64), {"a": layer}), np.ones(1, bool), BOUND, nonnegative=True)


@given(
    side=arrays(np.float32, (1, 3, 4), elements=st.floats(width=32)),
    clip=st.floats(),
    limit=st.sampled_from(LIMITS),
)
def test_any_floats_become_squares_that_are_kept(side, clip, limit):
    made = quantise_squares(Vectors(np.zeros((3, 0), np.float32), {"a": Factors(side, side)}), clip, limit)
    left, right = made.layers["a"]
    assert (left == right).all()
    for row in range(3):
        vector = vector_of(made, row)
        kept = exact(checked_sum(alone(made, row), np.ones(1, bool), limit, nonnegative=True))
        assert (kept == vector).all(), "none is lost"
        assert squared(vector) <= limit**2


def test_squares_are_near_the_clipped_ones():
    rng = np.random.default_rng(0)
    side = (rng.normal(size=(1, 50, 6)) * 10.0 ** rng.uniform(-2, 1, (1, 50, 1))).astype(np.float32)
    made = quantise_squares(Vectors(np.zeros((50, 0), np.float32), {"a": Factors(side, side)}), 2.0, BOUND)
    for row in range(50):
        wanted = np.outer(side[0, row], side[0, row]).astype(float)
        wanted *= min(1.0, 2.0 / np.linalg.norm(wanted))
        found = vector_of(made, row).astype(float).reshape(6, 6) * 2.0 / BOUND
        np.testing.assert_allclose(found, wanted, atol=2.0 * 2**-15)
