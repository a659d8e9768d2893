"""From a proposed plan to what this silo would release: built from its own Tacit, priced with its own records."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm
from tacit.algorithms import ALGORITHMS
from tacit.data import Federation
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.silo.reporting import REPORTS, check_reports, check_streams, streams_of
from tacit.deploy.silo.shuffling import (
    affordable,
    affordable_sum,
    bare_events,
    check_shuffle,
    coordinates,
    terms_of,
)
from tacit.deploy.wire import Plan, RefusalError
from tacit.errors import TacitError
from tacit.privacy import Event, Price
from tacit.privacy.discrete import effective_multiplier
from tacit.silo.door import noise_scale
from tacit.silo.engine import layouts, vectors_of
from tacit.silo.local_reports import ReportTerms
from tacit.silo.release import own_clip
from tacit.silo.sampler import sampler_delta
from tacit.silo.shares import BlockTerms
from tacit.studies.assemble import Builder, builder_of, problem_of
from tacit.studies.spec import study_from

# Schedules grow with the product of a plan's counts; beyond this none is worth building.
_MOST_WORK = 10**7
_MOST_LAYERS = 32
_NOT_COUNTS = {"batch_size", "capacity"}
_DISCRETE = ("cumulative", "discrete-gaussian")


@dataclass(frozen=True)
class Offer:
    """A plan as this silo would run it.

    ``grid_sigma`` is the priced noise of each kind in grid units; ``broadcasts`` are shapes; ``memory`` is what the
    silo remembers before the first round; ``positions`` say where in a pass over the records each round begins;
    ``shares`` are the terms of the kinds of round that go through shufflers as shares of a sum, ``streams`` of those
    that go as reports; ``weights`` say what this silo's records count in either, beside those that count most.
    ``samples`` is how many discrete Gaussians the study draws.
    """

    plan: Plan
    algorithm: Algorithm
    events: tuple[Event, ...]
    price: Price
    grid_sigma: Mapping[str, float]
    broadcasts: Mapping[str, Any]
    memory: Any
    positions: tuple[int, ...]
    shares: Mapping[str, BlockTerms] = field(default_factory=dict)
    streams: Mapping[str, Mapping[str, ReportTerms]] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0

    @property
    def rounds(self) -> int:
        """How many rounds the study has."""
        return len(self.algorithm.schedule)

    def may_answer(self, number: int) -> bool:
        """Whether a round is this silo's to answer: all are, but those that go round in turn."""
        part = self.algorithm.rounds[self.algorithm.schedule[number]]
        return part.participants != "in turn" or self.algorithm.turns[number] % self.plan.silos == self.plan.silo_index


def builder_from(plan: Plan, records: int) -> Builder:
    """The algorithm of a plan, at a silo with this many records, before noise is decided; server and silo share it."""
    tree = {
        "name": plan.name,
        "data": {"name": "silo"},
        "objective": _tuples(plan.objective),
        "algorithm": _tuples(plan.algorithm),
        "privacy": {"epsilon": plan.epsilon, "delta": plan.delta},
    }
    study = study_from(tree)
    facts = Federation(plan.name, (), plan.task, plan.classes, plan.features, None, (), "")
    # Every place has this silo's numbers: only its own is looked at.
    return builder_of(study, problem_of(study, facts), [records] * plan.silos)


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(part) for key, part in value.items()}
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


def consider(
    plan: Plan,
    *,
    records: int,
    record: Any,
    allow: AllowSection,
    shuffle: ShuffleSection | None = None,
    build: Callable[[Plan, int], Builder] = builder_from,
) -> Offer:
    """Build and price a plan for a silo with this many records of this shape; a plan that is not allowed is refused.

    ``build`` makes the algorithm of a plan; the audit puts its own problem into it.

    Formal guarantee: a run of the offer's algorithm with the noise and grids that it names, in which the silo answers
    as the plan says, releases no more than the offer's events, which are (epsilon, delta)-DP as the plan asks.
    Nothing here depends on the content of a record.
    """
    _check_allowed(plan, allow)
    if plan.shuffle is not None:
        check_shuffle(plan, records, allow, shuffle)
    try:
        return _offer(build(plan, records), plan, records, record, allow, shuffle)
    except TacitError:
        raise
    except Exception as error:
        # A factory may fail in its own ways on odd parameters; no record is in reach here.
        raise RefusalError("bad-plan", f"the plan cannot be built: {str(error)[:300]}") from None


def _offer(
    builder: Builder, plan: Plan, records: int, record: Any, allow: AllowSection, policy: ShuffleSection | None
) -> Offer:
    unit = builder.build(noise_multiplier=1.0)
    shapes = shapes_of(unit, builder, record)
    _check_built(unit, shapes, allow, _channels(plan))
    shares: dict[str, BlockTerms] = {}
    if _channels(plan) == ("shuffled-sum",):
        algorithm, events, cost = affordable_sum(builder, unit, plan, records)
        shares = terms_of(algorithm, plan, shapes.messages)
    else:
        if plan.shuffle is not None:
            check_reports(unit, plan, policy)
        algorithm, events, cost = affordable_direct(builder, unit, plan, records, shapes.dimensions)
    streams = streams_of(algorithm, shapes.messages)
    check_streams(streams, algorithm, plan, records, policy)
    grids = {e.kind: e.grid_sigma for e in events if e.grid_sigma is not None}
    memory = _first_memory(algorithm, shapes.params)
    _rehearse(algorithm, plan, shapes, memory, record)
    return Offer(
        plan,
        algorithm,
        events,
        cost,
        grids,
        shapes.broadcasts,
        memory,
        _positions(algorithm),
        shares,
        streams,
        _weights(plan, algorithm, (*shares, *streams)),
        samples_of(events, shapes.dimensions),
    )


def _weights(plan: Plan, algorithm: Algorithm, kinds: Iterable[str]) -> dict[str, float]:
    """What this silo's records count in the sums and reports of each kind of round."""
    found = {}
    for kind in kinds:
        assert plan.shuffle is not None
        size = algorithm.rounds[kind].silo.release.batch_size
        relative, _ = plan.shuffle.record_weights(None if size is None else int(np.max(size)))
        found[kind] = float(relative[plan.silo_index])
    return found


def affordable_direct(
    builder: Builder, unit: Algorithm, plan: Plan, records: int, dimensions: Mapping[str, int]
) -> tuple[Algorithm, tuple[Event, ...], Price]:
    """The algorithm with the least noise whose releases cost what the plan asks for: on a grid, or through reports."""

    kept = sampler_delta(samples_of(secure_events(unit, plan, records), dimensions), plan.epsilon)
    if kept > 1e-3 * plan.delta:
        raise RefusalError("unpriceable", f"expected a smaller epsilon than {plan.epsilon}, which hides nothing")
    algorithm, events, cost = affordable(builder, unit, plan, records, secure_events, delta=plan.delta - kept)
    return algorithm, events, dataclasses.replace(cost, delta=plan.delta)


def _channels(plan: Plan) -> tuple[str, ...]:
    """The channels that a plan's releases may take: beside shuffled reports, rounds in turn leave directly."""
    if plan.shuffle is None:
        return ("direct",)
    return (REPORTS, "direct") if plan.algorithm.get("channel") == REPORTS else ("shuffled-sum",)


def _rehearse(algorithm: Algorithm, plan: Plan, shapes: Shapes, memory: Any, record: Any) -> None:
    """Go through every kind of round with shapes alone: what cannot run is refused before it is consented to."""
    table = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), record)
    for kind, part in algorithm.rounds.items():
        silo = part.silo
        work = jax.eval_shape(silo.start, shapes.broadcasts[kind], memory)
        blocks = layouts(silo, work, record)
        jax.eval_shape(lambda work, table, silo=silo, blocks=blocks: vectors_of(silo, blocks, work, table), work, table)
        clip = jax.eval_shape(lambda work, silo=silo: own_clip(silo.release, work, plan.silo_index), work)
        noise = silo.release.noise_multiplier
        if isinstance(clip, Mapping) != isinstance(noise, Mapping) or len(jax.tree.leaves(clip)) != len(blocks):
            raise RefusalError("bad-plan", "expected a clip and a noise multiplier for each block of the statistic")
        statistic = jax.eval_shape(silo.query, work, record)
        jax.eval_shape(lambda w, s, silo=silo: silo.report(silo.absorb(w, s), memory), work, statistic)


def _check_allowed(plan: Plan, allow: AllowSection) -> None:
    name, rounds = plan.algorithm.get("name"), plan.algorithm.get("num_rounds")
    if name not in allow.algorithms:
        raise RefusalError("not-allowed", f"expected an algorithm among {', '.join(allow.algorithms)}")
    if name in ALGORITHMS and ALGORITHMS[name].reads_attribute:
        raise RefusalError("not-allowed", f"{name} reads a sensitive attribute, which this silo does not hold")
    if plan.algorithm.get("channel", "direct") not in allow.channels:
        raise RefusalError("not-allowed", f"expected a channel among {', '.join(allow.channels)}")
    widths = [plan.objective.get(name) for name in ("hidden", "channels")]
    if sum(len(own) for own in widths if isinstance(own, list | tuple)) > _MOST_LAYERS:
        raise RefusalError("not-allowed", f"expected a model of at most {_MOST_LAYERS} layers")
    if plan.silos < allow.min_silos:
        raise RefusalError("not-allowed", f"expected at least {allow.min_silos} silos", {"silos": plan.silos})
    if not isinstance(rounds, int) or not 1 <= rounds <= allow.max_rounds:
        raise RefusalError("not-allowed", f"expected num_rounds from 1 to {allow.max_rounds}")
    counts = [v for k, v in plan.algorithm.items() if k not in _NOT_COUNTS and type(v) is int and v > 0]
    if math.prod(counts) > _MOST_WORK:
        raise RefusalError("not-allowed", f"expected fewer rounds and steps than {_MOST_WORK} in all")


@dataclass(frozen=True)
class Shapes:
    """Shapes of what is said in each kind of round, the dimension of what is released, and the model's shape."""

    dimensions: dict[str, int]
    broadcasts: dict[str, Any]
    messages: dict[str, Any]
    params: Any


def record_of(plan: Plan) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of one record, as the plan says."""
    target = jnp.float32 if plan.task == "regression" else jnp.int32
    return {"x": jax.ShapeDtypeStruct(plan.features, jnp.float32), "y": jax.ShapeDtypeStruct((), target)}


def shapes_of(algorithm: Algorithm, builder: Builder, record: Any) -> Shapes:
    """Shapes of everything that is said, found without computing anything."""
    params = jax.eval_shape(builder.problem.objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    state, memory = jax.eval_shape(algorithm.init, params), jax.eval_shape(algorithm.memory, params)
    broadcasts, messages, dimensions = {}, {}, {}
    for kind, part in algorithm.rounds.items():
        broadcasts[kind] = jax.eval_shape(part.server.ask, state)
        work = jax.eval_shape(part.silo.start, broadcasts[kind], memory)
        statistic = jax.eval_shape(part.silo.query, work, record)
        dimensions[kind] = coordinates(statistic)
        work = jax.eval_shape(part.silo.absorb, work, statistic)
        messages[kind] = jax.eval_shape(part.silo.report, work, memory)[0]
    return Shapes(dimensions, broadcasts, messages, params)


def _first_memory(algorithm: Algorithm, shapes: Any) -> Any:
    """What a silo remembers before the first round: it never sees initial parameters, so it must not need them."""
    zeros, ones = (
        algorithm.memory(jax.tree.map(lambda leaf, v=v: jnp.full(leaf.shape, v, leaf.dtype), shapes)) for v in (0, 1)
    )
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), zeros, ones)
    if not all(jax.tree.leaves(same)):
        raise RefusalError("bad-plan", "expected a memory that does not depend on the initial parameters")
    return zeros


def _check_built(algorithm: Algorithm, shapes: Shapes, allow: AllowSection, channels: tuple[str, ...]) -> None:
    if coordinates(shapes.params) > allow.max_parameters:
        raise RefusalError("not-allowed", f"expected a model of at most {allow.max_parameters} parameters")
    steps = sum(algorithm.rounds[kind].silo.local_steps for kind in algorithm.schedule)
    if steps > 10 * allow.max_rounds:
        raise RefusalError("not-allowed", f"expected at most {10 * allow.max_rounds} releases in all")
    for part in algorithm.rounds.values():
        # Checked where it matters, on what was built, whatever the plan calls it.
        if part.silo.release.channel not in channels:
            raise RefusalError("not-allowed", f"expected every release through {' or '.join(channels)}, and its terms")
        if part.silo.release.channel not in allow.channels:
            raise RefusalError("not-allowed", f"expected every release through {' or '.join(allow.channels)}")
        if part.silo.release.protects != "record":
            raise RefusalError("not-allowed", "expected every release to protect whole records")


def secure_events(algorithm: Algorithm, plan: Plan, records: int) -> tuple[Event, ...]:
    """The releases of an algorithm as a silo's door makes them: integers, with discrete Gaussian noise.

    A running sum of discrete Gaussians is post-processing of a continuous one with a little less noise, and is priced
    as that. Reports and shares have coins of their own.
    """
    found = []
    for event in bare_events(algorithm, plan, records):
        release = algorithm.rounds[event.kind].silo.release
        if release.channel != "direct" or event.mechanism == "reports":
            found.append(event)
            continue
        # The narrowest noise of all blocks is the farthest from a continuous one.
        least = min(float(np.min(z)) for z in jax.tree.leaves(release.noise_multiplier))
        twin = dataclasses.replace(event, mechanism="discrete-gaussian", grid_sigma=noise_scale(least))
        if event.mechanism == "cumulative":
            twin = dataclasses.replace(event, noise_multiplier=effective_multiplier(twin))
        found.append(twin)
    return tuple(found)


def samples_of(events: Sequence[Event], dimensions: Mapping[str, int]) -> int:
    """How many discrete Gaussians these releases draw: one for every coordinate of each."""
    return sum(event.count * dimensions[event.kind] for event in events if event.mechanism in _DISCRETE)


def _positions(algorithm: Algorithm) -> tuple[int, ...]:
    """How many records of its pass a silo has used up before each round."""
    positions, used = [], 0
    for name in algorithm.schedule:
        positions.append(used)
        silo = algorithm.rounds[name].silo
        used += silo.stride * silo.local_steps
    return tuple(positions)
