"""A whole training run, or a grid of them, as one compiled program.

``vmap`` over silos, ``scan`` over rounds, ``switch`` over kinds of round, ``vmap`` over a grid of step sizes, clips and
noise multipliers, and a loop over seeds. Silos of unequal size are padded and masked.

Noise is drawn in one of two ways, and the mean has the same distribution. ``"each"`` draws every silo's noise, as silos
do. ``"summed"`` draws the noise of the mean at once where a silo's message is its release: independent Gaussians add up
to a Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.algorithm import Algorithm, Memory, Params, State
from tacit.silo import Silos, StoredSilos
from tacit.simulate.participation import Participation, Roster, participation
from tacit.simulate.program import Carry, Keys, Measure, Noise, Turn, advance, split_keys, start, turns_of

Progress = Callable[[int, int], None]


class Outcome(NamedTuple):
    """What a run leaves: the model, the server's state, and measurements, one for each entry of ``rounds``.

    ``personal`` has the silos' own models, with an axis of silos before those of the model, where an algorithm makes
    them.
    """

    params: Params
    state: State
    trace: dict[str, np.ndarray]
    rounds: np.ndarray
    personal: Params | None = None


class Seed(NamedTuple):
    """What one repetition brings: a key, initial parameters, silos, and data to measure on."""

    key: Array
    params: Params
    silos: Silos
    evaluation: Any = ()


class Stage(NamedTuple):
    """A run after ``done`` rounds, and its measurements: axes seeds, points, rounds; NaN where not measured."""

    done: int
    carry: Carry
    trace: dict[str, np.ndarray]


class Keeper(Protocol):
    """Keeps stages of a run, and may bring back the one at which an earlier run stopped."""

    def last(self, fresh: Stage) -> Stage | None:
        """The stage to go on from, in the form of ``fresh``; ``None`` to begin at the beginning."""

    def keep(self, stage: Stage, total: int) -> None:
        """Take note of a stage."""


class Program(NamedTuple):
    """The compiled parts of a grid: its start, some rounds, and the output."""

    begin: Callable[..., Carry]
    proceed: Callable[..., Any]
    finish: Callable[..., Params]


def simulate(
    algorithm: Algorithm,
    params: Params,
    silos: Silos | StoredSilos,
    *,
    key: Array,
    who: Participation | None = None,
    measure: Callable[[Params], dict[str, Array]] | None = None,
    measure_every: int = 1,
    noise: Noise = "summed",
    progress: Progress | None = None,
) -> Outcome:
    """Run an algorithm once on simulated silos; of stored records, only batches are read.

    Deterministic for a key. The trace has a row for each measured round (every ``measure_every``-th and the last).
    """
    who = participation(silos.number) if who is None else who
    if isinstance(silos, StoredSilos):
        keys = split_keys(key)
        turns = turns_of(algorithm, 0 if measure is None else measure_every, who, silos.number, keys)
        outcome = _simulate_stored(algorithm, params, silos, keys, turns, who=who, noise=noise, measure=measure)
        if progress is not None:
            progress(len(algorithm.schedule), len(algorithm.schedule))
        return outcome
    outcome = simulate_grid(
        lambda: algorithm,
        {},
        [Seed(key, params, silos)],
        who=who,
        measure=None if measure is None else lambda params, _: measure(params),
        measure_every=measure_every,
        noise=noise,
        progress=progress,
    )
    params, state, own = jax.tree.map(lambda leaf: leaf[0, 0], (outcome.params, outcome.state, outcome.personal))
    return Outcome(params, state, {name: values[0, 0] for name, values in outcome.trace.items()}, outcome.rounds, own)


def _simulate_stored(
    algorithm: Algorithm, params: Params, silos: StoredSilos, keys: Keys, turns: Turn, **how: Any
) -> Outcome:
    """The same run, number for number, over records that stay on disk."""

    @jax.jit
    def run(params: Params) -> tuple[Params, Carry, dict[str, Array]]:
        first = start(algorithm, params, silos, who=how["who"], noise=how["noise"])
        carry, trace = advance(algorithm, silos, keys, first, turns, **how)
        return algorithm.output(carry.state), carry, trace

    output, carry, trace = jax.block_until_ready(run(params))
    rounds = np.flatnonzero(turns.measured)
    measured = {name: np.asarray(values)[rounds] for name, values in trace.items()}
    return Outcome(output, carry.state, measured, rounds + 1, _personal(algorithm, carry.memory, axes=1))


def simulate_grid(
    build: Callable[..., Algorithm],
    grid: Mapping[str, Any],
    seeds: Sequence[Seed],
    *,
    who: Participation | None = None,
    measure: Measure | None = None,
    measure_every: int = 1,
    noise: Noise = "summed",
    progress: Progress | None = None,
    keeper: Keeper | None = None,
    program: Program | None = None,
) -> Outcome:
    """Run ``build(**point)`` for every point of a grid and every seed, in one compiled program.

    ``grid`` maps parameter names to arrays with one row per point; parameters in it must leave shapes and schedule
    alone. Every leaf of the outcome has leading axes (seeds, points). All points share a seed's randomness, so that
    differences between them are paired. With a keeper a run can be stopped and go on later to the same end. ``program``
    is what `grid_program` made for the same algorithm and as many points: grids that share it compile it once.
    """
    points = {name: jnp.asarray(values) for name, values in grid.items()}
    sizes = {name: len(values) for name, values in points.items()}
    if len(set(sizes.values())) > 1 or 0 in sizes.values():
        raise ValueError(f"Expected the same positive number of rows in every parameter of the grid, got {sizes}.")
    who = participation(seeds[0].silos.number) if who is None else who
    layout = build(**{name: values[0] for name, values in points.items()})
    every = 0 if measure is None else measure_every
    turns = [turns_of(layout, every, who, seed.silos.number, split_keys(seed.key)) for seed in seeds]
    begin, proceed, finish = program or grid_program(build, next(iter(sizes.values()), 1), who, measure, noise)
    stacked = stack_seeds(seeds)
    stage = Stage(0, begin(points, stacked), {})
    if keeper is not None:
        stage = keeper.last(stage) or stage
    total = len(layout.schedule)
    step = max(total, 1) if progress is None and keeper is None else _stride(total)
    for first in range(stage.done, total, step):
        rows = jax.tree.map(lambda *columns, i=first: np.stack([c[i : i + step] for c in columns]), *turns)
        carry, measured = proceed(points, stacked, stage.carry, rows)
        stage = Stage(min(first + step, total), jax.block_until_ready(carry), _joined(stage.trace, measured))
        if progress is not None:
            progress(stage.done, total)
        if keeper is not None:
            keeper.keep(stage, total)
    rounds = np.flatnonzero(turns[0].measured)
    kept = {name: values[:, :, rounds] for name, values in stage.trace.items()}
    own = _personal(layout, stage.carry.memory, axes=3)
    return Outcome(finish(points, stage.carry), stage.carry.state, kept, rounds + 1, own)


def _personal(algorithm: Algorithm, memory: Memory, axes: int) -> Params | None:
    """The silos' own models, from memories with this many axes before those of one silo."""
    if algorithm.personal is None:
        return None
    own = algorithm.personal
    for _ in range(axes):
        own = jax.vmap(own)
    return own(memory)


def _joined(trace: Mapping[str, np.ndarray], measured: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """The measurements so far and those of the latest rounds."""
    fresh = {name: np.asarray(values) for name, values in measured.items()}
    return {name: np.concatenate([trace[name], new], axis=2) if trace else new for name, new in fresh.items()}


def grid_program(
    build: Callable[..., Algorithm],
    count: int,
    who: Participation,
    measure: Measure | None,
    noise: Noise = "summed",
) -> Program:
    """The program of grids of ``count`` points: a loop over seeds around a vmap over points."""

    @jax.jit
    def begin(points: Mapping[str, Any], seeds: Seed) -> Carry:
        def one(seed: Seed) -> Carry:
            def begun(point: Mapping[str, Any]) -> Carry:
                return start(build(**point), seed.params, seed.silos, who=who, noise=noise)

            return jax.vmap(begun, axis_size=count)(points)

        return jax.lax.map(one, seeds)

    @jax.jit
    def proceed(points: Mapping[str, Any], seeds: Seed, carry: Carry, turns: Turn) -> Any:
        # What is the same for all seeds must not become data of the loop over seeds.
        shared = jax.tree.map(lambda leaf: leaf[0], turns)

        def one(own: tuple[Seed, Carry, Roster]) -> Any:
            seed, carry, roster = own
            turns = shared._replace(roster=roster)
            keys = split_keys(seed.key)
            watch = None if measure is None else lambda params: measure(params, seed.evaluation)

            def run(point: Mapping[str, Any], carry: Carry) -> Any:
                return advance(build(**point), seed.silos, keys, carry, turns, who=who, noise=noise, measure=watch)

            return jax.vmap(run, axis_size=count)(points, carry)

        return jax.lax.map(one, (seeds, carry, turns.roster))

    @jax.jit
    def finish(points: Mapping[str, Any], carry: Carry) -> Params:
        def one(carry: Carry) -> Params:
            return jax.vmap(lambda p, c: build(**p).output(c.state), axis_size=count)(points, carry)

        return jax.lax.map(one, carry)

    return Program(begin, proceed, finish)


def stack_seeds(seeds: Sequence[Seed]) -> Seed:
    """Seeds as one pytree with a leading axis, every silo padded to the longest of all seeds."""
    longest = max(jax.tree.leaves(seed.silos.records)[0].shape[1] for seed in seeds)

    def pad(leaf: Array) -> Array:
        return jnp.pad(leaf, [(0, 0), (0, longest - leaf.shape[1])] + [(0, 0)] * (leaf.ndim - 2))

    padded = [seed._replace(silos=seed.silos._replace(records=jax.tree.map(pad, seed.silos.records))) for seed in seeds]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *padded)


def _stride(total: int) -> int:
    """How many rounds to play at once: a divisor of all, so that one program serves, and at most a tenth, or one."""
    return max((k for k in range(1, total // 10 + 1) if total % k == 0), default=1)
