"""How a finished model does at the silos: one question to records that were set aside, and what the answers say.

    bundle -> plan of one round, with the model as its broadcast -> counts by (score, truth) -> validation.json

Silos that have set nothing aside, or do not allow it, are left out. Where owners still have to approve, or silos are
away, the question stays open: `tacit server evaluate` goes on with it, unless something else is asked. What was
answered and paid for is not asked again, unless that is wanted.

A bundle is enough: `bundle_run` makes a run folder around it. Silos make the features that a model takes from their own
cells, by the ranges of its bundle; a model that takes others is refused before anybody is asked.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.algorithm import GUARANTEES, SHUFFLED_CHANNELS, Channel
from tacit.algorithms.validation import HAS_OWN, TASKS, tables_for
from tacit.counting.estimate import Noisy
from tacit.counting.performance import own_performance, performance
from tacit.counting.request import block
from tacit.counting.scored import Scored
from tacit.counting.validated import draw, gained, gained_over_shared, plain_rows
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Met, Patience, Tell, fresh_state
from tacit.deploy.server.deployment import plan_for
from tacit.deploy.server.ending import end_everywhere
from tacit.deploy.server.questions import Answered, answered
from tacit.deploy.server.shuffles import Sums, tests_among
from tacit.deploy.server.transport import Transport
from tacit.deploy.shuffler.client import Caller, greet
from tacit.deploy.wire import Plan, Receipt, RefusalError, Welcome
from tacit.errors import TacitError
from tacit.models.bundle import FOLDER, bundle_folder
from tacit.models.loading import load_model, ranges_in
from tacit.models.scores import LOG_LOSSES
from tacit.models.trained import TrainedModel
from tacit.plans.catalogue import ALGORITHMS
from tacit.plans.spec import Study, ValidationSection, study_from
from tacit.simulate.participation import participation
from tacit.studies.folder import new_folder, write_study
from tacit.studies.statistics import ALL_SILOS

NAME = "validation"
RESULT = "validation.json"
_LONGEST = 64 - len(NAME) - 1
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NUMBERS = ("bins", "threshold", "residual", "groups")
_ENDING = 10.0


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """A question about the model of a run folder; ``section`` is what is asked, at which price.

    ``title`` is what the model was trained for. ``ranges`` are those of a model whose bundle has no columns. Shuffled
    sums go through ``callers``, and the share ``honest`` of silos keeps its noise secret; in pairwise sums
    ``colluding`` silos may not. With ``again``, what was answered before is asked, and paid for, once more. ``own`` is
    the identity at all silos of the study whose own models are counted too.
    """

    folder: Path
    name: str
    title: str
    section: ValidationSection
    channel: Channel
    ranges: Mapping[str, Sequence[float]]
    epsilon: float
    delta: float
    proposer: str
    honest: float
    colluding: int
    callers: Mapping[str, Caller]
    again: bool = False
    own: str | None = None

    @property
    def path(self) -> Path:
        """The checkpoint of the question."""
        return self.folder / NAME / "checkpoint.npz"


def evaluation_of(
    folder: Path,
    study: Study,
    proposer: str,
    callers: Mapping[str, Caller],
    section: ValidationSection | None = None,
    *,
    again: bool = False,
) -> Evaluation:
    """The question that follows a study: through its channel, and at its price; shuffled reports become sums."""
    section = study.validation if section is None else section
    epsilon = section.epsilon or study.privacy.epsilon
    if not isinstance(epsilon, float | int):
        raise TacitError("Expected one epsilon for a validation; give --epsilon.")
    ranges = study.data.options.get("ranges") or {}
    name = f"{study.name.removesuffix(f'-{NAME}')[:_LONGEST]}-{NAME}"
    channel, delta = channel_of(study.algorithm.channel), study.privacy.delta
    counted_on = study.run.honest, study.pairwise.colluding
    own = _own_study(folder, study, section.own)
    asked = name, study.title, section, channel, ranges, float(epsilon), delta
    return Evaluation(folder, *asked, proposer, *counted_on, callers, again, own)


def _own_study(folder: Path, study: Study, wanted: bool | None) -> str | None:
    """The identity of the study whose own models are counted too; none where it makes none, or nobody wants it."""
    entry, path = ALGORITHMS.get(study.algorithm.name), folder / "checkpoint.npz"
    makes = entry is not None and entry.personal and path.is_file()
    if wanted and not makes:
        raise TacitError(
            f"validation.own: expected the run folder of a study that has made models of silos' own (mr-mtl), got "
            f"{folder} of {study.algorithm.name}; leave it out, or give the run folder in place of a bundle."
        )
    return load_checkpoint(path, fresh_state).plan.consortium.hex() if makes and wanted is not False else None


def channel_of(trained: Channel) -> Channel:
    """The channel in which a model is validated that was trained through another one, or the same."""
    if trained in SHUFFLED_CHANNELS:
        return "shuffled-sum"
    return "pairwise" if trained == "pairwise" else "direct"


def bundle_run(bundle: Path, out: Path, *, epsilon: float | None, delta: float | None) -> Path:
    """A new run folder with a bundle in it, to ask about: at the price that the model had, unless another is given."""
    model, found = load_model(bundle), bundle_folder(bundle)
    paid = [silo for silo in model.description.privacy.silos if silo.epsilon is not None and silo.delta is not None]
    epsilon = epsilon or max((silo.epsilon for silo in paid), default=None)  # type: ignore[type-var]
    delta = delta or min((silo.delta for silo in paid), default=None)  # type: ignore[type-var]
    if epsilon is None or delta is None:
        raise TacitError(f"{bundle} says no price that its model had; give --epsilon and --delta of the validation.")
    told = model.description.training.study or ""
    name = f"{told[:_LONGEST] if _PLAIN.fullmatch(told) else 'model'}-{NAME}"  # a bundle may be anybody's
    channel = channel_of(model.description.privacy.channel)
    study = study_from(_tree(name, model, {"channel": channel, "asked": {}}, epsilon, delta))
    folder = new_folder(out, study).resolve()
    write_study(folder, study)
    shutil.copytree(found, folder / FOLDER)
    return folder


def evaluate(asked: Evaluation, transport: Transport, met: Met, patience: Patience, tell: Tell) -> dict[str, Any]:
    """Ask the silos that were met how the model of a run folder does; writes and returns what they say.

    A question that was begun before goes on; of one that was answered before, what was said is returned, and nobody
    pays. A silo that refuses for good is left out, and the others are asked.
    """
    model = load_model(asked.folder)
    willing = {name: found for name, found in met.items() if found[1].validation}
    if not willing:
        raise TacitError("No silo has set records aside to test models; their owners can, with data.validation.")
    while True:
        point = _point(asked, model, willing, transport)
        if point.finished:
            return _said_before(asked, point, willing, tell)
        tell("validating", {"text": _missing(point.silos, "their consent")})
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


def _said_before(asked: Evaluation, point: Checkpoint, willing: Met, tell: Tell) -> dict[str, Any]:
    """What silos have said when the same was asked before."""
    facts = _stored(asked, point.plan)
    assert facts is not None
    others = sorted(set(willing) - set(point.silos))
    not_asked = f" {', '.join(others)}: not asked then." if others else ""
    text = f"The same was asked before, and {', '.join(point.silos)} answered: that is shown, and costs nothing."
    tell("validating", {"text": f"{text}{not_asked} To ask, and pay, once more: tacit server evaluate ... --again"})
    return facts


def _stored(asked: Evaluation, plan: Plan) -> dict[str, Any] | None:
    """What silos have said to the question of this very plan, if it was written down."""
    try:
        facts: dict[str, Any] = json.loads((asked.folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return facts if facts.get("compare") == plan.compared else None


def _missing(silos: Sequence[str], what: str) -> str:
    return f"validation: waiting for {what}: {', '.join(silos)}"


def _point(asked: Evaluation, model: TrainedModel, willing: Met, transport: Transport) -> Checkpoint:
    """Where the question stands: as it was left, answered, or at its beginning. Another that was left open is ended."""
    names = tuple(sorted(willing))
    facts = [willing[name][1].model_copy(update={"records": willing[name][1].validation}) for name in names]
    seals = {name: greet(caller).seal for name, caller in asked.callers.items()}
    plan = plan_for(question(asked, model, facts), facts, seals, proposer=asked.proposer)
    if asked.path.exists():
        point = load_checkpoint(asked.path, fresh_state)
        is_said = point.finished and not asked.again and _stored(asked, point.plan) is not None
        if _same(point.plan, plan) and (is_said or not point.finished):
            return point
        if not point.finished:
            # Who pays for one question must not be asked another, nor hold a reservation for it.
            end_everywhere(point, asked.path, transport, lambda event, facts: None, seconds=_ENDING)
    records = tuple(fact.records for fact in facts)
    state = builder_from(plan, records[0]).build(noise_multiplier=1.0).init(model.params)
    asked.path.parent.mkdir(parents=True, exist_ok=True)
    point = Checkpoint(plan, names, records, state)
    point.save(asked.path)
    return point


def _same(one: Plan, other: Plan) -> bool:
    """Whether two plans ask the same; silos that came or went since do not make another question of it."""
    asks = ("objective", "algorithm", "epsilon", "delta", "ranges", "schema_digest", "proposer")
    return all(getattr(one, name) == getattr(other, name) for name in asks)


def question(asked: Evaluation, model: TrainedModel, facts: Sequence[Welcome]) -> Study:
    """The study of one round that asks silos with these facts about a model."""
    wanted = {name: own for name in _NUMBERS if (own := getattr(asked.section, name)) is not None}
    wanted |= {} if asked.own is None else {"own": asked.own}
    ranges = ranges_for(model, facts)
    tree = _tree(asked.name, model, {"channel": asked.channel, "asked": wanted}, asked.epsilon, asked.delta)
    options = {"ranges": own} if (own := asked.ranges if ranges is None else ranges) else {}
    run = {"honest": asked.honest} if asked.callers else {}
    # All who answer: those who have set nothing aside are not among them.
    peers = {"pairwise": {"colluding": asked.colluding}} if asked.channel == "pairwise" else {}
    data = {"name": "silo", "options": options}
    return study_from({**tree, "title": purpose(model, asked.title), "data": data, "run": run, **peers})


def purpose(model: TrainedModel, title: str) -> str:
    """What owners read of a question about a model: which one, as its bundle says, and what it was trained for."""
    own = model.description
    words = f"Test the finished model of {own.training.study or 'a study without a name'}, which predicts "
    words += f"{own.target.column}, on records set aside."
    return f"{words} It was trained for: {title}" if title else words


def _tree(name: str, model: TrainedModel, algorithm: Mapping[str, Any], epsilon: float, delta: float) -> dict[str, Any]:
    return {
        "name": name,
        "data": {"name": "silo"},
        "objective": _objective(model),
        "algorithm": {"name": NAME, **algorithm},
        "privacy": {"epsilon": epsilon, "delta": delta},
    }


def ranges_for(model: TrainedModel, facts: Sequence[Welcome]) -> dict[str, tuple[float, float]] | None:
    """The ranges by which silos make the features that a model takes; none where its bundle has no columns.

    Raises unless they can make them: a model of other columns, levels, units or classes would be told nonsense about.
    """
    own, first = model.description, facts[0]
    shape = (own.features.shape, own.task, len(own.target.classes) or first.classes)
    if shape != (first.features, first.task, first.classes):
        raise TacitError(
            f"The model takes {own.features.shape} features for a {own.task} target, and silos have {first.features} "
            f"for {first.task}, {first.classes or 'no'} classes; give a model of their records."
        )
    told = next((fact.description for fact in facts if fact.description is not None), None)
    if not own.columns or told is None or told.columns is None:
        return None
    return ranges_in(model, told.model_dump())


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
    left = dict.fromkeys(point.silos)

    def told(event: str, facts: Mapping[str, Any]) -> None:
        # The journal's rounds and prices are those of training.
        if event == "consent":
            left.pop(facts["silo"], None)
            rest = _missing(list(left), "their consent") if left else "validation: all have consented; they count now"
            words = f"{facts['silo']} has consented, at epsilon {facts['epsilon']:.4g} of records set aside"
            tell("validating", {"text": f"{words}. {rest}"})
        if event == "missing":
            tell("validating", {"text": _missing(facts["silos"], "the answers of")})
        if event == "round":
            tell("validating", {"text": f"validation: {', '.join(facts['silos'])} answered"})
        if event == "refusal":
            tell("warning", {"text": f"{facts['silo']} does not validate ({facts['code']}): {facts['text']}"})
        if event == "waiting":
            tell("warning", {"text": f"{facts['silo']}: the validation waits for {facts['for']}"})

    weights = list(point.records)
    colluding = 1 if point.plan.pairwise is None else point.plan.pairwise.colluding
    who = participation(len(point.silos), weights=weights, honest=asked.honest, colluding=colluding)
    at = {name: address for name, (address, _) in met.items()}
    told_by = [welcome.description for _, welcome in met.values()]
    meant = next((one for one in told_by if one is not None and one.digest == point.plan.schema_digest), None)
    coins = not tests_among(point.silos, met)
    sums = Sums(point.plan, point.silos, asked.callers, coins=coins) if asked.callers else None
    own: dict[str, Any] = {"who": who, "patience": patience, "tell": told, "description": meant, "shuffled": sums}
    return Coordinator(point, asked.path, transport, at, **own)


def _write(
    asked: Evaluation, model: TrainedModel, coordinator: Coordinator, receipts: Mapping[str, Receipt]
) -> dict[str, Any]:
    """Write and return what the answers say, as plain data and as a picture."""
    plan = coordinator.point.plan
    section = plan.algorithm
    wanted = tables_for(builder_from(plan, 1).problem, section["asked"], section.get("columns") or ())
    found, target = answered(coordinator, wanted.tables), model.description.target
    rows, own = _rows(wanted, found, model)
    facts = {
        "study": plan.name,
        "compare": plan.compared,
        "task": wanted.task,
        "unit": target.unit,
        "channel": asked.channel,
        "guarantee": GUARANTEES[asked.channel],
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "threshold": wanted.threshold,
        "gained": gained(rows[ALL_SILOS]),
        "numbers": rows[ALL_SILOS],
        "own": own.get(ALL_SILOS) and {"study": asked.own, **own[ALL_SILOS]},
        "silos": [
            {**_silo(plan, name, size, receipts, rows.get(name)), "own": own.get(name)}
            for name, size in found.sizes.items()
        ],
    }
    (asked.folder / RESULT).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    draw(facts, asked.folder / "validation.png")
    return facts


def _rows(
    wanted: Scored, found: Answered, model: TrainedModel
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """What the counts say, by silo and of all; and what those of silos' own models do, where a silo has one.

    Of all silos it is what they have with their own models, and with the shared one where a silo has none.
    """
    counted, target = {**found.sizes, ALL_SILOS: sum(found.sizes.values())}, model.description.target
    told, rows, own = {"probable": model.description.loss in LOG_LOSSES}, {}, {}
    for name, blocks in found.means.items():
        cells = [np.asarray(blocks[block(place)], np.float64).reshape(-1) for place in range(len(wanted.tables))]
        noisy = [Noisy(part, noise[name], counted[name]) for part, noise in zip(cells, found.noise, strict=True)]
        plain = functools.partial(plain_rows, classes=target.classes, scale=target.range)
        rows[name] = plain(performance(wanted, noisy, **told))
        if wanted.own and float(blocks[HAS_OWN]) > 0:
            numbers = plain(own_performance(wanted, noisy, **told))
            own[name] = {"gained": gained_over_shared(numbers), "numbers": numbers}
    return rows, own


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
