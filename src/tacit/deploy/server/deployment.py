"""A deployment in TOML: how many silos, which shufflers, how long to wait; and the plan of its study."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.channel.sealing import PublicKey
from tacit.deploy.sections import Count, Section, checked
from tacit.deploy.shuffler.client import Address
from tacit.deploy.wire import Name, Plan, Shuffle, Welcome
from tacit.errors import TacitError
from tacit.plans.assemble import check_parameters
from tacit.plans.catalogue import find
from tacit.plans.spec import Study, StudyError
from tacit.studies.plan import min_silos_of

DEPLOYED = ("direct", *SHUFFLED_CHANNELS)
"""The channels that real silos answer through."""

Seconds = Annotated[float, Field(gt=0)]


class ShufflerEntry(Section):
    """A shuffler to use, and the certificates to call it with."""

    name: str
    host: str
    port: int
    authority: str
    certificate: str
    key: str

    @property
    def address(self) -> Address:
        """Where to call it, and with what."""
        return Address(self.host, self.port, Path(self.authority), Path(self.certificate), Path(self.key))


class Deployment(Section):
    """``silos`` is how many take part; ``only`` names them where more are online.

    A round waits ``round_seconds`` for silos that it can do without, and ``patience`` seconds for those that it needs.
    ``evaluate`` measures on the study's own public data set. ``record`` keeps everything that silos send. ``command``
    is what the user typed, for the report. ``proposer`` is who leads the study, with the key in the file ``key``;
    ``pins`` are the public keys of silos, by name.
    """

    silos: Count
    only: tuple[Name, ...] = ()
    folder: str
    proposer: Name
    key: str
    pins: dict[str, str]
    round_seconds: Seconds = 60.0
    patience: Seconds = 600.0
    seed: int = 0
    evaluate: bool = False
    record: bool = False
    command: str = "tacit server run"
    shufflers: tuple[ShufflerEntry, ...] = ()


def deployment_from(tree: dict[str, Any]) -> Deployment:
    """A deployment from plain values."""
    found = checked(Deployment, tree, TacitError, "The deployment")
    if found.only and len(set(found.only)) != found.silos:
        raise TacitError(f"Expected --only to name --silos={found.silos} silos, got {len(set(found.only))}.")
    unknown = sorted(set(found.only) - set(found.pins))
    if unknown:
        raise TacitError(
            f"Expected the keys of all silos in proposer.toml, under [silos]; missing: {', '.join(unknown)}."
        )
    return found


def check_study(study: Study, shufflers: int) -> None:
    """Raise unless a study can be proposed to real silos, with this many shufflers."""
    section = study.privacy
    if study.preprocessing is not None:
        raise StudyError(
            "preprocessing: private statistics are released in simulated studies only; among real silos declare public "
            "ranges in the schema and leave preprocessing out."
        )
    if not isinstance(section.epsilon, float | int) or section.accountant == "paper":
        raise StudyError("privacy.epsilon: real silos need one epsilon, and price it with their own accountant.")
    if section.user_level:
        raise StudyError("privacy.user_level: real silos price records; leave it out, or simulate.")
    if section.protects != "record":
        raise StudyError("privacy.protects: real silos protect whole records; leave it out, or simulate.")
    if find(study.algorithm.name).reads_attribute:
        raise StudyError(
            f"algorithm.name: {study.algorithm.name} reads a sensitive attribute, which daemons do not hold; simulate."
        )
    channel = study.algorithm.channel
    if channel not in DEPLOYED:
        raise StudyError(f'algorithm.channel: "{channel}" cannot be deployed; use {", ".join(DEPLOYED)}.')
    if (channel == "direct") == bool(shufflers):
        raise StudyError(f'algorithm.channel: "{channel}" has {shufflers} shufflers; only shuffled channels have any.')
    check_parameters(study)


def plan_for(
    study: Study, facts: Sequence[Welcome], shufflers: dict[str, str], server: PublicKey | None = None
) -> Plan:
    """The plan to propose, at index 0, for silos with these public facts; reports are sealed to the ``server`` key."""
    first, silos, run, section = facts[0], len(facts), study.run, study.privacy
    shape = (first.features, first.task, first.classes)
    different = [fact.silo for fact in facts if (fact.features, fact.task, fact.classes) != shape]
    if different:
        raise TacitError(f"{', '.join(different)}: records of another shape or task than those of {first.silo}.")
    check_study(study, len(shufflers))
    assert isinstance(section.epsilon, float | int)
    shuffle = None
    if shufflers:
        shuffle = Shuffle(
            records=tuple(fact.records for fact in facts),
            min_silos=min_silos_of(study, silos),
            honest=run.honest,
            shufflers=shufflers,
            server=None if server is None else str(server),
            weights=run.weights,
        )
    return Plan(
        name=study.name,
        nonce=secrets.token_hex(8),
        features=first.features,
        task=first.task,  # type: ignore[arg-type]
        classes=first.classes,
        objective=study.objective.model_dump(mode="json", exclude_none=True),
        algorithm=study.algorithm.model_dump(mode="json", exclude_none=True),
        epsilon=float(section.epsilon),
        delta=section.delta,
        max_participations=section.max_participations,
        silos=silos,
        silo_index=0,
        everyone=run.participants is None,
        shuffle=shuffle,
    )
