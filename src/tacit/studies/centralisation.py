"""Who holds features and who holds sensitive attributes: regrouping a federation, and what crosses between divisions.

The noise on the fairness term comes from those who hold attributes, so that it is their number and their records that
decide price and noise. With full batches the features may lie anywhere: their messages are sums of what is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tacit.data import Federation
from tacit.data.federation import Records, SiloData
from tacit.plans.spec import Study, StudyError


@dataclass(frozen=True)
class Crossing:
    """One kind of message: from whom to whom, what it is, its size in numbers a round, and what is promised of it."""

    sender: str
    receiver: str
    message: str
    numbers: int
    promise: str


def regrouped(study: Study, federation: Federation) -> Federation:
    """The federation as those see it who hold sensitive attributes."""
    mode = study.partition.centralisation
    if mode == "divided":
        return federation
    number = 1 if mode == "central-sensitive" else study.partition.sensitive_silos
    if number is None:
        raise StudyError('partition.sensitive_silos: missing; centralisation = "general" needs it.')
    if not federation.group_names:
        raise StudyError(f"partition.centralisation: {federation.name} has no sensitive attribute to hold apart.")
    silos = []
    for place in range(number):
        parts = [_every(silo, number, place) for silo in federation.silos]
        held = (
            {k: np.concatenate([getattr(p, split)[k] for p in parts]) for k in getattr(parts[0], split)}
            for split in ("train", "validation", "test")
        )
        silos.append(SiloData(f"attributes {place + 1}", *held))
    return replace(federation, silos=tuple(silos))


def _every(silo: SiloData, number: int, place: int) -> SiloData:
    """A silo's records whose attributes one of ``number`` holders has: dealt in turn, whatever they say."""

    def dealt(records: Records) -> Records:
        return {name: column[place::number] for name, column in records.items()}

    return SiloData(silo.name, dealt(silo.train), dealt(silo.validation), dealt(silo.test))


def crossings(study: Study, *, features: int, records: int, parameters: int, duals: int) -> tuple[Crossing, ...]:
    """What crosses in a round, for one sender of each kind; ``records`` are those of its part of the batch."""
    mode, section = study.partition.centralisation, study.algorithm
    whole = study.privacy.protects == "record"
    private = "with noise, priced" if study.privacy.private else "without noise: not private"
    if whole:
        return (
            Crossing("silo", "server", "gradients of loss + strength psi and of psi in W", parameters + duals, private),
        )
    holder = {"divided": "attributes division of a silo", "central-sensitive": "holder of all attributes"}.get(
        mode, f"attributes division (of {study.partition.sensitive_silos})"
    )
    source = "features division of a silo" if mode == "divided" else f"features division (of {features})"
    classes = int(section.own.get("classes", 2))
    open_ = "function of x and y alone, which are not protected"
    found = [
        Crossing("server", "everyone", "theta, W and frequencies", parameters + 2 * duals, "public"),
        Crossing(
            source, holder, "Outputs: index, y, F(x), its Jacobian", records * (2 + classes * (1 + parameters)), open_
        ),
        Crossing(source, "server", "LossGradient", parameters, open_),
        Crossing(holder, "server", "FairGradients: in theta and in W", parameters + duals, private),
    ]
    if "frequencies" not in section.own:
        found.append(Crossing(holder, "server", "histogram of s, once", duals, private))
    return tuple(found)
