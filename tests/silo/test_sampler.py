"""The discrete Gaussian at the door: its whole law by brute force, its code bit by bit, its samples by statistics."""

import ast
import decimal
import hashlib
import itertools
import math
import random
from bisect import bisect_right
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.errors import TacitError
from tacit.silo import sampler
from tacit.silo.sampler import discrete_gaussian, distance

UNIT = Decimal(2) ** -128
MOST = math.nextafter(2**63 / 40, 0)
DIGITS_OF_CHECK = 90
FALSE_ALARM = 1e-9


@pytest.fixture
def narrow(monkeypatch):
    """Tables of at most a dozen widths, so that several digits in a small base can be multiplied out."""
    sampler._prepared.cache_clear()
    monkeypatch.setattr(sampler, "_WIDEST", 12)
    yield
    sampler._prepared.cache_clear()


# The law of the construction, exactly, against the discrete Gaussian.


def cumulative_of(table):
    return [(int(high) << 64) | int(low) for high, low in zip(table.high, table.low, strict=True)]


def masses_of(table):
    edges = [0, *cumulative_of(table), 1 << 128]
    return np.array([above - below for below, above in itertools.pairwise(edges)], object)


def law_of(digits, table):
    """The probability of each sample as a fraction of 2^(128 n), and the lowest sample."""
    masses = masses_of(table)
    law, lowest = masses, table.lowest
    for _ in range(digits.length - 1):
        spread = np.zeros(digits.base * (len(law) - 1) + len(masses), object)
        for place, mass in enumerate(masses):
            spread[place : place + digits.base * (len(law) - 1) + 1 : digits.base] += law * mass
        law, lowest = spread, digits.base * lowest + table.lowest
    return law, lowest


def gaussian(square):
    """D(s) on the integers 0, 1, ... as far as it matters, straight from its definition."""
    reach = math.isqrt(int(400 * square)) + 2
    weights = [(-Decimal(x * x * square.denominator) / (2 * square.numerator)).exp() for x in range(reach)]
    total = weights[0] + 2 * sum(weights[1:])
    return [weight / total for weight in weights]


def variation(law, lowest, scale, square):
    """Total variation distance of a law on lowest, lowest + 1, ... from D(s)."""
    exact = gaussian(square)
    found = {lowest + place: Decimal(int(mass)) / scale for place, mass in enumerate(law)}
    values = found.keys() | set(range(1 - len(exact), len(exact)))
    return sum(abs(found.get(x, 0) - (exact[abs(x)] if abs(x) < len(exact) else 0)) for x in values) / 2


def variation_of(digits, table, sigma):
    with decimal.localcontext() as context:
        context.prec = DIGITS_OF_CHECK
        law, lowest = law_of(digits, table)
        return variation(law, lowest, Decimal(2) ** (128 * digits.length), Fraction(sigma) ** 2)


@pytest.mark.parametrize("sigma", [1.0, 1.7, 4.0, 10.3, 100.0])
def test_the_law_of_a_table_is_within_its_distance(sigma):
    digits, table = sampler._prepared(sigma)
    assert digits.length == 1
    found = variation_of(digits, table, sigma)
    assert found <= Decimal(distance(sigma)) <= 8 * found


def test_the_law_of_two_digits_as_shipped_is_within_its_distance():
    sigma = math.nextafter(512.0, 513)
    digits, table = sampler._prepared(sigma)
    assert (digits.length, digits.base) == (2, 15)
    found = variation_of(digits, table, sigma)
    assert found <= Decimal(distance(sigma)) <= 8 * found


@pytest.mark.parametrize(
    ("sigma", "length", "base"), [(12.5, 2, 2), (31.4, 2, 3), (50.0, 3, 2), (150.3, 3, 4), (310.0, 4, 3)]
)
@pytest.mark.usefixtures("narrow")
def test_the_law_of_several_digits_is_within_its_distance(sigma, length, base):
    digits, table = sampler._prepared(sigma)
    assert (digits.length, digits.base) == (length, base)
    found = variation_of(digits, table, sigma)
    assert found <= Decimal(distance(sigma)) <= 8 * found


@pytest.mark.parametrize("target", ["1/4", "1", "2", "9/2"])
@pytest.mark.parametrize("base", [1, 2, 5])
def test_adding_a_digit_costs_what_the_proof_says_and_hardly_less(target, base):
    """Exact discrete Gaussians, no tables: s^2 = t^2 (1 + K^2) is the least that the proof allows for this t."""
    square = Fraction(target) * (1 + base**2)
    with decimal.localcontext() as context:
        context.prec = DIGITS_OF_CHECK
        half = gaussian(square)
        both = np.array([*reversed(half[1:]), *half], object)
        spread = np.zeros(base * (len(both) - 1) + len(both), object)
        for place, mass in enumerate(both):
            spread[place : place + base * (len(both) - 1) + 1 : base] += both * mass
        scale = Decimal(10) ** 80
        law = [int(mass * scale) for mass in spread]
        found = variation(law, -(base + 1) * (len(half) - 1), scale, square * (1 + base**2))
        pi = Decimal("3.14159265358979323846264338327950288419716939937510")
        error = 2 * sum(
            (-2 * pi**2 * Decimal(Fraction(target).numerator) * j**2 / Fraction(target).denominator).exp()
            for j in range(1, 9)
        )
        assert found <= error / (2 - 2 * error) <= 3 * found
        assert (error / (2 - 2 * error) < UNIT) == (target == "9/2")


# Planted errors, which the check of the law must see.


def of_half_the_bits(digits, table):
    return digits, table._replace(low=np.zeros_like(table.low))


def off_by_one(digits, table):
    return digits, table._replace(lowest=table.lowest + 1)


def edge_moved_by_2_to_the_24(digits, table):
    low = table.low.copy()
    low[len(low) // 2] ^= np.uint64(1 << 24)
    return digits, table._replace(low=low)


def zero_twice(digits, table):
    """A size and then a sign, so that zero is said with either sign."""
    masses = masses_of(table)
    middle = -table.lowest
    masses = [int(mass) * (1 << 128) // ((1 << 128) + int(masses[middle])) for mass in masses]
    masses[middle] = (1 << 128) - sum(masses) + masses[middle]
    return digits, sampler._table(masses[middle:])


def cut_at_eight_widths(digits, table):
    masses = masses_of(table)
    kept = [int(mass) for mass in masses[-table.lowest : -table.lowest + math.isqrt(int(64 * digits.variance))]]
    return digits, sampler._table([(1 << 128) - 2 * sum(kept[1:]), *kept[1:]])


def another_base(digits, table):
    return digits._replace(base=digits.base + 1), table


def too_large_a_base(digits, table):
    """The right width, from digits too narrow to be added in this base."""
    base = 2 * digits.base
    square = digits.variance * sampler._weight(digits.base, digits.length) / sampler._weight(base, digits.length)
    return digits._replace(base=base, variance=square), sampler._table(sampler._masses(square))


def a_billionth_too_narrow(digits, table):
    square = digits.variance * (1 - Fraction(1, 10**9))
    return digits._replace(variance=square), sampler._table(sampler._masses(square))


PLANTED = [
    of_half_the_bits,
    off_by_one,
    edge_moved_by_2_to_the_24,
    zero_twice,
    cut_at_eight_widths,
    another_base,
    too_large_a_base,
    a_billionth_too_narrow,
]


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.usefixtures("narrow")
def test_a_planted_error_is_beyond_the_distance(planted):
    sigma = 31.4
    wrong = planted(*sampler._prepared(sigma))
    assert variation_of(*wrong, sigma) > 100 * Decimal(distance(sigma))


# The code, bit by bit: a sample is the number of cumulative masses that are at most a uniform number.


def sample_at(monkeypatch, table, uniform):
    """What the shipped code makes of one uniform number of 128 bits; bits that it must not use are ones."""
    words = iter(
        [
            (uniform >> 112).to_bytes(2, "little"),
            ((uniform >> 64) % (1 << 48) << 16 | 0xFFFF).to_bytes(8, "little"),
            (uniform % (1 << 64)).to_bytes(8, "little"),
        ]
    )
    with monkeypatch.context() as patched:
        patched.setattr(sampler, "random_bytes", lambda length: next(words)[:length])
        return int(sampler._draw(table, 1)[0])


@pytest.mark.parametrize("sigma", [1.0, 4.0, 31.4])
def test_both_sides_of_every_edge(monkeypatch, sigma):
    table = sampler._prepared(sigma)[1]
    edges = cumulative_of(table)
    assert edges == sorted(set(edges))
    for place, edge in enumerate(edges):
        assert sample_at(monkeypatch, table, edge - 1) == table.lowest + place
        assert sample_at(monkeypatch, table, edge) == table.lowest + place + 1
    assert sample_at(monkeypatch, table, 0) == table.lowest
    assert sample_at(monkeypatch, table, (1 << 128) - 1) == -table.lowest


@pytest.mark.parametrize("sigma", [1.0, 100.0, 512.0])
def test_sixteen_bits_decide_only_what_all_bits_would_decide_alike(sigma):
    table = sampler._prepared(sigma)[1]
    edges = cumulative_of(table)
    for first, said in enumerate(table.short.tolist()):
        ends = [bisect_right(edges, first << 112), bisect_right(edges, ((first + 1) << 112) - 1)]
        if said == sampler._OPEN:
            assert any(edge >> 112 == first for edge in edges[max(ends[0] - 1, 0) : ends[1]])
        else:
            assert [end + table.lowest for end in ends] == [said, said]
    assert (table.short == sampler._OPEN).mean() < 0.05


def test_edges_that_share_sixty_four_bits_are_told_apart(monkeypatch):
    """Masses of the far tails are less than 2^-64: a table where they are everything shows that ties are resolved."""
    masses = [(1 << 128) - 2 * 60, *[10] * 6]
    table = sampler._table(masses)
    found = [sample_at(monkeypatch, table, uniform) for uniform in range(64)]
    assert found == [min(uniform // 10, 6) - 6 for uniform in range(64)]
    found = [sample_at(monkeypatch, table, (1 << 128) - 1 - uniform) for uniform in range(64)]
    assert found == [6 - min(uniform // 10, 6) for uniform in range(64)]


@pytest.mark.parametrize("sigma", [4.0, 700.7, 2.0**38, 2.0**57])
def test_the_fast_code_is_the_plain_one(monkeypatch, sigma):
    """The same bytes, read one number at a time with Python's integers."""
    size = sampler._CHUNK + 1000
    digits, table = sampler._prepared(sigma)
    edges = cumulative_of(table)
    stream = Stream(b"plain")
    expected = []
    for part in (sampler._CHUNK, 1000):
        first = stream(2 * digits.length * part)
        starts = [int.from_bytes(first[i : i + 2], "little") << 112 for i in range(0, len(first), 2)]
        ends = [(bisect_right(edges, start), bisect_right(edges, start + (1 << 112) - 1), start) for start in starts]
        touched = {edge >> 112 for edge in edges}
        places = [place for place, end in enumerate(ends) if end[2] >> 112 in touched]
        more = stream(8 * len(places))
        drawn = [low + table.lowest for low, _, _ in ends]
        for turn, place in enumerate(places):
            middle = int.from_bytes(more[8 * turn : 8 * turn + 8], "little") >> 16
            drawn[place] = bisect_right(edges, starts[place] + (middle << 64)) + table.lowest
        columns = [drawn[i * part : (i + 1) * part] for i in range(digits.length)]
        powers = [digits.base ** (digits.length - 1 - i) for i in range(digits.length)]
        expected += [sum(p * x for p, x in zip(powers, row, strict=True)) for row in zip(*columns, strict=True)]
    monkeypatch.setattr(sampler, "random_bytes", Stream(b"plain"))
    assert discrete_gaussian(size, sigma).tolist() == expected


# Entropy.


class Stream:
    """Bytes that depend on a seed and on how many were asked for before; a record of the requests."""

    def __init__(self, seed):
        self.seed, self.requests = seed, []

    def __call__(self, length):
        self.requests.append(length)
        return hashlib.shake_256(self.seed + bytes(str(len(self.requests)), "ascii")).digest(length)


def test_nothing_but_the_systems_entropy_is_random(monkeypatch):
    def drawn(seed):
        stream = Stream(seed)
        monkeypatch.setattr(sampler, "random_bytes", stream)
        return discrete_gaussian(100_000, 2.0**38), stream

    once, stream = drawn(b"a")
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(once, drawn(b"a")[0])
    assert (once != drawn(b"b")[0]).mean() > 0.999
    length = sampler._digits(Fraction(2) ** 38).length
    assert 2 * length * 100_000 < sum(stream.requests) < 3 * length * 100_000
    assert max(stream.requests) <= 2 * length * sampler._CHUNK


def test_each_sample_has_bytes_of_its_own(monkeypatch):
    sigma, size = 2.0**38, 50
    digits, table = sampler._prepared(sigma)
    zero, one = (int(np.flatnonzero(table.short == value)[0]).to_bytes(2, "little") for value in (0, 1))
    for digit, place in itertools.product(range(digits.length), range(size)):
        request = [zero] * (digits.length * size)
        request[digit * size + place] = one
        monkeypatch.setattr(sampler, "random_bytes", lambda length, request=request: b"".join(request)[:length])
        expected = np.zeros(size, np.int64)
        expected[place] = digits.base ** (digits.length - 1 - digit)
        assert np.array_equal(discrete_gaussian(size, sigma), expected)


# Samples.


def alarm(samples, law, cells=30):
    """The chance of so bad a fit of the samples to a law with this inverse and distribution function."""
    inner = np.unique(np.asarray(law.ppf(np.arange(1, cells) / cells)))
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    expected = np.diff(law.cdf(edges))
    found = np.histogram(samples, [-np.inf, *(inner + 0.5), np.inf])[0]
    return stats.chisquare(found, expected * len(samples)).pvalue


class Integers:
    """D(s) with the interface of a distribution of scipy, in floating point."""

    def __init__(self, sigma):
        self.values = np.arange(-int(12 * sigma) - 1, int(12 * sigma) + 2)
        weights = np.exp(-(self.values**2) / (2 * sigma**2))
        self.sums = np.cumsum(weights) / weights.sum()

    def ppf(self, share):
        return self.values[np.searchsorted(self.sums, share)]

    def cdf(self, edges):
        places = np.searchsorted(self.values, edges, "right")
        return np.concatenate([[0], self.sums])[places]


@pytest.mark.parametrize("sigma", [1.0, 4.0, 30.0, 700.7])
def test_samples_fit_the_law_and_not_one_a_hundredth_off(sigma):
    samples = discrete_gaussian(2_000_000, sigma)
    assert alarm(samples, Integers(sigma)) > FALSE_ALARM
    assert alarm(samples, Integers(1.01 * sigma)) < FALSE_ALARM
    assert alarm(samples, Integers(sigma / 1.01)) < FALSE_ALARM


@pytest.mark.parametrize("sigma", [2.0**17 + 0.3, 2.0**38, MOST])
def test_wide_samples_fit_the_normal_law_and_their_low_bits_are_even(sigma):
    samples = discrete_gaussian(1_000_000, sigma)
    assert alarm(samples, stats.norm(scale=sigma)) > FALSE_ALARM
    assert alarm(samples, stats.norm(scale=1.02 * sigma)) < FALSE_ALARM
    assert stats.kstest(samples[::10] / sigma, "norm").pvalue > FALSE_ALARM
    base = sampler._digits(Fraction(sigma)).base
    for modulus in (2, 256, base - 1, base, base + 1):
        assert stats.chisquare(np.bincount(samples % modulus, minlength=modulus)).pvalue > FALSE_ALARM


def dependence(samples):
    """The largest correlation of samples, sizes or low bits at some lag, in its standard deviations."""
    scaled = samples / samples.std()
    worst = 0.0
    for view in (scaled, np.abs(scaled), (samples % 16).astype(float), (samples % 2).astype(float)):
        for lag in (1, 2, 3, sampler._CHUNK, sampler._CHUNK + 1):
            worst = max(worst, abs(np.corrcoef(view[:-lag], view[lag:])[0, 1]) * math.sqrt(len(view) - lag))
    return worst


@pytest.mark.parametrize("sigma", [4.0, 700.7, 2.0**38])
def test_samples_are_independent(sigma):
    samples = discrete_gaussian(500_000, sigma)
    assert dependence(samples) < 7
    pairs = 16 * (samples[0::2] % 16) + samples[1::2] % 16
    table = np.bincount(pairs, minlength=256).reshape(16, 16)
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(samples, discrete_gaussian(500_000, sigma))[0, 1]) < 7 / math.sqrt(500_000)


def test_entropy_that_repeats_is_seen(monkeypatch):
    chunk = np.random.default_rng(0).bytes(16 * sampler._CHUNK)
    monkeypatch.setattr(sampler, "random_bytes", lambda length: chunk[:length])
    assert dependence(discrete_gaussian(200_000, 2.0**38)) > 100


def test_quantiles_are_those_of_opendp():
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    sigma = 5000.3
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    theirs = np.asarray(dp.m.make_gaussian(*space, scale=sigma)([0] * 40_000))
    ours = discrete_gaussian(400_000, sigma)
    assert stats.ks_2samp(ours, theirs).pvalue > FALSE_ALARM
    shares = np.array([0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])
    spread = np.sqrt(shares * (1 - shares) / 40_000) / stats.norm.pdf(stats.norm.ppf(shares)) * sigma
    assert np.all(np.abs(np.quantile(ours, shares) - np.quantile(theirs, shares)) < 7 * spread)


# Widths and edges.


@given(st.floats(1, MOST) | st.integers(1, 2**57) | st.floats(0, 57.6).map(lambda power: 2.0**power))
@settings(deadline=None, max_examples=300)
def test_digits_make_up_exactly_sigma_and_are_wide_enough_to_be_added(sigma):
    digits = sampler._digits(sampler._checked(sigma))
    assert digits.variance * sum(digits.base ** (2 * i) for i in range(digits.length)) == Fraction(sigma) ** 2
    assert digits.variance <= 512**2
    assert digits.length == 1 or (digits.variance >= Fraction(9, 2) * (1 + digits.base**2) and digits.base >= 2)
    assert sampler._reach(digits.variance) ** 2 > 178 * digits.variance
    assert distance(sigma) < 2.0**-110


def test_the_widest_samples_fit(monkeypatch):
    digits, table = sampler._prepared(MOST)
    largest = -table.lowest * sum(digits.base**i for i in range(digits.length))
    monkeypatch.setattr(sampler, "random_bytes", lambda length: b"\xff" * length)
    assert discrete_gaussian(3, MOST).tolist() == [largest] * 3
    monkeypatch.setattr(sampler, "random_bytes", lambda length: b"\x00" * length)
    assert discrete_gaussian(3, MOST).tolist() == [-largest] * 3
    assert 12 * MOST < largest < 28 * MOST < 2**63


@pytest.mark.parametrize("size", [0, 1, sampler._CHUNK, sampler._CHUNK + 1])
def test_sizes(size):
    samples = discrete_gaussian(size, 2.0**30)
    assert samples.shape == (size,)
    assert samples.dtype == np.int64


@pytest.mark.parametrize("sigma", [math.nan, math.inf, -math.inf, 0.0, -4.0, 0.99, 2**63 / 40, 2.0**60, 10**400])
def test_widths_out_of_range_are_refused(sigma):
    for function in (lambda: discrete_gaussian(0, sigma), lambda: distance(sigma)):
        with pytest.raises(TacitError, match=r"Expected 1 <= sigma=.*grid"):
            function()


@pytest.mark.parametrize("sigma", [True, "4", None, np.float32(4), Decimal(4)])
def test_what_is_not_a_float_is_refused(sigma):
    with pytest.raises(TacitError, match="to be a float"):
        discrete_gaussian(1, sigma)


def test_sizes_that_are_none_are_refused():
    with pytest.raises(TacitError, match="size=-1"):
        discrete_gaussian(-1, 4.0)
    with pytest.raises(TypeError):
        discrete_gaussian(1.5, 4.0)


def test_a_callers_decimal_settings_change_nothing():
    expected = sampler._masses(Fraction(10))
    with decimal.localcontext() as context:
        context.prec, context.rounding = 3, decimal.ROUND_UP
        assert sampler._masses(Fraction(10)) == expected


def test_masses_are_even_and_whole():
    masses = sampler._masses(Fraction(100))
    assert masses[0] + 2 * sum(masses[1:]) == 1 << 128
    assert masses == sorted(masses, reverse=True)
    table = sampler._table(masses)
    assert masses_of(table).tolist() == masses_of(table).tolist()[::-1]


def test_the_module_needs_numpy_and_entropy_alone():
    tree = ast.parse(Path(sampler.__file__).read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    standard = {
        "__future__",
        "bisect",
        "decimal",
        "fractions",
        "functools",
        "itertools",
        "math",
        "operator",
        "os",
        "typing",
    }
    assert found - standard == {"numpy", "numpy.typing", "tacit.entropy", "tacit.errors"}
