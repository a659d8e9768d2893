"""Who holds features and who holds sensitive attributes: regrouping a federation, and what crosses between divisions.

The noise on the fairness term comes from those who hold attributes: their number and their records decide price and
noise. With full batches the features may lie anywhere: their messages are sums of what is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tacit.data import Federation
from tacit.data.federation import SiloData
from tacit.plans.spec import Study, StudyError


@dataclass(frozen=True)
class Crossing:
    """One kind of message: from whom to whom, what it is, how many numbers in a round, and what is promised."""

    sender: str
    receiver: str
    message: str
    numbers: int
    promise: str


def regrouped(study: Study, federation: Federation) -> Federation:
    """The federation as the holders of sensitive attributes see it."""
    mode = study.partition.centralisation
    if mode == "divided":
        return federation
    holders = 1 if mode == "central-sensitive" else study.partition.sensitive_silos
    if holders is None:
        raise StudyError('partition.sensitive_silos: missing; centralisation = "general" needs it.')
    if not federation.group_names:
        raise StudyError(f"partition.centralisation: {federation.name} has no sensitive attribute to hold apart.")
    return dealt(federation, holders)


def dealt(federation: Federation, holders: int) -> Federation:
    """The records of all silos at so many holders, dealt in turn whatever their attribute."""
    silos = []
    for holder in range(holders):
        parts = (
            {
                name: np.concatenate([getattr(silo, part)[name][holder::holders] for silo in federation.silos])
                for name in getattr(federation.silos[0], part)
            }
            for part in ("train", "validation", "test")
        )
        silos.append(SiloData(f"attributes {holder + 1}", *parts))
    return replace(federation, silos=tuple(silos))


def crossings(study: Study, *, features: int, records: int, parameters: int, duals: int) -> tuple[Crossing, ...]:
    """What crosses in a round, for one sender of each kind; ``records`` are those of its part of the batch."""
    mode, section = study.partition.centralisation, study.algorithm
    private = "with noise, priced" if study.privacy.private else "without noise: not private"
    if study.privacy.protects == "record":
        message = "gradients of loss + strength psi and of psi in W"
        return (Crossing("silo", "server", message, parameters + duals, private),)
    holder = {"divided": "attributes division of a silo", "central-sensitive": "holder of all attributes"}.get(
        mode, f"attributes division (of {study.partition.sensitive_silos})"
    )
    source = "features division of a silo" if mode == "divided" else f"features division (of {features})"
    classes = int(section.own.get("classes", 2))
    open_, outputs = "function of x and y alone, which are not protected", records * (2 + classes * (1 + parameters))
    found = [
        Crossing("server", "everyone", "theta, W and frequencies", parameters + 2 * duals, "public"),
        Crossing(source, holder, "Outputs: index, y, F(x), its Jacobian", outputs, open_),
        Crossing(source, "server", "LossGradient", parameters, open_),
        Crossing(holder, "server", "FairGradients: in theta and in W", parameters + duals, private),
    ]
    if "frequencies" not in section.own:
        found.append(Crossing(holder, "server", "histogram of s, once", duals, private))
    return tuple(found)
