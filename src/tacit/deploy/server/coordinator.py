"""The server of a deployed study. It can be killed at any time.

    meet -> propose -> for each round: ask -> (mean, or what shufflers or masks let out) -> tell -> checkpoint -> finish

A round that was asked before a crash is asked again with the same broadcast, and silos send their stored answers. Silos
may be late, vanish and come back: a round needs as many as the study says, and waits for them. When patience ends, the
run ends too, with a checkpoint to go on from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.algorithm import Algorithm, Params
from tacit.deploy import wire
from tacit.deploy.contract import builder_from, record_of
from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.pairwise import Summing
from tacit.deploy.server.shuffles import Answers, Shuffled
from tacit.deploy.server.transport import NONSENSE, Replies, Transport, fitting, mean_of, response_in
from tacit.deploy.shuffler.client import LeftOutError
from tacit.deploy.wire import Consent, Description, Error, Plan, Receipt, RefusalError, Welcome, frame
from tacit.errors import TacitError, counted
from tacit.plans.assemble import shapes_of
from tacit.plans.catalogue import QUESTIONS
from tacit.plans.spec import StudyError
from tacit.privacy import PricingError
from tacit.simulate.participation import Participation, Roster, everyone, participation, roster
from tacit.simulate.program import split_keys

Tell = Callable[[str, dict[str, Any]], None]
# Refusals that will not go away by asking again.
_FINAL = {"finished", "exhausted", "expired", "closed", "changed", "not-allowed", "over-budget", "bad-plan"}
_FINAL |= {"rejected", "revoked", "noise", "unable", "bad-message"}
_FINAL |= {"unpriceable", "version", "shape", "answered", "ledger", "counter", "restored", "identity", "schema"}
# Of these, what a silo's owner could repair while the study waits.
_MENDABLE = {"ledger", "counter", "restored", "identity", "schema", "unable", "bad-message"}
_WAITS = "waits for its owner's approval"
_SILENT = "no answer"
_PAUSE = 0.2
_PATIENT = 2
"""How often the same silos are asked for a sum before the next attempt goes on without those that are silent."""
_OTHERS = 5.0
"""Seconds in which silos that are not needed may show up too, before a study begins."""
_LOOK = 10.0
"""Seconds for a look at addresses that are not known, where somebody may be silent for ever."""


class StalledError(TacitError):
    """Too few silos came for too long; unless ``final``, the run can go on from its checkpoint."""

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


def is_final(error: Exception) -> bool:
    """Whether the same study would end in the same way again."""
    if isinstance(error, StalledError):
        return error.final
    if isinstance(error, RefusalError):
        return error.code in _FINAL - _MENDABLE
    return isinstance(error, StudyError | PricingError)


@dataclass(frozen=True)
class Patience:
    """How long a round waits for silos that it can do without, and how long for those that it needs."""

    round_seconds: float
    total_seconds: float


Met = dict[str, tuple[str, Welcome]]
Names = Callable[[set[str]], bool]


def meet(
    transport: Transport,
    silos: int,
    patience: Patience,
    tell: Tell,
    only: Collection[str] = (),
    pinned: Collection[str] = (),
) -> Met:
    """Address and public facts of silos by name, once at least ``silos`` of them, or ``only`` those, have answered.

    Once they have, nobody else is waited for who is silent: not at all beside ``only``, and else for a few seconds.
    Who of those ``pinned`` is missing is told once, and why that may be.
    """
    told = False
    begun, known = time.monotonic(), Met()
    doubled: set[str] = set()

    def enough(names: set[str]) -> bool:
        all_names = names | set(known)
        if len(all_names) < silos or not set(only) <= all_names:
            return False
        return bool(only) or time.monotonic() > begun + _OTHERS

    while True:
        seconds = min(_LOOK, patience.round_seconds)
        for at, facts in _hellos(transport, {at for at, _ in known.values()}, seconds, enough):
            name = facts.silo
            if name not in known:
                known[name] = (at, facts)
                tell("met", {"silo": name, "records": facts.records, "of": silos})
            elif name not in doubled:
                doubled.add(name)
                tell("warning", {"text": _twice(name)})
        if len(known) >= silos and set(only) <= set(known):
            return {name: found for name, found in known.items() if not only or name in only}
        if time.monotonic() > begun + patience.total_seconds:
            missing = f"; missing: {', '.join(sorted(set(only) - set(known)))}" if only else ""
            raise StalledError(
                f"Expected {silos} silos, met {len(known)}: {', '.join(sorted(known)) or 'none'}{missing}. "
                f"{_unmet(transport, known, only or pinned)}"
            )
        if not told:
            tell("warning", {"text": _unmet(transport, known, only or pinned)})
            told = True
        time.sleep(_PAUSE)


def _unmet(transport: Transport, known: Met, expected: Collection[str]) -> str:
    """Who has not been met, and what to look for."""
    silent = len(set(transport.present()) - {at for at, _ in known.values()})
    names = ", ".join(sorted(set(expected) - set(known))) or "some silos"
    others = f"at {counted(silent, 'more node')} online no pinned silo answers" if silent else "no other node is online"
    return (
        f"Not met: {names}; {others}. A silo is met when its courier and daemon run, its key is in proposer.toml and "
        "its policy names this proposer's key; see tacit server silos."
    )


def newcomers(transport: Transport, known: set[str], seconds: float, enough: Names | None = None) -> Met:
    """Address and public facts, by name, of silos at addresses that are not known yet; of one at two, the first.

    Once ``enough`` is true of the names, the others are not waited for.
    """
    found: Met = {}
    for at, facts in _hellos(transport, known, seconds, enough):
        found.setdefault(facts.silo, (at, facts))
    return found


def _hellos(transport: Transport, known: set[str], seconds: float, enough: Names | None) -> list[tuple[str, Welcome]]:
    """Who answers at addresses that are not known yet, in the order of their answers."""
    fresh = {at: [frame(wire.Hello())] for at in transport.present() if at not in known}

    def welcomes(replies: Mapping[str, Replies]) -> list[tuple[str, Welcome]]:
        facts = [(at, response_in(own[0])) for at, own in replies.items() if own]
        return [(at, told) for at, told in facts if isinstance(told, Welcome)]

    ready = None if enough is None else lambda replies: enough({told.silo for _, told in welcomes(replies)})
    return welcomes(transport.ask(fresh, seconds, ready)) if fresh else []


def _in_words(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason.rstrip('.')}" for name, reason in reasons.items())


def _twice(name: str) -> str:
    return (
        f"Two nodes speak for {name}, with its key: it has joined twice, or a copy of its folder serves elsewhere. "
        "The first that answered is asked. Look with `tacit server silos`, and stop one."
    )


class Coordinator:
    """Runs one study. ``point`` is its checkpoint, saved at ``path`` whenever it changes.

    ``addresses`` may lack silos that are away; the coordinator looks for them when a round misses them. ``seed``
    decides who is asked in a round that does not ask everyone, as in a simulation. With the ``description`` of the
    study's schema a silo that refuses it can say what differs. ``messages`` has what each silo answered to a question.
    """

    def __init__(
        self,
        point: Checkpoint,
        path: Path,
        transport: Transport,
        addresses: Mapping[str, str],
        *,
        who: Participation | None = None,
        patience: Patience,
        seed: int = 0,
        shuffled: Shuffled | None = None,
        tell: Tell = lambda event, facts: None,
        description: Description | None = None,
    ) -> None:
        self.point, self._path, self._transport, self._tell = point, path, transport, tell
        self._patience, self._shuffled, self._description = patience, shuffled, description
        self._addresses = dict(addresses)
        plan = point.plan
        builder = builder_from(plan, point.records[0])
        self.algorithm: Algorithm = builder.build(noise_multiplier=1.0)
        self._shapes = shapes_of(self.algorithm, builder.problem, record_of(plan))
        self._who = participation(plan.silos) if who is None else who
        self._turns: Roster = roster(split_keys(jax.random.key(seed)).choice, self.algorithm, self._who, plan.silos)
        servers = {kind: part.server for kind, part in self.algorithm.rounds.items()}
        self._halves = {kind: (jax.jit(server.ask), jax.jit(server.tell)) for kind, server in servers.items()}
        self._plans = {name: plan.model_copy(update={"silo_index": i}) for i, name in enumerate(point.silos)}
        weights = np.ones(plan.silos) if self._who.weights is None else plan.silos * np.asarray(self._who.weights)
        self._weights = dict(zip(point.silos, weights, strict=True))
        self.consents: dict[str, Consent] = {}
        self._strangers: set[str] = set()
        self._enrolments: dict[str, wire.Enrolment] = {}
        self._refused: dict[str, wire.Enrolment] = {}
        self._late: set[str] = set()
        self._missed: tuple[int, list[str]] | None = None
        self.messages: dict[str, Any] = {}
        if (plan.shuffle is None) != (shuffled is None):
            raise TacitError("Expected shufflers exactly where the plan names them.")
        self._sums = None if plan.pairwise is None else Summing(plan)

    @property
    def rounds(self) -> int:
        """How many rounds the study has."""
        return len(self.algorithm.schedule)

    @property
    def addresses(self) -> dict[str, str]:
        """Where silos were last reached, by name."""
        return dict(self._addresses)

    @property
    def description(self) -> Description | None:
        """What the plan's records mean, as far as a silo has told it."""
        return self._description

    @property
    def params(self) -> Params:
        """The model so far."""
        return self.algorithm.output(self.point.state)

    def run(self, after_round: Callable[[int], None] | None = None) -> dict[str, Receipt]:
        """Propose, play what is left, finish; returns the receipts of silos that could be reached at the end."""
        if self.point.round < self.rounds:
            self.propose()
        while self.point.round < self.rounds:
            self._play(self.point.round)
            if after_round is not None:
                after_round(self.point.round)
        return self.finish()

    def propose(self) -> dict[str, Consent]:
        """Propose the study, and wait for approvals until everyone, or as many as a round needs, has consented."""
        deadline = time.monotonic() + self._patience.total_seconds
        plan = self.point.plan
        min_silos = plan.silos if plan.everyone else self._who.min_silos
        reasons: dict[str, str] = {}
        final: dict[str, RefusalError] = {}
        while len(self.consents) < len(self._plans):
            left = [name for name in self._plans if name not in self.consents and name not in final]
            for name, replies in self._ask({n: [self._proposal(n, self._description)] for n in left}).items():
                self._read_consent(name, response_in(replies[0]), reasons, final)
            if len(self._plans) - len(final) < min_silos:
                raise next(iter(final.values()))
            if time.monotonic() > deadline or (len(self.consents) >= min_silos and not plan.everyone):
                break
            self._look(set(left) - set(self.consents))
            time.sleep(_PAUSE if len(self.consents) < len(self._plans) else 0)
        if len(self.consents) < min_silos:
            why = _in_words({n: reasons.get(n, _SILENT) for n in self._plans if n not in self.consents})
            raise StalledError(f"Expected the consent of {min_silos} silos, got {len(self.consents)}; {why}.")
        return self.consents

    def _read_consent(self, name: str, response: Any, reasons: dict[str, str], final: dict[str, RefusalError]) -> None:
        """Note a silo's consent, or why there is none; each reason is reported once."""
        response = self._checked(name, response)
        if isinstance(response, Consent) and not self._agreed(name, response):
            if reasons.get(name) != _WAITS:
                facts = {"silo": name, "for": "its owner's approval", "compare": self._plans[name].compared}
                self._tell("waiting", facts)
            reasons[name] = _WAITS
        elif isinstance(response, Error):
            if reasons.get(name) != response.text:
                self._tell("refusal", {"silo": name, "code": response.code, "text": response.text})
            reasons[name] = response.text
            if response.code in _FINAL:
                final[name] = RefusalError(response.code, f"{name} refuses: {response.text}", response.numbers)

    def _checked(self, name: str, response: Any) -> Any:
        """A consent to other noise than the server counts on is a refusal of this one silo."""
        counting = self._shuffled if self._sums is None else self._sums
        if isinstance(response, Consent) and counting is not None:
            try:
                counting.check({name: response})
            except RefusalError as refusal:
                return Error(code=refusal.code, text=str(refusal))
        return response

    def _agreed(self, name: str, response: Consent) -> bool:
        """Whether a silo has consented; its first consent is reported, and its latest study key kept."""
        if response.state == "consented" and response.enrolment is not None:
            self._enrolments[name] = response.enrolment
        if response.state == "consented" and name not in self.consents:
            self.consents[name] = response
            facts = {"silo": name, "epsilon": response.epsilon, "delta": response.delta}
            self._tell("consent", {**facts, "takes_of_account": response.takes, "left_of_account": response.left})
        return response.state == "consented"

    def _look(self, missing: Iterable[str]) -> None:
        """Look for missing silos at new addresses."""
        sought, known = set(missing), set(self._addresses.values())
        seconds = min(_LOOK, self._patience.round_seconds)
        found = newcomers(self._transport, known, seconds, lambda names: sought <= names)
        self._addresses |= {name: at for name, (at, _) in found.items() if name in sought}

    def _proposal(self, name: str, description: Description | None = None) -> bytes:
        return frame(wire.Propose(plan=self._plans[name], description=description))

    def _introduction(self, name: str) -> list[bytes]:
        """The plan, before a silo is asked that has not consented to it, or has said that it does not know it.

        Each request waits for the silo's padding, so that one too many makes a round longer.
        """
        return [] if name in self.consents and name not in self._strangers else [self._proposal(name)]

    def _ask(self, requests: Mapping[str, list[bytes]], enough: Any = None) -> dict[str, Replies]:
        """Ask through the transport, by silos' names; those without an address are not asked."""
        names = {self._addresses[name]: name for name in requests if name in self._addresses}
        frames = {at: requests[name] for at, name in names.items()}
        ready = None if enough is None else lambda replies: enough({names[at] for at in replies})
        found = self._transport.ask(frames, self._patience.round_seconds, ready)
        replies = {names[at]: own for at, own in found.items() if own}
        for name, own in replies.items():
            if any(isinstance(said, Error) and said.code == "addressed" for said in map(response_in, own)):
                # It keeps another ledger by now, and tells which when it is greeted at an address that is not known.
                del self._addresses[name]
        return replies

    def _play(self, round_index: int) -> None:
        """One round: ask, combine, tell, checkpoint."""
        begun, point = time.monotonic(), self.point
        kind = self.algorithm.schedule[round_index]
        ask, tell = self._halves[kind]
        broadcast = ask(point.state)
        specs, payload = wire.write_arrays(jax.tree.leaves(broadcast))
        here = self._turns.taken[round_index]
        chosen = [point.silos[i] for i in self._turns.silo_indices[round_index][here]]
        came: Answers
        answers: Answers
        if self._sums is not None and self._sums.carries(kind):
            came = answers = self._summands(round_index, specs, payload, chosen)
            mean = self._sums.mean(kind, broadcast, answers)
        elif self._is_sealed(kind):
            came = self._answers(round_index, specs, payload, chosen)
            mean, answers = self._mixed(kind, round_index, wire.broadcast_digest(specs, payload), broadcast, came)
        else:
            came = answers = self._answers(round_index, specs, payload, chosen)
            mean = mean_of(answers, self._shapes.messages[kind], self._weights)
            if kind in QUESTIONS:
                alone = {name: {name: own} for name, own in answers.items()}
                shape = self._shapes.messages[kind]
                self.messages = {name: mean_of(own, shape, {name: 1.0}) for name, own in alone.items()}
        row = {
            "round": round_index + 1,
            "kind": kind,
            "silos": sorted(answers),
            "missed": sorted(set(chosen) - set(answers)),
            "left_out": sorted(set(came) - set(answers)),
            "seconds": time.monotonic() - begun,
        } | ({"rosters": [list(roster) for roster in point.attempts]} if point.attempts else {})
        point.state = tell(point.state, mean)
        point.round, point.decided, point.answers, point.attempts = round_index + 1, None, None, ()
        point.history.append(row)
        point.save(self._path)
        self._tell("round", {**row, "rounds": self.rounds})

    def _answers(self, round_index: int, specs: Any, payload: bytes, chosen: Sequence[str]) -> Answers:
        """The answers of a round: those that were settled before the server stopped, or fresh ones."""
        settled, stored = self.point.decided, self.point.answers
        if stored is not None:
            return {name: (wire.parse_response(header), body) for name, (header, body) in stored.items()}
        return self._gather(round_index, specs, payload, settled or chosen, is_settled=settled is not None)

    def _mixed(
        self, kind: str, round_index: int, digest: bytes, broadcast: Any, answers: Answers
    ) -> tuple[Any, Answers]:
        """What the shufflers release of a round, and the answers that are in it.

        The answers are settled before shufflers are asked. They are settled again, without silos that are not taken,
        only while no shuffler has released the round and enough silos are left.
        """
        assert self._shuffled is not None
        min_silos = self._min_silos(kind, self.point.plan.silos)
        while True:
            self._settle(tuple(sorted(answers)), answers)
            try:
                return self._shuffled.mean(kind, round_index, digest, broadcast, answers), answers
            except LeftOutError as refusal:
                for name, reason in refusal.reasons.items():
                    self._tell("refusal", {"silo": name, "code": refusal.code, "text": reason})
                left = {name: answer for name, answer in answers.items() if name not in refusal.reasons}
                if refusal.is_open and len(left) >= min_silos:
                    answers = left
                    continue
                # If somebody changed an answer on its way, the silo still has the right one, and is asked for it again.
                self._settle(None if refusal.is_open else self.point.decided, None)
                needs = f"needs {min_silos} silos" if refusal.is_open else f"was settled with {len(answers)} silos"
                raise StalledError(f"Round {round_index + 1} {needs}, but shufflers do not take {refusal}.") from None

    def _summands(self, round_index: int, specs: Any, payload: bytes, chosen: Sequence[str]) -> dict[str, Any]:
        """The messages of all silos of one roster; where somebody is missing, a round is asked again.

        The roster is stored before anybody is asked, so that a server that starts again asks for the same sum.
        """
        assert self._sums is not None
        gone: dict[str, str] = {}
        silent: set[str] = set()
        asked: dict[str, wire.Enrolment] = {}
        times, deadline = 0, time.monotonic() + self._patience.total_seconds
        while True:
            # Without an attempt to spare, and where too few are left, everybody is waited for.
            is_last = len(self.point.attempts) > self._sums.spare
            silent = (
                set() if is_last or len(self.point.silos) - len({*gone, *silent}) < self._sums.min_silos else silent
            )
            here = self._enrolled(chosen, {*gone, *silent})
            # The others have answered for the old key, and answer this attempt for no other one.
            is_over = times >= _PATIENT or any(here.get(name, own) != own for name, own in asked.items())
            rosters = self._sums.rosters(self.point.attempts, here, is_over=is_over)
            if rosters != self.point.attempts:
                times, self.point.attempts = 0, rosters
                self.point.save(self._path)
            roster = {name: here[name] for name in rosters[-1] if name in here} if rosters else {}
            if rosters and len(roster) == len(rosters[-1]):
                asked = roster
                answers, forgotten = self._sum_of(round_index, specs, payload, roster, gone)
                missing = sorted(set(roster) - set(answers))
                if not missing:
                    return answers
                times = _PATIENT if forgotten else times + 1
                silent |= set(missing) - forgotten if times >= _PATIENT else set()
                self._tell("missing", {"round": round_index + 1, "attempt": len(rosters), "silos": missing})
            self._wait_for_peers(round_index, set(self.point.silos) - set(here), gone, deadline)

    def _enrolled(self, chosen: Sequence[str], without: Collection[str]) -> dict[str, wire.Enrolment]:
        """The study keys of silos that are there.

        Who has enrolled and answered since is taken to be there and is not asked: each request waits for a silo's
        padding. The others are; those that stayed away before are not waited for where there are enough, unless the
        last roster has them and no other can follow.
        """
        assert self._sums is not None
        found, kept = dict[str, wire.Enrolment](), self._kept()
        attempts = self.point.attempts
        passed_by = self._late - set(attempts[-1] if len(attempts) > self._sums.spare else ())
        for names in (chosen, self.point.silos):
            left = [name for name in names if name not in without and name not in found]
            found |= {name: kept[name] for name in left if name in kept}
            asked = [name for name in left if name not in kept]
            needed = set(asked) - passed_by
            if not asked or (len(found) >= self._sums.min_silos and not needed):
                break
            replies = self._ask({n: [self._proposal(n)] for n in asked}, enough=lambda came, n=needed: n and n <= came)
            for name, own in replies.items():
                self._read_enrolment(name, own, found)
            self._late |= set(asked)
            if len(found) >= self._sums.min_silos:
                break
        self._late -= set(found)
        return found

    def _kept(self) -> dict[str, wire.Enrolment]:
        """The study keys of silos that need not be asked whether they are there.

        Where no attempt is to spare, and rounds may do without some silos or ask only some, everybody is asked: a
        roster with somebody who has left, or has another key, could not be changed any more.
        """
        assert self._sums is not None
        spent = sum(len(row["rosters"]) - 1 for row in self.point.history if "rosters" in row)
        fixed = self._sums.min_silos == len(self.point.silos) and self.point.plan.everyone
        if not self.point.attempts and not fixed and spent >= self._sums.spare:
            return {}
        online = set(self._transport.present())
        return {name: own for name, own in self._enrolments.items() if self._addresses.get(name) in online}

    def _read_enrolment(self, name: str, replies: Replies, found: dict[str, wire.Enrolment]) -> None:
        """Note the study key of a silo that has consented."""
        response = self._checked(name, response_in(replies[0]))
        if isinstance(response, Consent) and self._agreed(name, response) and response.enrolment is not None:
            found[name] = response.enrolment

    def _sum_of(
        self,
        round_index: int,
        specs: Any,
        payload: bytes,
        roster: Mapping[str, wire.Enrolment],
        gone: dict[str, str],
    ) -> tuple[dict[str, Any], set[str]]:
        """The messages to one sum that have come; refusals are told, and who will not answer any more is noted.

        Second, who has answered this attempt before, for a roster that this server has forgotten; a later one will do.
        Meanwhile those that were late may enrol for the next sum. Who has not answered must enrol again.
        """
        attempt = len(self.point.attempts) - 1
        terms: dict[str, Any] = {"round": round_index, "attempt": attempt, "roster": tuple(roster.values())}
        requests = {n: [self._proposal(n)] for n in self._late - set(roster) - set(gone)}
        requests |= {
            n: [frame(wire.AnswerTogether(study=self._plans[n].study, arrays=specs, **terms), payload)] for n in roster
        }
        answers: dict[str, Any] = {}
        forgotten: set[str] = set()
        for name, replies in self._ask(requests, enough=lambda came: set(roster) <= came).items():
            if name not in roster:
                self._read_enrolment(name, replies, {})
                continue
            response, body = response_in(replies[0]), replies[0][1]
            expected = (self._plans[name].study, round_index, attempt)
            if isinstance(response, wire.Masked) and (response.study, response.round, response.attempt) == expected:
                answers[name] = (response, body)
            elif isinstance(response, Error):
                self._tell("refusal", {"silo": name, "code": response.code, "text": response.text})
                forgotten |= {name} if response.code == "answered" else set()
                if self._is_gone(name, response.code, roster[name]):
                    gone[name] = f"{response.code}: {response.text}"
        for name in set(roster) - set(answers) - forgotten:
            self._enrolments.pop(name, None)
        return answers, forgotten

    def _is_gone(self, name: str, code: str, enrolment: wire.Enrolment) -> bool:
        """Whether a silo that refuses a sum is not asked again in this round.

        Who refuses a roster may have another study key by now: it is asked for it once.
        """
        if code == "roster" and self._refused.get(name) != enrolment:
            self._refused[name] = enrolment
            return False
        return code in _FINAL - {"answered"} or code in ("attempt", "roster", "round", NONSENSE)

    def _wait_for_peers(self, round_index: int, away: set[str], gone: Mapping[str, str], deadline: float) -> None:
        """Look for silos that a sum misses; when patience ends, or too few can still come, the run ends."""
        assert self._sums is not None
        silos, least = self.point.silos, self._sums.min_silos
        if time.monotonic() > deadline or len(silos) - len(gone) < least:
            ended = {name for name, reason in gone.items() if reason.split(":")[0] in _FINAL - _MENDABLE}
            why = _in_words({n: gone.get(n, _SILENT) for n in sorted(away | set(gone))})
            raise StalledError(
                f"Round {round_index + 1} needs {least} silos that answer together, after "
                f"{counted(len(self.point.attempts), 'attempt')} of at most {1 + self._sums.spare}; "
                f"{why or 'somebody is silent'}.",
                final=len(silos) - len(ended) < least,
            )
        self._look(away | set(silos) - set(self._addresses))
        time.sleep(_PAUSE)

    def _settle(self, decided: tuple[str, ...] | None, answers: Answers | None) -> None:
        """Store who is in a round, and their answers."""
        stored = {name: (header.model_dump_json().encode(), body) for name, (header, body) in (answers or {}).items()}
        self.point.decided, self.point.answers = decided, stored or None
        self.point.save(self._path)

    def _min_silos(self, kind: str, chosen: int) -> int:
        """How many of the chosen silos a kind of round needs."""
        return chosen if self._is_fixed(kind) else min(self._who.min_silos, chosen)

    def _is_sealed(self, kind: str) -> bool:
        return self._shuffled is not None and self._shuffled.carries(kind)

    def _is_fixed(self, kind: str) -> bool:
        who = self.algorithm.rounds[kind].participants
        return who == "in turn" or everyone(who, self._who, self.point.plan.silos)

    def _gather(
        self, round_index: int, specs: Any, payload: bytes, chosen: Sequence[str], *, is_settled: bool
    ) -> dict[str, tuple[Any, bytes]]:
        """The answers of a round, from at least as many silos as it needs; if it is settled, from all chosen ones."""
        kind = self.algorithm.schedule[round_index]
        min_silos = len(chosen) if is_settled else self._min_silos(kind, len(chosen))
        is_fixed = is_settled or self._is_fixed(kind)
        gone: dict[str, str] = {}
        answers: dict[str, tuple[Any, bytes]] = {}
        deadline = time.monotonic() + self._patience.total_seconds
        wanted = list(chosen)
        if set(wanted) - set(self._addresses):
            self._look(set(wanted) - set(self._addresses))
        while True:
            left = [n for n in wanted if n not in answers and n not in gone]
            requests = {n: [*self._introduction(n), self._request(n, round_index, specs, payload)] for n in left}
            # Everyone who was chosen has a round's time to answer; after that, as many as needed will do.
            needed = None if len(wanted) == len(chosen) else (lambda came: len(answers) + len(came) >= min_silos)
            for name, replies in self._ask(requests, enough=needed).items():
                self._read(name, round_index, replies, answers, gone)
            if len(answers) >= min_silos:
                return answers
            self._tell_missing(round_index, [name for name in left if name not in answers and name not in gone])
            if not is_fixed:
                wanted = list(self.point.silos)
            if time.monotonic() > deadline or len(set(wanted) - set(gone)) < min_silos:
                why = _in_words({n: gone.get(n, _SILENT) for n in sorted(set(wanted) - set(answers))})
                ended = {name for name, reason in gone.items() if reason.split(":")[0] in _FINAL - _MENDABLE}
                raise StalledError(
                    f"Round {round_index + 1} needs {min_silos} silos, got {len(answers)}; {why}.",
                    final=len(set(wanted) - ended) < min_silos,
                )
            self._look(set(wanted) - set(answers))
            time.sleep(_PAUSE)

    def _tell_missing(self, round_index: int, silos: list[str]) -> None:
        """Say whom a round waits for; once, until that changes."""
        if (round_index, silos) != self._missed:
            self._missed = (round_index, silos)
            self._tell("missing", {"round": round_index + 1, "silos": silos})

    def _request(self, name: str, round_index: int, specs: Any, payload: bytes) -> bytes:
        return frame(wire.Answer(study=self._plans[name].study, round=round_index, arrays=specs), payload)

    def _read(
        self, name: str, round_index: int, replies: Replies, answers: dict[str, tuple[Any, bytes]], gone: dict[str, str]
    ) -> None:
        first, response, body = self._checked(name, response_in(replies[0])), response_in(replies[-1]), replies[-1][1]
        if isinstance(first, Error) and first.code == "noise":
            response = first
        if isinstance(response, wire.Message | wire.Sealed):
            kind = self.algorithm.schedule[round_index]
            response = fitting(response, body, None if self._is_sealed(kind) else self._shapes.messages[kind])
        if isinstance(first, Consent) and self._agreed(name, first):
            self._strangers.discard(name)
        if isinstance(response, Error) and response.code == "unknown-study":
            self._strangers.add(name)
        if isinstance(response, wire.Message | wire.Sealed):
            if (response.study, response.round) == (self._plans[name].study, round_index):
                answers[name] = (response, body)
        elif isinstance(response, Error):
            # Why the silo refused the plan says more than that it knows no such study.
            reason = first if isinstance(first, Error) else response
            self._tell("refusal", {"silo": name, "code": reason.code, "text": reason.text})
            if reason.code in _FINAL or reason.code in ("round", NONSENSE):
                gone[name] = f"{reason.code}: {reason.text}"

    def finish(self) -> dict[str, Receipt]:
        """Close the study; a silo that cannot be reached closes it by itself when the study expires there."""
        requests = {n: [frame(wire.Finish(study=plan.study))] for n, plan in self._plans.items()}
        receipts = {}
        for name, replies in self._ask(requests).items():
            response = response_in(replies[0])
            if isinstance(response, Receipt):
                receipts[name] = response
                facts = {"silo": name, "epsilon": response.epsilon, "delta": response.delta}
                self._tell("receipt", {**facts, "answers": response.answers, "entry": response.entry})
        self.point.finished = True
        self.point.save(self._path)
        return receipts


def fresh_state(plan: Plan, records: Any, key: Any = None) -> Any:
    """The algorithm's state before the first round."""
    builder = builder_from(plan, records[0])
    params = builder.problem.objective.init(jax.random.key(0) if key is None else key)
    return builder.build(noise_multiplier=1.0).init(params)
