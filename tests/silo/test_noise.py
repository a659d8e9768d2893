"""Noise that remembers in whole numbers: the recursion, its rounding, rounds left out, and what a door refuses."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Release, Silo
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.strategy import FRESH, ONE, Strategy, correlated
from tacit.silo.door import NO_PAST, Door, DoorError, Past, no_noise
from tacit.silo.integers import BOUND
from tacit.silo.noise import ROUNDING, _scaled, _weighted, check_rounding, no_buffers, remembered
from tacit.silo.sampler import discrete_gaussian
from tacit.silo.simulated import add_remembering

RUNNING = Strategy(9, (ONE,), (ONE,))


def noises(strategy, drawn):
    """The noise of every round."""
    buffers, found = no_buffers(strategy, drawn.shape[1]), []
    for z in drawn:
        noise, buffers = remembered(strategy, buffers, z)
        found.append(noise)
    return np.array(found)


def drawn_from(strategy, noise):
    """What must have been drawn for this noise: the recursion backwards, as an attacker who knows the sums runs it."""
    buffers, found = no_buffers(strategy, noise.shape[1]), []
    for r in noise:
        expected, _ = remembered(strategy, buffers, np.zeros_like(r))
        found.append(r - expected)
        _, buffers = remembered(strategy, buffers, found[-1])
    return np.array(found)


def test_products_are_rounded_down_exactly():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.integers(-(2**62), 2**62, 500), [0, -1, 1, 2**62 - 1, -(2**62)]])
    for factor in (0, 1, 3, ONE - 1, ONE, *map(int, rng.integers(0, ONE, 20))):
        exact = [int(v) * factor // ONE for v in values]
        assert _scaled(values, factor).tolist() == exact


def test_fresh_noise_and_running_sums_are_two_cases():
    drawn = np.random.default_rng(1).integers(-(2**50), 2**50, (9, 3))
    np.testing.assert_array_equal(noises(Strategy(9), drawn), drawn)
    np.testing.assert_array_equal(noises(RUNNING, drawn), np.diff(drawn, axis=0, prepend=0))
    assert RUNNING.rounding == Strategy(9).rounding == 0.0


@pytest.mark.parametrize(("rounds", "apart"), [(30, 30), (200, 200), (400, 100)])
def test_the_noise_is_the_inverse_strategy_of_what_was_drawn(rounds, apart):
    """In rational numbers; rounding is far below what a sensitivity is."""
    strategy = correlated(rounds, apart)
    drawn = np.random.default_rng(2).integers(-(2**40), 2**40, (rounds, 2))
    buffers, exact = [[Fraction(0)] * len(strategy.weights) for _ in range(2)], []
    weights, decays = ([Fraction(v, ONE) for v in values] for values in (strategy.weights, strategy.decays))
    for z in drawn.tolist():
        pairs = zip(z, buffers, strict=True)
        row = [Fraction(own) - sum(w * h for w, h in zip(weights, b, strict=True)) for own, b in pairs]
        buffers = [[d * h + r for d, h in zip(decays, b, strict=True)] for b, r in zip(buffers, row, strict=True)]
        # Denominators would grow for ever; 2^-80 is nothing.
        buffers = [[Fraction(round(h * 2**80), 2**80) for h in b] for b in buffers]
        exact.append([float(r) for r in row])
    np.testing.assert_allclose(noises(strategy, drawn), exact, atol=2 * strategy.rounding)


@pytest.mark.parametrize(("rounds", "apart"), [(60, 6), (40, 2), (200, 20)])
def test_the_noise_of_bands_is_the_inverse_strategy_of_what_was_drawn(rounds, apart):
    """In rational numbers, for draws as large as there are; one floor a round is all that is lost."""
    strategy = correlated(rounds, apart)
    bands = [Fraction(v, ONE) for v in strategy.weights]
    drawn = np.random.default_rng(2).integers(-(2**50), 2**50, (rounds, 2))
    exact: list[list[Fraction]] = []
    for z in drawn.tolist():
        past = exact[::-1][: len(bands)]
        row = [Fraction(z[i]) - sum(c * r[i] for c, r in zip(bands, past, strict=False)) for i in range(2)]
        # Denominators would grow for ever; 2^-80 is nothing.
        exact.append([Fraction(round(r * 2**80), 2**80) for r in row])
    found = noises(strategy, drawn)
    far = max(
        abs(int(f) - e) for ours, theirs in zip(found, exact, strict=True) for f, e in zip(ours, theirs, strict=True)
    )
    assert far <= strategy.growth
    assert max(map(abs, found.ravel().tolist())) <= strategy.growth * (2**50 + 1)
    assert strategy.rounding == 1.0


def test_bands_are_added_up_before_they_are_rounded():
    rng = np.random.default_rng(5)
    buffers, weights = rng.integers(-(2**55), 2**55, (31, 200)), tuple(map(int, rng.integers(0, ONE, 31)))
    exact = [sum(w * int(h) for w, h in zip(weights, column, strict=True)) // ONE for column in buffers.T]
    assert _weighted(buffers, weights).tolist() == exact


@pytest.mark.parametrize(("rounds", "apart"), [(12, 12), (50, 50), (200, 200), (400, 100), (24, 6), (200, 20), (40, 2)])
def test_two_worlds_differ_by_the_strategy_of_their_difference_and_no_more_than_rounding(rounds, apart):
    """The step on which the proof rests, attacked with sums of every size, small ones at the edges of a floor too."""
    strategy, rng = correlated(rounds, apart), np.random.default_rng(3)
    worst = 0.0
    for size in (1, 7, 2**20, 2**37):
        noise = noises(strategy, rng.integers(-(2**38), 2**38, (rounds, 40)))
        moved = np.zeros((rounds, 40), np.int64)
        moved[::apart] = rng.integers(-size, size + 1, (len(moved[::apart]), 40))
        gap = drawn_from(strategy, noise + moved) - drawn_from(strategy, noise)
        expected, buffers = [], np.zeros((len(strategy.weights), 40))
        for u in moved:
            expected.append(u + np.asarray(strategy.weights) / ONE @ buffers)
            if strategy.decays:
                buffers = np.asarray(strategy.decays)[:, None] / ONE * buffers + u
            else:
                buffers = np.vstack([u, buffers[:-1]])
        worst = max(worst, np.abs(gap - expected).max())
    assert 0.5 < worst < strategy.rounding


SMALL = [correlated(3, 3), correlated(4, 2), Strategy(4, (2**19,), (2**18,)), Strategy(3, (ONE,), (ONE,))]


@pytest.mark.parametrize("strategy", SMALL, ids=str)
def test_the_exact_loss_of_small_cases_is_at_most_the_price(strategy):
    """All that can be drawn, in one coordinate: delta between two worlds in which one record is in its rounds.

    The record moves a sum by five units, and noise has a deviation of six, so that rounding is far from nothing here.
    """
    rounds, apart, moved, sigma = strategy.rounds, {4: 2}.get(strategy.rounds, 3), 5, 6.0
    values = np.arange(-26, 27) if rounds < 4 else np.arange(-20, 21)
    drawn = np.stack([axis.ravel() for axis in np.meshgrid(*[values] * rounds, indexing="ij")])
    noise = noises(strategy, drawn)
    noise[::apart] += moved
    other = drawn_from(strategy, noise)
    one, two = (np.prod(_mass_of(worlds, sigma), axis=0) for worlds in (drawn, other))
    norm = np.sqrt(strategy.square(range(0, rounds, apart)))
    mu = (moved * norm + strategy.rounding * np.sqrt(rounds)) / np.sqrt(sigma**2 - 4)
    found = [float(np.maximum(one - np.exp(epsilon) * two, 0.0).sum()) for epsilon in (0.0, 0.5, 1.0, 2.0)]
    for epsilon, delta in zip((0.0, 0.5, 1.0, 2.0), found, strict=True):
        assert delta <= float(gauss_delta(epsilon, mu)) + 1e-4  # what lies beyond the grid
    # Noise alone, as if nothing were taken off, would promise too much.
    entered = len(range(0, rounds, apart))
    assert found[1] > 1.01 * float(gauss_delta(0.5, moved * np.sqrt(entered) / sigma))


def _mass_of(values, sigma):
    return np.exp(-0.5 * (values / sigma) ** 2) / np.exp(-0.5 * (np.arange(-200, 201) / sigma) ** 2).sum()


def mean_silo(rounds=8, batch=1, **changes):
    terms = {"sampling": "one-pass", "mechanism": "correlated", "rounds": rounds, **changes}
    return Silo(lambda work, record: record["x"], Release(lambda work: 1.0, 4.0, batch, **terms))


RECORDS = {"x": np.eye(8, 3, dtype=np.float32) / 2, "y": np.zeros(8, np.float32)}


def answers(door, asked, sampler):
    """The messages of the rounds that are asked, of which the others are left out."""
    past, last, said = NO_PAST, -1, []
    for number in asked:
        found = door.answer(
            None,
            (),
            batches=[door.batch(number, np.arange(8))],
            sampler=sampler,
            past=past._replace(missed=number - last - 1),
        )
        past, last = Past(found.noise, 0), number
        said.append(np.asarray(found.message, float))
    return np.array(said)


def recorded():
    rng, drawn = np.random.default_rng(4), []

    def sampler(size, sigma):
        drawn.append(np.rint(rng.normal(size=size) * sigma).astype(np.int64))
        return drawn[-1]

    return sampler, drawn


def means_of(door):
    """The mean of each round's batch."""
    return np.array([RECORDS["x"][door.batch(number, np.arange(8)).rows].mean(axis=0) for number in range(8)])


@pytest.mark.parametrize("apart", [8, 4, 2])
def test_a_door_says_its_batch_with_the_noise_of_the_strategy(apart):
    """Buffers in one pass, bands in several."""
    batch = 8 // apart
    door = Door(mean_silo(batch=batch, passes=batch), RECORDS, silo_index=0, form=False)
    sampler, drawn = recorded()
    said, means = answers(door, range(8), sampler), means_of(door)
    expected = means + noises(correlated(8, apart), np.array(drawn)) / BOUND / batch
    np.testing.assert_allclose(said, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(answers(door, range(8), no_noise), means, atol=1e-6)


@pytest.mark.parametrize("apart", [8, 4])
def test_rounds_left_out_have_their_noise_in_the_next_answer(apart):
    """So the sum of all messages has the noise of all rounds so far, and no pass comes closer to the one before."""
    batch = 8 // apart
    door = Door(mean_silo(batch=batch, passes=batch), RECORDS, silo_index=0, form=False)
    sampler, drawn = recorded()
    said = answers(door, [0, 3, 4, 7], sampler)
    assert len(drawn) == 8
    noise = np.cumsum(noises(correlated(8, apart), np.array(drawn)), axis=0)[[0, 3, 4, 7]] / BOUND / batch
    means = means_of(door)[[0, 3, 4, 7]]
    np.testing.assert_allclose(np.cumsum(said, axis=0), np.cumsum(means, axis=0) + noise, atol=1e-4)


def test_sums_have_the_noise_that_the_strategy_promises():
    """The exact sampler, at the door: the sum over all rounds, over the noise of one round."""
    silo = Silo(lambda work, record: record["x"], mean_silo(rounds=64).release)
    records = {"x": np.zeros((64, 400), np.float32), "y": np.zeros(64, np.float32)}
    door = Door(silo, records, silo_index=0, form=False)
    past, total = NO_PAST, 0.0
    for number in range(64):
        batch = [door.batch(number, np.arange(64))]
        found = door.answer(None, (), batches=batch, sampler=discrete_gaussian, past=past)
        past, total = Past(found.noise, 0), total + np.asarray(found.message, float)
    assert np.std(total) / (4.0 * 2) == pytest.approx(correlated(64, 64).sums[-1], rel=0.15)


@pytest.mark.parametrize("apart", [12, 4])
def test_the_simulated_twin_adds_what_the_door_adds(apart):
    """Buffers and bands; the same draws, in float32 there and in whole numbers of 2^-30 here."""
    strategy, nothing = correlated(12, apart), jnp.zeros(3)
    ours, theirs = no_buffers(strategy, 3), jnp.zeros((len(strategy.weights), 3))
    for key in jax.random.split(jax.random.key(0), 12):
        z, _ = add_remembering(key, FRESH, (), nothing, 1.0)
        simulated, theirs = add_remembering(key, strategy, theirs, nothing, 1.0)
        noise, ours = remembered(strategy, ours, np.rint(np.asarray(z, float) * 2**30).astype(np.int64))
        np.testing.assert_allclose(simulated, noise / 2**30, atol=1e-5)
    np.testing.assert_allclose(theirs, ours / 2**30, atol=1e-5)


def test_what_would_not_be_exact_enough_is_refused():
    strategy = correlated(1000, 1000)
    check_rounding(strategy, 10**6, 2.0**40, 2.0 * BOUND)
    with pytest.raises(ValueError, match="rounding would show"):
        check_rounding(strategy, 10**6, 2.0**40, 2.0**20)
    with pytest.raises(ValueError, match="fit 64 bits"):
        check_rounding(strategy, 10, 2.0**55, 2.0 * BOUND)
    assert strategy.rounding * np.sqrt(1000 * 10**6) < ROUNDING * 2 * BOUND
    bands = correlated(1000, 20)
    check_rounding(bands, 10**6, 2.0**47, 2.0 * BOUND)
    with pytest.raises(ValueError, match="rounding would show"):
        check_rounding(bands, 10**6, 2.0**40, 2.0**20)
    with pytest.raises(ValueError, match="fit 64 bits"):
        check_rounding(bands, 10, 2.0**52, 2.0 * BOUND)
    terms = Release(lambda work: 1.0, 2.0**17, 1, "one-pass", mechanism="correlated", rounds=1000)
    loud = Silo(lambda work, record: record["x"], terms)
    with pytest.raises(DoorError, match="64 bits"):
        answers(Door(loud, RECORDS, silo_index=0, form=False), [0], discrete_gaussian)


@pytest.mark.parametrize("mechanism", ["correlated", "cumulative"])
def test_a_round_whose_noise_was_drawn_before_is_refused(mechanism):
    """Without a draw of its own it would be said as it is, without noise."""
    silo = mean_silo(mechanism=mechanism, rounds=8 if mechanism == "correlated" else None)
    door = Door(silo, RECORDS, silo_index=0, form=False)
    batches = [door.batch(0, np.arange(8))]
    first = door.answer(None, (), batches=batches, sampler=discrete_gaussian, past=NO_PAST)
    with pytest.raises(DoorError, match="only go forward"):
        door.answer(None, (), batches=batches, sampler=discrete_gaussian, past=Past(first.noise, -1))


def test_more_than_a_ledger_keeps_in_one_entry_is_refused():
    strategy = correlated(20, 10)
    most = 2**29 // (8 * len(strategy.weights))
    check_rounding(strategy, most, 2.0**40, 2.0**40)
    with pytest.raises(ValueError, match=f"Expected at most {most} coordinates"):
        check_rounding(strategy, most + 1, 2.0**40, 2.0**40)


def test_noise_that_does_not_fit_is_refused_where_nothing_is_rounded_too():
    check_rounding(Strategy(1000, (ONE,)), 10, 2.0**40, 2.0**40)
    with pytest.raises(ValueError, match="must fit 64 bits"):
        check_rounding(Strategy(1000, (ONE,)), 10, 2.0**56, 2.0**56)
