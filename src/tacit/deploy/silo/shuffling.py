"""The contract of a study through shufflers: what a silo checks, what it costs, and how an answer leaves.

A share of a sum is private only in its crowd, so the silo must not take anybody's word for the crowd. Its own entry in
the plan's list of silos it checks itself, and so does every other honest silo with its own; all contributions are bound
to a digest of the whole plan and of its coins, and a shuffler adds up only what is bound to the same, one contribution
for each place of the plan. So the records of the honest silos that come are what the plan says they are. How many silos
come is up to the shuffler, which each contribution tells how many it needs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Int64

from tacit.algorithm import Algorithm, Release
from tacit.channel.sealing import Binding, SealError, Signer, public_key
from tacit.deploy.shuffler.deposits import sum_deposits
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.wire import Answer, Plan, RefusalError, Sealed, broadcast_digest
from tacit.errors import TacitError
from tacit.privacy import Event, Price, calibrate, events_of, price
from tacit.privacy.anonymity import colluding_silos
from tacit.privacy.plan import AnonymitySet
from tacit.silo.shares import BlockTerms, share_terms
from tacit.studies.assemble import Builder

TAILS = 1e-12
"""The part of delta that each study keeps for the tails of its binomial noise: 1e-23 per round and coordinate."""

MOST_SIZES = 8
"""Of how many sizes of silos a plan is priced: the smallest, which pay most. One costs seconds, and a plan may list
thousands."""

_UNSEEN = 1e-4
_LEAST_DELTA = 1e-9
_MOST_COORDINATES = 10**10


def check_shuffle(plan: Plan, records: int, allow: AllowSection, policy: ShuffleSection | None) -> None:
    """Refuse a plan whose shufflers or crowd the owner has not agreed to."""
    shuffle = plan.shuffle
    if shuffle is None or policy is None:
        raise RefusalError("not-allowed", "the owner has named no shufflers")
    if shuffle.records[plan.silo_index] != records:
        raise RefusalError("bad-plan", f"expected shuffle.records[{plan.silo_index}] = {records}, this silo's own")
    if shuffle.min_silos < allow.min_silos:
        raise RefusalError("not-allowed", f"expected shuffle.least of at least {allow.min_silos} silos")
    if colluding_silos(plan.silos, shuffle.honest) < policy.colluding:
        raise RefusalError("not-allowed", f"expected shuffle.honest to leave {policy.colluding} silos that may collude")
    strange = [name for name, key in shuffle.shufflers.items() if policy.shufflers.get(name) != key]
    if strange or len(shuffle.shufflers) < policy.min_shufflers:
        raise RefusalError("not-allowed", f"expected {policy.min_shufflers} or more shufflers, all of the policy's")
    try:
        kinds = [public_key(key).kind for key in (*shuffle.shufflers.values(), shuffle.server) if key is not None]
    except SealError as error:
        raise RefusalError("bad-plan", str(error)) from None
    if policy.post_quantum and "x25519" in kinds:
        raise RefusalError("not-allowed", "expected sealing keys of the hybrid kind")
    if plan.delta < _LEAST_DELTA:
        raise RefusalError("unpriceable", f"expected delta >= {_LEAST_DELTA} for binomial noise, with its short tails")


def bare_events(algorithm: Algorithm, plan: Plan, records: int) -> tuple[Event, ...]:
    """The releases of an algorithm at a silo with this many records, before any rounding of noise."""
    shuffle = plan.shuffle
    anonymity_set = None if shuffle is None else AnonymitySet(shuffle.records, shuffle.honest, shuffle.min_silos)
    return events_of(
        algorithm,
        silo_index=plan.silo_index,
        silos=plan.silos,
        records=records,
        max_participations=plan.max_participations,
        anonymity_set=anonymity_set,
    )


Releases = Callable[[Algorithm, Plan, int], tuple[Event, ...]]


def affordable_sum(
    builder: Builder, unit: Algorithm, plan: Plan, records: int
) -> tuple[Algorithm, tuple[Event, ...], Price]:
    """The algorithm with the noise that every silo's price asks for: one noise serves all, that of the strictest."""
    _check_kinds(unit)
    algorithm, events, cost = affordable(builder, unit, plan, records, bare_events, delta=plan.delta - TAILS)
    return algorithm, events, dataclasses.replace(cost, delta=plan.delta)


def affordable(
    builder: Builder, unit: Algorithm, plan: Plan, records: int, releases: Releases, *, delta: float
) -> tuple[Algorithm, tuple[Event, ...], Price]:
    """The algorithm with the least noise whose releases, as built, cost no silo more than the plan asks for.

    All silos of a study through shufflers must find the same noise, so the prices of the strictest are looked at: the
    smallest silos, whose batches are amplified least. This silo's own is looked at whatever its size.
    """
    silo_indices = _places(unit, plan, records)
    factor = max(_factor(events, plan, delta) for events in {releases(unit, own, n) for own, n in silo_indices})
    if plan.shuffle is not None and len(set(plan.shuffle.records)) > MOST_SIZES:
        # Prices are rounded up on grids of their own; this is room for a silo that was not looked at.
        factor *= 1 + _UNSEEN
    nudge = 1e-7
    while nudge < 0.1:
        # Rounded up to float32, which is what the silo computes with.
        algorithm = builder.build(noise_multiplier=np.nextafter(np.float32(factor), np.float32(np.inf)))
        costs = {e: price(e, delta=delta) for e in {releases(algorithm, own, n) for own, n in silo_indices}}
        if all(cost.epsilon <= plan.epsilon for cost in costs.values()):
            events = releases(algorithm, plan, records)
            own_cost = costs[events] if events in costs else price(events, delta=delta)
            if own_cost.epsilon <= plan.epsilon:
                return algorithm, events, own_cost
            raise RefusalError("unpriceable", "this silo would pay more than the smallest of the plan")
        factor, nudge = factor * (1 + nudge), 2 * nudge
    raise RefusalError("unpriceable", f"no noise was found that fits epsilon={plan.epsilon}")


def _places(unit: Algorithm, plan: Plan, records: int) -> list[tuple[Plan, int]]:
    """The plan as the strictest silos see it, with their records: only this one's, unless there is a crowd."""
    if plan.shuffle is None:
        return [(plan, records)]
    sizes = sorted(set(plan.shuffle.records))
    if all(part.participants != "in turn" for part in unit.rounds.values()):
        return [(plan, n) for n in sizes[:MOST_SIZES]]
    # Whose turn comes how often depends on the place: nobody's oftener than that of the first.
    first = dict.fromkeys(sizes, 0) if len(sizes) > MOST_SIZES else {n: plan.shuffle.records.index(n) for n in sizes}
    return [(plan.model_copy(update={"silo_index": first[n]}), n) for n in sizes[:MOST_SIZES]]


def _sizes(plan: Plan) -> tuple[int, ...]:
    if plan.shuffle is None:
        raise TacitError("Expected a plan with a shuffle section.")
    return plan.shuffle.records


def _factor(events: tuple[Event, ...], plan: Plan, delta: float) -> float:
    paid = calibrate(events, epsilon=plan.epsilon, delta=delta)
    return paid[0].noise_multiplier / events[0].noise_multiplier


def _check_kinds(algorithm: Algorithm) -> None:
    for part in algorithm.rounds.values():
        release = part.silo.release
        if part.participants == "in turn" or release.mechanism != "gaussian":
            raise RefusalError("not-allowed", "expected rounds of many silos, with fresh noise, through shufflers")
        check_one_batch(release)
        if release.sampling in ("poisson", "wr"):
            raise RefusalError("bad-plan", 'expected sampling "full", "wor" or "one-pass": the crowd has a fixed size')


def check_one_batch(release: Release) -> None:
    """Refuse batch sizes that differ by silo: everybody counts on as many coins, or reports, of everybody else."""
    if any(term is not None and np.ndim(term) for term in (release.batch_size, release.capacity)):
        raise RefusalError("bad-plan", "expected one batch size for all silos through shufflers")


def terms_of(algorithm: Algorithm, plan: Plan, statistics: Mapping[str, Any]) -> dict[str, BlockTerms]:
    """Grid and coins of every kind of round, block by block; all silos and the server find the same from the same plan.

    ``statistics`` are the shapes of what is released.
    """
    anonymity, shuffle = _sizes(plan), plan.shuffle
    assert shuffle is not None
    if len(algorithm.schedule) * max(map(coordinates, statistics.values())) > _MOST_COORDINATES:
        raise RefusalError("not-allowed", f"expected rounds x parameters of at most {_MOST_COORDINATES}")
    found: dict[str, BlockTerms] = {}
    for event in bare_events(algorithm, plan, anonymity[plan.silo_index]):
        release = algorithm.rounds[event.kind].silo.release
        size, shape = release.batch_size, statistics[event.kind]
        sizes = anonymity if size is None else [int(np.max(size))] * len(anonymity)
        own = partial(share_terms, sizes=sizes, min_silos=shuffle.min_silos, honest=shuffle.honest)
        if isinstance(release.noise_multiplier, Mapping):
            blocks = {name: float(z) for name, z in release.noise_multiplier.items()}
            found[event.kind] = {name: own(z, dimension=coordinates(shape[name])) for name, z in blocks.items()}
        else:
            found[event.kind] = own(event.noise_multiplier, dimension=coordinates(shape))
    return found


def coordinates(tree: Any) -> int:
    """How many numbers a tree of shapes has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def bound_to(plan: Plan, terms: Mapping[str, Any], *, noise: bool) -> bytes:
    """Digest of a plan, of what is made of it here (grids and coins, or epsilon_0), and of whether there is noise.

    Contributions are bound to it, so that those of silos that flip fewer coins, as another version of Tacit might, or
    none, as a test build does (``noise=False``), are never added up with those that count on them.
    """
    made = json.dumps({"noise": noise, "terms": terms}, sort_keys=True)
    return hashlib.sha256(b"tacit terms 2" + plan.consortium + made.encode()).digest()


def sealed_answer(
    plan: Plan,
    terms: Mapping[str, BlockTerms],
    request: Answer,
    payload: bytes,
    share: Int64[np.ndarray, " coordinates"],
    *,
    silo: str,
    signer: Signer,
    noise: bool,
) -> tuple[str, bytes]:
    """Header and payload of an answer through shufflers: the share in parts, each sealed for one of them."""
    shuffle = plan.shuffle
    assert shuffle is not None
    bound = bound_to(plan, terms, noise=noise)
    binding = Binding(bound, request.round, broadcast_digest(request.arrays, payload))
    keys = {name: public_key(text) for name, text in shuffle.shufflers.items()}
    frames = sum_deposits(
        share,
        shufflers=keys,
        binding=binding,
        silo=silo,
        silo_index=plan.silo_index,
        min_silos=max(2, shuffle.min_silos),
        signer=signer,
    )
    lengths = {name: len(raw) for name, raw in zip(keys, frames, strict=True)}
    header = Sealed(study=request.study, round=request.round, silo=silo, deposits=lengths)
    return header.model_dump_json(), b"".join(frames)
