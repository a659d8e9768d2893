"""The price of a study, silo by silo, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tacit.privacy import Event, PaperNoise, Price, calibrate, paper_noise, price
from tacit.privacy.plan import events_of
from tacit.studies.assemble import Builder
from tacit.studies.spec import Study, StudyError


@dataclass(frozen=True)
class SiloPlan:
    """What one silo would release and what it costs; no price where nothing is protected."""

    name: str
    records: int
    events: tuple[Event, ...]
    price: Price | None

    @property
    def multipliers(self) -> dict[str, float]:
        """The noise multiplier of each kind of round."""
        return {event.kind: event.noise_multiplier for event in self.events}


@dataclass(frozen=True)
class Plan:
    """The plan of a study: one entry per silo, and the noise that the algorithm is built with."""

    study: Study
    silos: tuple[SiloPlan, ...]
    noise: np.ndarray | None

    @property
    def parameters(self) -> dict[str, Any]:
        """What the builder needs to be told about privacy."""
        return {} if self.noise is None else {"noise_multiplier": self.noise}


def plan_of(study: Study, builder: Builder, names: list[str], records: list[int]) -> Plan:
    """Price a study: calibrate each silo's noise to its epsilon, or price the noise that is given.

    Each silo is priced by itself with its own number of records. Silos may have budgets of their own.
    """
    section = study.privacy
    unit = builder.build(noise_multiplier=1.0)
    plain = [
        events_of(unit, place=i, silos=len(names), records=n, max_participations=section.max_participations)
        for i, n in enumerate(records)
    ]
    if not section.private:
        silos = tuple(SiloPlan(*row, None) for row in zip(names, records, plain, strict=True))
        return Plan(study, silos, None)
    budgets = _budgets(study, len(names))
    plans = []
    for name, n, events, epsilon in zip(names, records, plain, budgets, strict=True):
        if epsilon is None:
            events = tuple(event.scaled(section.noise_multiplier or 0.0) for event in events)
        else:
            events = _calibrated(events, epsilon, section.delta, section.accountant)
        plans.append(SiloPlan(name, n, events, _priced(events, section.delta, section.accountant)))
    factors = [p.events[0].noise_multiplier / e[0].noise_multiplier for p, e in zip(plans, plain, strict=True)]
    return Plan(study, tuple(plans), np.asarray(factors, np.float32))


def _budgets(study: Study, silos: int) -> list[float | None]:
    epsilon = study.privacy.epsilon
    if not isinstance(epsilon, tuple):
        return [epsilon] * silos
    if len(epsilon) != silos:
        raise StudyError(f"privacy.epsilon: expected one number or {silos} of them (one per silo), got {len(epsilon)}.")
    return list(epsilon)


@lru_cache(maxsize=1024)
def _calibrated(events: tuple[Event, ...], epsilon: float, delta: float, accountant: Any) -> tuple[Event, ...]:
    return calibrate(events, epsilon=epsilon, delta=delta, accountant=accountant)


@lru_cache(maxsize=1024)
def _priced(events: tuple[Event, ...], delta: float, accountant: Any) -> Price:
    return price(events, delta=delta, accountant=accountant)


def paper_of(plan: Plan, silo: SiloPlan) -> PaperNoise | None:
    """The noise that the algorithm's theorem asks for at the same budget, where there is a theorem."""
    if silo.price is None or not np.isfinite(silo.price.epsilon):
        return None
    section = plan.study.algorithm
    return paper_noise(
        section.name,
        records=silo.records,
        rounds=section.num_rounds,
        batch=section.batch_size or silo.records,
        epsilon=silo.price.epsilon,
        delta=silo.price.delta,
        sampling=section.scheme,
        local_steps=int(section.own.get("local_steps", 1)),
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain data."""
    return {"study": plan.study.name, "silos": [_silo_json(plan, silo) for silo in plan.silos]}


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
                "sigma_over_clip": 2 * event.noise_multiplier / event.batch if silo.price is not None else None,
            }
            for event in silo.events
        ],
        "paper": None
        if paper is None
        else {
            "source": paper.source,
            "sigma_over_clip": list(paper.sigma_over_clip),
            "epsilon_certified": paper.epsilon_certified,
            "noise_ratio": paper.ratio,
            "conditions": [{"text": c.text, "holds": c.holds} for c in paper.conditions],
        },
    }
