"""What the silo's owner allows: one TOML file beside the ledger."""

from __future__ import annotations

import datetime
import hashlib
import logging
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tacit.algorithm import SAMPLINGS, Sampling
from tacit.errors import TacitError, explained, unknown
from tacit.privacy.cache import cache_folder
from tacit.privacy.doubts import MOST_DELTA
from tacit.privacy.filter import RuleName
from tacit.silo import check_records
from tacit.silo.rules import Limit

_log = logging.getLogger("tacit.silo")
Count = Annotated[int, Field(ge=1)]


class PolicyError(TacitError):
    """A policy that cannot be used as written."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


MOST_EPSILON = 40.0


class BudgetSection(_Section):
    """What all studies together may ever cost each record, and the rule by which the ledger adds it up.

    Without a ``rule`` the ledger keeps its own; a new one gets ``gdp`` where the policy allows nothing but full batches
    and single passes through the direct channel, and else ``renyi``. An epsilon above `MOST_EPSILON` hides nothing, and
    the noise of the door could not be told from exact noise at it.
    """

    epsilon: Annotated[float, Field(gt=0, le=MOST_EPSILON)]
    delta: Annotated[float, Field(gt=0, lt=MOST_DELTA)]
    rule: RuleName | None = None


class AllowSection(_Section):
    """Which studies are considered at all."""

    algorithms: tuple[str, ...]
    channels: tuple[Literal["direct", "shuffled-sum", "shuffled-reports"], ...] = ("direct",)
    sampling: Annotated[tuple[Sampling, ...], Field(min_length=1)] = SAMPLINGS
    min_silos: Count = 2
    max_rounds: Count = 10_000
    max_parameters: Count = 1_000_000
    max_open: Count = 4

    @field_validator("algorithms")
    @classmethod
    def _exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from tacit.plans.catalogue import ALGORITHMS

        for name in names:
            if name not in ALGORITHMS:
                raise ValueError(unknown("algorithm", name, ALGORITHMS))
        return names


class ShuffleSection(_Section):
    """Which shufflers are trusted, by their sealing keys, and how many silos may collude with the server.

    ``colluding`` is a number of silos, not a share: the server chooses which silos are in a plan, and all that collude
    may be in a small one.
    ``key`` is the file of the silo's signing key, as ``tacit silo keys`` makes it. ``max_local_epsilon`` is what the
    reports of a record in one round may tell by themselves, which is all that is left if every shuffler colludes, or if
    the first one does and meddles; it must be said where shuffled reports are allowed.
    """

    shufflers: dict[str, str]
    colluding: Annotated[int, Field(ge=0)]
    min_shufflers: Count = 2
    post_quantum: bool = False
    max_local_epsilon: Annotated[float, Field(gt=0)] | None = None
    key: str = "sign.key"


class ApprovalSection(_Section):
    """Who says yes: the policy by itself, or the owner with ``tacit silo approve``."""

    mode: Literal["auto", "manual"] = "manual"
    study_days: Annotated[float, Field(gt=0)] = 30.0


class DataSection(_Section):
    """The records: an npz file with arrays x and y, or a CSV file and its schema."""

    file: str
    columns: str | None = None
    task: Literal["binary", "multiclass", "regression"]
    classes: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        if (self.columns is not None) != self.file.lower().endswith(".csv"):
            raise ValueError("set columns, the schema that `tacit init` writes, exactly where file is a CSV file")
        if (self.task == "regression") != (self.classes is None):
            raise ValueError("set classes exactly where task is not regression")
        return self


class Policy(_Section):
    """The owner's policy.

    ``clock_checked`` is a day on which the owner has found the clock to be right; it is needed only where the ledger
    has not been written to for more than a year.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    budget: BudgetSection
    allow: AllowSection
    approval: ApprovalSection = ApprovalSection()
    shuffle: ShuffleSection | None = None
    data: DataSection
    expires: datetime.datetime | datetime.date | None = None
    clock_checked: datetime.datetime | datetime.date | None = None
    counter: str | None = None
    pad_seconds: Annotated[float, Field(ge=0, le=60)] = 0.1
    test: bool = False

    @model_validator(mode="after")
    def _shufflers_named(self) -> Policy:
        if any(channel != "direct" for channel in self.allow.channels) and self.shuffle is None:
            raise ValueError("set [shuffle] where a channel other than direct is allowed")
        if "shuffled-reports" in self.allow.channels and (self.shuffle is None or not self.shuffle.max_local_epsilon):
            raise ValueError("set shuffle.max_local_epsilon where shuffled reports are allowed")
        return self

    @property
    def limit(self) -> Limit:
        """The budget and its rule, as the ledger takes them."""
        plain = set(self.allow.sampling) <= {"full", "one-pass"} and set(self.allow.channels) == {"direct"}
        budget = self.budget
        return Limit(budget.epsilon, budget.delta, budget.rule, default="gdp" if plain else "renyi")

    @property
    def last_second(self) -> float:
        """When the policy ends, in seconds since the epoch."""
        return float("inf") if self.expires is None else _seconds(self.expires)

    @property
    def checked_second(self) -> float:
        """When the owner has last vouched for the clock, in seconds since the epoch."""
        return 0.0 if self.clock_checked is None else _seconds(self.clock_checked)


def _seconds(moment: datetime.datetime | datetime.date) -> float:
    if not isinstance(moment, datetime.datetime):
        moment = datetime.datetime.combine(moment, datetime.time(0))
    return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def load_policy(path: Path) -> Policy:
    """The policy in a TOML file, or an error that names the field."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PolicyError(f"No policy at {path}; write one with: tacit silo init {path.parent}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path} is not valid TOML: {error}.") from None
    return policy_from(tree)


def policy_from(tree: dict[str, Any]) -> Policy:
    """A policy from plain values."""
    try:
        return Policy.model_validate(tree)
    except ValidationError as error:
        lines = explained(error.errors(include_input=False), Policy)
        raise PolicyError("The policy cannot be used:\n  " + lines) from None


def files_of(folder: Path, policy: Policy, counter: Path) -> list[Path]:
    """What the daemon reads or believes: the policy, the records and their schema, keys, books, approvals, prices."""
    named = [policy.data.file, policy.data.columns, None if policy.shuffle is None else policy.shuffle.key]
    books = [folder / name for name in ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "approved")]
    kept = cache_folder("prices")
    prices = [] if kept is None else [kept / "any"]
    return [folder / "policy.toml", *(folder / name for name in named if name is not None), *books, counter, *prices]


def load_records(policy: Policy, home: Path) -> dict[str, np.ndarray]:
    """The silo's records, checked; relative files are looked for beside the policy."""
    section = policy.data
    if section.columns is not None:
        from tacit.data.csv_silos import silo_records
        from tacit.data.schema import read_schema

        place = home / section.columns
        target = read_schema(place).target
        told = f"the target {target.column!r} of {place}"
        _check_target(section, target.task, None if target.classes is None else len(target.classes), told)
        # The silo's own log: nothing of it is ever sent.
        table = silo_records(home / section.file, place, tell=lambda line: _log.warning("%s", line))
    else:
        path = home / section.file
        try:
            with np.load(path, allow_pickle=False) as stored:
                table = {name: stored[name] for name in stored.files}
        except (OSError, ValueError) as error:
            raise PolicyError(f"data.file: {path} cannot be read as an npz file of arrays: {error}.") from None
    records = check_records({k: v for k, v in table.items() if k in ("x", "y")}, policy.name)
    labels = records["y"]
    if section.classes is not None and (
        labels.dtype.kind != "i" or labels.min() < 0 or labels.max() >= section.classes
    ):
        raise PolicyError(f"data.classes: expected labels 0 to {section.classes - 1}; encode y that way.")
    return records


def _check_target(section: DataSection, task: str, classes: int | None, whose: str) -> None:
    """Raise where the policy says another task or number of classes than its records have."""
    if (section.task, section.classes) != (task, classes):
        raise PolicyError(
            f"[data] of the policy says {_target_words(section.task, section.classes)}, but {whose} has "
            f"{_target_words(task, classes)}; set that in the policy, or name the records that were meant."
        )


def _target_words(task: str, classes: int | None) -> str:
    return f'task = "{task}"' + ("" if classes is None else f" and classes = {classes}")


def digest(records: dict[str, np.ndarray]) -> str:
    """A fingerprint of the records, to tell whether a ledger belongs to them."""
    found = hashlib.sha256()
    for name in sorted(records):
        column = np.ascontiguousarray(records[name])
        found.update(f"{name} {column.dtype.str} {column.shape}".encode())
        found.update(column.tobytes())
    return found.hexdigest()
