"""The price of a study, silo by silo, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.privacy import PaperNoise, paper_noise
from tacit.privacy.plan import Budget, SiloPlan, plan_silos
from tacit.studies.assemble import Builder
from tacit.studies.spec import Study


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
    """Price a study: calibrate each silo's noise to its epsilon, or price the noise that is given."""
    silos, noise = plan_silos(builder.build(noise_multiplier=1.0), names, records, budget_of(study))
    return Plan(study, silos, noise)


def budget_of(study: Study) -> Budget | None:
    """The study's budget; none where it is not private."""
    section = study.privacy
    if not section.private:
        return None
    return Budget(
        epsilon=section.epsilon,
        delta=section.delta,
        noise_multiplier=section.noise_multiplier,
        accountant=section.accountant,
        max_participations=section.max_participations,
    )


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
