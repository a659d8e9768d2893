"""Integers at the door: what one record adds to a sum is bounded by a fact about stored integers.

Floating point cannot carry that proof: a compiler may evaluate a difference of gradients once for its norm and once
more, rounded otherwise, for the sum. So a record's vector goes through three stores, of which only the last is trusted:

    engine            floats, by any program, which may round, fuse or be wrong              `tacit.silo.engine`
    `quantise`        integers in units of clip / BOUND, near the clipped vector
    `checked_sum`     reads the stored integers, keeps a record only if their norm is at most BOUND, and adds exactly

`checked_sum` is NumPy on stored integers: products and sums of integers below 2^53 are exact in float64, in any order
and with any fusing, and a sum that may round is compared with the rounding on top.

A block of a statistic is partly *formed*, an integer vector for each record, and partly in *factors*: the gradient of a
dense layer is sum_t left_t (x) right_t, whose norm and sum follow from the factors, so that no (records x parameters)
matrix is made. Entries of factors are at most FACTOR = 2^18 and BOUND = FACTOR^2. Rounding the factors of a layer moves
a vector of norm v by about 2^-18 (inputs x outputs)^(1/4) sqrt(v / clip) of the clip; a formed one hardly moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64
from threadpoolctl import ThreadpoolController

FACTOR = 2**18
"""The largest entry of an integer factor."""

BOUND = FACTOR**2
"""The largest norm of a record's integers: the clip is this many units."""

LARGEST_CLIP, SMALLEST_CLIP = 2.0**60, 2.0**-60
"""Public limits of a clip; outside of them nothing is said about any record."""

MOST_TERMS = 2**17 - 1
"""Records times terms of a layer in one call: so many products of factors add up below 2^53."""

MOST_RECORDS = 2**24
"""Records of a silo: their integers, and noise of 2^61 beside them, fit 64 bits."""

WIDEST = 2**17
"""The most entries of a factor: so many squares add up to at most 2^53."""

_MOST_PRODUCTS = 2**11
# Entries of a product of matrices that are in floats and in integers at the same time.
_AT_ONCE = 2**17
_LESS = 1 - 2.0**-24
_CLOSE = 2.0**-40


class Factors(NamedTuple):
    """Of one layer: each record's matrix is the sum over terms of left (x) right; a bias is a last column of left."""

    left: Float32[np.ndarray, "terms records inputs"]
    right: Float32[np.ndarray, "terms records outputs"]


class Vectors(NamedTuple):
    """One block of the statistics of some records, as an engine stored it."""

    formed: Float32[np.ndarray, "records formed"]
    layers: Mapping[str, Factors]


class IntegerFactors(Factors):
    """As `Factors`, in 32-bit integers."""


class Integers(Vectors):
    """As `Vectors`, in integers: of 64 bits where formed, of 32 bits in factors."""


class Sums(NamedTuple):
    """The sum of a block: of its formed part, and the matrix of each layer."""

    formed: Int64[np.ndarray, " formed"]
    layers: Mapping[str, Int64[np.ndarray, "inputs outputs"]]


def usable_clip(clip: Any) -> float:
    """A clip fit for use, or zero, which says nothing of any record: for one that is no number or out of range."""
    value = float(clip)
    return value if SMALLEST_CLIP <= value <= LARGEST_CLIP else 0.0


def fits_factors(terms: int, inputs: int, outputs: int, layers: int) -> bool:
    """Whether a layer of these widths may stay in factors; decided by shapes alone."""
    return max(inputs, outputs) <= WIDEST and terms**2 * layers <= _MOST_PRODUCTS


def checked_sum(integers: Integers, present: Bool[np.ndarray, " records"], limit: int, *, nonnegative: bool) -> Sums:
    """The exact sum over present records of their integers, of those whose norm is at most ``limit``.

    Formal guarantee: whatever integers are stored, each record adds an integer vector of l2 norm at most ``limit``,
    computed from that record's integers alone. So replacing one record moves the sum, over all its parts together, by
    at most ``2 limit``. What is checked is what is added: both read the same stored arrays. With ``nonnegative`` a
    record adds zero too if a formed integer of it is negative, or if both factors of a term differ. Then replacing one
    moves the sum by at most ``sqrt(2) limit``: the product of two such vectors is not negative, so that
    |a - b|^2 <= |a|^2 + |b|^2. Formed parts have no negative product; that of two layers sum_s a_s a_s^T and
    sum_t b_t b_t^T is the sum of (a_s . b_t)^2.

    Proof. Inner products of factors are sums of at most WIDEST products of at most FACTOR^2, exact in float64.
    The squared norm of the layers is a sum of products of two such numbers, at most 2^11 of them, each rounded:
    it errs by less than 2^-41 times the sum of their magnitudes, and those are at most ``terms`` times the sum over
    terms of |left|^2 |right|^2 by Cauchy and Schwarz. That sum x 2^-40 is added. The squares of the formed part, and
    their sum, are rounded too: all are positive, so the result is low by at most (formed + 1) 2^-53 of it, and
    twice that is added. The last factor covers the few additions and products that are left.
    """
    _check_shapes(integers, present, limit)
    if nonnegative and any(own.left.shape != own.right.shape for own in integers.layers.values()):
        raise ValueError("Expected equal factors of layers whose products must not be negative, got others' shapes.")
    bound = float(limit)
    inside = np.ones(present.shape, bool)
    squared = np.zeros(present.shape)
    # Stored once more as float64, which holds 32-bit integers exactly: what is checked is what is added.
    layers = {name: [side.astype(np.float64) for side in own] for name, own in integers.layers.items()}
    for left, right in layers.values():
        inside &= _within(left, FACTOR) & _within(right, FACTOR)
        if nonnegative:
            inside &= (left == right).all(axis=(0, 2))
        squared += layer_norms(left, right)
    formed = integers.formed
    inside &= _within(formed[None], BOUND)
    if nonnegative:
        inside &= (formed >= 0).all(axis=1)
    real = formed.astype(np.float64)
    squared += np.einsum("rj,rj->r", real, real) * (1 + (formed.shape[1] + 8) * 2.0**-52)
    # Written so that what is not a number is left out.
    kept = present & inside & (squared * (1 + 2.0**-48) <= bound * bound)
    added = {name: _added(left, right, kept) for name, (left, right) in layers.items()}
    return Sums(np.where(kept[:, None], formed, 0).sum(axis=0, dtype=np.int64), added)


def _check_shapes(integers: Integers, present: np.ndarray, limit: int) -> None:
    """Raise unless the shapes and types are those that the proof is about; no value of an entry is looked at."""
    records, formed = len(present), integers.formed
    if not 0 <= limit <= BOUND or present.dtype != np.bool_ or present.ndim != 1:
        raise ValueError(f"Expected 0 <= limit={limit} <= {BOUND} and a mask of records.")
    if formed.shape[:-1] != (records,) or formed.dtype != np.int64 or formed.shape[1] > 2**40 or records > MOST_RECORDS:
        raise ValueError(f"Expected 64-bit integers of {records} records, got {formed.shape} of {formed.dtype}.")
    for left, right in integers.layers.values():
        terms = left.shape[0]
        same = left.shape[:2] == right.shape[:2] == (terms, records) and left.ndim == right.ndim == 3
        if not same or left.dtype != np.int32 or right.dtype != np.int32:
            raise ValueError(f"Expected 32-bit factors of {records} records, got {left.shape} and {right.shape}.")
        if terms * records > MOST_TERMS or not fits_factors(terms, left.shape[2], right.shape[2], len(integers.layers)):
            raise ValueError(f"Expected fewer records, terms or columns, got {left.shape} and {right.shape}.")


def _within(entries: np.ndarray, most: int) -> Bool[np.ndarray, " records"]:
    """Whether all entries of a record are at most ``most`` in size; records are the second axis."""
    return (entries.max(axis=(0, 2), initial=0) <= most) & (entries.min(axis=(0, 2), initial=0) >= -most)


def layer_norms(
    left: Float64[np.ndarray, "terms records inputs"], right: Float64[np.ndarray, "terms records outputs"]
) -> Float64[np.ndarray, " records"]:
    """An upper bound on each record's squared norm of a layer, as close as float64 has it; see `checked_sum`."""
    total, sizes = np.zeros(left.shape[1]), np.zeros(left.shape[1])
    for s in range(len(left)):
        for t in range(s, len(left)):
            products = np.einsum("ri,ri->r", left[s], left[t]) * np.einsum("ro,ro->r", right[s], right[t])
            total += products if s == t else 2.0 * products
            sizes += products if s == t else 0.0
    return total + _CLOSE * len(left) * sizes


def _added(left: np.ndarray, right: np.ndarray, kept: np.ndarray) -> Int64[np.ndarray, "inputs outputs"]:
    """The sum over kept records and terms of left (x) right: a product of matrices of integers, exact below 2^53.

    A record that is left out adds zero times 32-bit integers, which are finite: zero.
    """
    chosen = np.where(kept[:, None], right, 0.0).reshape(-1, right.shape[2])
    used = left.reshape(-1, left.shape[2])
    total, rows = np.empty((used.shape[1], chosen.shape[1]), np.int64), max(1, _AT_ONCE // max(1, chosen.shape[1]))
    # One thread: several wait for each other longer than a small product takes, where others want the processors too.
    with _libraries().limit(limits=1, user_api="blas"):
        for first in range(0, len(total), rows):
            total[first : first + rows] = used[:, first : first + rows].T @ chosen
    return total


@lru_cache(maxsize=1)
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@np.errstate(all="ignore")
def quantise(vectors: Vectors, clip: float, limit: int) -> Integers:
    """The integers that stand for each record's vector clipped to ``clip``, in units of ``clip / BOUND``.

    Each record is scaled by ``limit / BOUND`` too, the weight of its silo. A record with anything that is not finite
    becomes zero. No bound is promised: `checked_sum` checks the result. A record that it leaves out is lost for
    learning, so clipped ones are made smaller by what rounding may add, about 10^-4 of them for a layer of a thousand
    inputs and outputs, and by more where large terms cancel: no entry of a factor may pass FACTOR.

    A record's integers depend on its own vector and its slot alone; which steps are taken depends on no vector.
    """
    clip = usable_clip(clip)
    vectors, finite = _finite(vectors)
    norms = np.sqrt(_squared(vectors))
    peaks = {name: (_peaks(left), _peaks(right)) for name, (left, right) in vectors.layers.items()}
    scale = np.where(finite & (clip > 0), _scales(peaks, norms, clip or 1.0, limit), 0.0)
    times = {name: _split(own, peaks[name], scale) for name, own in vectors.layers.items()}
    room = _LESS * limit - _rounding(vectors, times)
    smaller = np.clip(room / np.maximum(scale * norms, 1e-300), 0.0, 1.0)
    formed = _whole(vectors.formed * (scale * smaller)[:, None], BOUND, np.int64)
    layers = {name: _rounded(vectors.layers[name], (own.left, own.right * smaller)) for name, own in times.items()}
    return Integers(formed, layers)


@np.errstate(all="ignore")
def quantise_squares(vectors: Vectors, clip: float, limit: int) -> Integers:
    """As `quantise`, of one matrix u u^T for each record: both factors of it are the same integers."""
    clip = usable_clip(clip)
    (formed, layers), finite = _finite(vectors)
    [(name, (own, _))] = layers.items()
    norms = np.sqrt(np.einsum("tri,tri->r", own, own))
    room = _LESS * np.sqrt(float(limit)) - np.sqrt(own.shape[2]) / 2
    times = np.minimum(np.sqrt(limit / (clip or 1.0)), max(room, 0.0) / np.maximum(norms, 1e-300))
    whole = _whole(own * np.where(finite & (clip > 0), times, 0.0)[:, None], FACTOR, np.int32)
    return Integers(formed.astype(np.int64), {name: IntegerFactors(whole, whole)})


@np.errstate(all="ignore")
def unit_vectors(vectors: Vectors, clip: float) -> Float64[np.ndarray, "records formed"]:
    """Each formed vector clipped to ``clip`` and divided by it, not checked; zero if it is not finite."""
    clip = usable_clip(clip)
    (formed, _), finite = _finite(vectors)
    norms = np.sqrt(np.einsum("rj,rj->r", formed, formed))
    return formed * np.where(finite & (clip > 0), 1.0 / np.maximum(norms, clip or 1.0), 0.0)[:, None]


def _finite(vectors: Vectors) -> tuple[Vectors, Bool[np.ndarray, " records"]]:
    """Vectors in float64 with every record zero that is not finite, before anything is cast."""
    formed = vectors.formed.astype(np.float64)
    layers = {name: Factors(*(side.astype(np.float64) for side in own)) for name, own in vectors.layers.items()}
    sides = [side for own in layers.values() for side in own]
    # Squares of 32-bit floats cannot overflow 64 bits: their sum is finite just where they all are.
    squares = [np.einsum("rj,rj->r", formed, formed), *(np.einsum("tri,tri->r", side, side) for side in sides)]
    finite = np.all(np.isfinite(squares), axis=0)
    for entries in (formed[None], *sides):
        entries[:, ~finite] = 0.0
    return Vectors(formed, layers), finite


def _squared(vectors: Any) -> Float64[np.ndarray, " records"]:
    formed = vectors.formed.astype(np.float64)
    squared = np.einsum("rj,rj->r", formed, formed)
    for left, right in vectors.layers.values():
        squared = squared + layer_norms(left, right)
    return np.maximum(squared, 0.0)


def _scales(
    peaks: Mapping[str, _Peaks], norms: Float64[np.ndarray, " records"], clip: float, limit: int
) -> Float64[np.ndarray, " records"]:
    """What each record's vector is multiplied by: its clip, and the units; no entry of a factor may pass FACTOR."""
    scale = limit * np.minimum(1.0 / clip, 1.0 / np.maximum(norms, 1e-300))
    for left, right in peaks.values():
        scale = np.minimum(scale, _LESS * BOUND / np.maximum((left * right).max(axis=0), 1e-300))
    return scale


def _peaks(side: np.ndarray) -> Float64[np.ndarray, "terms records"]:
    """The largest entry in size of each factor."""
    return np.maximum(side.max(axis=2, initial=0.0), -side.min(axis=2, initial=0.0))


_Peaks = tuple[Float64[np.ndarray, "terms records"], Float64[np.ndarray, "terms records"]]


class _Times(NamedTuple):
    """What both factors of each term are multiplied by, and the norms that they have then."""

    left: Float64[np.ndarray, "terms records"]
    right: Float64[np.ndarray, "terms records"]
    norms: tuple[Float64[np.ndarray, "terms records"], Float64[np.ndarray, "terms records"]]


def _rounding(vectors: Vectors, times: Mapping[str, _Times]) -> Float64[np.ndarray, " records"]:
    """How far rounding may move each record's integers from its scaled vector, at most."""
    squared = np.full(len(vectors.formed), vectors.formed.shape[1] / 4.0)
    for name, (left, right) in vectors.layers.items():
        (ours, theirs), inputs, outputs = times[name].norms, left.shape[2], right.shape[2]
        moved = ours * outputs**0.5 / 2 + theirs * inputs**0.5 / 2 + (inputs * outputs) ** 0.5 / 4
        squared = squared + moved.sum(axis=0) ** 2
    return np.sqrt(squared)


def _split(factors: Factors, peaks: _Peaks, scale: Float64[np.ndarray, " records"]) -> _Times:
    """Multipliers whose product is the scale, such that rounding harms neither factor much more than the other."""
    inputs, outputs = (max(side.shape[2], 1) for side in factors)
    ours, theirs = (np.sqrt(np.einsum("tri,tri->tr", side, side)) for side in factors)
    wanted = np.sqrt(scale * theirs / ours) * (inputs / outputs) ** 0.25
    left = np.minimum(np.maximum(wanted, scale * peaks[1] / FACTOR), FACTOR / peaks[0])
    right = scale / left
    usable = np.isfinite(left) & np.isfinite(right) & (ours > 0) & (theirs > 0)
    left, right = np.where(usable, left, 0.0), np.where(usable, right, 0.0)
    return _Times(left, right, (left * ours, right * theirs))


def _rounded(factors: Factors, times: tuple[np.ndarray, np.ndarray]) -> IntegerFactors:
    for side, own in zip(factors, times, strict=True):
        np.multiply(side, own[..., None], out=side)
    return IntegerFactors(*(_whole(side, FACTOR, np.int32) for side in factors))


def _whole(entries: np.ndarray, most: int, kind: type[np.signedinteger[Any]]) -> np.ndarray:
    """Entries within ``most``, rounded in place to the nearest whole numbers, as integers."""
    np.clip(entries, -most, most, out=entries)
    return np.rint(entries, out=entries).astype(kind)
