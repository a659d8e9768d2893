"""Every algorithm that a daemon runs: the door without noise says what the simulator says, message by message.

Both are given the same batches, in the same slots. They differ by rounding alone. The simulator clips in float32, to
2e-6 of the magnitudes that go into a norm. The door makes what it clips 2^-16 smaller and rounds factors to 2^-18 of
their size. So messages agree to about 2e-5 of the clip; three times that is allowed.

The compiled program is held to the same: what it ends with is what the loop ends with, whose messages the door has
confirmed one by one. `tests/algorithms/test_conformance.py` holds it to the plain loop in other settings, and presets
to the algorithms that they are.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Terms
from tacit.algorithms.ridge import ridge
from tacit.channel import weighted_mean
from tacit.channel.shuffled_sum import ShareTerms, mean_of_total
from tacit.objectives import Objective, Problem, linear, squared
from tacit.plans.catalogue import ALGORITHMS
from tacit.privacy.binomial import grid_for
from tacit.silo import SiloView, enrol, step_keys
from tacit.silo.batches import SecretBatch
from tacit.silo.door import NO_PAST, Door, no_noise
from tacit.silo.release import usable_clips
from tacit.silo.shares import BinomialShare, no_coins
from tacit.silo.simulated import batch_of
from tacit.simulate.compiled import simulate
from tacit.simulate.loop import _answerer, _bring, _desk, _first_noise, _personal
from tacit.simulate.participation import participation
from tacit.simulate.program import silo_key, split_keys, turns_of
from tests.algorithms.table import CASES, LOGISTIC, MLP, largest_difference, start, tables
from tests.algorithms.test_conformance import DISTINCT, SAMPLINGS

NEAR = 6e-5
KEY = jax.random.key(1)
SIZE = 20
SETTINGS = {
    "mb-sgd": ("wr", MLP),
    "local-sgd": ("poisson", LOGISTIC),
    "accelerated-mb-sgd": ("allocation", LOGISTIC),
    "prox-svrg": ("poisson", LOGISTIC),
    "mu2-sgd": ("one-pass", LOGISTIC),
    "ce-psgm": ("wor", LOGISTIC),
}
"""Where an algorithm runs otherwise than in the first sampling of its row, with a logistic model."""


def batches_of(silo):
    """Draws what the simulator draws for a round, as the door takes it; compiled once."""

    @jax.jit
    def drawn(order, keys, positions):
        desk = SiloView(None, SIZE, SIZE, order, 0)
        return [batch_of(silo.release, desk, *own)[1] for own in zip(keys, positions, strict=True)]

    def draw(desk, key, position):
        if silo.release.sampling == "full":
            return [SecretBatch(np.arange(SIZE), np.ones(SIZE, bool))] * silo.local_steps
        positions = position + silo.stride * np.arange(silo.local_steps)
        found = drawn(desk.order, list(step_keys(key, silo.local_steps)[:, 0]), list(positions))
        return [SecretBatch(np.asarray(batch.rows), np.asarray(batch.present)) for batch in found]

    return draw


def side_by_side(build, problem, data, each):
    """Play the plain loop without noise, and at each message ask the door as well: ``each`` compares.

    Returns the algorithm, and its output beside the silos' own models.
    """
    quiet, noisy = build(0.0), build(1.0)
    keys = split_keys(KEY)
    turns = turns_of(quiet, 1, participation(len(data)), len(data), keys)
    desks = [_desk(quiet, keys, table, silo_index) for silo_index, table in enumerate(data)]
    plain = {kind: _answerer(part, keys, None) for kind, part in quiet.rounds.items()}
    # One door for all silos, which are of one size: it is compiled once.
    doors = {kind: Door(part.silo, data[0], silo_index=0, form=False) for kind, part in noisy.rounds.items()}
    draws = {kind: batches_of(part.silo) for kind, part in quiet.rounds.items()}
    servers = {kind: (jax.jit(part.server.ask), jax.jit(part.server.tell)) for kind, part in quiet.rounds.items()}
    state, memories = quiet.init(start(problem)), [quiet.memory(start(problem)) for _ in data]
    noises = [_first_noise(quiet, state, desks[0]) for _ in data]
    for number, kind in enumerate(quiet.schedule):
        silo, position = quiet.rounds[kind].silo, int(turns.position[number])
        broadcast, messages = servers[kind][0](state), []
        silo_indices, weights, taken = (row[number] for row in turns.roster)
        for silo_index in silo_indices[taken]:
            own = broadcast, memories[silo_index]
            batches = draws[kind](desks[silo_index], silo_key(keys, silo_index, number), position)
            doors[kind].records = data[silo_index]
            found = doors[kind].answer(*own, batches=batches, sampler=no_noise, past=NO_PAST)
            asked = _bring(desks[silo_index]), *own, number, position, noises[silo_index][kind]
            message, memories[silo_index], noises[silo_index][kind] = plain[kind](*asked)
            each(silo.release.clip(silo.start(*own)), found, message, memories[silo_index])
            messages.append(message)
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *messages)
        state = servers[kind][1](state, weighted_mean(stacked, jnp.asarray(weights[taken])))
    return quiet, (quiet.output(state), _personal(quiet, memories))


def compare(said, clip, found, message, memory):
    """A local step moves a message by a step size of a release, so the clip is the scale of it all."""
    limit = max(float(jnp.max(jnp.asarray(own))) for own in jax.tree.leaves(clip))
    for ours, theirs in ((found.message, message), (found.memory, memory)):
        for one, other in zip(*map(jax.tree.leaves, (ours, theirs)), strict=True):
            np.testing.assert_allclose(one, other, atol=NEAR * limit)
    said.append(max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(found.message)))


RUN = [name for name in DISTINCT if not ALGORITHMS[name].reads_attribute]
# Noise that remembers has its own way through the door, if it is another algorithm's program otherwise.
TIED = [(name, SETTINGS.get(name, (CASES[name].samplings[0], LOGISTIC))) for name in (*RUN, "dp-ftrl")]
# Dense layers that are factored, for every algorithm that asks for gradients or their differences.
TIED += [(name, (sampling, MLP)) for name, (sampling, problem) in TIED if problem is LOGISTIC]


def test_settings_cover_every_sampling():
    assert {name for name, _ in TIED} == {*RUN, "dp-ftrl"}
    assert {name for name, (_, problem) in TIED if problem is MLP} == {name for name, _ in TIED}
    assert {SETTINGS.get(name, (CASES[name].samplings[0],))[0] for name in RUN} == set(SAMPLINGS)


@pytest.mark.parametrize(
    ("name", "sampling", "problem"),
    [pytest.param(name, *own, id=f"{name}-{'mlp' if own[1] is MLP else 'logistic'}") for name, own in TIED],
)
def test_the_door_says_what_the_simulator_says_and_compiles(name, sampling, problem):
    data = [{key: table[key] for key in "xy"} for table in tables(sizes=(SIZE, SIZE))]
    rounds = {"num_rounds": CASES[name].parameters.get("num_rounds", 4)}
    rounds |= {"batch_size": 5, "passes": 2, "num_rounds": 8} if name == "dp-ftrl" else {}
    terms = {"channel": "direct", **SAMPLINGS[sampling], **rounds}
    said = []
    build = partial(lambda noise: CASES[name].build(problem, noise_multiplier=noise, **terms))
    algorithm, output = side_by_side(build, problem, data, partial(compare, said))
    assert len(said) >= 2 * (len(algorithm.schedule) // 2)
    assert max(said) > 1e-2
    compiled = simulate(algorithm, start(problem), enrol(data), key=KEY, noise="each")
    assert largest_difference(output, (compiled.params, compiled.personal)) < 1e-5


def test_ridge_says_its_moments_alike_everywhere():
    """One round of second moments: door, plain loop and compiled program, and the closed form in float64."""
    problem = Problem(Objective(linear(5, 1), squared()))
    rng, data, said = np.random.default_rng(0), [], []
    for _ in range(2):
        x = rng.normal(size=(SIZE, 5)).astype(np.float32)
        x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
        data.append({"x": x, "y": rng.uniform(size=SIZE).astype(np.float32)})
    common = {"clip_norm": 1.0, "batch_size": None, "sampling": "full", "channel": "direct"}
    build = partial(lambda noise: ridge(strength=0.1)(problem, Terms(noise_multiplier=noise, **common)))
    algorithm, output = side_by_side(build, problem, data, partial(compare, said))
    compiled = simulate(algorithm, start(problem), enrol(data), key=KEY, noise="each")
    assert len(said) == 2
    assert largest_difference(output, (compiled.params, compiled.personal)) < 1e-5
    x, y = (np.concatenate([table[part] for table in data]).astype(float) for part in ("x", "y"))
    centred = x - x.mean(axis=0)
    w = np.linalg.solve(centred.T @ centred / len(x) + 0.1 * np.eye(5), centred.T @ y / len(x))
    np.testing.assert_allclose(np.asarray(output[0]["linear"]["w"])[:, 0], w, atol=1e-4)


SUMS = {
    "logistic": ("mb-sgd", "gradient", LOGISTIC),
    "mlp": ("mb-sgd", "gradient", MLP),
    "spider": ("prox-spider", "difference", MLP),
    "svrg": ("prox-svrg", "difference", LOGISTIC),
}
"""Rounds that go through a shuffled sum: an algorithm, one of its kinds of round, and a problem."""


@pytest.mark.parametrize(("name", "kind", "problem"), SUMS.values(), ids=SUMS)
def test_a_shuffled_sum_without_coins_is_the_exact_mean_to_the_grid(name, kind, problem):
    """Each record is rounded at random by less than a step of the grid; the mean of all of them errs far less."""
    data = [{key: table[key] for key in "xy"} for table in tables(sizes=(SIZE, SIZE))]
    terms = {"channel": "shuffled-sum", "noise_multiplier": 1.0, "num_rounds": 3}
    algorithm = CASES[name].build(problem, **terms)
    part = algorithm.rounds[kind]
    exact = CASES[name].build(problem, **{**terms, "channel": "direct", "noise_multiplier": 0.0})
    begun = part.server.ask(algorithm.init(start(problem)))
    # Whatever is broadcast: the two points of a difference are not alike.
    rng = np.random.default_rng(4)
    point = jax.tree.map(lambda leaf: leaf + jnp.float32(0.1 * rng.normal(size=leaf.shape)), begun)
    clip = usable_clips(part.silo.release, point)
    shape = start(problem)
    dimension = sum(leaf.size for leaf in jax.tree.leaves(shape))
    own = ShareTerms(grid_for(2 * SIZE, dimension), 0, dimension)
    door, total, keys = Door(part.silo, data[0], silo_index=0, form=True), 0, split_keys(KEY)
    mechanism = BinomialShare(door.engine, own, no_coins, 1.0)
    answer, means = _answerer(exact.rounds[kind], keys, None), []
    for silo_index, table in enumerate(data):
        door.records = table
        total = total + door.release(point, door.batch(0, None), mechanism)
        means.append(answer(_bring(_desk(exact, keys, table, silo_index)), point, (), 0, 0, -1)[0])
    found = mean_of_total(total, clip, shape, own, records=2 * SIZE, each=1 / (2 * SIZE))
    expected = jax.tree.map(lambda *leaves: sum(leaves) / 2, *means)
    step = 2 * float(clip) / own.grid
    # Variance at most a quarter of a step squared for each of the records.
    assert largest_difference(found, expected) < 6 * step / 2 / np.sqrt(2 * SIZE)
    assert largest_difference(found, expected) > 1e-3 * step
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 2 * step
