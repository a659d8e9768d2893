"""The sensitivity audit: search for the swap of one record that moves a silo's statistic most.

Two neighbouring silos each add up a batch at the door, with the noise and coins of a test build; everything else runs
as it ships. The distance of their sums is measured against the distance that the noise is made for: 2 BOUND, or twice
the reach of the grid of a shuffled sum. A ratio above one means that the price is too low. A search chooses what a
hostile server and record may choose: the broadcast, both versions of the record, all other records.

`audit_hostile_points` tries points that are equal, or nearly so, at any scale, and points that are no numbers: where
differences of gradients cancel, their norms are smallest beside what is rounded. `experiments/audit/searches.py` has
other searches. How batches are drawn has nothing to do with it: every record is in the batch.

Releases that protect the sensitive attribute alone, or leave a trusted server, have no door; theirs are measured in the
simulator. Reports are private whatever they say, and are not measured.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Broadcast, PerBlock, Silo, Work
from tacit.channel.shuffled_sum import BlockTerms, in_order, share_terms
from tacit.objectives import Problem
from tacit.plans.assemble import shapes_of
from tacit.privacy.binomial import rounding_bound
from tacit.privacy.events import joint_multiplier
from tacit.privacy.strategy import FRESH
from tacit.silo import parted_statistic, view_of
from tacit.silo.batches import SecretBatch
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise, priced_multiplier
from tacit.silo.integers import BOUND, usable_clip
from tacit.silo.release import Task, in_blocks
from tacit.silo.shares import BinomialShare, no_coins

Table = dict[str, np.ndarray]
Blocks = dict[str, np.ndarray]

_ROWS = 3
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

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        own = {"kind": self.kind, "largest_share": self.largest, "tries": self.tries, "path": self.path}
        return {**own, "violated": self.violated}


@dataclass(frozen=True)
class Ground:
    """Where a search takes place: an algorithm with its noise, the problem it was built for, and the form of a record.

    ``classes`` is how many values a target has that is no number.
    """

    algorithm: Algorithm
    problem: Problem
    record: Mapping[str, Any]
    classes: int = 2
    silo_index: int = 0


class Part(NamedTuple):
    """One kind of round: the form of its broadcast, the simulator's ratio, and the door where a daemon has one."""

    kind: str
    broadcast: Broadcast
    simulated: Callable[[Any], Array]
    door: MeasuredSum | None


def audit_hostile_points(
    ground: Ground, *, seed: int, tries: int = 1 << 11, seconds: float = math.inf
) -> list[SensitivityResult]:
    """Try points that are equal, nearly equal, of any scale or not finite; ``seconds`` of computing at most."""
    return searched(ground, _hostile, seed=seed, tries=tries, seconds=seconds)


def searched(
    ground: Ground, choose: Callable[..., Any], *, seed: int, tries: int, seconds: float = math.inf
) -> list[SensitivityResult]:
    """The largest of so many choices for each kind of round; all kinds share the time."""
    results, parts = [], list(parts_of(ground))
    for part in parts:
        draw, ends = np.random.default_rng(seed), time.process_time() + seconds / len(parts)
        measure = jax.jit(part.simulated) if part.door is None else partial(moved, part.door)
        values: list[float] = []
        while len(values) < tries and (not values or time.process_time() < ends):
            value = float(measure(choose(draw, part.broadcast, ground)))
            values.append(float(np.nan_to_num(value, nan=0.0, posinf=np.inf)))
        path = "simulated" if part.door is None else "door"
        results.append(SensitivityResult(part.kind, max(values), len(values), path))
    return results


def parts_of(ground: Ground) -> Iterator[Part]:
    """Every kind of round whose statistic is clipped and summed."""
    algorithm, record = ground.algorithm, {**ground.record, "s": jax.ShapeDtypeStruct((), jnp.int32)}
    said = shapes_of(algorithm, ground.problem, record).broadcasts
    memory = algorithm.memory(ground.problem.objective.init(jax.random.key(0)))
    blank = {name: np.zeros((_ROWS, *own.shape), own.dtype) for name, own in ground.record.items()}
    for kind, part in algorithm.rounds.items():
        release = part.silo.release
        if part.silo.is_free or release.channel in ("open", "shuffled-reports"):
            continue
        whole: dict[str, Any] = {"batch_size": None, "capacity": None, "sampling": "full", "passes": 1, "part": None}
        whole |= {"mechanism": "gaussian", "rounds": None}
        silo = dataclasses.replace(part.silo, release=dataclasses.replace(release, **whole))
        at_a_door = release.protects == "record" and release.channel in ("direct", "pairwise", "shuffled-sum")
        measured = MeasuredShare if release.channel == "shuffled-sum" else MeasuredSum
        door = measured(silo, memory, blank, ground.silo_index) if at_a_door else None
        yield Part(kind, said[kind], _ratio(silo, memory, ground.silo_index), door)


def _multipliers(silo: Silo, silo_index: int) -> tuple[PerBlock, float]:
    """The noise multiplier of each block as it is priced, and of all blocks together."""
    own = priced_multiplier(silo.release, silo_index)
    return own, joint_multiplier([float(z) for z in jax.tree.leaves(own)])


def moved(door: MeasuredSum, free: Any) -> float:
    """What the door says to this choice; the sensitive attribute, of which no door knows, is left out."""

    def table(name: str) -> Table:
        columns = {field: np.array(column) for field, column in free["others"].items()}
        for field, value in free[name].items():
            columns[field][0] = value
        return columns

    return door.moved(free["broadcast"], table("one"), table("zero"))


def _ratio(silo: Silo, memory: Any, silo_index: int) -> Callable[[Any], Array]:
    """As `MeasuredSum.moved`, of the simulator's statistic: it has gradients, and rounds."""
    attribute = silo.release.protects == "sensitive-attribute"
    multiplier = _multipliers(silo, silo_index)[1]

    def statistic(broadcast: Broadcast, records: Any) -> Any:
        desk = view_of(records, _ROWS, jnp.arange(_ROWS), silo_index)
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


def drawn(draw: np.random.Generator, broadcast: Broadcast, ground: Ground, exponents: np.ndarray) -> Any:
    """A random choice of everything: every part gets a magnitude of its own."""
    features, target = ground.record["x"].shape, ground.record["y"]

    def numbers(shape: tuple[int, ...], exponent: float | None = None) -> np.ndarray:
        exponent = draw.choice(exponents) if exponent is None else exponent
        # Records that are not finite never pass the silo's door.
        return np.clip(10.0**exponent * draw.standard_normal(shape), -_MOST_FLOAT, _MOST_FLOAT).astype(np.float32)

    def targets(rows: tuple[int, ...], exponent: float) -> np.ndarray:
        if jnp.issubdtype(target.dtype, jnp.floating):
            return numbers(rows, exponent)
        return np.asarray(draw.integers(ground.classes, size=rows), target.dtype)

    def record(*rows: int) -> dict[str, np.ndarray]:
        faint = draw.choice(exponents)
        # Often a target that makes up for the features: their product is what is clipped, their squares what rounds.
        loud = 1.0 - faint if draw.random() < 0.5 else draw.choice(exponents)
        return {"x": numbers((*rows, *features), faint), "y": targets(rows, loud)}

    def point(leaf: Any) -> Any:
        return numbers(leaf.shape) if leaf.dtype.kind == "f" else np.zeros(leaf.shape, leaf.dtype)

    one = record()
    # The same features with another target is the swap whose gradients are opposite.
    zero = {"x": one["x"] if draw.random() < 0.5 else numbers(features), "y": -one["y"]}
    if target.dtype.kind != "f":
        zero["y"] = np.asarray((one["y"] + 1) % ground.classes, target.dtype)
    return {"broadcast": jax.tree.map(point, broadcast), "others": record(_ROWS), "one": one, "zero": zero}


def _hostile(draw: np.random.Generator, broadcast: Broadcast, ground: Ground) -> Any:
    """As `drawn`, with points that are alike: arrays of one shape are one layer, half of them around 1e8."""
    free = drawn(draw, broadcast, ground, np.linspace(-3.0, 3.0, 13))
    scale, apart = 10.0 ** draw.choice(_SCALES), draw.choice([0.0, 0.0, 1e-7, 1e-5, 1e-2])
    spoiled = draw.choice([0.0, 0.0, 0.0, np.nan, np.inf])
    alike: dict[tuple[int, ...], np.ndarray] = {}

    def point(leaf: Any) -> Any:
        if leaf.dtype.kind != "f":
            return np.zeros(leaf.shape, leaf.dtype)
        first = alike.setdefault(leaf.shape, scale * draw.uniform(0.1, 1.0, leaf.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            moved = (first * (1.0 + apart * draw.standard_normal(leaf.shape))).astype(np.float32)
        if spoiled and moved.size and draw.random() < 0.5:
            moved.flat[draw.integers(moved.size)] = spoiled
        return moved

    return {**free, "broadcast": jax.tree.map(point, broadcast)}


class MeasuredSum:
    """How far one record moves a sum of checked integers, whose blocks are priced together."""

    form, batch = False, slice(None)

    def __init__(self, silo: Silo, memory: Any, blank: Table, silo_index: int) -> None:
        self._memory, (self._own, self._joint) = memory, _multipliers(silo, silo_index)
        self._door = Door(silo, blank, silo_index=silo_index, form=self.form)
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
            multiplier = float(in_blocks(self._own, name))
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
            self.terms = _terms(self._own, {name: layout.shape for name, layout in blocks.items()})
        said = BinomialShare(self._door.engine, self.terms, no_coins, 1.0)(task)
        named = in_order(self.terms)
        cuts = np.cumsum([own.dimension for _, own in named])[:-1]
        return {name or "": part for (name, _), part in zip(named, np.split(said, cuts), strict=True)}


def _terms(multipliers: PerBlock, shapes: Mapping[str, Any]) -> BlockTerms:
    """The terms of a share in a crowd of two silos of one record each, of which the other colludes."""
    terms = {}
    for name, shape in shapes.items():
        width = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shape))
        terms[name] = share_terms(float(in_blocks(multipliers, name)), [1, 1], min_silos=2, honest=0.5, dimension=width)
    return terms if isinstance(multipliers, Mapping) else terms[""]
