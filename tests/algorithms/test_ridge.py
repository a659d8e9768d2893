"""Ridge in one round: the closed form without noise, bounds by brute force, and refusals."""

import jax
import numpy as np
import pytest

import tacit
from tacit.algorithm import Terms
from tacit.algorithms.ridge import ridge
from tacit.objectives import Objective, Problem, linear, logistic, squared
from tacit.privacy.strategy import FRESH
from tacit.silo import enrol
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND
from tacit.simulate.compiled import simulate

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


def test_no_record_is_larger_than_its_blocks_clips_and_some_are_as_large():
    """Hostile records: huge features, targets out of range, not a number."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(60, FEATURES)) * rng.choice([1e-3, 1.0, 1e20], (60, 1))).astype(np.float32)
    y = rng.choice([-1e30, 0.0, 0.5, 1.0, 7.0, np.nan], 60).astype(np.float32)
    silo = ridge(strength=0.1)(PROBLEM, terms(clip=1.5)).rounds["moments"].silo
    door = Door(silo, {"x": x, "y": y}, silo_index=0, form=False)
    mechanism = DiscreteGaussian(door.engine, door.multiplier, no_noise, FRESH, NO_PAST, nonnegative=False)
    clips = {name: float(own) for name, own in silo.release.clip(()).items()}
    norms = {name: [] for name in clips}
    for place in range(60):
        sums = mechanism.sums((), door.records, np.arange(60) == place, clips)
        for name, own in sums.items():
            norms[name].append(sum(int(v) ** 2 for v in own.formed) / BOUND**2)
    for name, own in norms.items():
        assert max(own) <= 1.0, name
        assert max(own) >= 0.999, name


def test_eigenvalues_are_at_least_the_ridge_however_much_noise_there_is():
    algorithm = ridge(strength=0.5)(PROBLEM, terms(1.0))
    rng = np.random.default_rng(0)
    message = {"gram": rng.normal(size=10) * 100, "mean": rng.normal(size=FEATURES), "cross": rng.normal(size=5)}
    said = algorithm.rounds["moments"].server.tell((), jax.tree.map(np.float32, message))
    cross = message["cross"][:-1] - message["cross"][-1] * message["mean"]
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
