"""The price of a study, silo by silo, before anything runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tacit.algorithm import GUARANTEES, SHUFFLED_CHANNELS
from tacit.errors import counted
from tacit.objectives import Problem
from tacit.plans.assemble import Builder, shapes_of
from tacit.plans.catalogue import find
from tacit.plans.price import Seat, peers_of, plan_silos, releases_of
from tacit.plans.spec import Study, StudyError
from tacit.privacy import Event, PaperNoise, PricingError, price, risk_of_price, user_level
from tacit.privacy.anonymity import colluding_silos
from tacit.privacy.fair_designs import fair_designs
from tacit.privacy.pairwise import Peers, if_more_collude
from tacit.privacy.parties import parties, without_shuffler
from tacit.privacy.plan import AnonymitySet, Budget, SiloPlan, doubts, idle, scarce
from tacit.studies.bound import bound_json, bound_of, left_for_training
from tacit.studies.centralisation import crossings
from tacit.studies.noise import said_over_clip
from tacit.theory import Statement


@dataclass(frozen=True)
class Plan:
    """The plan of a study: one entry per silo, and the noise that the algorithm is built with."""

    study: Study
    silos: tuple[SiloPlan, ...]
    noise: np.ndarray | None
    problem: Problem

    @property
    def bound(self) -> Statement | str | None:
        """What the algorithm's theorem promises at the tightest budget of all silos, and the lower bound."""
        first = self.study.preprocessing
        prices = [silo.price for silo in self.silos if silo.price is not None]
        spent = [left_for_training(first, price.epsilon, price.delta) for price in prices]
        return bound_of(self.study, self.problem, [s.records for s in self.silos], min(spent, default=None))

    @property
    def warnings(self) -> list[str]:
        """What makes the budget promise little, and silos that have next to nothing to train on."""
        epsilons = [None if silo.price is None else silo.price.epsilon for silo in self.silos]
        records = [silo.records for silo in self.silos]
        few = scarce([silo.name for silo in self.silos], records)
        return doubts(epsilons, self.study.privacy.delta, records) + few + idle(self.silos[0].events)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the builder needs to be told about privacy."""
        return {} if self.noise is None else {"noise_multiplier": self.noise}


def plan_of(
    study: Study,
    builder: Builder,
    names: list[str],
    records: list[int],
    record: Any,
    before: Sequence[tuple[Event, ...]] = (),
) -> Plan:
    """Price a study: calibrate each silo's noise to its epsilon, or price the noise that is given.

    ``accountant = "paper"`` takes the noise that the algorithm's theorem prints for the epsilon asked for, where its
    conditions hold, and certifies what that noise really buys. ``record`` is the shape of one record, ``before`` what
    each silo releases before training.
    """
    if study.privacy.private and study.privacy.accountant == "paper":
        return _paper_plan(study, builder, names, records)
    budget = budget_of(study, len(records))
    dimensions = shapes_of(builder.noised(1.0), builder.problem, record).dimensions
    silos, noise = plan_silos(builder.noised, names, records, budget, dimensions=dimensions, before=before)
    return Plan(study, silos, noise, builder.problem)


def budget_of(study: Study, silos: int) -> Budget | None:
    """The study's budget among so many silos; none where it is not private."""
    section = study.privacy
    if not section.private:
        return None
    return Budget(
        epsilon=section.epsilon,
        delta=section.delta,
        noise_multiplier=section.noise_multiplier,
        accountant="tight" if section.accountant == "paper" else section.accountant,
        max_participations=section.max_participations,
        user_level=section.user_level,
        honest=study.run.honest,
        min_silos=min_silos_of(study, silos),
        colluding=study.pairwise.colluding,
        spare_attempts=study.pairwise.spare_attempts,
    )


def min_silos_of(study: Study, silos: int) -> int:
    """How few of so many silos a round of the study may have."""
    if study.algorithm.channel == "pairwise" and study.pairwise.min_silos is not None:
        return study.pairwise.min_silos
    participants = study.run.participants
    return (participants[0] if isinstance(participants, tuple) else participants) or silos


def counts_on(study: Study, silos: int) -> str | None:
    """What the price through a shuffled channel assumes of the other silos; none through others."""
    if study.privacy.private and study.algorithm.channel == "pairwise":
        return _counts_on_peers(study, silos)
    if not study.privacy.private or study.algorithm.channel not in SHUFFLED_CHANNELS:
        return None
    colluding = colluding_silos(silos, study.run.honest)
    return (
        f"The price counts on other silos: at most {colluding} of {silos} collude (run.honest = {study.run.honest:g}), "
        f"and at least {min_silos_of(study, silos)} come in a round (run.participants)."
    )


def _counts_on_peers(study: Study, silos: int) -> str:
    own = study.pairwise
    return (
        f"The price counts on other silos: at most {own.colluding} of {silos} collude with the server "
        f"(pairwise.colluding), and at least {min_silos_of(study, silos)} are in a round (pairwise.min_silos). Nobody "
        f"else is trusted. {counted(own.spare_attempts, 'spare attempt')} of rounds in which somebody is missing "
        f"{'is' if own.spare_attempts == 1 else 'are'} part of the price; one silo that stays away can use them up."
    )


def peers_at(plan: Plan) -> Peers | None:
    """Who shares the noise of a plan's pairwise sums; none where nothing is pairwise."""
    if plan.study.algorithm.channel != "pairwise" or not plan.study.privacy.private:
        return None
    own, records = plan.study.pairwise, tuple(silo.records for silo in plan.silos)
    return Peers(records, own.colluding, min_silos_of(plan.study, len(records)), own.spare_attempts)


def left_if_more_collude(plan: Plan, silo: SiloPlan) -> dict[str, float] | None:
    """A silo's epsilon by how many collude: one more than is counted on, half of the others, and all of them.

    None where nothing is pairwise.
    """
    peers = peers_at(plan)
    if peers is None or silo.price is None:
        return None
    others, delta = len(peers.records) - 1, silo.price.delta
    numbers = sorted({n for n in (peers.colluding + 1, others // 2, others) if peers.colluding < n <= others})
    return {str(number): if_more_collude(silo.events, peers, number, delta=delta) for number in numbers}


def _paper_plan(study: Study, builder: Builder, names: list[str], records: list[int]) -> Plan:
    """Every silo at the noise that the theorem prints, priced by the tight accountant."""
    epsilon, delta = study.privacy.epsilon, study.privacy.delta
    if not isinstance(epsilon, float | int):
        raise StudyError(
            'privacy.accountant: "paper" needs one epsilon for all silos; set privacy.epsilon to a number.'
        )
    anonymity_set = AnonymitySet(tuple(records), study.run.honest, min_silos_of(study, len(records)))
    silos, noise, unit = [], [], builder.noised(1.0)
    peers = peers_of(unit, tuple(records), budget_of(study, len(records)))
    for silo_index, (name, n) in enumerate(zip(names, records, strict=True)):
        printed = _paper(study, n, len(names), float(epsilon), delta)
        if printed is None:
            raise StudyError(f'privacy.accountant: no theorem prints noise for {study.algorithm.name}; use "tight".')
        failed = [condition.text for condition in printed.conditions if not condition.holds]
        if failed:
            raise StudyError(
                f"privacy.accountant: {printed.source} does not hold at {name}: expected {failed[0]}; "
                'change the study or use accountant = "tight".'
            )
        seat = Seat(silo_index, len(names), n, None, anonymity_set, peers)
        # Where kinds of round differ in proportion from the theorem's, the noisier reading is taken for all.
        least = min(event.noise_multiplier for event in seat.events(unit))
        noise.append(np.float32(max(event.noise_multiplier for event in printed.events) / least))
        paid = releases_of(builder.noised(noise[-1]), seat)
        silos.append(SiloPlan(name, n, paid, price(paid, delta=delta)))
    return Plan(study, tuple(silos), np.asarray(noise), builder.problem)


def paper_of(plan: Plan, silo: SiloPlan) -> PaperNoise | None:
    """The noise that the algorithm's theorem asks for at the same budget, where there is a theorem."""
    if silo.price is None or not np.isfinite(silo.price.epsilon):
        return None
    asked = plan.study.privacy.epsilon
    epsilon = asked if isinstance(asked, float | int) else silo.price.epsilon
    left = left_for_training(plan.study.preprocessing, float(epsilon), silo.price.delta)
    try:
        found = _paper(plan.study, silo.records, len(plan.silos), left, silo.price.delta)
        return found if found is None or found.epsilon_certified >= 0 else None
    except PricingError:  # The theorem is about other batches than the study's.
        return None


def _paper(study: Study, records: int, silos: int, epsilon: float, delta: float) -> PaperNoise | None:
    section = study.algorithm
    given = {**section.own, "num_rounds": section.num_rounds, "batch_size": section.batch_size}
    given |= {"sampling": section.scheme, "channel": section.channel}
    return find(section.name).paper_noise(given, records=records, epsilon=epsilon, delta=delta, silos=silos)


_SIMULATED = (
    "simulated: Gaussian in float32 from jax's generator; a silo's daemon draws discrete Gaussian noise on a grid from "
    "the operating system's entropy, and that is what is priced"
)
NOISE: dict[str, str] = {
    "direct": _SIMULATED,
    "pairwise": "simulated: Gaussian in float32 from jax's generator, as large as that of all shares together; a "
    "silo's daemon draws a discrete Gaussian share on a grid from the operating system's entropy",
    "trusted": "simulated: Gaussian in float32 from jax's generator, added by the server",
    "shuffled-sum": "simulated: the exact binomial distribution of the sum of all shares",
    "shuffled-reports": "simulated: one report of the local randomiser for each record, from jax's generator",
    "open": "none",
}
"""Where the noise of a simulated study comes from."""


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data."""
    channel = plan.study.algorithm.channel if plan.study.privacy.private else "open"
    return {
        "study": plan.study.name,
        "guarantee": GUARANTEES[channel],
        "noise": NOISE[channel],
        "parties": [
            {"who": who, "sees": sees}
            for who, sees in parties(channel, int(plan.study.algorithm.own.get("local_steps", 1)))
        ],
        "counts_on": counts_on(plan.study, len(plan.silos)),
        "silos": [_silo_json(plan, silo) for silo in plan.silos],
        "theory": bound_json(plan.bound),
        "warnings": plan.warnings,
        **fair_json(plan),
    }


def crossing_json(plan: Plan) -> dict[str, Any]:
    """For algorithms that read the sensitive attribute: what is protected, and what crosses between divisions."""
    study, section = plan.study, plan.study.algorithm
    if not find(section.name).reads_attribute:
        return {}
    shapes = jax.eval_shape(plan.problem.objective.init, jax.random.key(0))
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    smallest = min(plan.silos, key=lambda silo: silo.records)
    batch = section.batch_size or smallest.records
    rows = int(section.own.get("classes", 2)) if section.own.get("notion") == "equalized-odds" else 1
    groups = np.atleast_2d(section.own.get("frequencies", np.zeros(int(section.own.get("groups", 2))))).shape[1]
    crossing = crossings(
        study,
        features=study.partition.silos or len(plan.silos),
        records=batch,
        parameters=parameters,
        duals=rows * groups * int(section.own.get("classes", 2)),
    )
    return {
        "protects": study.privacy.protects,
        "centralisation": study.partition.centralisation,
        "crossings": [dataclasses.asdict(row) for row in crossing],
    }


def fair_json(plan: Plan) -> dict[str, Any]:
    """As `crossing_json`, and what each design costs that protects the attribute."""
    study, section, found = plan.study, plan.study.algorithm, crossing_json(plan)
    smallest = min(plan.silos, key=lambda silo: silo.records)
    epsilon = study.privacy.epsilon
    if not found:
        return {}
    if isinstance(epsilon, float | int) and study.privacy.protects == "sensitive-attribute":
        designs = fair_designs(
            records=smallest.records,
            rounds=section.num_rounds,
            batch=min(section.batch_size or 256, smallest.records),
            epsilon=float(epsilon),
            delta=study.privacy.delta,
        )
        found["designs"] = [dataclasses.asdict(design) for design in designs]
    return found


def _silo_json(plan: Plan, silo: SiloPlan) -> dict[str, Any]:
    paper = paper_of(plan, silo)
    return {
        "name": silo.name,
        "records": silo.records,
        "epsilon": None if silo.price is None else silo.price.epsilon,
        "delta": None if silo.price is None else silo.price.delta,
        "kinds": [
            {
                "kind": event.kind,
                "count": event.count,
                "sampling": event.sampling,
                "batch": event.batch,
                "noise_multiplier": event.noise_multiplier if silo.price is not None else None,
                "sigma_over_clip": _said(plan, event) if silo.price is not None else None,
                **_reports_json(event, silo.price is not None),
            }
            for event in silo.events
        ],
        "epsilon_without_shuffler": None
        if silo.price is None
        else without_shuffler(silo.events, delta=silo.price.delta),
        "epsilon_if_more_collude": left_if_more_collude(plan, silo),
        "risk": None if silo.price is None else dataclasses.asdict(risk_of_price(silo.price)),
        "user_level": user_level_of(plan, silo),
        "paper": None
        if paper is None
        else {
            "source": paper.source,
            "releases": [{"kind": r.kind, "count": r.count} for r in paper.releases],
            "sigma_over_clip": list(paper.sigma_over_clip),
            "epsilon_certified": paper.epsilon_certified,
            "noise_ratio": paper.ratio,
            "conditions": [{"text": c.text, "holds": c.holds} for c in paper.conditions],
        },
    }


def _said(plan: Plan, event: Event) -> float:
    return said_over_clip(plan.study, plan.silos, event, min_silos_of(plan.study, len(plan.silos)))


def _reports_json(event: Event, priced: bool) -> dict[str, Any]:
    """What is said of shuffled reports alone."""
    if event.mechanism != "reports" or not priced or event.noise_multiplier == 0.0:
        return {}
    return {"local_epsilons": list(event.local_epsilons), "honest_reports": event.reports}


def user_level_of(plan: Plan, silo: SiloPlan) -> dict[str, float] | None:
    """What the same noise promises if all records of the silo change together, where that is a promise at all."""
    hidden = plan.study.algorithm.channel in ("pairwise", "shuffled-sum") or any(
        e.protects != "record" for e in silo.events
    )
    if silo.price is None or hidden or plan.study.privacy.protects != "record":
        return None
    found = user_level(silo.events, delta=silo.price.delta)
    return {"epsilon": found.epsilon, "delta": found.delta}
