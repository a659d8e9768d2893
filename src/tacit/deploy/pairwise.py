"""What a plan of pairwise sums means, to silos and server alike: terms, study keys and their signatures.

The noise in a sum is other silos', so a silo trusts nobody's word for it. It takes only keys that pinned silos have
signed for this very plan, and everything that silos must agree on is part of the masks: with a silo that was told
something else nothing cancels.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.algorithm import Algorithm
from tacit.channel.pairwise import BlockSum, Member, SumTerms
from tacit.deploy.signing import SignatureError, Signer, check_signature, verifying_key
from tacit.deploy.wire import Enrolment, Pairwise, Plan, RefusalError
from tacit.plans.assemble import coordinates
from tacit.privacy.pairwise import noise_of_mean
from tacit.silo.door import NONNEGATIVE
from tacit.silo.integers import BOUND

_TAILS = 64.0
"""Standard deviations of noise that a sum leaves room for; beyond them lies less than 1e-800."""


def sums_of(algorithm: Algorithm, statistics: Mapping[str, Any]) -> dict[str, SumTerms]:
    """The terms of every kind of round that is a pairwise sum, block by block: the same at all silos.

    ``statistics`` are the shapes of what is released.
    """
    terms: dict[str, SumTerms] = {}
    for kind, part in algorithm.rounds.items():
        release, shape = part.silo.release, statistics[kind]
        if release.channel != "pairwise":
            continue
        noise = release.noise_multiplier
        named = noise if isinstance(noise, Mapping) else {"": noise}
        parts = shape if isinstance(noise, Mapping) else {"": shape}
        moved = NONNEGATIVE if release.nonnegative else 2.0
        terms[kind] = {name: BlockSum(float(z), moved, coordinates(parts[name])) for name, z in named.items()}
    return terms


def most_in_total(pairwise: Pairwise, terms: SumTerms, batch: int | None) -> int:
    """How large an entry of a sum can become, with noise beyond which there is practically none."""
    records = sum(max(n, batch or 0) for n in pairwise.records)
    sigma = max(own.noise_multiplier * own.sensitivity for own in terms.values()) * BOUND
    # All silos add shares, and a running sum takes off those of the round before.
    noise = 2.0 * sigma * noise_of_mean(pairwise.min_silos, pairwise.colluding)
    return records * BOUND + math.ceil(_TAILS * noise)


def check_sums(plan: Plan, algorithm: Algorithm, sums: Mapping[str, SumTerms]) -> None:
    """Refuse sums that 64 bits, or the weights of silos, do not carry; with them no mean could be read."""
    assert plan.pairwise is not None
    for kind, terms in sums.items():
        size = algorithm.rounds[kind].silo.release.batch_size
        if size is not None and np.ndim(size):
            raise RefusalError("bad-plan", "expected one batch size for all silos through pairwise sums")
        if most_in_total(plan.pairwise, terms, None if size is None else int(size)) >= 2**63:
            raise RefusalError("not-allowed", "expected fewer records or less noise: a sum must fit 64 bits")
        dimension = sum(own.dimension for own in terms.values())
        least = min(weights_of(plan, algorithm, kind)[0])
        if math.floor(BOUND * least) < 2**8 * math.sqrt(dimension):
            raise RefusalError("not-allowed", "expected weights of silos that differ less: rounding would drown one")


def weights_of(plan: Plan, algorithm: Algorithm, kind: str) -> tuple[list[float], float]:
    """What each silo's records count beside those that count most, and what those count in a mean over all silos."""
    assert plan.pairwise is not None
    size = algorithm.rounds[kind].silo.release.batch_size
    relative, largest = plan.pairwise.record_weights(None if size is None else int(np.max(size)))
    return [float(weight) for weight in relative], float(largest)


def _statement(plan: Plan, silo: str, key: str) -> bytes:
    """What a silo signs: its key, for this plan and nothing else."""
    body = {"type": "study-key", "study": plan.consortium.hex(), "silo": silo, "key": key}
    return json.dumps(body, sort_keys=True).encode()


def enrolment_of(plan: Plan, silo: str, key: bytes, signer: Signer) -> Enrolment:
    """A silo's study key, signed with its identity key."""
    signature = signer.sign(_statement(plan, silo, key.hex()), b"")
    return Enrolment(silo=silo, identity=signer.public, key=key.hex(), signature=signature)


@lru_cache(maxsize=1024)
def _check_once(identity: str, signature: str, statement: bytes) -> None:
    """Raise unless the holder of the key signed this; a roster comes again in every round, and was checked then."""
    check_signature(identity, signature, statement, b"")


def member_of(plan: Plan, enrolment: Enrolment, identity: str | None) -> Member:
    """A silo of a roster, or a refusal.

    Formal guarantee: the holder of the key ``identity``, which is pinned to the silo's name, has signed this study key
    for this plan, the same in every term that silos share.
    """
    assert plan.pairwise is not None
    if enrolment.silo not in plan.pairwise.silos:
        raise RefusalError("roster", "expected silos that the plan names")
    if identity is None:
        raise RefusalError("roster", f"expected silos whose keys are pinned here; {enrolment.silo} is not")
    raw = verifying_key(identity).public_bytes_raw()
    try:
        if verifying_key(enrolment.identity).public_bytes_raw() != raw:
            raise RefusalError("roster", f"expected the key that is pinned to {enrolment.silo}")
        _check_once(identity, enrolment.signature, _statement(plan, enrolment.silo, enrolment.key))
    except (SignatureError, ValueError):
        raise RefusalError("roster", f"expected a study key that {enrolment.silo} has signed for this plan") from None
    return Member(enrolment.silo, raw, bytes.fromhex(enrolment.key))
