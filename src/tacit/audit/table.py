"""Every algorithm of the table, in every way it can be run: what the full audit goes through.

A later algorithm is audited by being in the table: parameters of its own that have no default are filled in by name, or
by their type.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tacit.algorithm import Algorithm, Channel, Sampling
from tacit.algorithms import ALGORITHMS, Entry
from tacit.audit.transcript import Seat
from tacit.audit.worst_case import attackers_problem
from tacit.privacy import calibrate
from tacit.privacy.plan import events_of

CLIP = 0.01  # small beside every canary's gradient

_OWN: dict[str, Any] = {
    "local_steps": 2,
    "phase_length": 2,
    "restarts": 2,
    "difference_slope": 1.0,
    "frequencies": (0.5, 0.5),
}
_ALWAYS = {"frequencies"}  # has a default, but nothing can be attacked without it


@dataclass(frozen=True)
class Setting:
    """One way to run an algorithm, small enough for a million trials, and how tight its audit must be.

    ``share`` is the share of the trials that a setting gets where a trial is dear.
    """

    name: str
    sampling: Sampling
    rounds: int
    records: int
    batch: int | None
    tight: float | None
    channel: Channel = "direct"
    share: float = 1.0


SETTINGS = (
    Setting("single release", "full", 1, 4, None, 0.85),
    Setting("schedule", "full", 10, 4, None, 0.7),
    Setting("without replacement", "wor", 10, 8, 2, 0.4),
    Setting("with replacement", "wr", 10, 8, 2, 0.4),
    Setting("Poisson", "poisson", 10, 8, 2, 0.4),
    Setting("one pass", "one-pass", 4, 16, 2, None),
    # Its binomial noise is drawn outside the compiled program, one call for each message.
    Setting("shuffled sum", "full", 2, 4, None, None, "shuffled-sum", 0.2),
    # The reports of one silo hide among themselves alone: no other silo is there.
    Setting("shuffled reports", "full", 2, 4, None, None, "shuffled-reports", 0.05),
    Setting("trusted server", "full", 10, 4, None, 0.7, "trusted"),
    Setting("open", "full", 4, 4, None, None, "open", 0.01),
)


@dataclass(frozen=True)
class Subject:
    """An algorithm in a setting, calibrated to its budget; or why the algorithm cannot be run that way."""

    entry: Entry
    setting: Setting
    algorithm: Algorithm | None
    refusal: str = ""

    @property
    def seat(self) -> Seat:
        """The silo under attack."""
        return Seat(self.setting.records)

    @property
    def label(self) -> str:
        """Algorithm and setting."""
        return f"{self.entry.name}, {self.setting.name}"


def subjects(*, epsilon: float, delta: float) -> Iterator[Subject]:
    """Every algorithm in every setting."""
    for entry in ALGORITHMS.values():
        for setting in SETTINGS:
            yield subject(entry, setting, epsilon=epsilon, delta=delta)


def subject(entry: Entry, setting: Setting, *, epsilon: float, delta: float) -> Subject:
    """One algorithm in one setting; only the algorithm's own refusal makes it absent."""
    problem, given = attackers_problem(), parameters_for(entry, setting)
    try:
        unit = entry.build(problem, **given, noise_multiplier=None if setting.channel == "open" else 1.0)
        events = events_of(unit, place=0, silos=1, records=setting.records)
        if setting.channel == "open":
            return Subject(entry, setting, unit)
        factor = calibrate(events, epsilon=epsilon, delta=delta)[0].noise_multiplier / events[0].noise_multiplier
        return Subject(entry, setting, entry.build(problem, **given, noise_multiplier=factor))
    except ValueError as error:
        return Subject(entry, setting, None, str(error))


def parameters_for(entry: Entry, setting: Setting) -> dict[str, Any]:
    """Parameters and terms that build this algorithm, without its noise."""
    given: dict[str, Any] = {
        "clip_norm": CLIP,
        "batch_size": setting.batch,
        "sampling": setting.sampling,
        "channel": setting.channel,
        "step_size": 0.2,
        "num_rounds": setting.rounds,
    }
    if entry.reads_attribute:
        given["protects"] = "sensitive-attribute"
    for name, parameter in entry.parameters.items():
        if name not in given and (parameter.default is inspect.Parameter.empty or name in _ALWAYS):
            given[name] = _OWN.get(name, 2 if "int" in str(parameter.annotation) else 0.5)
    return given
