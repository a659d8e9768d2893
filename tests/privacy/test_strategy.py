"""Noise that remembers: its sensitivity against enumeration, its cases, what it gains, and where it gains nothing."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.signal import lfilter

from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.privacy import Event, PricingError, gdp_epsilon, price
from tacit.privacy.conversions import user_level_mu
from tacit.privacy.plan import events_of
from tacit.privacy.schedule import gaussian_mu, remembered_square
from tacit.privacy.strategy import _DAMPINGS, _POWERS, ONE, Strategy, _banded, _damped, correlated, strategy_of

RUNNING = Strategy(6, (ONE,), (ONE,))
SHAPES = [(6, 6), (6, 3), (6, 2), (5, 2), (7, 3), (2, 2)]
BANDED = [(6, 3), (6, 2), (100, 10), (1000, 10), (200, 20), (50, 5), (40, 2), (3200, 32)]


def matrix(strategy):
    """C, entry by entry, from its definition."""
    entries = np.eye(strategy.rounds)
    if not strategy.decays:
        return entries + sum(w / ONE * np.eye(len(entries), k=-i) for i, w in enumerate(strategy.weights, start=1))
    for row, column in itertools.product(range(strategy.rounds), repeat=2):
        if row > column:
            pairs = zip(strategy.weights, strategy.decays, strict=True)
            entries[row, column] = sum(w / ONE * (d / ONE) ** (row - column - 1) for w, d in pairs)
    return entries


def event(**changes):
    terms = {"noise_multiplier": 2.0, "count": 6, "records": 6, "batch": 1, "sampling": "one-pass", "passes": 1}
    return Event(kind="g", **{**terms, "mechanism": "correlated", "rounds": 6, **changes})


def test_fresh_noise_and_running_sums_are_two_cases():
    np.testing.assert_array_equal(matrix(Strategy(6)), np.eye(6))
    np.testing.assert_array_equal(matrix(RUNNING), np.tril(np.ones((6, 6))))
    np.testing.assert_allclose(RUNNING.sums, 1.0)
    np.testing.assert_allclose(Strategy(6).sums, np.sqrt(np.arange(1, 7)))
    for passes, everywhere in itertools.product((1, 2, 3, 6), (False, True)):
        sums = event(mechanism="cumulative", rounds=None, records=12, passes=passes, count=6)
        entered = range(6 if everywhere else passes)
        assert remembered_square(sums, everywhere=everywhere) == pytest.approx(RUNNING.square(entered))


@pytest.mark.parametrize(("rounds", "apart"), SHAPES)
def test_the_square_is_the_largest_of_all_movements(rounds, apart):
    """Every record of a pass, every set of rounds left out, every sign and size of movement on a grid, two dimensions.

    A record in the first batch that moves everything one way is as far as any goes.
    """
    strategy = correlated(rounds, apart)
    entries, largest = matrix(strategy), 0.0
    turns = [np.array([math.cos(a), math.sin(a)]) for a in (0.0, 0.7, math.pi)] + [np.zeros(2)]
    for first in range(apart):
        at = list(range(first, rounds, apart))
        for moves in itertools.product(turns, repeat=len(at)):
            largest = max(largest, float(np.sum((entries[:, at] @ np.array(moves)) ** 2)))
    assert strategy.square(range(0, rounds, apart)) == pytest.approx(largest, rel=1e-8)
    assert strategy.square(range(0, rounds, apart)) >= largest


@pytest.mark.parametrize(("rounds", "apart"), [*SHAPES, (40, 40), (300, 300), (60, 7)])
def test_the_noise_of_sums_is_that_of_the_inverse(rounds, apart):
    strategy = correlated(rounds, apart)
    rows = np.tril(np.ones((rounds, rounds))) @ np.linalg.inv(matrix(strategy))
    np.testing.assert_allclose(strategy.sums, np.linalg.norm(rows, axis=1), rtol=1e-9)


@pytest.mark.parametrize(("rounds", "apart"), [(6, 6), (5, 5), (100, 100), (1000, 1000), (4000, 4000), (400, 100)])
def test_what_the_proofs_say_of_its_entries(rounds, apart):
    """Not negative, falling, of mass at most one and log-convex, so that C^-1 adds up to at most two."""
    strategy = correlated(rounds, apart)
    column = matrix(dataclasses.replace(strategy, rounds=min(rounds, 300)))[:, 0]
    assert min(strategy.weights) > 0
    assert max(strategy.decays) <= ONE
    assert (np.diff(column) < 0).all()
    assert column.min() >= 0
    assert sum(w / d for w, d in zip(strategy.weights, strategy.decays, strict=True)) <= 1.0
    assert (column[1:-1] ** 2 <= column[:-2] * column[2:] * (1 + 1e-12)).all()
    inverse = np.linalg.inv(matrix(dataclasses.replace(strategy, rounds=min(rounds, 300))))[:, 0]
    assert inverse[0] == 1.0
    assert (inverse[1:] <= 1e-12).all()
    assert np.abs(inverse).sum() <= strategy.growth == 2.0


@pytest.mark.parametrize(("rounds", "apart"), BANDED)
def test_what_the_proofs_say_of_bands(rounds, apart):
    """As many as a record's comings lie apart, falling, and what is left of a draw is like a chance of a renewal."""
    strategy = correlated(rounds, apart)
    assert (len(strategy.weights), strategy.decays) == (apart - 1, ())
    assert (np.diff([ONE, *strategy.weights, 0]) < 0).all()
    entered = range(0, rounds, apart)
    # What a record makes of one coming ends before the next, and the last may be cut short.
    comings, once = len(entered), strategy.square([0])
    assert (comings - 1) * once < strategy.square(entered) <= comings * once * (1 + 1e-9)
    small = dataclasses.replace(strategy, rounds=min(rounds, 300))
    inverse = np.linalg.inv(matrix(small))[:, 0]
    left = np.cumsum(inverse)
    assert left.min() >= -1e-12
    assert left.max() == 1.0
    assert np.abs(inverse).sum() <= small.growth * (1 + 1e-9) <= small.rounds
    assert np.abs(inverse).sum() == pytest.approx(small.growth, rel=1e-6)


def test_falling_bands_never_grow_without_bound():
    """The renewal argument, attacked: bands that fall by chance, slowly, or at once."""
    rng = np.random.default_rng(0)
    some = [np.sort(rng.uniform(size=rng.integers(1, 12)))[::-1] for _ in range(200)]
    for falling in (*some, np.ones(7), np.full(5, 1 - 1e-6), np.array([1e-6])):
        strategy = Strategy(60, tuple(int(v * ONE) for v in falling))
        inverse = np.linalg.inv(matrix(strategy))[:, 0]
        assert -1e-9 <= np.cumsum(inverse).min() <= np.cumsum(inverse).max() <= 1 + 1e-9
        assert np.abs(inverse).sum() <= strategy.growth * (1 + 1e-9)
        assert strategy.growth <= 60


@pytest.mark.parametrize(("rounds", "apart"), BANDED)
def test_bands_are_used_where_they_gain(rounds, apart):
    """More than a hundredth over the best buffers, and within 0.4% of what a search over all falling bands found."""
    entered, one = range(0, rounds, apart), correlated(rounds, apart)
    buffers = [_damped(rounds, damping) for damping in _DAMPINGS]
    noise, best = (min(math.sqrt(s.square(entered)) * s.sums[-1] for s in some) for some in ([one], buffers))
    assert 1.01 * noise < best
    searched = {(100, 10): 12.0378, (200, 20): 12.7025, (50, 5): 11.3971, (40, 2): 20.7364, (3200, 32): 107.8372}
    assert 1.0 <= noise / searched.get((rounds, apart), noise) < 1.004


def test_fewer_bands_than_a_pass_has_batches_are_not_offered():
    """Where a record comes again after more than 32 rounds, buffers have less noise than any falling 32 bands."""
    for rounds, apart in ((100, 100), (1000, 1000), (400, 100), (1000, 100)):
        entered, one = range(0, rounds, apart), correlated(rounds, apart)
        cut = [_banded(rounds, 32, power) for power in _POWERS]
        least = min(math.sqrt(s.square(entered)) * s.sums[-1] for s in cut)
        assert math.sqrt(one.square(entered)) * one.sums[-1] < 0.9 * least
        assert len(one.weights) == len(one.decays) == 5


@pytest.mark.parametrize(("rounds", "limit", "best"), [(100, 2.6, 2.5313), (1000, 3.4, 3.2650)])
def test_one_pass_has_little_noise_in_its_sum(rounds, limit, best):
    """Relative to one full batch at the same price; the exact root has the ``best``, fresh noise sqrt(rounds)."""
    once = correlated(rounds, rounds)
    ratio = math.sqrt(once.square([0])) * once.sums[-1]
    assert ratio <= limit
    assert best <= ratio <= 1.001 * best
    assert max(math.sqrt(once.square([0])) * once.sums) == pytest.approx(ratio)
    assert len(once.weights) == 5


@pytest.mark.parametrize(("rounds", "apart"), [(100, 10), (100, 25), (60, 2), (400, 100)])
def test_several_passes_gain_too_and_are_priced_for_coming_again(rounds, apart):
    strategy, entered = correlated(rounds, apart), range(0, rounds, apart)
    ratio = math.sqrt(strategy.square(entered)) * strategy.sums[-1]
    assert ratio < 0.8 * math.sqrt(len(entered) * rounds)


def test_the_table_of_the_page_is_computed():
    page = Path(__file__).parents[2] / "docs" / "algorithms" / "dp-ftrl.md"
    rows = re.findall(r"^\| ([\d,]+)[^|]* \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for batches, passes, fresh, found in rows:
        apart = int(batches.replace(",", ""))
        rounds = apart * int(passes)
        strategy = correlated(rounds, apart)
        ratio = math.sqrt(strategy.square(range(0, rounds, apart))) * strategy.sums[-1]
        assert f"{ratio:.{len(found.partition('.')[2])}f}" == found
        assert f"{math.sqrt(int(passes) * rounds):.1f}" == fresh


def test_the_table_of_bands_is_computed():
    """All of its buffers and choices, and one search, over the falls from each entry to the next."""
    page = Path(__file__).parents[2] / "docs" / "algorithms" / "dp-ftrl.md"
    rows = re.findall(
        r"^\| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|.* ([\d.]+) \| (\w+) \|$", page.read_text(), re.MULTILINE
    )
    assert len(rows) == 7
    for *shape, buffers, _, taken in rows:
        rounds, apart = (int(value.replace(",", "")) for value in shape)
        entered = range(0, rounds, apart)
        least = min(math.sqrt(s.square(entered)) * s.sums[-1] for s in (_damped(rounds, d) for d in _DAMPINGS))
        assert f"{least:.2f}" == buffers
        assert taken == ("buffers" if correlated(rounds, apart).decays else "bands")
    [searched] = [row[3] for row in rows if row[:2] == ("50", "5")]
    entered = np.arange(50) % 5 == 0

    def noise(falls):
        bands = np.cumsum(falls[::-1])[::-1]
        moved, left = lfilter(bands, [1.0], entered), lfilter([1.0], bands, np.ones(50))
        return math.sqrt(moved @ moved * (left @ left))

    found = minimize(noise, np.full(5, 0.2), bounds=[(1e-6, None)] * 5, method="L-BFGS-B").fun
    assert f"{found:.2f}" == searched


@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_where_every_record_is_in_every_round_noise_is_fresh(rounds):
    full = event(sampling="full", batch=6, count=rounds, rounds=rounds)
    assert strategy_of(full) == Strategy(rounds)
    plain = dataclasses.replace(full, mechanism="gaussian", rounds=None)
    assert price([full], delta=1e-6).epsilon == pytest.approx(price([plain], delta=1e-6).epsilon, rel=1e-8)
    # And no other strategy of this form would leave less in the sum over all rounds.
    for other in (RUNNING, correlated(50, 50), correlated(50, 5)):
        other = dataclasses.replace(other, rounds=rounds)
        assert math.sqrt(other.square(range(rounds))) * other.sums[-1] >= rounds * (1 - 1e-9)


def test_the_price_is_that_of_one_gaussian():
    strategy = correlated(6, 6)
    mu = math.sqrt(strategy.square([0])) / 2.0
    assert price([event()], delta=1e-5).epsilon == pytest.approx(gdp_epsilon(mu, 1e-5))
    # A silo whose passes are longer than the strategy was made for pays less, and never more.
    twice = event(records=3, passes=2)
    longer = event(records=4, passes=2)
    assert gaussian_mu([longer]) < gaussian_mu([twice]) < 2 * mu
    # Answers that are never asked for are paid for: their noise is drawn, and said later.
    assert gaussian_mu([dataclasses.replace(twice, count=1)]) == gaussian_mu([twice])
    assert user_level_mu([event()]) == pytest.approx(math.sqrt(strategy.square(range(6))) / 2.0)


@pytest.mark.parametrize("apart", [6, 3])
def test_an_event_keeps_its_strategy_through_the_books(apart):
    """Buffers or bands; the price is that of what was released, whatever is best known later."""
    found = correlated(6, apart)
    kept = event(strategy=(found.weights, found.decays), records=apart, passes=6 // apart)
    again = Event(**json.loads(json.dumps(dataclasses.asdict(kept))))
    assert again == kept
    assert strategy_of(again) == found
    assert gaussian_mu([again]) == gaussian_mu([event(records=apart, passes=6 // apart)])
    with pytest.raises(PricingError, match="a decay for each weight or for none"):
        event(strategy=((1, 2), (3,)))


def test_a_record_that_comes_again_sooner_would_be_dearer():
    """So the rounds that a silo leaves out must not bring its passes closer together: a door draws their noise."""
    strategy = correlated(6, 3)
    assert strategy.square([0, 1]) > 1.05 * strategy.square([0, 2]) > 1.05 * strategy.square([0, 3])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": None}, "exactly for mechanism"),
        ({"rounds": 5}, r"rounds=5 >= 6"),
        ({"mechanism": "gaussian"}, "exactly for mechanism"),
        ({"sampling": "poisson"}, '"full" or "one-pass" for mechanism "correlated"'),
        ({"sampling": "wor"}, '"full" or "one-pass" for mechanism "correlated"'),
    ],
)
def test_what_has_no_price_is_refused(change, message):
    with pytest.raises(PricingError, match=message):
        event(**change)


def test_two_kinds_that_remember_are_refused():
    half = {"count": 3, "rounds": 3}
    with pytest.raises(PricingError, match="at most one event"):
        price([event(**half), dataclasses.replace(event(**half), kind="h")], delta=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"channel": "pairwise"}, {"channel": "shuffled-sum"}, {"sampling": "poisson"}, {"rounds": None}, {"rounds": 0}],
)
def test_a_release_that_cannot_be_proved_is_refused(change):
    terms = {"sampling": "one-pass", "mechanism": "correlated", "rounds": 6, **change}
    with pytest.raises(ValueError, match="Expected"):
        Release(lambda work: 1.0, 1.0, 1, **terms)


def test_a_schedule_longer_than_its_noise_was_made_for_is_refused():
    """Five answers, all of one batch, would be priced as one: the passes beyond the noise's rounds are not counted."""
    terms = {"sampling": "one-pass", "mechanism": "correlated", "rounds": 5, "passes": 50}
    silo = Silo(lambda work, record: record["x"], Release(lambda work: 1.0, 5.0, 1, **terms))
    step = Round(silo, Server(lambda state: (), lambda state, message: state))

    def algorithm(rounds):
        return Algorithm(lambda params: params, {"g": step}, ("g",) * rounds, lambda state: state)

    seat = {"silo_index": 0, "silos": 1, "records": 5, "max_participations": 5}
    [covered] = events_of(algorithm(5), **seat)
    assert gaussian_mu([covered]) == pytest.approx(1 / 5.0)
    with pytest.raises(ValueError, match=r"rounds=5 of correlated noise to be at least the 200 rounds of 'g'"):
        algorithm(200)


@pytest.mark.parametrize(("weights", "decays"), [((1, 2), ()), ((ONE + 1,), ()), ((1,), (ONE + 1,)), ((-1,), (1,))])
def test_a_strategy_whose_price_is_no_bound_is_refused(weights, decays):
    with pytest.raises(PricingError, match="bands that fall"):
        Strategy(7, weights, decays)
