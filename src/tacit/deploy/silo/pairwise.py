"""A silo's part in pairwise sums: what it checks of a plan and of a roster, and the masks of its message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt64

from tacit.algorithm import Algorithm
from tacit.channel.pairwise import Member, PairwiseError, SumTerms, context_of, in_order, masks_of, public_key
from tacit.deploy.pairwise import check_sums, enrolment_of, member_of, sums_of, weights_of
from tacit.deploy.signing import Signer
from tacit.deploy.silo.policy import PairwiseSection
from tacit.deploy.wire import VERSION, AnswerTogether, Enrolment, Plan, RefusalError, broadcast_digest
from tacit.plans.assemble import Shapes


class Sums(NamedTuple):
    """The terms of a plan's pairwise sums, by kind of round, and what this silo's records count in them."""

    sums: Mapping[str, SumTerms]
    weights: Mapping[str, float]


class Masks(NamedTuple):
    """What is added to a message, for how many silos, and the digest of all that they must agree on."""

    values: UInt64[np.ndarray, " coordinates"]
    silos: int
    context: bytes


def check_pairwise(plan: Plan, silo: str, records: int, policy: PairwiseSection | None) -> None:
    """Refuse a plan whose silos the owner has not pinned, or that counts on too many of them."""
    among = plan.pairwise
    if among is None or policy is None:
        raise RefusalError("not-allowed", "the owner has pinned no other silos for pairwise sums")
    if among.silos[plan.silo_index] != silo:
        raise RefusalError("bad-plan", f"expected pairwise.silos[{plan.silo_index}] = {silo}, this silo's own name")
    if among.records[plan.silo_index] != records:
        raise RefusalError("bad-plan", f"expected pairwise.records[{plan.silo_index}] = {records}, this silo's own")
    strange = [name for name in among.silos if name != silo and name not in policy.peers]
    if strange:
        text = f"expected silos whose keys are pinned here (pairwise.peers); missing: {', '.join(strange[:5])}"
        raise RefusalError("not-allowed", text)
    if among.colluding < policy.colluding:
        text = f"expected a study in which {policy.colluding} silos may collude with the server"
        raise RefusalError(
            "not-allowed", f"{text}; set pairwise.colluding in the study", {"colluding": among.colluding}
        )
    if among.min_silos < policy.min_silos:
        text = f"expected at least {policy.min_silos} silos in a round; set pairwise.min_silos in the study"
        raise RefusalError("not-allowed", text, {"min_silos": among.min_silos})


def sums_at(algorithm: Algorithm, plan: Plan, shapes: Shapes) -> Sums:
    """The terms of a plan as it was priced; sums that cannot be read are refused."""
    sums = sums_of(algorithm, shapes.messages)
    check_sums(plan, algorithm, sums)
    weights = {kind: weights_of(plan, algorithm, kind)[0][plan.silo_index] for kind in sums}
    return Sums(sums, weights)


class Masker(NamedTuple):
    """A silo's name and identity key, the keys of its peers, the least roster, and whether this is no test build."""

    silo: str
    signer: Signer
    policy: PairwiseSection
    noise: bool

    def enrolment(self, plan: Plan, secret: bytes) -> Enrolment:
        """This silo's study key, signed."""
        return enrolment_of(plan, self.silo, public_key(secret), self.signer)

    def roster(self, plan: Plan, told: tuple[Enrolment, ...], secret: bytes) -> tuple[Member, ...]:
        """The roster of a request in order, or a refusal.

        Formal guarantee: it has at least as many silos as plan and policy ask for, all of them different, pinned here
        and enrolled in this plan, and this silo is one of them.
        """
        assert plan.pairwise is not None
        least = max(plan.pairwise.min_silos, self.policy.min_silos)
        if len(told) < least:
            raise RefusalError("roster", f"expected at least {least} silos in a round", {"silos": len(told)})
        pinned = {**self.policy.peers, self.silo: self.signer.public}
        members = [member_of(plan, one, pinned.get(one.silo)) for one in told]
        own = member_of(plan, self.enrolment(plan, secret), self.signer.public)
        try:
            return in_order(members, own)
        except PairwiseError as error:
            raise RefusalError("roster", str(error)) from None

    def masks(
        self, plan: Plan, terms: SumTerms, kind: str, request: AnswerTogether, payload: bytes, secret: bytes
    ) -> Masks:
        """The masks of this silo's message to the sum that a request is about."""
        roster = self.roster(plan, request.roster, secret)
        context = context_of(
            version=VERSION,
            study=plan.consortium,
            noise=self.noise,
            terms=terms,
            kind=kind,
            round_index=request.round,
            attempt=request.attempt,
            roster=roster,
            broadcast=broadcast_digest(request.arrays, payload),
        )
        dimension = sum(own.dimension for own in terms.values())
        return Masks(masks_of(secret, roster, context, dimension), len(roster), context)
