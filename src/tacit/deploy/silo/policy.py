"""What the silo's owner allows: one TOML file beside the ledger."""

from __future__ import annotations

import datetime
import hashlib
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from tacit.algorithm import SAMPLINGS, Sampling
from tacit.deploy.permissions import own_text
from tacit.deploy.sections import Count, Section, checked, read_toml
from tacit.deploy.signing import KeyText, verifying_key
from tacit.deploy.wire import Description, Name
from tacit.errors import TacitError, unknown
from tacit.privacy.cache import cache_folder
from tacit.privacy.filter import RuleName
from tacit.privacy.plan import MOST_DELTA
from tacit.silo import check_records
from tacit.silo.chain import Limit

if TYPE_CHECKING:
    from tacit.data.schema import Schema

MOST_EPSILON = 40.0
_log = logging.getLogger("tacit.silo")


class PolicyError(TacitError):
    """A policy that cannot be used as written."""


class BudgetSection(Section):
    """What all studies together may cost each record, and the rule by which the ledger adds it up.

    Without a ``rule`` the ledger keeps its own; a new one gets ``gdp`` where the policy allows only full batches and
    single passes through the direct and pairwise channels, and otherwise ``renyi``. An epsilon above `MOST_EPSILON`
    hides nothing, and the noise of the door would no longer be exact enough for it.
    """

    epsilon: Annotated[float, Field(gt=0, le=MOST_EPSILON)]
    delta: Annotated[float, Field(gt=0, lt=MOST_DELTA)]
    rule: RuleName | None = None


_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-(?:([01]\d|2[0-3]):([0-5]\d)|(24):(00))")


class AllowSection(Section):
    """Which studies are considered at all, and when they are answered.

    ``max_epsilon_per_study`` bounds a plan's own epsilon, and so its price at the account's delta: no plan may have a
    larger one. ``max_parameters`` bounds a model, and a round says at most twice as many numbers. ``hours`` are spans
    of the day in UTC, such as 08:00-18:00 or 22:00-06:00; outside them nothing is answered.
    """

    algorithms: tuple[str, ...]
    channels: tuple[Literal["direct", "pairwise", "shuffled-sum", "shuffled-reports"], ...] = ("direct",)
    sampling: Annotated[tuple[Sampling, ...], Field(min_length=1)] = SAMPLINGS
    min_silos: Count = 2
    max_rounds: Count = 10_000
    max_parameters: Count = 1_000_000
    max_open: Count = 4
    max_epsilon_per_study: Annotated[float, Field(gt=0, le=MOST_EPSILON)] | None = None
    hours: Annotated[tuple[str, ...], Field(min_length=1)] | None = None

    @field_validator("hours")
    @classmethod
    def _spans(cls, hours: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for span in hours or ():
            if not _HOURS.fullmatch(span) or span[:5] == span[6:]:
                raise ValueError(f'expected spans of the day in UTC such as "08:00-18:00", got {span!r}')
        return hours

    def is_open(self, moment: float) -> bool:
        """Whether studies are answered at a moment, in seconds since the epoch."""
        now = datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%H:%M")
        spans = [(span[:5], span[6:]) for span in self.hours or ("00:00-24:00",)]
        # A span that ends before it begins goes over midnight.
        return any(begin <= now < end if begin < end else now >= begin or now < end for begin, end in spans)

    @field_validator("algorithms")
    @classmethod
    def _exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.plans.catalogue import shipped

        for name in names:
            if name not in shipped():
                raise ValueError(unknown("algorithm", name, shipped()))
        return names


class ShuffleSection(Section):
    """Which shufflers are trusted, by their sealing keys, and how many silos may collude with the server.

    ``colluding`` is a count, not a share: the server chooses the silos of a plan, and all that collude may be in a
    small one. ``max_local_epsilon`` bounds what a record's reports of one round reveal by themselves: all its
    protection if every shuffler colludes, or if the first one cheats. It must be set where shuffled reports are
    allowed.
    """

    shufflers: dict[str, str]
    colluding: Annotated[int, Field(ge=0)]
    min_shufflers: Count = 2
    post_quantum: bool = False
    max_local_epsilon: Annotated[float, Field(gt=0)] | None = None


class PairwiseSection(Section):
    """Whose silos share the noise of pairwise sums, by their identity keys, and how many of them may collude.

    ``peers`` pins the public key of every other silo, as its owner's ``tacit silo keys`` prints it; compare
    fingerprints by telephone. ``colluding`` is how many of them may work together with the server: at least one, for
    every silo sees the model and knows its own share of the noise. ``min_silos`` is the least roster of a round, this
    silo included.
    """

    peers: Annotated[dict[Name, KeyText], Field(min_length=1)]
    colluding: Count = 1
    min_silos: Annotated[int, Field(ge=2)] = 3

    @model_validator(mode="after")
    def _some_are_honest(self) -> PairwiseSection:
        if len({verifying_key(key).public_bytes_raw() for key in self.peers.values()}) != len(self.peers):
            raise ValueError("expected another key for every peer: one key under two names would count twice")
        if self.colluding >= self.min_silos:
            raise ValueError(f"expected colluding={self.colluding} < min_silos={self.min_silos}: others must add noise")
        return self


class ApprovalSection(Section):
    """Who approves: the policy by itself, or the owner with ``tacit silo approve``."""

    mode: Literal["auto", "manual"] = "manual"
    study_days: Annotated[float, Field(gt=0)] = 30.0


class DataSection(Section):
    """The records: an npz file with arrays x and y, or a CSV file and its schema.

    ``columns`` is the schema. An npz file may have one too, if x and y are what its encoding makes of cells; without
    it nobody can tell whether the features and classes of two silos mean the same.
    """

    file: str
    columns: str | None = None
    task: Literal["binary", "multiclass", "regression"]
    classes: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        if self.columns is None and self.file.lower().endswith(".csv"):
            raise ValueError("set columns, the schema that `tacit init` writes, where file is a CSV file")
        if (self.task == "regression") != (self.classes is None):
            raise ValueError("set classes exactly where task is not regression")
        return self


class Policy(Section):
    """The owner's policy.

    ``proposers`` pins the public key of everybody who may propose and lead studies, as ``tacit server keys`` prints it.
    ``key`` is the file of the silo's own key, from ``tacit silo keys``, which signs all that the silo says.
    ``clock_checked`` is a day on which the owner found the clock to be right, needed only where nothing was written to
    the ledger for more than a year.
    """

    name: Name
    budget: BudgetSection
    allow: AllowSection
    approval: ApprovalSection = ApprovalSection()
    shuffle: ShuffleSection | None = None
    pairwise: PairwiseSection | None = None
    data: DataSection
    proposers: Annotated[dict[Name, KeyText], Field(default_factory=dict)]
    key: str = "sign.key"
    expires: datetime.datetime | datetime.date | None = None
    clock_checked: datetime.datetime | datetime.date | None = None
    counter: str | None = None
    pad_seconds: Annotated[float, Field(ge=0, le=60)] = 0.1
    test: bool = False

    @model_validator(mode="after")
    def _shufflers_named(self) -> Policy:
        if set(self.allow.channels) & {"shuffled-sum", "shuffled-reports"} and self.shuffle is None:
            raise ValueError("set [shuffle] where a shuffled channel is allowed")
        if "pairwise" in self.allow.channels and self.pairwise is None:
            raise ValueError("set [pairwise], with the keys of the other silos, where pairwise sums are allowed")
        if self.pairwise is not None and self.name in self.pairwise.peers:
            raise ValueError(f"expected pairwise.peers to be the other silos, got {self.name}, which is this one")
        if "shuffled-reports" in self.allow.channels and (self.shuffle is None or not self.shuffle.max_local_epsilon):
            raise ValueError("set shuffle.max_local_epsilon where shuffled reports are allowed")
        return self

    @property
    def limit(self) -> Limit:
        """The budget and its rule, as the ledger takes them."""
        plain = set(self.allow.sampling) <= {"full", "one-pass"} and set(self.allow.channels) <= {"direct", "pairwise"}
        budget = self.budget
        return Limit(budget.epsilon, budget.delta, budget.rule, default="gdp" if plain else "renyi")

    @property
    def last_second(self) -> float:
        """When the policy ends, in seconds since the epoch."""
        return float("inf") if self.expires is None else _seconds(self.expires)

    @property
    def checked_second(self) -> float:
        """When the owner last found the clock to be right, in seconds since the epoch."""
        return 0.0 if self.clock_checked is None else _seconds(self.clock_checked)


def _seconds(moment: datetime.datetime | datetime.date) -> float:
    if not isinstance(moment, datetime.datetime):
        moment = datetime.datetime.combine(moment, datetime.time(0))
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file, or an error that names the field."""
    missing = f"No policy at {path}; write one with: tacit silo init {path.parent}"
    return policy_from(read_toml(path, PolicyError, missing))


def policy_text(folder: Path) -> bytes:
    """The policy of a silo's folder as it stands on disk; empty where it cannot be read, or others may too."""
    return own_text(folder / "policy.toml")


def plain_policy(policy: Policy) -> dict[str, Any]:
    """A policy as plain values, as the ledger's chain keeps it."""
    return policy.model_dump(mode="json")


def policy_from(tree: dict[str, Any]) -> Policy:
    """A policy from plain values."""
    return checked(Policy, tree, PolicyError, "The policy")


def files_of(folder: Path, policy: Policy, counter: Path) -> list[Path]:
    """What the daemon relies on: policy, records and schema, key, ledger, decisions, counter, machine, prices."""
    named = [policy.data.file, policy.data.columns, policy.key]
    names = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "approved", "decided")
    state, apart = [folder / name for name in names], [counter, counter.with_name("machine")]
    kept = cache_folder("prices")
    prices = [] if kept is None else [kept / "any"]
    return [folder / "policy.toml", *(folder / name for name in named if name is not None), *state, *apart, *prices]


def load_records(policy: Policy, home: Path) -> dict[str, np.ndarray]:
    """The silo's records, checked; relative files are looked for beside the policy."""
    section, path = policy.data, home / policy.data.file
    is_csv = path.suffix.lower() == ".csv"
    table = _csv_records(section, path, home / str(section.columns)) if is_csv else _stored_records(path)
    records = check_records({k: v for k, v in table.items() if k in ("x", "y", "columns")}, policy.name)
    y, classes = records["y"], section.classes
    if classes is not None and (y.dtype.kind != "i" or y.min() < 0 or y.max() >= classes):
        raise PolicyError(f"data.classes: expected labels 0 to {classes - 1}; encode y that way.")
    return records


def _stored_records(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz file; what is wrong with one is told without a byte of it."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in ("x", "y") if name in stored.files}
    except OSError as error:
        raise PolicyError(f"data.file: {path} cannot be read: {error.strerror or type(error).__name__}.") from None
    except Exception as error:  # numpy's texts may quote the file
        raise PolicyError(
            f"data.file: {path} cannot be read as an npz file of arrays x and y ({type(error).__name__}); save it with "
            "numpy.savez, or name a CSV file and its columns."
        ) from None


def load_description(policy: Policy, home: Path, records: Mapping[str, np.ndarray]) -> Description:
    """What the silo's records mean: by its schema, or as little as is known without one."""
    section, shape = policy.data, records["x"].shape[1:]
    if section.columns is None:
        return Description(features=shape, task=section.task, classes=section.classes)
    path = home / section.columns
    schema = _checked_schema(section, path)
    if shape != (schema.width,):
        raise PolicyError(
            f"data.columns: {path} makes {schema.width} features of a record, but x has {', '.join(map(str, shape))}; "
            "name the schema that x was encoded by."
        )
    norms = np.sqrt((records["x"].astype(np.float64) ** 2).sum(axis=1))
    if norms.max() > schema.bound * (1 + 1e-6):
        raise PolicyError(
            f"data.columns: {path} bounds the norm of features by {schema.bound:g}, and x has records beyond that; "
            "name the schema that x was encoded by."
        )
    return Description.model_validate(schema.description())


def _csv_records(section: DataSection, path: Path, schema: Path) -> dict[str, Any]:
    """Records from a CSV file; task and classes must be the policy's."""
    from tacit.data.csv_silos import silo_records

    _checked_schema(section, schema)
    # The silo's own log: nothing of it is ever sent.
    return silo_records(path, schema, tell=lambda line: _log.warning("%s", line))


def _checked_schema(section: DataSection, path: Path) -> Schema:
    """The policy's schema; its target must be the policy's, and nothing in it may come from records."""
    from tacit.data.schema import public_schema

    schema = public_schema(path)
    target = schema.target
    classes = None if target.classes is None else len(target.classes)
    if (section.task, section.classes) != (target.task, classes):
        raise PolicyError(
            f"[data] of the policy says {_target_words(section.task, section.classes)}, but the target "
            f"{target.column!r} of {path} has {_target_words(target.task, classes)}; set that in the policy, or name "
            "the records that were meant."
        )
    return schema


def _target_words(task: str, classes: int | None) -> str:
    return f'task = "{task}"' + ("" if classes is None else f" and classes = {classes}")


def digest(records: dict[str, np.ndarray]) -> str:
    """A fingerprint of the records, to tell whether a ledger belongs to them; columns are of the same rows."""
    fingerprint = hashlib.sha256()
    for name in sorted(set(records) - {"columns"}):
        column = np.ascontiguousarray(records[name])
        fingerprint.update(f"{name} {column.dtype.str} {column.shape}".encode())
        fingerprint.update(column.tobytes())
    return fingerprint.hexdigest()
