"""A deployment in TOML: how many silos, which shufflers, how long to wait; and the plan of its study."""

from __future__ import annotations

import contextlib
import fcntl
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.channel.sealing import PublicKey
from tacit.counting.request import columns_of, used_columns
from tacit.deploy.descriptions import differences, sentence
from tacit.deploy.sections import Count, Section, checked, read_toml
from tacit.deploy.shuffler.client import Address
from tacit.deploy.signing import KeyText
from tacit.deploy.wire import MOST_PEERS, Description, Name, Pairwise, Plan, Shuffle, Welcome, plain_section
from tacit.errors import TacitError
from tacit.objectives.installed import installed, installed_names
from tacit.objectives.losses import LOSSES
from tacit.objectives.models import MODELS
from tacit.plans.assemble import check_parameters
from tacit.plans.catalogue import QUESTIONS, OwnEntry, find
from tacit.plans.spec import Study, StudyError
from tacit.studies.federation import schema_of
from tacit.studies.plan import min_silos_of

DEPLOYED = ("direct", "pairwise", *SHUFFLED_CHANNELS)
"""The channels that real silos answer through."""

Seconds = Annotated[float, Field(gt=0)]


class ShufflerEntry(Section):
    """A shuffler to use, its public key ``sign`` from `tacit shuffler keys`, and the certificates to call it with."""

    name: Name
    sign: KeyText
    host: str
    port: int
    authority: str
    certificate: str
    key: str

    @property
    def address(self) -> Address:
        """Where to call it, and with what."""
        files = Path(self.authority), Path(self.certificate), Path(self.key)
        return Address(self.name, self.sign, self.host, self.port, *files)


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


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold a run folder for one command; the function it yields makes room for the leader that the command starts.

    Raises where another command, or its leader, is at work in the folder.
    """
    with (folder / "run.lock").open("a") as file:

        def take(kind: int) -> None:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
            except OSError:
                raise TacitError(
                    f"{folder} is in use: a study is led from it now. Wait for its end, or stop that command first."
                ) from None

        take(fcntl.LOCK_EX)
        yield lambda: take(fcntl.LOCK_SH)


@contextlib.contextmanager
def led(folder: Path) -> Iterator[None]:
    """Show that a leader is at work in a run folder, as long as it is, whatever becomes of the command."""
    with (folder / "run.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def check_proposer(folder: Path, proposer: str) -> None:
    """Raise where the study of a run folder was proposed by somebody else: its silos obey that one alone."""
    path = folder / "deployment.toml"
    before = read_toml(path, TacitError, "").get("proposer", proposer) if path.exists() else proposer
    if before != proposer:
        raise TacitError(
            f"The study of {folder} was proposed by {before}, and silos obey nobody else about it; got the keys of "
            f"{proposer}. Give --keys the folder of {before}'s key, or start a study of your own without --resume."
        )


def check_study(study: Study, shufflers: int) -> None:
    """Raise unless a study can be proposed to real silos, with this many shufflers."""
    section = study.privacy
    if study.preprocessing is not None:
        raise StudyError(
            "preprocessing: real silos are asked in two studies, each with its price. Ask for statistics first "
            '(algorithm.name = "statistics"), then train with their ranges: tacit server run STUDY --statistics FOLDER'
        )
    if not isinstance(section.epsilon, float | int) or section.accountant == "paper":
        raise StudyError("privacy.epsilon: real silos need one epsilon, and price it with their own accountant.")
    if section.user_level:
        raise StudyError("privacy.user_level: real silos price records; leave it out, or simulate.")
    if section.protects != "record":
        raise StudyError("privacy.protects: real silos protect whole records; leave it out, or simulate.")
    entry, objective = find(study.algorithm.name), study.objective
    names = (*MODELS, *LOSSES, None) if objective.model in MODELS else (*MODELS, *LOSSES, *installed_names(), None)
    foreign = [name for name in (objective.model, objective.loss) if name not in names]
    if isinstance(entry, OwnEntry) or foreign:
        raise StudyError(
            f"plugins: {(foreign or [entry.name])[0]} is of your own, and silos run no code but Tacit's and what their "
            "owners have installed; simulate, or register a model by a package (docs/pytorch.md)."
        )
    if entry.reads_attribute:
        raise StudyError(
            f"algorithm.name: {study.algorithm.name} reads a sensitive attribute, which daemons do not hold; simulate."
        )
    channel = study.algorithm.channel
    if channel not in DEPLOYED:
        raise StudyError(f'algorithm.channel: "{channel}" cannot be deployed; use {", ".join(DEPLOYED)}.')
    if (channel not in SHUFFLED_CHANNELS) == bool(shufflers):
        raise StudyError(f'algorithm.channel: "{channel}" has {shufflers} shufflers; only shuffled channels have any.')
    check_parameters(study)
    schema_of(study)


def description_of(study: Study) -> Description | None:
    """What the records of a study mean by its own schema, where it has one."""
    schema = schema_of(study)
    return None if schema is None else Description.model_validate(schema.description())


def check_schemas(study: Study, facts: Sequence[Welcome]) -> None:
    """Raise unless all silos mean the same by their records, and what the study means where it has a schema.

    The error says of each silo that differs what is different: from the study, or else from the first silo.
    """
    own = description_of(study)
    first = next((fact for fact in facts if not _is_weak(fact)), facts[0])
    expected = first.description if own is None else own
    wanted = first.schema_digest if own is None else own.digest
    lines = []
    for fact in facts:
        if fact.schema_digest == wanted:
            continue
        found = _described(fact)
        known = [] if found is None or expected is None else differences(found, expected)
        unsaid = f"its schema has the digest {fact.schema_digest[:16]}..., expected {wanted[:16]}...; compare the files"
        lines.append(f"silo {fact.silo}: {sentence(known) or unsaid}")
    if lines:
        source = f"silo {first.silo}" if own is None else "the study"
        listed = "\n  ".join(lines)
        raise StudyError(
            f"The study is not started: expected the schema of {source} at every silo; agree on "
            f"one schema file.\n  {listed}"
        )


def _described(fact: Welcome) -> Description | None:
    """A silo's description, if it sent one; it must be that of its digest and of its records' shape."""
    found = fact.description
    if found is None:
        return None
    if found.digest != fact.schema_digest:
        raise TacitError(f"silo {fact.silo}: its schema's description is not that of its digest; ask its owner.")
    if (found.features, found.task, found.classes) != (fact.features, fact.task, fact.classes):
        raise TacitError(f"silo {fact.silo}: its schema describes records of another shape than it has; ask its owner.")
    return found


def _is_weak(fact: Welcome) -> bool:
    found = _described(fact)
    return found is not None and found.columns is None


def unknown_meaning(facts: Sequence[Welcome]) -> str | None:
    """What nobody could compare, where silos have no schema."""
    silos = [fact.silo for fact in facts if _is_weak(fact)]
    if not silos:
        return None
    return (
        f"{', '.join(silos)}: no schema. Shapes, task and number of classes agree; whether features, units and the "
        "order of classes mean the same at all silos is not known. Their owners can name one (data.columns)."
    )


def _algorithm(study: Study, facts: Sequence[Welcome]) -> dict[str, Any]:
    """The algorithm's section of a plan; statistics name the columns that they read, as all silos declare them."""
    section = study.algorithm.model_dump(mode="json", exclude_none=True)
    groups = section.get("asked", {}).get("groups", ())
    if study.algorithm.name not in QUESTIONS or (study.algorithm.name == "validation" and not groups):
        return section
    told = next((fact.description for fact in facts if fact.description is not None), description_of(study))
    if told is None or told.columns is None:
        raise StudyError("algorithm.name: columns need silos with a schema (data.columns), which these have not.")
    declared = columns_of(told.model_dump())
    if study.algorithm.name == "statistics":
        columns = used_columns(declared, section["statistics"])
    else:
        columns = [{**own, "place": place} for place, own in enumerate(declared) if own["name"] in groups]
    plain = {**section, "columns": json.loads(json.dumps(columns))}
    try:
        return plain_section(plain)
    except ValueError as error:
        raise StudyError(f"algorithm.statistics: a plan cannot hold them: {error}; ask for less at once.") from None


def plan_for(
    study: Study,
    facts: Sequence[Welcome],
    shufflers: dict[str, str],
    server: PublicKey | None = None,
    proposer: str | None = None,
) -> Plan:
    """The plan to propose, at index 0, for silos with these public facts; reports are sealed to the ``server`` key."""
    first, silos, run, section = facts[0], len(facts), study.run, study.privacy
    check_study(study, len(shufflers))
    check_schemas(study, facts)
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
    pairwise = _pairwise(study, facts) if study.algorithm.channel == "pairwise" else None
    return Plan(
        name=study.name,
        nonce=secrets.token_hex(8),
        features=first.features,
        task=first.task,  # type: ignore[arg-type]
        classes=first.classes,
        objective=_objective(study, facts),
        algorithm=_algorithm(study, facts),
        epsilon=float(section.epsilon),
        delta=section.delta,
        max_participations=section.max_participations,
        silos=silos,
        silo_index=0,
        everyone=run.participants is None and (pairwise is None or pairwise.min_silos == silos),
        shuffle=shuffle,
        schema_digest=first.schema_digest,
        proposer=proposer,
        pairwise=pairwise,
        ranges=_ranges(study),
        purpose=study.title[:500] or None,
    )


def _ranges(study: Study) -> dict[str, tuple[float, float]] | None:
    """Ranges of numbers in place of the schema's, where a study names them."""
    given = study.data.options.get("ranges") or {}
    try:
        return {str(name): (float(low), float(high)) for name, (low, high) in given.items()} or None
    except (TypeError, ValueError, AttributeError):
        raise StudyError(f"data.options.ranges: expected COLUMN = [low, high] for each, got {given!r}.") from None


def _objective(study: Study, facts: Sequence[Welcome]) -> dict[str, Any]:
    """The objective's section of a plan; a model of a package is pinned by the source that is installed here."""
    section = study.objective.model_dump(mode="json", exclude_none=True, exclude={"loss_options"})
    if not section.get("model_options"):
        section.pop("model_options", None)
    name = study.objective.model
    if name in MODELS:
        return section
    found = installed(name)
    assert found is not None
    wanted = study.objective.model_digest or found.digest
    if wanted != found.digest:
        raise StudyError(f"objective.model_digest: the source of {name!r} here has the digest {found.digest}.")
    for fact in facts:
        own = fact.models.get(name)
        if own != wanted:
            has = "does not have it, or its owner has not listed it" if own is None else f"has the source {own[:12]}..."
            raise StudyError(
                f"objective.model: {name!r} {found.version} (source {wanted[:12]}...) is proposed, but {fact.silo} "
                f"{has}; its owner installs the same package and lists it in the policy (`tacit silo installed`)."
            )
    return {**section, "model_digest": wanted}


def _pairwise(study: Study, facts: Sequence[Welcome]) -> Pairwise:
    """Who is in the pairwise sums of a study, and what they count on."""
    own, silos = study.pairwise, len(facts)
    if silos > MOST_PEERS:
        raise StudyError(f'algorithm.channel: "pairwise" takes up to {MOST_PEERS} silos, got {silos}.')
    min_silos = min_silos_of(study, silos)
    if not own.colluding < min_silos <= silos or min_silos < 2:
        raise StudyError(
            f"pairwise.min_silos: expected pairwise.colluding={own.colluding} < {min_silos} <= {silos} silos; a round "
            "needs silos that do not collude."
        )
    return Pairwise(
        silos=tuple(fact.silo for fact in facts),
        records=tuple(fact.records for fact in facts),
        colluding=own.colluding,
        min_silos=min_silos,
        spare_attempts=own.spare_attempts,
        weights=study.run.weights,
    )
