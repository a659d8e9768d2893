"""SteFFLe: fair for every notion without noise, bounds that are not active, three designs, a histogram paid for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Algorithm
from tacit.fairness import chi_squared
from tacit.objectives import Objective, Problem, ermi, linear, logistic, mlp, softmax
from tacit.plans.catalogue import find
from tacit.privacy import events_of, price
from tacit.privacy.fair_designs import fair_designs
from tacit.silo import enrol, exact_statistic, view_of
from tacit.simulate.compiled import Seed, simulate, simulate_grid
from tacit.theory import fermi_stationarity

COMMON = {
    "num_rounds": 300,
    "clip_norm": 1e4,
    "noise_multiplier": 0.0,
    "batch_size": None,
    "sampling": "full",
    "protects": "sensitive-attribute",
}


def made(classes=2, groups=2, n=240, seed=0):
    rng = np.random.default_rng(seed)
    s = rng.integers(0, groups, n)
    y = np.clip(np.rint(s * (classes - 1) / (groups - 1) + rng.normal(size=n) * 0.7), 0, classes - 1).astype(int)
    x = rng.normal(size=(n, 3)) * 0.5 + np.stack([s, y, s * y], axis=1)
    return {"x": np.float32(x), "y": np.int32(y), "s": np.int32(s)}


def problem(classes, network=False):
    if network:
        return Problem(Objective(mlp((3, 6, classes)), softmax()))
    return Problem(Objective(linear(3, 1 if classes == 2 else classes), logistic() if classes == 2 else softmax()))


def shares(table, notion, classes, groups):
    s, y = table["s"], table["y"]
    rows = {"demographic-parity": [np.ones(len(y), bool)], "equal-opportunity": [y == 1]}.get(
        notion, [y == c for c in range(classes)]
    )
    return [np.bincount(s[row], minlength=groups) / row.sum() for row in rows]


CASES = {
    "parity, three classes, three groups": ("demographic-parity", 3, 3, False),
    "odds, network, three groups": ("equalized-odds", 2, 3, True),
    "opportunity": ("equal-opportunity", 2, 2, False),
}


@pytest.mark.parametrize("name", CASES)
def test_without_noise_the_divergence_falls_and_the_gradient_of_phi_vanishes(name):
    notion, classes, groups, network = CASES[name]
    table, own = made(classes, groups), problem(classes, network)
    p = shares(table, notion, classes, groups)
    silos = enrol([{k: v[i::3] for k, v in table.items()} for i in range(3)])
    start = own.objective.init(jax.random.key(0))
    records = {k: jnp.asarray(v) for k, v in table.items()}
    term = ermi(own.objective.model, classes, p, notion=notion)

    def build(strength):
        terms = {"frequencies": p, "notion": notion, "classes": classes, "radius": 20.0, **COMMON, "num_rounds": 600}
        return find("steffle").build(own, step_size=0.03, strength=strength, **terms)

    @jax.jit
    def measured(w):
        spread = term.values(w, term.best(w, records), records).mean()
        return spread, fermi_stationarity(own.objective, term, w, records, 8.0)

    seeds = [Seed(jax.random.key(0), start, silos)]
    found = simulate_grid(build, {"strength": np.float32([0.0, 8.0])}, seeds).params
    unfair, fair = (jax.tree.map(lambda leaf, i=i: leaf[0, i], found) for i in range(2))
    (_, first), (wide, _), (narrow, last) = (map(float, measured(w)) for w in (start, unfair, fair))
    assert narrow < 0.25 * wide
    assert last < max(0.05, 0.5 * first)
    if notion == "demographic-parity":
        chances = term.probabilities(fair, records["x"])
        assert float(chi_squared(chances, records["s"], group_count=groups)) == pytest.approx(narrow, abs=1e-3)


@pytest.mark.parametrize(("notion", "groups"), [("demographic-parity", 2), ("equalized-odds", 3)])
def test_bounds_that_follow_the_duals_are_never_active_and_nearly_attained(notion, groups):
    """With features of norm at most R the bound on what s can move is known; clipping to it changes nothing."""
    table = made(2, groups)
    norm = 2.0
    table["x"] = np.float32(norm * table["x"] / np.linalg.norm(table["x"], axis=1, keepdims=True))
    lipschitz = (norm**2 + 1) ** 0.5
    own = Problem(Objective(linear(3, 1), logistic()), lipschitz=lipschitz, smoothness=lipschitz**2 / 4)
    p = shares(table, notion, 2, groups)
    algorithm = find("steffle").build(own, step_size=0.1, strength=1.3, frequencies=p, notion=notion, **COMMON)
    step = algorithm.rounds["step"]
    rng = np.random.default_rng(1)
    records = {k: jnp.asarray(v) for k, v in table.items()}
    flipped = {**records, "s": (records["s"] + 1) % groups}
    largest = {"params": 0.0, "duals": 0.0}
    for scale in (0.0, 0.3, 2.0):
        params = {"linear": {"w": jnp.float32(scale * rng.normal(size=(3, 1))), "b": jnp.zeros(1)}}
        state = algorithm.init(params)
        work = step.server.ask(state._replace(duals=jnp.float32(rng.normal(size=state.duals.shape))))
        bound = step.silo.release.clip(work)
        each = jax.jit(jax.vmap(lambda r, work=work: step.silo.query(work, r)))
        gaps = jax.tree.map(jnp.subtract, each(records), each(flipped))
        for block in largest:
            sizes = sum(jnp.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in jax.tree.leaves(gaps[block]))
            moved = float(jnp.sqrt(sizes).max()) / (2 * float(bound[block]))
            assert moved <= 1 + 1e-5
            largest[block] = max(largest[block], moved)
    assert min(largest.values()) > 0.5


def test_duals_stay_in_their_ball_and_start_where_predictions_are_independent():
    table = made()
    p = shares(table, "demographic-parity", 2, 2)[0]
    own = problem(2)
    common = {**COMMON, "num_rounds": 30}
    algorithm = find("steffle").build(
        own, step_size=0.3, strength=1.0, frequencies=p, radius=0.1, dual_step_size=5.0, **common
    )
    start = own.objective.init(jax.random.key(0))
    state = algorithm.init(start)
    records = {k: jnp.asarray(v) for k, v in table.items()}
    best = ermi(own.objective.model, 2, p).best(start, records)
    np.testing.assert_allclose(state.duals, best, atol=1e-5)
    end = simulate(algorithm, start, enrol([table]), key=jax.random.key(0)).state
    assert float(jnp.linalg.norm(end.duals - state.duals)) <= 0.1 * (1 + 1e-5)
    printed = find("steffle").build(
        own, step_size=0.3, strength=1.0, frequencies=p, around_independence=False, **common
    )
    assert not np.any(printed.init(start).duals)


def test_designs_are_priced_as_they_are():
    own = problem(2)

    def events(**changes):
        terms = {**COMMON, "num_rounds": 20, "noise_multiplier": 5.0, "strength": 1.0, "frequencies": (0.5, 0.5)}
        return events_of(
            find("steffle").build(own, step_size=0.1, **{**terms, **changes}), silo_index=0, silos=1, records=100
        )

    [full] = events()
    assert (full.sampling, full.protects, full.count) == ("full", "sensitive-attribute", 20)
    [epochs] = events(sampling="one-pass", batch_size=20, passes=4)
    assert price([epochs], delta=1e-5).mu == pytest.approx(4**0.5 / 5.0)
    [secret] = events(sampling="poisson", batch_size=20)
    assert (secret.protects, secret.kind) == ("record", "step")
    assert secret.noise_multiplier == pytest.approx(5.0)
    [record] = events(protects="record")
    assert record.protects == "record"
    with pytest.raises(ValueError, match="passes=3"):
        events(sampling="one-pass", batch_size=20, passes=3)


@pytest.mark.parametrize(("records", "rounds", "batch"), [(1234, 50, 88), (7500, 200, 256)])
def test_the_full_batch_needs_the_least_noise(records, rounds, batch):
    found = fair_designs(records=records, rounds=rounds, batch=batch, epsilon=1.0, delta=1 / records**2)
    assert found[0].name == "full batch"
    assert [d.sigma_over_clip for d in found[:3]] == sorted(d.sigma_over_clip for d in found[:3])
    assert found[-1].epsilon > 4


def test_a_secret_batch_gets_its_loss_from_records_without_the_attribute():
    algorithm = find("steffle").build(
        problem(2),
        step_size=0.1,
        num_rounds=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=20,
        sampling="poisson",
        protects="sensitive-attribute",
        strength=1.0,
        frequencies=(0.5, 0.5),
    )
    assert algorithm.schedule == ("loss", "step") * 2
    loss = algorithm.rounds["loss"]
    assert loss.silo.is_free
    table = {k: jnp.asarray(v) for k, v in made().items()}
    work = loss.server.ask(algorithm.init(problem(2).objective.init(jax.random.key(0))))
    worlds = [{**table, "s": table["s"] * k} for k in (0, 1)]
    said = [
        exact_statistic(loss.silo, work, view_of(w, 240, None, 0), key=jax.random.key(0), position=0)[0] for w in worlds
    ]
    for a, b in zip(*map(jax.tree.leaves, said), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("notion", "protects"), [("demographic-parity", "sensitive-attribute"), ("equalized-odds", "record")]
)
def test_the_histogram_is_close_and_paid_for(notion, protects):
    table = made(2, 3, n=3000)
    own = problem(2)

    def build(noise):
        return find("steffle").build(
            own,
            step_size=0.1,
            num_rounds=20,
            clip_norm=1.0,
            noise_multiplier=noise,
            batch_size=None,
            sampling="full",
            strength=1.0,
            groups=3,
            notion=notion,
            protects=protects,
        )

    algorithm = build(20.0)
    assert algorithm.schedule[0] == "histogram"
    events = events_of(algorithm, silo_index=0, silos=1, records=3000)
    together, steps = price(events, delta=1e-5), price([e for e in events if e.kind == "step"], delta=1e-5)
    assert 1 - (steps.mu / together.mu) ** 2 == pytest.approx(0.05, abs=1e-6)

    def first_round(noise_multiplier):
        made = build(noise_multiplier)
        return Algorithm(made.init, {"histogram": made.rounds["histogram"]}, ("histogram",), made.output)

    seeds = [Seed(jax.random.key(0), own.objective.init(jax.random.key(0)), enrol([table]))]
    grid = {"noise_multiplier": np.float32([0.0, 20.0])}
    both = simulate_grid(first_round, grid, seeds).state.frequencies
    exact, noisy = np.asarray(both)[0]
    np.testing.assert_allclose(exact, shares(table, notion, 2, 3), atol=1e-4)
    gap = np.abs(noisy - exact)
    assert 0 < gap.max() < 0.1
    assert noisy.min() > 0.015
    np.testing.assert_allclose(noisy.sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frequencies": None}, "groups"),
        ({"groups": 3}, "groups=3"),
        ({"frequencies": None, "groups": 2, "rarest": 0.6}, "rarest"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        find("steffle").build(
            problem(2), step_size=0.1, **COMMON, **{"strength": 1.0, "frequencies": (0.5, 0.5), **changes}
        )
