"""A deployment in writing: which study, which silos, which shufflers, and how long anybody waits."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.algorithm import CROWDED
from tacit.channel.sealing import PublicKey
from tacit.deploy.shuffler.client import Address
from tacit.deploy.wire import Plan, Shuffle, Welcome
from tacit.errors import TacitError, explained
from tacit.plans.assemble import check_parameters
from tacit.plans.catalogue import find
from tacit.plans.spec import Study, StudyError

DEPLOYED = ("direct", *CROWDED)
"""The channels that real silos answer through."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ShufflerEntry(_Section):
    """A shuffler to use, and the certificates to call it with."""

    name: str
    host: str
    port: int
    authority: str
    certificate: str
    key: str

    @property
    def address(self) -> Address:
        """As the caller knows it."""
        return Address(self.host, self.port, Path(self.authority), Path(self.certificate), Path(self.key))


class Deployment(_Section):
    """``silos`` is how many take part. ``round_seconds`` is how long a round waits for those who may be missed, and
    ``patience`` how long for those who may not. ``evaluate`` measures on the study's own data set, where the server
    has it because it is public. ``record`` keeps everything that silos send. ``command`` is what the user typed, for
    the report.
    """

    silos: Annotated[int, Field(ge=1)]
    folder: str
    round_seconds: Seconds = 60.0
    patience: Seconds = 600.0
    seed: int = 0
    evaluate: bool = False
    record: bool = False
    command: str = "tacit server run"
    shufflers: tuple[ShufflerEntry, ...] = ()


def deployment_from(tree: dict[str, Any]) -> Deployment:
    """A deployment from plain values."""
    try:
        return Deployment.model_validate(tree)
    except ValidationError as error:
        lines = explained(error.errors(include_input=False), Deployment)
        raise TacitError("The deployment cannot be used:\n  " + lines) from None


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
    """The plan to propose, at place 0, for silos that say these things about themselves.

    ``server`` is the key that single reports are sealed to.
    """
    first = facts[0]
    different = [
        f.silo for f in facts if (f.features, f.task, f.classes) != (first.features, first.task, first.classes)
    ]
    if different:
        raise TacitError(f"{', '.join(different)}: records of another shape or task than those of {first.silo}.")
    check_study(study, len(shufflers))
    section = study.privacy
    assert isinstance(section.epsilon, float | int)
    who, silos = study.run, len(facts)
    min_silos = who.participants if isinstance(who.participants, int) else (who.participants or (silos,))[0]
    shuffle = None
    if shufflers:
        records = tuple(f.records for f in facts)
        to = None if server is None else str(server)
        shuffle = Shuffle(
            records=records, min_silos=min_silos, honest=who.honest, shufflers=shufflers, server=to, weights=who.weights
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
        everyone=who.participants is None,
        shuffle=shuffle,
    )
