"""Every algorithm of the table, in every way it can be run: what the full audit goes through.

What a daemon takes is attacked at its door. What it refuses and the simulator runs is attacked in the simulator, and
its result says so. A later algorithm is audited by being in the table: its parameters without a default are filled in
by name, or by type.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any

from tacit.algorithm import SHUFFLED_CHANNELS, Channel, Sampling
from tacit.audit.deployed import SHUFFLER, DoorTarget, deploy, spare_key
from tacit.audit.mechanism import Target
from tacit.audit.simulated import Seat, SimulatedTarget
from tacit.audit.worst_case import CANARIES, Canary, attackers_problem
from tacit.deploy.wire import Pairwise, Plan, Shuffle
from tacit.errors import TacitError
from tacit.plans.catalogue import ALGORITHMS, Entry
from tacit.privacy import calibrate
from tacit.privacy.plan import events_of

CLIP = 0.01  # small beside every canary's gradient

_OWN: dict[str, Any] = {
    "local_steps": 2,
    "phase_length": 2,
    "restarts": 2,
    "difference_slope": 1.0,
    "warm_rounds": 1,
    "moment_rounds": 1,
    "frequencies": (0.5, 0.5),
}
_FEW = ("mb-sgd", "local-sgd", "quantile-clip")  # fresh batches in each local step, and blocks
_ALWAYS = {"moment_rounds", "frequencies"}  # have a default, with which there is nothing to attack in short schedules


@dataclass(frozen=True)
class Setting:
    """One way to run an algorithm, small enough for many trials, and how tight its audit must be.

    ``only`` names the algorithms that it is for, all of them if empty; ``instead`` a setting for which it stands in,
    with algorithms that cannot be run in that one. ``canaries`` are those that attack it.
    """

    name: str
    sampling: Sampling
    rounds: int
    records: int
    batch: int | None
    tight: float | None
    channel: Channel = "direct"
    only: tuple[str, ...] = ()
    instead: str | None = None
    canaries: tuple[Canary, ...] = CANARIES[:1]


_SAMPLED: tuple[tuple[Sampling, int, Channel], ...] = (
    ("wor", 2, "shuffled-sum"),
    ("wor", 2, "shuffled-reports"),
    ("wor", 2, "pairwise"),
    ("wr", 2, "pairwise"),
    ("poisson", 2, "pairwise"),
    ("allocation", 4, "pairwise"),
)
SETTINGS = (
    # A tight claim of epsilon 1 is proven to about .92, give or take .05, by 100,000 trials; below .75 is no chance.
    Setting("single release", "full", 1, 4, None, 0.75),
    Setting("schedule", "full", 4, 4, None, 0.7),
    # The canaries that only find bugs.
    Setting("two rounds", "full", 2, 4, None, None, canaries=CANARIES[1:]),
    Setting("without replacement", "wor", 2, 8, 2, 0.1),
    Setting("with replacement", "wr", 2, 8, 2, 0.1),
    Setting("Poisson", "poisson", 2, 8, 2, 0.1),
    # Of so few batches every one is priced as known; where the record is stays secret all the same.
    Setting("random allocation", "allocation", 2, 8, 4, None),
    # Three of the 64 batches of an epoch, which is priced for a secret place. Sampler and price are shared.
    Setting("random allocation of 64", "allocation", 3, 64, 1, None, only=_FEW),
    # The record is in one of two batches; what the other one says has nothing to do with it.
    Setting("one pass", "one-pass", 2, 8, 2, None),
    # The other silo colludes, so that nobody else's noise hides this one.
    Setting("shuffled sum", "full", 2, 4, None, None, "shuffled-sum"),
    Setting("shuffled reports", "full", 2, 4, None, None, "shuffled-reports"),
    # One silo colludes and knows its own share; another honest one adds the rest of the noise.
    Setting("pairwise", "full", 2, 4, None, 0.5, "pairwise"),
    # For algorithms that demand one pass. No daemon takes reports of it.
    Setting("one pass, shuffled sum", "one-pass", 2, 8, 2, None, "shuffled-sum", instead="shuffled sum"),
    Setting("one pass, pairwise", "one-pass", 2, 8, 2, None, "pairwise", instead="pairwise"),
    # Batches are drawn by the same code whatever is computed of them.
    *(
        Setting(f"{sampling}, {channel}", sampling, 2, 8, batch, None, channel, only=("mb-sgd",))
        for sampling, batch, channel in _SAMPLED
    ),
    Setting("trusted server", "full", 10, 4, None, 0.7, "trusted"),
    Setting("open", "full", 4, 4, None, None, "open"),
)


@dataclass(frozen=True)
class Subject:
    """An algorithm in a setting, calibrated to its budget; or why the algorithm cannot be run that way."""

    entry: Entry
    setting: Setting
    target: Target | None
    refusal: str = ""

    @property
    def label(self) -> str:
        """Algorithm and setting."""
        return f"{self.entry.name}, {self.setting.name}"


def subjects(*, epsilon: float, delta: float, algorithms: Container[str]) -> Iterator[Subject]:
    """These algorithms in every setting that is for them."""
    for entry in (entry for name, entry in ALGORITHMS.items() if name in algorithms):
        runs: set[str] = set()
        for setting in SETTINGS:
            if (setting.only and entry.name not in setting.only) or setting.instead in runs:
                continue
            some = subject(entry, setting, epsilon=epsilon, delta=delta)
            if some.target is not None:
                runs.add(setting.name)
            yield some


def subject(entry: Entry, setting: Setting, *, epsilon: float, delta: float) -> Subject:
    """One algorithm in one setting; only the algorithm's own refusal makes it absent."""
    if setting.channel in ("direct", "pairwise", *SHUFFLED_CHANNELS):
        try:
            plan = plan_of(entry, setting, epsilon=epsilon, delta=delta)
            return Subject(entry, setting, DoorTarget(deploy(plan, (setting.records,) * plan.silos)))
        except TacitError:
            # No daemon takes it; perhaps the simulator does.
            pass
    problem, given = attackers_problem(), parameters_for(entry, setting)
    try:
        built = entry.build(problem, **given, noise_multiplier=None if setting.channel == "open" else 1.0)
        if setting.channel != "open":
            events = events_of(built, silo_index=0, silos=1, records=setting.records)
            factor = calibrate(events, epsilon=epsilon, delta=delta)[0].noise_multiplier / events[0].noise_multiplier
            built = entry.build(problem, **given, noise_multiplier=factor)
        return Subject(entry, setting, SimulatedTarget(built, Seat(setting.records), delta))
    except ValueError as error:
        return Subject(entry, setting, None, str(error))


def plan_of(entry: Entry, setting: Setting, *, epsilon: float, delta: float) -> Plan:
    """The plan that a server would propose for a setting: to one silo, or to several of which one colludes."""
    given = {name: value for name, value in parameters_for(entry, setting).items() if value is not None}
    return plan_with({"name": entry.name, **given}, setting, epsilon=epsilon, delta=delta, features=(1,))


def plan_with(algorithm: dict[str, Any], setting: Setting, *, epsilon: float, delta: float, **facts: Any) -> Plan:
    """A plan with this section of an algorithm; ``facts`` are what it says of records and of the model."""
    anonymity, sums, silos = None, None, 1
    if setting.channel == "pairwise":
        silos, names = 3, ("a", "b", "c")
        sums = Pairwise(silos=names, records=(setting.records,) * 3, colluding=1, min_silos=3, spare_attempts=0)
    if setting.channel in SHUFFLED_CHANNELS:
        silos = 2
        anonymity = Shuffle(
            records=(setting.records,) * 2,
            min_silos=2,
            honest=0.5,
            weights="equal",
            shufflers={SHUFFLER: spare_key(0)},
            server=spare_key(1),
        )
    return Plan(
        name="audit",
        algorithm=algorithm,
        epsilon=epsilon,
        delta=delta,
        silos=silos,
        silo_index=0,
        shuffle=anonymity,
        pairwise=sums,
        **{"task": "regression", **facts},
    )


def parameters_for(entry: Entry, setting: Setting) -> dict[str, Any]:
    """Parameters and terms that build this algorithm, without its noise; local steps count as rounds."""
    steps = _OWN["local_steps"] if "local_steps" in entry.parameters else 1
    given: dict[str, Any] = {
        "clip_norm": CLIP,
        "batch_size": setting.batch,
        "sampling": setting.sampling,
        "channel": setting.channel,
        "step_size": 0.2,
        "num_rounds": max(1, setting.rounds // steps),
    }
    if entry.reads_attribute:
        given["protects"] = "sensitive-attribute"
    for name, parameter in entry.parameters.items():
        if name not in given and (parameter.default is inspect.Parameter.empty or name in _ALWAYS):
            given[name] = _OWN.get(name, 2 if "int" in str(parameter.annotation) else 0.5)
    return given
