"""Lead a study among real silos from its run folder, which gets the same files as that of a simulation.

The folder holds ``study.toml`` and ``deployment.toml`` before, ``progress.jsonl`` and ``checkpoint.npz`` during, and
result, metrics, model and report after the run. Leading it again goes on where it stopped. A study that cannot go on is
ended at every silo within a minute.
"""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from tacit.algorithm import Params
from tacit.channel.sealing import SecretKey, new_secret
from tacit.counting.validated import own_verdict, verdict
from tacit.deploy.permissions import read_secret
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Met, Patience, StalledError, Tell, fresh_state, is_final, meet
from tacit.deploy.server.delivery import HAS_IT, deliver
from tacit.deploy.server.deployment import Deployment, deployment_from, led, plan_for, unknown_meaning
from tacit.deploy.server.ending import SECONDS, end_everywhere, journal, should_end
from tacit.deploy.server.outcome import spent, write_outcome
from tacit.deploy.server.shuffles import Reports, Shuffled, Sums, tests_among
from tacit.deploy.server.transport import Recorder, SignedTransport, Transport
from tacit.deploy.server.validation import evaluate, evaluation_of
from tacit.deploy.shuffler.client import Caller, greet
from tacit.deploy.shuffler.config import load_sealing, write_sealing
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.wire import REPORTS, Description, Receipt
from tacit.errors import TacitError
from tacit.models.bundle import FOLDER
from tacit.plans.spec import QUESTIONS, Study, StudyError, ValidationSection, load_study
from tacit.simulate.participation import Participation, participation
from tacit.studies.report import write_report

Measure = Callable[[Params], dict[str, float]]


def lead(folder: Path, transport: Transport) -> None:
    """Lead the study in a run folder to its end; where it cannot go on, it is ended at every silo."""
    ended = False

    def tell(event: str, facts: Mapping[str, Any]) -> None:
        nonlocal ended
        ended = ended or event == "ended"
        journal(folder, event, facts)

    try:
        with led(folder):
            _lead(folder, transport, tell)
    except BaseException as error:
        text = str(error) if isinstance(error, TacitError) else "interrupted"
        text = repr(error) if isinstance(error, Exception) and not isinstance(error, TacitError) else text
        # Without a checkpoint there is nothing to go on from, but silos that were away may come.
        unbegun = not (folder / "checkpoint.npz").exists() and not isinstance(error, StalledError)
        final = ended or unbegun or (isinstance(error, Exception) and is_final(error))
        tell("failed", {"text": text, "final": final})
        raise


def _lead(folder: Path, carrier: Transport, tell: Tell) -> None:
    study = load_study(folder / "study.toml")
    terms = deployment_from(tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8")))
    proposer = Proposer(terms.proposer, Signer(read_secret(Path(terms.key))))
    transport = _transport(folder, SignedTransport(carrier, proposer, terms.pins), terms)
    begun = time.monotonic()
    tell("started", {"study": study.name, "silos": terms.silos})
    path = folder / "checkpoint.npz"
    met = _met(transport, study, terms, tell, begun=path.exists())
    callers = {entry.name: Caller(entry.address, proposer, terms.patience) for entry in terms.shufflers}
    point = _point(folder, study, terms, met, callers)
    coordinator = Coordinator(
        point,
        path,
        transport,
        {name: at for name, (at, _) in met.items()},
        who=_who(study, point),
        patience=Patience(terms.round_seconds, terms.patience),
        seed=terms.seed,
        shuffled=_shuffled(folder, point, met, callers),
        tell=tell,
        description=_description(point, met, tell),
    )
    measure = measure_of(study, terms)

    def after(rounds: int) -> None:
        values, epsilon = measure(coordinator.params), spent(coordinator)
        point.history[-1] |= {"measured": values, "epsilon_spent": epsilon}
        point.save(path)
        tell("measured", {"round": rounds, "rounds": coordinator.rounds, **values, "epsilon": epsilon})

    # A study that was through before has its model already, with the prices that silos named then.
    is_through = point.finished and (folder / FOLDER).exists()
    receipts = _played(folder, coordinator, transport, tell, after)
    seconds = time.monotonic() - begun
    if not is_through:
        write_outcome(folder, study, coordinator, receipts, seconds, command=terms.command)
    _hand_over(folder, study, terms, coordinator, transport, met, callers, tell)
    tell("finished", {"seconds": seconds, "receipts": {n: r.model_dump(mode="json") for n, r in receipts.items()}})
    for caller in callers.values():
        caller.close()


def _hand_over(
    folder: Path,
    study: Study,
    terms: Deployment,
    coordinator: Coordinator,
    transport: Transport,
    met: Met,
    callers: Mapping[str, Caller],
    tell: Tell,
) -> None:
    """Give the model to the silos, and ask them how it does; a question has none."""
    if study.algorithm.name in QUESTIONS:
        return
    _deliver(folder, coordinator, transport, tell, min(SECONDS, terms.round_seconds))
    _validate(folder, study, terms, transport, met, callers, tell)


def _deliver(folder: Path, coordinator: Coordinator, transport: Transport, tell: Tell, seconds: float) -> None:
    """Hand the model to all silos that are there; who is not gets it later, and a failure costs nobody the study."""
    try:
        said = deliver(folder, coordinator.point, transport, tell, coordinator.addresses, seconds)
    except TacitError as error:
        tell("warning", {"text": str(error)})
        return
    missing = {name: text for name, text in said.items() if text != HAS_IT}
    if missing:
        names = "; ".join(f"{name}: {text}" for name, text in sorted(missing.items()))
        tell("warning", {"text": f"Not every silo has the model: {names}. Later: tacit server deliver {folder}"})


def _validate(
    folder: Path,
    study: Study,
    terms: Deployment,
    transport: Transport,
    met: Met,
    callers: Mapping[str, Caller],
    tell: Tell,
) -> None:
    """Ask how the model does on records that were set aside, where silos have such; a failure costs nobody the study.

    Nobody is waited for long: owners who have yet to approve do so, and the question is asked again.
    """
    trained = {name: found for name, found in met.items() if found[1].validation}
    if not study.validation.run or not trained:
        return
    try:
        asked = evaluation_of(folder, study, terms.proposer, callers)
        patience = Patience(terms.round_seconds, min(SECONDS, terms.patience))
        facts = evaluate(asked, transport, trained, patience, tell)
        write_report(folder)
    except TacitError as error:
        later = f"tacit server evaluate {folder} --control CONTROL"
        tell("warning", {"text": f"The model is not validated: {error} Later: {later}"})
        return
    words = " ".join(filter(None, (verdict(facts), own_verdict(facts))))
    tell("validated", {"text": words, "epsilon": facts["epsilon"], "delta": facts["delta"]})


def evaluate_again(
    folder: Path, transport: Transport, section: Mapping[str, Any] | None = None, *, tell: Tell, again: bool = False
) -> dict[str, Any]:
    """Ask how the model of a run folder does at the silos of its deployment; writes and returns what they say.

    ``section`` are values of a study's section ``validation``, in place of its own. What was answered before is not
    asked, and paid for, once more, unless ``again``.
    """
    study = load_study(folder / "study.toml")
    terms = deployment_from(tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8")))
    proposer = Proposer(terms.proposer, Signer(read_secret(Path(terms.key))))
    signed = SignedTransport(transport, proposer, terms.pins)
    patience = Patience(terms.round_seconds, terms.patience)
    wanted = None if section is None else ValidationSection.model_validate(dict(section))
    callers = {entry.name: Caller(entry.address, proposer, terms.patience) for entry in terms.shufflers}
    asked = evaluation_of(folder, study, terms.proposer, callers, wanted, again=again)
    try:
        met = meet(signed, terms.silos, patience, tell, terms.only, tuple(terms.pins))
        facts = evaluate(asked, signed, met, patience, tell)
    finally:
        for caller in callers.values():
            caller.close()
    # A bundle that was trained elsewhere has no report.
    if (folder / "result.json").exists():
        write_report(folder)
    return facts


def _transport(folder: Path, signed: Transport, terms: Deployment) -> Transport:
    """Recorded, if that was asked for."""
    return Recorder(signed, folder / "received.bin") if terms.record else signed


def _met(transport: Transport, study: Study, terms: Deployment, tell: Tell, *, begun: bool) -> Met:
    """The silos of a study; those that are away when it goes on, once ``begun``, may come back later."""
    patience = Patience(terms.round_seconds, terms.patience)
    if begun:
        return meet(
            transport,
            participation(terms.silos, study.run.participants).min_silos,
            patience,
            tell,
            (),
            tuple(terms.pins),
        )
    met = meet(transport, terms.silos, patience, tell, terms.only, tuple(terms.pins))
    if len(met) > terms.silos:
        raise TacitError(
            f"{len(met)} silos are online, and this study takes {terms.silos} of them: {', '.join(sorted(met))}. Say "
            f"which, with --only {','.join(sorted(met)[: terms.silos])}"
        )
    return met


def _played(
    folder: Path, coordinator: Coordinator, transport: Transport, tell: Tell, after: Callable[[int], None]
) -> dict[str, Receipt]:
    """Play a study, and end it at every silo where nothing is left to go on with."""
    point = coordinator.point
    if point.finished and point.round < coordinator.rounds:
        raise StudyError(f"The study of {folder} was ended at its silos; start it anew, without --resume.")
    try:
        return coordinator.run(after)
    except BaseException as error:
        if should_end(error, point):
            # What went wrong is told, whatever becomes of the end.
            with contextlib.suppress(Exception):
                end_everywhere(point, folder / "checkpoint.npz", transport, tell)
        raise


def _who(study: Study, point: Checkpoint) -> Participation:
    return participation(
        len(point.silos),
        study.run.participants,
        weights=list(point.records) if study.run.weights == "records" else None,
        cap=study.privacy.max_participations,
        honest=study.run.honest,
        colluding=study.pairwise.colluding,
    )


def _description(point: Checkpoint, met: Mapping[str, Any], tell: Tell) -> Description | None:
    """What the plan's records mean, as a silo told it; where that is little, it is said."""
    doubt = unknown_meaning([met[name][1] for name in point.silos if name in met])
    if doubt is not None:
        tell("warning", {"text": doubt})
    told = [welcome.description for _, welcome in met.values()]
    return next((one for one in told if one is not None and one.digest == point.plan.schema_digest), None)


def _shuffled(
    folder: Path, point: Checkpoint, met: Mapping[str, Any], callers: Mapping[str, Caller]
) -> Shuffled | None:
    if not callers:
        return None
    tests = tests_among(point.silos, met)
    if point.plan.shuffle is not None and point.plan.shuffle.server is not None:
        return Reports(point.plan, point.silos, callers, _server_key(folder), noise=not tests)
    return Sums(point.plan, point.silos, callers, coins=not tests)


def _server_key(folder: Path) -> SecretKey:
    """The key that opens single reports; it is made once, and a run that goes on needs the same."""
    path = folder / "server.key"
    if not path.exists():
        write_sealing(path, new_secret("mlkem768-x25519"))
    return load_sealing(path)


def _point(
    folder: Path, study: Study, terms: Deployment, met: Mapping[str, Any], callers: Mapping[str, Caller]
) -> Checkpoint:
    path = folder / "checkpoint.npz"
    if path.exists():
        return load_checkpoint(path, fresh_state)
    names = tuple(sorted(met))
    facts = [met[name][1] for name in names]
    seals = {name: greet(caller).seal for name, caller in callers.items()}
    server = _server_key(folder).public if study.algorithm.channel == REPORTS else None
    plan = plan_for(study, facts, seals, server, proposer=terms.proposer)
    records = tuple(fact.records for fact in facts)
    _, key = jax.random.split(jax.random.key(terms.seed))
    point = Checkpoint(plan, names, records, fresh_state(plan, records, key))
    # The nonce makes the study; a server that dies before the first round must not forget it.
    point.save(path)
    return point


def measure_of(study: Study, terms: Deployment) -> Measure:
    """Loss and error on the study's own data set where it is public; nothing otherwise."""
    if not terms.evaluate:
        return lambda params: {}
    from tacit.plans.assemble import problem_of
    from tacit.studies.federation import federation_of
    from tacit.studies.run import measured, pooled

    federation = federation_of(study, terms.seed)
    evaluation = {part: pooled(federation, part) for part in ("train", "validation", "test")}
    measure = jax.jit(measured(problem_of(study, federation).objective))
    return lambda params: {name: float(value) for name, value in measure(params, evaluation).items()}
