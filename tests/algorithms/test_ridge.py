"""Ridge in one round: the closed form without noise, bounds by brute force, and refusals."""

import contextlib
import itertools

import jax
import numpy as np
import pytest

import tacit
from tacit.algorithm import Terms
from tacit.algorithms.ridge import ridge
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, Propose, read_arrays
from tacit.objectives import Objective, Problem, linear, logistic, squared
from tacit.privacy.gaussian import gdp_mu
from tacit.privacy.strategy import FRESH
from tacit.silo import enrol
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, Engine, no_noise
from tacit.silo.integers import BOUND, IntegerFactors, usable_clip
from tacit.simulate.compiled import simulate
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of

FEATURES = 4
PROBLEM = Problem(Objective(linear(FEATURES, 1), squared()))


def records(seed=0, size=60):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, FEATURES)).astype(np.float32)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": np.clip(0.5 + x @ [0.3, -0.2, 0.1, 0.0], 0, 1).astype(np.float32)}


def terms(noise=1.0, channel="direct", clip=1.0):
    return Terms(clip_norm=clip, noise_multiplier=noise, batch_size=None, sampling="full", channel=channel)


def closed_form(tables, strength):
    x, y = (np.concatenate([table[part] for table in tables]).astype(float) for part in ("x", "y"))
    centred = x - x.mean(axis=0)
    w = np.linalg.solve(centred.T @ centred / len(x) + strength * np.eye(FEATURES), centred.T @ y / len(x))
    return w, y.mean() - x.mean(axis=0) @ w


@pytest.mark.parametrize("channel", ["direct", "trusted", "open"])
@pytest.mark.parametrize("strength", [1e-3, 0.1])
def test_without_noise_it_is_the_closed_form(channel, strength):
    tables = [records(0), records(1)]
    algorithm = ridge(strength=strength)(PROBLEM, terms(None if channel == "open" else 0.0, channel))
    params = PROBLEM.objective.init(jax.random.key(0))
    found = simulate(algorithm, params, enrol(tables), key=jax.random.key(0), noise="each").params["linear"]
    w, b = closed_form(tables, strength)
    np.testing.assert_allclose(np.asarray(found["w"])[:, 0], w, atol=2e-4)
    np.testing.assert_allclose(np.asarray(found["b"]), [b], atol=2e-4)


def hostile(clip=1.5, engine=Engine, count=60):
    """A door with records of huge features, targets out of range and what is not a number."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(count, FEATURES)) * rng.choice([1e-3, 1.0, 1e20], (count, 1))).astype(np.float32)
    x[:8] = 1e10 * np.concatenate([np.eye(FEATURES), -np.eye(FEATURES)])
    y = rng.choice([-1e30, 0.0, 0.5, 1.0, 7.0, np.nan], count).astype(np.float32)
    y[:8] = 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.5, 0.5
    silo = ridge(strength=0.1)(PROBLEM, terms(clip=clip)).rounds["moments"].silo
    return Door(silo, {"x": x, "y": y}, silo_index=0, form=False, engine=engine(silo, form=False))


def rows_at(door, nonnegative=True):
    """What each record adds alone, in exact integers."""
    mechanism = DiscreteGaussian(door.engine, door.multiplier, no_noise, FRESH, NO_PAST, nonnegative=nonnegative)
    clips = {"": usable_clip(door.silo.release.clip(()))}
    sums = [mechanism.sums((), door.records, np.arange(door.count) == i, clips)[""] for i in range(door.count)]
    return np.stack([own.layers["square"].ravel() for own in sums]).astype(object)


def farthest(rows):
    """The largest squared distance of two rows, in units of BOUND."""
    norms = (rows * rows).sum(axis=1)
    return float((norms[:, None] + norms[None, :] - 2 * (rows @ rows.T)).max() / BOUND**2)


@pytest.mark.parametrize("clip", [1.5, 1e-9, 1e8, 1e-30, 1e30, float("nan"), float("inf"), 0.0, -1.0])
def test_no_two_records_are_further_apart_than_the_price_says(clip):
    """Hostile records and clips; two of them are that far apart where the clip is one."""
    door = hostile(clip)
    rows = rows_at(door)
    assert (rows * rows).sum(axis=1).max() <= BOUND**2
    assert farthest(rows) <= 2.0
    if clip == 1.5:
        assert farthest(rows) >= 1.7
        assert (rows * rows).sum(axis=1).max() >= 0.999 * BOUND**2
    assert door.silo.release.sensitivity == 2**0.5


class Liar(Engine):
    """An engine that stores the opposite of every second record's matrix."""

    def integers(self, work, records, present, clips, limit=BOUND):
        for stored, there in super().integers(work, records, present, clips, limit):
            left, right = stored[""].layers["square"]
            right = np.where(np.arange(len(there))[:, None] % 2, right, -right)
            yield {"": stored[""]._replace(layers={"square": IntegerFactors(left, right)})}, there


def test_a_matrix_that_is_no_square_adds_nothing_and_would_move_a_sum_too_far():
    door = hostile(engine=Liar)
    assert farthest(rows_at(door)) <= 2.0
    assert not rows_at(door)[::2].any()
    assert farthest(rows_at(door, nonnegative=False)) > 2.0, "an attack that finds nothing shows nothing"


def test_the_door_draws_the_noise_that_is_priced_and_says_the_moments():
    scales = []

    def sampler(size, sigma):
        scales.append((size, sigma))
        return np.zeros(size, np.int64)

    table = records()
    silo = ridge(strength=0.1)(PROBLEM, terms(noise=3.0)).rounds["moments"].silo
    door = Door(silo, table, silo_index=0, form=False)
    said = door.answer((), (), batches=[door.batch(0, None)], sampler=sampler, past=NO_PAST).message
    [(size, sigma)] = scales
    assert size == (FEATURES + 2) ** 2
    assert sigma == pytest.approx(3.0 * 2**0.5 * BOUND, rel=1e-12)
    assert sigma >= 3.0 * 2**0.5 * BOUND
    u = np.column_stack([table["x"], np.full(60, 0.5), table["y"] - 0.5])
    np.testing.assert_allclose(said["square"]["w"], u.T @ u / 60, atol=1e-4)


def test_eigenvalues_are_at_least_the_ridge_however_much_noise_there_is():
    algorithm = ridge(strength=0.5)(PROBLEM, terms(1.0))
    rng = np.random.default_rng(0)
    moments = rng.normal(size=(FEATURES + 2, FEATURES + 2)).astype(np.float32) * 100
    said = algorithm.rounds["moments"].server.tell((), {"square": {"w": moments}})
    even = (moments + moments.T) / 2
    mean, cross = even[:FEATURES, FEATURES] * 2, even[:FEATURES, FEATURES + 1]
    cross = cross - even[FEATURES, FEATURES + 1] * 2 * mean
    assert np.linalg.norm(said["linear"]["w"]) <= np.linalg.norm(cross) / 0.5 * 1.001


def test_it_is_fitted_as_any_other_and_takes_one_round():
    tables = [records(seed, 400) for seed in range(3)]
    result = tacit.fit(
        PROBLEM, tables, tacit.ridge(strength=0.1), budget=tacit.Budget(epsilon=8.0, delta=1e-5), clip_norm=1.0
    )
    [event] = result.silos[0].events
    assert (event.kind, event.count) == ("moments", 1)
    errors = [
        np.mean((t["x"] @ result.params["linear"]["w"][:, 0] + result.params["linear"]["b"] - t["y"]) ** 2)
        for t in tables
    ]
    assert np.mean(errors) < np.var(np.concatenate([t["y"] for t in tables]))


def test_other_losses_and_channels_are_refused():
    classes = Problem(Objective(linear(FEATURES, 1), logistic()))
    with pytest.raises(ValueError, match='"squared" for ridge'):
        ridge(strength=0.1)(classes, terms())
    with pytest.raises(ValueError, match="too noisy"):
        ridge(strength=0.1)(PROBLEM, terms(channel="shuffled-reports"))
    with pytest.raises(ValueError, match="strength=0"):
        ridge(strength=0)(PROBLEM, terms())


@pytest.mark.parametrize("clip", [0.5, 1e-6, 1e5])
def test_a_daemon_says_moments_that_one_record_moves_by_no_more_than_their_price(tmp_path, monkeypatch, clip):
    """A test build without noise, asked over the protocol with clips of a server's choice; the noise is as priced."""
    monkeypatch.setenv(NOISE_OFF, "1")
    rng, said = np.random.default_rng(0), []
    x = rng.normal(size=(20, 5)).astype(np.float32)
    rows = [(1e10, 0.0), (-1e10, 1.0), (0.0, 0.5), (np.inf, 0.0)]
    algorithm = {"name": "ridge", "strength": 0.1, "num_rounds": 1, "clip_norm": clip, "step_size": None}
    plan = plan_of(algorithm, {"loss": "squared"}, task="regression", classes=None)
    for place, (first, target) in enumerate(rows):
        table = {"x": x.copy(), "y": np.linspace(0, 1, 20, dtype=np.float32)}
        table["x"][0], table["y"][0] = min(first, 3e38), target
        data, allow = {"task": "regression", "classes": None}, {"algorithms": ["ridge"]}
        home, policy = make_home(tmp_path / f"s{place}", table, test=True, data=data, allow=allow)
        with contextlib.closing(SiloService(policy, table, home, noise_off=True)) as service:
            client = LocalClient(service)
            consent, _ = client.ask(Propose(plan=plan))
            specs, payload = broadcast_of(plan)
            answer, body = client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)
        [moments] = read_arrays(answer.arrays, body)
        said.append(np.asarray(moments, np.float64))
    most = 2**0.5 * 1.5 * clip**2 / 20
    apart = [np.linalg.norm(one - other) for one, other in itertools.combinations(said, 2)]
    assert max(apart) <= most * (1 + 1e-5), "but for 32 bits of what is said"
    assert max(apart) > 0.4 * most
    assert consent.noise_multipliers["moments"] == pytest.approx(1 / gdp_mu(1.0, 1e-6), rel=1e-3)
