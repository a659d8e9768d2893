"""How a finished model does at the silos: one question to records that were set aside, and what the answers say.

    bundle -> plan of one round, with the model as its broadcast -> counts by (score, truth) -> validation.json

Silos that have set nothing aside, or do not allow it, are left out. Where owners still have to approve, or silos are
away, the question stays open: `tacit server evaluate` asks it again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.algorithm import GUARANTEES, Channel
from tacit.algorithms.validation import TASKS, tables_for
from tacit.counting.estimate import Noisy
from tacit.counting.performance import performance
from tacit.counting.request import block
from tacit.counting.validated import draw, gained, plain_rows
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Met, Patience, Tell, fresh_state
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.server.questions import answered
from tacit.deploy.server.transport import Transport
from tacit.deploy.wire import Plan, Receipt, RefusalError
from tacit.errors import TacitError
from tacit.models.loading import load_model
from tacit.models.scores import LOG_LOSSES
from tacit.models.trained import TrainedModel
from tacit.plans.spec import Study, ValidationSection, study_from
from tacit.simulate.participation import participation
from tacit.studies.statistics import ALL_SILOS

NAME = "validation"
RESULT = "validation.json"
_LONGEST = 64 - len(NAME) - 1
_NUMBERS = ("bins", "threshold", "residual", "groups")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A question about the model of a run folder; ``section`` is what is asked, at which price."""

    folder: Path
    name: str
    section: ValidationSection
    channel: Channel
    ranges: Mapping[str, Sequence[float]]
    epsilon: float
    delta: float
    proposer: str

    @property
    def path(self) -> Path:
        """The checkpoint of the question."""
        return self.folder / NAME / "checkpoint.npz"


def evaluation_of(folder: Path, study: Study, proposer: str, section: ValidationSection | None = None) -> Evaluation:
    """The question that follows a study: through its channel where no shuffler is needed, and at its price."""
    section = study.validation if section is None else section
    epsilon = section.epsilon or study.privacy.epsilon
    if not isinstance(epsilon, float | int):
        raise TacitError("Expected one epsilon for a validation; give --epsilon.")
    channel: Channel = "pairwise" if study.algorithm.channel == "pairwise" else "direct"
    ranges = study.data.options.get("ranges") or {}
    name = f"{study.name[:_LONGEST]}-{NAME}"
    return Evaluation(folder, name, section, channel, ranges, float(epsilon), study.privacy.delta, proposer)


def evaluate(asked: Evaluation, transport: Transport, met: Met, patience: Patience, tell: Tell) -> dict[str, Any]:
    """Ask the silos that were met how the model of a run folder does; writes and returns what they say.

    A question that was begun before goes on. A silo that refuses for good is left out, and the others are asked.
    """
    model = load_model(asked.folder)
    willing = {name: found for name, found in met.items() if found[1].validation}
    if not willing:
        raise TacitError("No silo has set records aside to test models; their owners can, with data.validation.")
    while True:
        point = _point(asked, model, willing)
        coordinator = _coordinator(asked, point, transport, met, patience, tell)
        try:
            receipts = coordinator.run()
            break
        except RefusalError:
            left = {name: found for name, found in willing.items() if name in coordinator.consents}
            coordinator.finish()
            asked.path.unlink(missing_ok=True)
            if not left or len(left) == len(willing):
                raise
            willing = left
    return _write(asked, model, coordinator, receipts)


def _point(asked: Evaluation, model: TrainedModel, willing: Met) -> Checkpoint:
    """Where the question stands: as it was left, or at its beginning."""
    if asked.path.exists():
        point = load_checkpoint(asked.path, fresh_state)
        if not point.finished:
            return point
    names = tuple(sorted(willing))
    facts = [willing[name][1].model_copy(update={"records": willing[name][1].validation}) for name in names]
    plan = plan_for(question(asked, model), facts, {}, proposer=asked.proposer)
    records = tuple(fact.records for fact in facts)
    state = builder_from(plan, records[0]).build(noise_multiplier=1.0).init(model.params)
    asked.path.parent.mkdir(parents=True, exist_ok=True)
    point = Checkpoint(plan, names, records, state)
    point.save(asked.path)
    return point


def question(asked: Evaluation, model: TrainedModel) -> Study:
    """The study of one round that asks about a model."""
    section = asked.section
    wanted = {name: own for name in _NUMBERS if (own := getattr(section, name)) is not None}
    algorithm = {"name": NAME, "channel": asked.channel, "asked": wanted}
    tree = {
        "name": asked.name,
        "data": {"name": "silo", "options": {"ranges": asked.ranges} if asked.ranges else {}},
        "objective": _objective(model),
        "algorithm": algorithm,
        "privacy": {"epsilon": asked.epsilon, "delta": asked.delta},
    }
    return study_from(tree)


def _objective(model: TrainedModel) -> dict[str, Any]:
    """The section of a study that builds the model of a bundle again."""
    built, loss = model.description.model, model.description.loss
    if built is None or loss not in TASKS:
        raise TacitError(
            f"Expected a model of Tacit's own with a loss among {', '.join(TASKS)}, got {loss or 'one of your own'}; "
            "silos know no other."
        )
    # Scores do not depend on how a loss is smoothed, where it bends, nor on its quantile.
    section: dict[str, Any] = {"model": built.name, "loss": "absolute" if loss in ("pinball", "huber") else loss}
    if built.name == "hazards":
        section |= {"model": "linear", "bins": built.arguments["bins"]}
    if built.name == "mlp":
        section |= {"hidden": tuple(built.arguments["sizes"][1:-1]), "activation": built.arguments["activation"]}
    if built.name == "cnn":
        section |= {key: built.arguments[key] for key in ("channels", "hidden") if key in built.arguments}
    return section


def _coordinator(
    asked: Evaluation, point: Checkpoint, transport: Transport, met: Met, patience: Patience, tell: Tell
) -> Coordinator:
    def told(event: str, facts: Mapping[str, Any]) -> None:
        # The journal's rounds and prices are those of training.
        if event == "refusal":
            tell("warning", {"text": f"{facts['silo']} does not validate ({facts['code']}): {facts['text']}"})
        if event == "waiting":
            tell("warning", {"text": f"{facts['silo']}: the validation waits for {facts['for']}"})

    weights = list(point.records)
    colluding = 1 if point.plan.pairwise is None else point.plan.pairwise.colluding
    who = participation(len(point.silos), weights=weights, colluding=colluding)
    at = {name: address for name, (address, _) in met.items()}
    told_by = [welcome.description for _, welcome in met.values()]
    meant = next((one for one in told_by if one is not None and one.digest == point.plan.schema_digest), None)
    own: dict[str, Any] = {"who": who, "patience": patience, "tell": told, "description": meant}
    return Coordinator(point, asked.path, transport, at, **own)


def _write(
    asked: Evaluation, model: TrainedModel, coordinator: Coordinator, receipts: Mapping[str, Receipt]
) -> dict[str, Any]:
    """Write and return what the answers say, as plain data and as a picture."""
    plan = coordinator.point.plan
    section = plan.algorithm
    wanted = tables_for(builder_from(plan, 1).problem, section["asked"], section.get("columns") or ())
    found, target = answered(coordinator, wanted.tables), model.description.target
    counted = {**found.sizes, ALL_SILOS: sum(found.sizes.values())}
    rows = {}
    for name, blocks in found.means.items():
        cells = [np.asarray(blocks[block(place)], np.float64).reshape(-1) for place in range(len(wanted.tables))]
        noisy = [Noisy(own, noise[name], counted[name]) for own, noise in zip(cells, found.noise, strict=True)]
        told = performance(wanted, noisy, probable=model.description.loss in LOG_LOSSES)
        rows[name] = plain_rows(told, classes=target.classes, scale=target.range)
    facts = {
        "study": plan.name,
        "task": wanted.task,
        "unit": target.unit,
        "channel": asked.channel,
        "guarantee": GUARANTEES[asked.channel],
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "threshold": wanted.threshold,
        "gained": gained(rows[ALL_SILOS]),
        "numbers": rows[ALL_SILOS],
        "silos": [_silo(plan, name, size, receipts, rows.get(name)) for name, size in found.sizes.items()],
    }
    (asked.folder / RESULT).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    draw(facts, asked.folder / "validation.png")
    return facts


def _silo(
    plan: Plan, name: str, records: int, receipts: Mapping[str, Receipt], rows: Sequence[Mapping[str, Any]] | None
) -> dict[str, Any]:
    """What a silo's own answer says, where it is known: sums tell of all silos alone."""
    receipt = receipts.get(name)
    return {
        "name": name,
        "records": records,
        "epsilon": plan.epsilon,
        "epsilon_spent": None if receipt is None else receipt.epsilon,
        "gained": None if rows is None else gained(rows),
        "numbers": rows,
    }
