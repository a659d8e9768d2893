"""The sensitivity audit: search for the swap of one record that moves a silo's statistic most.

Two neighbouring silos each add up a batch at the door, with the noise and coins of a test build; everything else runs
as it ships. The distance of their sums is measured against the distance that the noise is made for: 2 BOUND, or twice
the reach of the grid of a shuffled sum. A ratio above one means that the price is too low. Three searches choose what
a hostile server and record may choose (the broadcast, both versions of the record, all other records):

    gradient ascent      climbs, from many starts, in the simulator, whose statistic has gradients
    whole float range    draws magnitudes from all of float32, where rounding, underflow and overflow live
    hostile points       points that are equal, or nearly so, at any scale, and points that are no numbers: where
                         differences of gradients cancel, their norms are smallest beside what is rounded

Releases that protect the sensitive attribute alone have no door; theirs are measured in the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Broadcast, Silo, Work
from tacit.audit.worst_case import hostile_broadcasts, message_shapes
from tacit.channel.shuffled_sum import BlockTerms, in_order, share_terms
from tacit.objectives import Objective
from tacit.privacy.binomial import rounding_bound
from tacit.privacy.plan import events_of
from tacit.privacy.strategy import FRESH
from tacit.silo import parted_statistic, view_of
from tacit.silo.batches import SecretBatch
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND, usable_clip
from tacit.silo.release import Task, in_blocks
from tacit.silo.shares import BinomialShare, no_coins

Table = dict[str, np.ndarray]
Blocks = dict[str, np.ndarray]

_ROWS = 3
_ASCENT = np.linspace(-1.0, 4.0, 16)
_RANGE = np.linspace(-37.0, 37.0, 75)
# Around 1e8 version 0.1 let the rounding of equal points through unclipped.
_SCALES = np.concatenate([np.full(31, 8.0), np.linspace(-30.0, 30.0, 31)])
_MOST_FLOAT = 3e38


@dataclass(frozen=True)
class SensitivityResult:
    """The largest share of its priced sensitivity that a kind of round was brought to, and where it was measured."""

    kind: str
    largest: float
    tries: int
    path: str

    @property
    def violated(self) -> bool:
        """Whether the price is too low."""
        return self.largest > 1.0


def audit_sensitivity(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, starts: int = 64, steps: int = 40
) -> list[SensitivityResult]:
    """Climb for each kind of round of an algorithm that was built for ``objective`` with full batches."""
    results = []
    for part in _parts(algorithm, objective, features):
        draws = [_drawn(np.random.default_rng((seed, i)), part.broadcast, features, _ASCENT) for i in range(starts)]
        free = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
        climb = jax.jit(jax.vmap(lambda one, part=part: _climb(part.simulated, one, steps)))
        best, values = jax.tree.map(np.asarray, climb(free))
        largest, path = float(np.max(values)), "simulated"
        if part.door is not None:
            tops = [jax.tree.map(lambda leaf, i=i: leaf[i], best) for i in range(starts)]
            largest, path = max(_moved(part.door, top) for top in tops), "door"
        results.append(SensitivityResult(part.kind, largest, starts * steps, path))
    return results


def audit_extremes(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, tries: int = 1 << 11
) -> list[SensitivityResult]:
    """Try magnitudes from the whole range of float32, each part of the input with its own."""
    choose = partial(_drawn, features=features, exponents=_RANGE)
    return _searched(algorithm, objective, features, seed, tries, choose)


def audit_hostile_points(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, tries: int = 1 << 11
) -> list[SensitivityResult]:
    """Try points that are equal, nearly equal, of any scale or not finite."""
    return _searched(algorithm, objective, features, seed, tries, partial(_hostile, features=features))


def _searched(
    algorithm: Algorithm, objective: Objective, features: int, seed: int, tries: int, choose: Callable[..., Any]
) -> list[SensitivityResult]:
    results = []
    for part in _parts(algorithm, objective, features):
        draw = np.random.default_rng(seed)
        chosen = (choose(draw, part.broadcast) for _ in range(tries))
        if part.door is not None:
            values, path = [_moved(part.door, free) for free in chosen], "door"
        else:
            ratio, path = jax.jit(part.simulated), "simulated"
            values = [float(np.nan_to_num(ratio(free), nan=0.0, posinf=np.inf)) for free in chosen]
        results.append(SensitivityResult(part.kind, max(values), tries, path))
    return results


class _Part(NamedTuple):
    """One kind of round: a broadcast of its form, the simulator's ratio, and the door where a daemon has one."""

    kind: str
    broadcast: Broadcast
    simulated: Callable[[Any], Array]
    door: MeasuredSum | None


def _parts(algorithm: Algorithm, objective: Objective, features: int) -> Iterator[_Part]:
    params = objective.init(jax.random.key(0))
    blank = {"x": np.zeros((2, _ROWS, features), np.float32), "y": np.zeros((2, _ROWS), np.float32)}
    blank["s"] = np.zeros((2, _ROWS), np.int32)
    said = hostile_broadcasts(algorithm, params, message_shapes(algorithm, params, blank), turning=False)
    for event in events_of(algorithm, silo_index=0, silos=1, records=_ROWS):
        silo, z = algorithm.rounds[event.kind].silo, event.noise_multiplier
        last = max(i for i, name in enumerate(algorithm.schedule) if name == event.kind)
        memory, door = algorithm.memory(params), None
        if silo.release.protects == "record" and silo.release.channel in ("direct", "shuffled-sum"):
            table = {name: blank[name][0] for name in ("x", "y")}
            door = (MeasuredSum if silo.release.channel == "direct" else MeasuredShare)(silo, memory, z, table)
        yield _Part(event.kind, said[last], _ratio(silo, memory, z), door)


def _moved(door: MeasuredSum, free: Any) -> float:
    """What the door says to this choice; the sensitive attribute, of which no door knows, is left out."""

    def table(name: str) -> Table:
        columns = {field: np.array(column, np.float32) for field, column in free["others"].items()}
        for field, value in free[name].items():
            columns[field][0] = value
        return columns

    return door.moved(free["broadcast"], table("one"), table("zero"))


def _ratio(silo: Silo, memory: Any, multiplier: float) -> Callable[[Any], Array]:
    """As `MeasuredSum.moved`, of the simulator's statistic: it has gradients, and rounds."""
    attribute = silo.release.protects == "sensitive-attribute"

    def statistic(broadcast: Broadcast, records: Any) -> Any:
        desk = view_of(records, _ROWS, jnp.arange(_ROWS), 0)
        work = silo.start(broadcast, memory)
        return parted_statistic(silo, work, desk, key=jax.random.key(0), position=0)[1:]

    def ratio(free: Any) -> Array:
        others = jax.tree.map(jnp.asarray, free["others"])
        worlds = [
            jax.tree.map(lambda rows, own: rows.at[0].set(own), others, free["one" if attribute else name])
            for name in ("one", "zero")
        ]
        # The sensitive attribute is no number to climb: its first two values are tried.
        worlds = [{**w, "s": jnp.zeros(_ROWS, jnp.int32).at[0].set(s)} for s, w in enumerate(worlds)]
        (first, deviation), (second, _) = (statistic(free["broadcast"], world) for world in worlds)
        gaps = jax.tree.map(jnp.subtract, first, second)
        if not isinstance(deviation, dict):
            gaps, deviation = {"all": gaps}, {"all": deviation}
        return multiplier * jnp.sqrt(sum(_squared(gaps[name], deviation[name]) for name in gaps))

    return ratio


def _squared(gap: Any, deviation: Array) -> Array:
    """Squared distance in units of the deviation; nothing moved is no distance, even where there is no noise."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gap)]))
    # Scaled before squaring, so that the audit itself neither under- nor overflows.
    scale = jnp.where(largest > 0, largest, 1.0)
    total = sum((jnp.sum((leaf / scale) ** 2) for leaf in jax.tree.leaves(gap)), start=jnp.float32(0))
    return jnp.where(largest > 0, total * (scale / deviation) ** 2, 0.0)


def _drawn(draw: np.random.Generator, broadcast: Broadcast, features: int, exponents: np.ndarray) -> Any:
    """A random choice of everything: every part gets a magnitude of its own."""

    def numbers(shape: tuple[int, ...], exponent: float | None = None) -> np.ndarray:
        exponent = draw.choice(exponents) if exponent is None else exponent
        # Records that are not finite never pass the silo's door.
        return np.clip(10.0**exponent * draw.standard_normal(shape), -_MOST_FLOAT, _MOST_FLOAT).astype(np.float32)

    def record(*rows: int) -> dict[str, np.ndarray]:
        faint = draw.choice(exponents)
        # Often a target that makes up for the features: their product is what is clipped, their squares what rounds.
        loud = 1.0 - faint if draw.random() < 0.5 else draw.choice(exponents)
        return {"x": numbers((*rows, features), faint), "y": numbers(rows, loud)}

    def point(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        return numbers(leaf.shape) if leaf.dtype.kind == "f" else leaf

    one = record()
    # The same features with another target is the swap whose gradients are opposite.
    zero = {"x": one["x"] if draw.random() < 0.5 else numbers((features,)), "y": -one["y"]}
    return {"broadcast": jax.tree.map(point, broadcast), "others": record(_ROWS), "one": one, "zero": zero}


def _hostile(draw: np.random.Generator, broadcast: Broadcast, features: int) -> Any:
    """As `_drawn`, with points that are alike: arrays of one shape are one layer, half of them around 1e8."""
    free = _drawn(draw, broadcast, features, np.linspace(-3.0, 3.0, 13))
    scale, apart = 10.0 ** draw.choice(_SCALES), draw.choice([0.0, 0.0, 1e-7, 1e-5, 1e-2])
    spoiled = draw.choice([0.0, 0.0, 0.0, np.nan, np.inf])
    alike: dict[tuple[int, ...], np.ndarray] = {}

    def point(leaf: Any) -> Any:
        leaf = np.asarray(leaf)
        if leaf.dtype.kind != "f":
            return leaf
        first = alike.setdefault(leaf.shape, scale * draw.uniform(0.1, 1.0, leaf.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (first * (1.0 + apart * draw.standard_normal(leaf.shape))).astype(np.float32)
        if spoiled and moved.size and draw.random() < 0.5:
            moved.flat[draw.integers(moved.size)] = spoiled
        return moved

    return {**free, "broadcast": jax.tree.map(point, broadcast)}


def _climb(ratio: Callable[[Any], Array], free: Any, steps: int) -> tuple[Any, Array]:
    """The best choice on a path of normalised gradient steps, and its ratio."""
    moving = jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else None, free)

    def whole(moving: Any) -> Any:
        return jax.tree.map(lambda now, old: old if now is None else now, moving, free, is_leaf=lambda x: x is None)

    def step(carry: Any, index: Array) -> tuple[Any, None]:
        moving, best, most = carry
        value, slope = jax.value_and_grad(lambda m: ratio(whole(m)))(moving)
        value = jnp.nan_to_num(value)
        best = jax.tree.map(lambda new, old: jnp.where(value > most, new, old), moving, best)
        pace = 0.3 * 0.93**index

        def move(leaf: Array, g: Array) -> Array:
            g = jnp.where(jnp.isfinite(g), g, 0.0)
            size = jnp.sqrt(jnp.mean(leaf**2)) + 1e-3
            return leaf + pace * size * g / (jnp.sqrt(jnp.mean(g**2)) + 1e-20)

        return (jax.tree.map(move, moving, slope), best, jnp.maximum(value, most)), None

    (_, best, most), _ = jax.lax.scan(step, (moving, moving, jnp.float32(-1.0)), jnp.arange(steps))
    return whole(best), most


class MeasuredSum:
    """How far one record moves the sum of a direct release whose blocks are priced together at ``multiplier``."""

    form, batch = False, slice(None)

    def __init__(self, silo: Silo, memory: Any, multiplier: float, blank: Table) -> None:
        self._memory, self._joint = memory, multiplier
        self._door = Door(silo, blank, silo_index=0, form=self.form)
        self._start = jax.jit(silo.start)

    def moved(self, broadcast: Broadcast, one: Table, zero: Table) -> float:
        """The distance of two neighbouring silos' sums, over that which the noise is made for."""
        work = self._start(broadcast, self._memory)
        first, second = ({name: own[self.batch] for name, own in table.items()} for table in (one, zero))
        sums, others = self._said(work, first), self._said(work, second)
        total = 0.0
        for name, values in sums.items():
            # Python's integers: nothing is rounded before the root.
            gap = math.sqrt(sum((int(a) - int(b)) ** 2 for a, b in zip(values, others[name], strict=True)))
            multiplier = float(np.max(in_blocks(self._door.silo.release.noise_multiplier, name)))
            total += (gap / self.distance(name) * self._joint / multiplier) ** 2
        return math.sqrt(total)

    def distance(self, block: str) -> float:
        """What the noise of a block is made for."""
        return self._door.silo.release.sensitivity * BOUND

    def _said(self, work: Work, table: Table) -> Blocks:
        count = len(table["y"])
        self._door.records = table
        return self._door.release(work, SecretBatch(np.arange(count), np.ones(count, bool)), self.mechanism)

    def mechanism(self, task: Task) -> Blocks:
        """The sums of a discrete Gaussian release, block by block."""
        _, work, records, present, bound, _ = task
        engine = self._door.engine
        clips = {name: usable_clip(in_blocks(bound, name)) for name in engine.blocks(work, records)}
        nonnegative = self._door.silo.release.nonnegative
        mechanism = DiscreteGaussian(engine, 1.0, no_noise, FRESH, NO_PAST, nonnegative=nonnegative)
        sums = mechanism.sums(work, records, present, clips)
        flat = {name: [own.formed, *(layer.ravel() for layer in own.layers.values())] for name, own in sums.items()}
        return {name: np.concatenate(parts) for name, parts in flat.items()}


class MeasuredShare(MeasuredSum):
    """The share of a shuffled sum, of one record: coins of their own round those of others."""

    form, batch = True, slice(1)
    terms: BlockTerms | None = None

    def distance(self, block: str) -> float:
        """Twice the reach of the block's grid."""
        assert self.terms is not None
        [own] = [terms for name, terms in in_order(self.terms) if (name or "") == block]
        return 2.0 * rounding_bound(own.grid, own.dimension)

    def mechanism(self, task: Task) -> Blocks:
        """The integers of a share, block by block."""
        blocks = self._door.engine.blocks(task.work, task.records)
        if self.terms is None:
            self.terms = _terms(task.silo, {name: layout.shape for name, layout in blocks.items()})
        said = BinomialShare(self._door.engine, self.terms, no_coins, 1.0)(task)
        named = in_order(self.terms)
        cuts = np.cumsum([own.dimension for _, own in named])[:-1]
        return {name or "": part for (name, _), part in zip(named, np.split(said, cuts), strict=True)}


def _terms(silo: Silo, shapes: Mapping[str, Any]) -> BlockTerms:
    """The terms of a share in a crowd of two silos of one record each, of which the other colludes."""
    terms = {}
    for name, shape in shapes.items():
        width = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shape))
        z = float(np.max(in_blocks(silo.release.noise_multiplier, name)))
        terms[name] = share_terms(z, [1, 1], min_silos=2, honest=0.5, dimension=width)
    return terms if isinstance(silo.release.noise_multiplier, Mapping) else terms[""]
