"""The silo without its socket: answers requests as policy and ledger allow; no message leaves undebited.

It works on bytes, so that tests can send it everything that a server can.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from tacit import __version__
from tacit.deploy import wire
from tacit.deploy.listener import RefusalLog
from tacit.deploy.parts import Arrivals, piece
from tacit.deploy.parts import said as message_frame
from tacit.deploy.permissions import read_secret
from tacit.deploy.signing import Signer, digest_of, opened_request, signed_reply
from tacit.deploy.silo import consent as accounts
from tacit.deploy.silo.answering import EXACT, TEST_BUILD, Remembered, Worker, remembered
from tacit.deploy.silo.consent import Offer, consider
from tacit.deploy.silo.policy import Policy, PolicyError, digest, plain_policy, policy_text
from tacit.deploy.wire import (
    Answer,
    AnswerTogether,
    Bundle,
    Description,
    Enrolment,
    Finish,
    Hello,
    Part,
    Plan,
    Propose,
    RefusalError,
    Rest,
    Status,
    frame,
    refuse,
    study_of,
)
from tacit.errors import TacitError
from tacit.plans.catalogue import shipped
from tacit.privacy import PricingError, price
from tacit.silo.chain import place_of
from tacit.silo.door import DoorError
from tacit.silo.engine import OutsideError
from tacit.silo.integers import MOST_RECORDS
from tacit.silo.ledger import Ledger, Reply
from tacit.silo.pools import POOLS, TRAINING, VALIDATION, Split
from tacit.silo.spending import Account, LedgerError

if TYPE_CHECKING:
    from tacit.deploy.silo.pairwise import Masker
    from tacit.deploy.silo.shuffled import Sealer

NOISE_OFF = "TACIT_INSECURE_TEST"
"""The environment variable without which no noise can be switched off."""

_log = logging.getLogger("tacit.silo")
_DAY = 86_400.0
_MOST_PREPARED = 32


class Home(NamedTuple):
    """Where a silo keeps its files.

    ``approved`` holds a file for each study that the owner approved, and ``decided`` one for each that the daemon has
    yet to end (`tacit.deploy.silo.owner`). The socket lies in a folder that can be shared with the courier. The
    counter lies apart from the ledger, and beside it the secret by which the machine is known (`place_of`).
    """

    folder: Path
    counter: Path
    ledger: Path
    approved: Path
    socket: Path
    decided: Path
    machine: Path


def home_of(folder: Path, policy: Policy) -> Home:
    """A silo's home; unless the policy names a counter, it lies in the owner's state folder."""
    if policy.counter is not None:
        counter = folder / policy.counter
    else:
        import platformdirs

        name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        counter = Path(platformdirs.user_state_dir("tacit")) / "counters" / name
    return Home(
        folder,
        counter,
        ledger=folder / "ledger.sqlite",
        approved=folder / "approved",
        socket=folder / "door" / "silo.sock",
        decided=folder / "decided",
        machine=counter.with_name("machine"),
    )


class _Known(NamedTuple):
    """A request that was signed by somebody whom this policy pins."""

    policy: Policy
    ledger: str
    signed: wire.SignedRequest
    request: Any


class SiloService:
    """One silo's records, policy and ledger.

    Formal guarantee: every message that leaves is a release of a plan that the policy allows. It was reserved, it is
    debited durably before it leaves, and the server cannot know its noise. Refusals depend on requests, policy, schema,
    ledger and the number of records, never on the content of a record. Only a plan for records of this meaning, by its
    digest, is priced. Without a ``description`` shape, task and number of classes are all that is known of it.
    The policy is the one on disk at the moment of the request; while that one cannot be used, everything is refused.

    ``policy_read`` is the text that ``policy`` was read from; by default what is on disk now. ``identity`` is the
    digest of the records as the owner has them, where ``records`` hold features of them.
    """

    def __init__(
        self,
        policy: Policy,
        records: Mapping[str, np.ndarray],
        home: Home,
        *,
        noise_off: bool = False,
        clock: Callable[[], float] = time.time,
        description: Description | None = None,
        policy_read: bytes | None = None,
        identity: str | None = None,
    ) -> None:
        if noise_off and not (policy.test and os.environ.get(NOISE_OFF) == "1"):
            raise PolicyError(
                f"Noise can be switched off in a test build only: set test = true in the policy and {NOISE_OFF}=1."
            )
        if any(getattr(jax.config, name) for name in ("jax_debug_nans", "jax_debug_infs")):
            # A record whose statistic is not finite must count as zero, not end in an error that tells of it.
            raise PolicyError("JAX_DEBUG_NANS and JAX_DEBUG_INFS make errors depend on records; unset them to serve.")
        if len(records["y"]) > MOST_RECORDS:
            raise PolicyError(f"Expected at most {MOST_RECORDS} records in one silo; serve the rest as a second one.")
        self.policy, self.home = policy, home
        self._policy_read: bytes | None = policy_text(home.folder) if policy_read is None else policy_read
        self._policy_refused: bytes | None = None
        self._records, self._clock, self._noise = dict(records), clock, not noise_off
        self._record = {k: jax.ShapeDtypeStruct(v.shape[1:], v.dtype) for k, v in self._records.items()}
        data, shape = policy.data, tuple(self._record["x"].shape)
        weak = Description(features=shape, task=data.task, classes=data.classes)
        self._description = weak if description is None else description
        if not (home.folder / policy.key).exists():
            raise PolicyError(f"No key at {home.folder / policy.key}; make it with: tacit silo keys {home.folder}")
        self._signer = Signer(read_secret(home.folder / policy.key))
        self._sealer, self._masker = self._new_sealer(policy), self._new_masker(policy)
        self._samplers = TEST_BUILD if noise_off else EXACT
        count, own = len(self._records["y"]), identity or digest(self._records)
        self._identity = {"records": count, "digest": own, "test": noise_off}
        self._lock, self._refusals, self._counts = threading.Lock(), RefusalLog(_log), RefusalCounts()
        self._newest_lock = threading.Lock()
        self._workers: dict[str, Worker] = {}
        self._prepared: dict[str, Worker] = {}
        self._broken: set[str] = set()
        self._arrivals = Arrivals()
        self._pools: dict[str | None, dict[str, np.ndarray]] = {}
        self._ledger: Ledger | None = self._open(policy)
        self._newest = self._ledger.newest_counters()

    def _new_sealer(self, policy: Policy) -> Sealer | None:
        if policy.shuffle is None:
            return None
        from tacit.deploy.silo.shuffled import Sealer

        return Sealer(policy.name, self._signer, self._noise)

    def _new_masker(self, policy: Policy) -> Masker | None:
        if policy.pairwise is None:
            return None
        from tacit.deploy.silo.pairwise import Masker

        return Masker(policy.name, self._signer, policy.pairwise, self._noise)

    def _open(self, policy: Policy) -> Ledger:
        home = self.home
        ledger = Ledger(
            home.ledger,
            home.counter,
            self._identity,
            policy.limit,
            clock=self._clock,
            checked=policy.checked_second,
            place=place_of(home.folder, home.machine),
            opening={"policy": plain_policy(policy)},
        )
        try:
            self._keep_policy(ledger, policy)
            ledger.set_aside(len(self._records["y"]), policy.data.validation)
            self._pools = _pools_of(self._records, ledger.notes.split)
            self._heed(ledger)
        except BaseException:
            ledger.close()
            raise
        self._ledger_id = ledger.identity
        accounts.log_account(ledger)
        return ledger

    def _keep_policy(self, ledger: Ledger, policy: Policy) -> None:
        """Make an entry of the policy that takes effect, unless the chain has it."""
        if ledger.notes.policy != plain_policy(policy):
            from tacit.deploy.silo.owner import policy_entry

            entry = policy_entry(self.home.folder, ledger.notes.policy, policy)
            ledger.note("policy", "", entry)
            _log.info("the policy has changed: %s", "; ".join(entry["changed"]))

    def _heed(self, ledger: Ledger) -> None:
        """End the studies that the owner has decided to end."""
        names = [path.name for path in self.home.decided.iterdir()] if self.home.decided.is_dir() else []
        if names:
            from tacit.deploy.silo.owner import heed

            heed(ledger, self.home.decided, names)

    def _refresh(self) -> None:
        """Take the policy that is on disk now; while it cannot be used, refuse.

        Formal guarantee: nothing is answered under a policy that is not the one on disk, in words and mode.
        """
        text = policy_text(self.home.folder)
        if text == self._policy_read:
            return
        from tacit.deploy.silo.owner import changed_policy

        # From here on none is in force, until the one on disk is: whatever fails, the next request comes here again.
        self._policy_read = None
        try:
            policy = changed_policy(self.home.folder, text, self.policy)
            ledger = self._opened(policy)
            ledger.adopt(policy.limit, policy.checked_second)
        except TacitError as error:
            if isinstance(error, LedgerError) and error.code not in ("rule", "written-off"):
                raise
            if text != self._policy_refused:
                _log.error("everything is refused, because the policy cannot take effect: %s", error)
            self._policy_refused = text
            raise RefusalError("policy", "the silo's policy cannot be used as it stands; its owner is told") from None
        self._keep_policy(ledger, policy)
        self.policy, self._sealer, self._masker = policy, self._new_sealer(policy), self._new_masker(policy)
        # What was allowed before may not be any more.
        self._workers.clear()
        self._prepared.clear()
        self._arrivals = Arrivals()
        self._policy_read = text

    def close(self) -> None:
        """Close the ledger, once the answer at hand is debited."""
        with self._lock:
            if self._ledger is not None:
                self._counts.write(self._ledger, now=True)
                self._ledger.close()

    def knows(self, header: bytes, payload: bytes) -> bool:
        """Whether a pinned proposer has signed this for this silo, and nothing newer has come; never raises.

        It is known once: who repeats what was sent is no caller, though the last request is answered again.
        """
        with contextlib.suppress(Exception):
            signed, _ = self._request_in(header, payload)
            with self._newest_lock:
                is_new = signed.counter > self._newest.get(signed.proposer, -1)
                self._newest |= {signed.proposer: signed.counter} if is_new else {}
            return is_new
        return False

    def _request_in(self, header: bytes, payload: bytes) -> tuple[wire.SignedRequest, Any]:
        signed = wire.parse_signed_request(header)
        name, pinned = self.policy.name, self.policy.proposers
        return signed, opened_request(signed, payload, silo=name, ledger=self._ledger_id, proposers=pinned)

    def handle(self, header: bytes, payload: bytes) -> bytes:
        """The signed frame that answers a signed request; whatever is sent, this returns one.

        Formal guarantee: a request that no pinned proposer has signed for this silo and this ledger, or that is older
        than the last one of its study, is refused before anything is priced or read, and changes no account.
        """
        asked = digest_of(header, payload)
        head, body = wire.viewed(self._reply(header, payload, asked))
        return signed_reply(head, body, request=asked, silo=self.policy.name, signer=self._signer)

    def _reply(self, header: bytes, payload: bytes, asked: bytes) -> bytes:
        try:
            # Before the lock: who is unknown does not wait while an answer is computed, and keeps nobody waiting.
            known = self._known(header, payload)
        except RefusalError as error:
            self._counts.add(error.code, "")
            return self._refusals.refuse(error.code, str(error), error.numbers)
        with self._lock:
            self._asking = ""
            try:
                return self._served(header, payload, asked, known)
            except (RefusalError, LedgerError) as error:
                if isinstance(error, LedgerError) and error.code == "ledger" and self._ledger is not None:
                    # What is on disk decides: it is read and verified again before the next reply.
                    self._ledger.close()
                    self._ledger = None
                return self._refuse(error.code, str(error), error.numbers)
            except PricingError as error:
                return self._refuse("unpriceable", str(error))
            except TacitError as error:
                return self._refuse("bad-plan", str(error))
            except (OSError, DoorError) as error:
                # Its own files or state: asking again helps nobody before the owner has looked.
                self._refusals.note(f"a request cannot be served: {_cause(error)}")
                return refuse("unable", "the silo cannot serve this in its present state; its owner's log says why")
            except Exception as error:
                # The kind of error is safe to keep; its text might hold values.
                self._refusals.note(f"request failed: {type(error).__name__}")
                return refuse("internal", "the request could not be served")

    def _known(self, header: bytes, payload: bytes) -> _Known | None:
        """A request that a pinned proposer has signed; none where the policy on disk has to be read first."""
        policy, ledger = self.policy, self._ledger_id
        if policy_text(self.home.folder) != self._policy_read:
            return None
        return _Known(policy, ledger, *self._request_in(header, payload))

    def _served(self, header: bytes, payload: bytes, asked: bytes, known: _Known | None) -> bytes:
        self._refresh()
        ledger = self._opened()
        if known is None or known.policy is not self.policy or known.ledger != ledger.identity:
            known = _Known(self.policy, ledger.identity, *self._request_in(header, payload))
        signed, request = known.signed, known.request
        self._asking = signed.proposer
        self._accept(signed, study_of(request), asked)
        reply = self._dispatch(ledger, request, payload)
        self._accept(signed, study_of(request), asked)  # by now the study may be known
        return reply

    def _refuse(self, code: str, text: str, numbers: Mapping[str, float] | None = None) -> bytes:
        """The frame of a refusal, logged and counted."""
        self._counts.add(code, self._asking)
        if self._ledger is not None:
            self._counts.write(self._ledger)
        return self._refusals.refuse(code, text, numbers)

    def _accept(self, signed: wire.SignedRequest, study: str, asked: bytes) -> None:
        """Refuse a request that is older than the last of its proposer about the study, or about none that is known.

        A study that another proposer has proposed is refused too: it is that one's alone.
        """
        ledger = self._opened()
        known, own = study in ledger.accounts or study in ledger.pending(), f"{signed.proposer}/{study}"
        if known and ledger.owner_of(study) not in (None, signed.proposer):
            raise RefusalError("proposer", "expected the proposer whose study this is")
        if known:
            ledger.claim(study, signed.proposer)
        # A study that was withdrawn keeps its last request: what came before brings it not back.
        scope = own if known or ledger.has_heard(own) else f"{signed.proposer}/"
        ledger.accept(scope, signed.counter, asked.hex())

    def _dispatch(self, ledger: Ledger, request: Any, payload: bytes) -> bytes:
        if payload and not (isinstance(request, Part) or (isinstance(request, Answer | Bundle) and not request.whole)):
            raise RefusalError("bad-message", "only a broadcast, a bundle and a part of either have a payload")
        self._heed(ledger)
        if isinstance(request, Hello):
            return self._hello(ledger, request)
        self._tidy(ledger)
        # Whatever the policy says, what was begun can be looked at and ended.
        if isinstance(request, Status):
            return self._status(ledger, request)
        if isinstance(request, Finish):
            return self._finish(ledger, request)
        if isinstance(request, Bundle):
            return self._keep(ledger, request, payload)
        if isinstance(request, Part):
            return self._hold_part(ledger, request, payload)
        if self._is_expired(ledger):
            raise RefusalError("expired", "the silo's policy has expired")
        if isinstance(request, Propose):
            return self._propose(ledger, request.plan, request.description)
        if isinstance(request, Rest):
            return self._rest(ledger, request)
        return self._answer(ledger, request, payload)

    def _is_expired(self, ledger: Ledger) -> bool:
        # The ledger's time never runs backwards, so a clock set back revives nothing.
        return ledger.now() >= self.policy.last_second

    def _opened(self, policy: Policy | None = None) -> Ledger:
        """The ledger, opened again if it had to be closed, under the policy in force or one that is about to be."""
        if self._ledger is None:
            try:
                self._ledger = self._open(policy or self.policy)
            except LedgerError as error:  # its text names files and processes, which are the owner's business
                _log.error("the ledger cannot be opened again: %s", error)
                raise LedgerError(error.code, "the ledger cannot be opened again; see the silo's own log") from None
        return self._ledger

    def _tidy(self, ledger: Ledger) -> None:
        ledger.expire()
        self._arrivals.tidy()
        waited = self.policy.approval.study_days * _DAY
        for study, asked in ledger.pending().items():
            if asked + waited <= ledger.now():
                self._drop(ledger, study)
        for study in [s for s in self._workers if not (s in ledger.accounts and ledger.accounts[s].live)]:
            del self._workers[study]

    def _drop(self, ledger: Ledger, study: str) -> None:
        """Forget a proposal, and the approval that it may have had."""
        (self.home.approved / study).unlink(missing_ok=True)
        ledger.drop(study)

    def _hello(self, ledger: Ledger, request: Hello) -> bytes:
        if request.version != wire.VERSION:
            raise RefusalError("version", f"expected version={wire.VERSION} of the protocol, got {request.version}")
        welcome = wire.Welcome(
            version=wire.VERSION,
            tacit=__version__,
            silo=self.policy.name,
            records=len(self._pool(TRAINING)["y"]),
            features=tuple(self._record["x"].shape),
            task=self.policy.data.task,
            classes=self.policy.data.classes,
            noise="discrete-gaussian" if self._noise else "off (test build)",
            schema_digest=self._description.digest,
            description=self._description.sent,
            ledger=ledger.identity,
            validation=len(self._pools[VALIDATION]["y"]) if VALIDATION in self._pools else None,
            models=self._models(),
        )
        return frame(welcome)

    def _models(self) -> dict[str, str]:
        """The models of installed packages that the policy lists and that are here as it says."""
        if not self.policy.allow.models:
            return {}
        from tacit.deploy.silo.packages import at_hand

        return at_hand(self.policy.allow)

    def _propose(self, ledger: Ledger, plan: Plan, told: Description | None) -> bytes:
        study, account = plan.study, ledger.accounts.get(plan.study)
        is_new = account is None and study not in ledger.pending()
        if is_new and plan.proposer != self._asking:
            raise RefusalError("proposer", "expected a plan whose proposer is the one that proposes it")
        if study in ledger.notes.endings:
            raise _over(ledger, study)
        if ledger.notes.revoked and accounts.terms_of(plan) in ledger.notes.revoked:
            raise RefusalError("revoked", "the silo's owner has revoked this plan, under whatever name")
        if account is None:
            self._check_schema(plan, told)
        open_studies = sum(other.live for other in ledger.accounts.values()) + len(ledger.pending())
        if is_new and open_studies >= self.policy.allow.max_open:
            raise RefusalError("busy", f"expected at most {self.policy.allow.max_open} open studies")
        if account is not None:
            offer = self._worker(ledger, study).offer
            held, own = accounts.reserved(ledger, study), self._enrolment(ledger, offer.plan)
            return accounts.consent(ledger, offer, held, next_round=account.last + 1, enrolment=own)
        worker = self._considered(plan)
        offer = worker.offer
        if self.policy.approval.mode == "manual" and not self._is_approved(study):
            shares = accounts.proposed(ledger, offer)
            ledger.hold(study, plan.model_dump_json(), self._asking)
            if is_new:
                _log.info("study %s (%s) waits for approval: tacit silo status %s", study, plan.name, self.home.folder)
            return accounts.consent(ledger, offer, shares, state="pending")
        self._reserve(ledger, worker)
        own = self._enrolment(ledger, offer.plan)
        return accounts.consent(ledger, offer, accounts.reserved(ledger, study), enrolment=own)

    def _enrolment(self, ledger: Ledger, plan: Plan) -> Enrolment | None:
        """This silo's key for the pairwise sums of an open study."""
        if plan.pairwise is None or self._masker is None or not ledger.accounts[plan.study].live:
            return None
        return self._masker.enrolment(plan, remembered(ledger.state(plan.study)).study_key)

    def _considered(self, plan: Plan) -> Worker:
        """A plan, built and priced. The last few are kept: plans that differ in name only share what was compiled."""
        if (name := str(plan.objective.get("model"))) in self._broken:
            raise _broken(name)
        self._check_schema(plan)
        accounts.check_delta(plan.delta, self._opened().rule)
        # Before what was kept is looked at: a package may have changed on disk since.
        accounts.check_objective(plan, self.policy.allow)
        terms = plan.model_copy(update={"name": "terms", "nonce": "", "purpose": None}).study
        if terms not in self._prepared:
            policy = self.policy
            accounts.check_columns(plan, self._description)
            accounts.check_times(plan, self._description)
            own = {"allow": policy.allow, "shuffle": policy.shuffle, "pairwise": policy.pairwise, "silo": policy.name}
            records = self._ranged(plan, self._pool(accounts.pool_of(plan, self._opened().notes.split)))
            offer = consider(plan, records=len(records["y"]), record=self._record, **own)  # type: ignore[arg-type]
            accounts.check_sampling(offer, policy.allow)
            while len(self._prepared) >= _MOST_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[terms] = Worker(offer, records, self._samplers)
        return self._prepared[terms].serving(plan)

    def _pool(self, pool: str | None) -> dict[str, np.ndarray]:
        """The records of a pool; all of them where none were set aside."""
        return self._pools[pool] if pool in self._pools else self._pools[None]

    def _ranged(self, plan: Plan, records: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The records with features by the ranges of a plan, which are public: each record by itself."""
        if plan.ranges is None:
            return records
        if self._description.columns is None or "columns" not in records:
            raise RefusalError("schema", "expected no ranges: this silo's features were encoded before, by no schema")
        from tacit.data.csv_silos import reencoded
        from tacit.data.schema import described_schema

        declared = described_schema(self._description.model_dump())
        return {**records, "x": reencoded(records["columns"], declared, plan.ranges).astype(records["x"].dtype)}

    def _check_schema(self, plan: Plan, told: Description | None = None) -> None:
        """Refuse a plan for records that mean something else, in words where the server has told what it means."""
        own, said = self._description, plan.described
        wanted = plan.schema_digest or said.digest
        shape = Description(features=own.features, task=own.task, classes=own.classes)
        if wanted == own.digest and said == shape:
            return
        from tacit.deploy.descriptions import differences, sentence

        if told is not None and told.digest == wanted:
            lines = differences(own, told)
        else:
            lines = differences(own, said) if plan.schema_digest is None else differences(shape, said)
        unsaid = f"its digest is {own.digest[:16]}..., expected {wanted[:16]}...; ask with hello what it means"
        raise RefusalError("schema", f"this silo's schema is not the plan's: {sentence(lines) or unsaid}")

    def _is_approved(self, study: str) -> bool:
        return (self.home.approved / study).is_file()

    def _approval(self, study: str) -> dict[str, Any]:
        """Who has approved a study."""
        if not self._is_approved(study):
            return {"approved": {"who": "the policy", "when": ""}}
        from tacit.deploy.silo.owner import author

        return {"approved": author(self.home.approved / study)}

    def _reserve(self, ledger: Ledger, worker: Worker) -> None:
        offer = worker.offer
        study = offer.plan.study
        # Refuses what the rule cannot price, and what no account could hold.
        accounts.proposed(ledger, offer)
        accounts.check_fits(ledger, offer)
        charge = accounts.charge_of(offer)
        ledger.reserve(
            study,
            offer.plan.model_dump_json(),
            charge.events,
            delta_set_aside=charge.delta_set_aside,
            samples=charge.samples,
            expires=ledger.now() + self.policy.approval.study_days * _DAY,
            state=worker.begin(self._own_model(ledger, offer.plan)).to_bytes(),
            facts={"proposer": ledger.owner_of(study) or self._asking, **self._approval(study)},
            pool=accounts.pool_of(offer.plan, ledger.notes.split),
        )
        self._workers[study] = worker
        accounts.log_reserved(ledger, offer)

    def _own_model(self, ledger: Ledger, plan: Plan) -> dict[str, np.ndarray] | None:
        """The arrays of this silo's own model of the study that a validation names; none where it has none.

        Formal guarantee: it is made of what an ended study has released, so counting it costs those records nothing.
        """
        named = plan.algorithm["asked"].get("own") if plan.algorithm["name"] == VALIDATION else None
        for study in ledger.accounts if named is not None else ():
            trained = _stored_plan(ledger, study)
            # A study is its proposer's alone, and so is whether there is a model of it.
            if ledger.owner_of(study) != self._asking:
                continue
            if trained.consortium.hex() == named and shipped()[trained.algorithm["name"]].personal:
                from tacit.deploy.silo.models import own_leaves

                return own_leaves(self.home.folder, trained.name, study)
        return None

    def _worker(self, ledger: Ledger, study: str) -> Worker:
        """The worker of an open study, built again from its stored plan after a restart."""
        if study not in self._workers:
            worker = self._considered(_stored_plan(ledger, study))
            if worker.offer.events != ledger.accounts[study].events:
                raise RefusalError("changed", "this Tacit would release something else than was reserved; propose anew")
            self._workers[study] = worker
        return self._workers[study]

    def _account(self, ledger: Ledger, study: str) -> Account:
        """The account of a study; an approval that has arrived becomes a reservation here."""
        if study in ledger.pending():
            if not self._is_approved(study):
                raise RefusalError("pending", "the study waits for the approval of the silo's owner")
            if self._is_expired(ledger):
                raise RefusalError("expired", "the silo's policy has expired")
            self._reserve(ledger, self._considered(_stored_plan(ledger, study)))
        account = ledger.accounts.get(study)
        if account is None and study in ledger.notes.endings:
            raise _over(ledger, study)
        if account is None:
            raise RefusalError("unknown-study", "no such study; propose it first")
        return account

    def _status(self, ledger: Ledger, request: Status) -> bytes:
        study = request.study
        if study in ledger.pending() and (not self._is_approved(study) or self._is_expired(ledger)):
            standing = wire.Standing(study=study, state="pending", next_round=0, answers=0)
        else:
            account = self._account(ledger, study)
            state: Any = "consented" if account.live else "finished"
            standing = wire.Standing(study=study, state=state, next_round=account.last + 1, answers=account.answers)
        return frame(standing)

    def _finish(self, ledger: Ledger, request: Finish) -> bytes:
        if request.study in ledger.pending():
            self._drop(ledger, request.study)
            _log.info("study %s is withdrawn by %s, who proposed it", request.study, self._asking)
            return refuse("unknown-study", "the proposal is withdrawn")
        account = self._account(ledger, request.study)
        plan = _stored_plan(ledger, request.study)
        # Priced first: a study whose receipt fails must not look as if it had ended in another way.
        epsilon = self._spent(plan, account)
        if account.live:
            self._keep_own(ledger, plan, account)
            ledger.finish(request.study, "finished", who=self._asking)
        receipt = wire.Receipt(
            study=request.study,
            answers=account.answers,
            epsilon=epsilon,
            delta=plan.delta,
            entry=ledger.head.seq,
            hash=ledger.head.hash,
        )
        return frame(receipt)

    def _keep_own(self, ledger: Ledger, plan: Plan, account: Account) -> None:
        """Keep the silo's own model, where the algorithm makes one; the ledger forgets it at the end of the study."""
        if not (account.answers and shipped()[plan.algorithm["name"]].personal):
            return
        from tacit.deploy.silo.models import keep_own
        from tacit.objectives.leaves import personal_bytes

        try:
            own = self._worker(ledger, plan.study).personal(remembered(ledger.state(plan.study)))
            keep_own(self.home.folder, plan.name, plan.study, personal_bytes({self.policy.name: own}))
        except (TacitError, OSError) as error:
            # A study can always be ended.
            _log.error("the silo's own model of study %s is lost: %s", plan.study, error)

    def _keep(self, ledger: Ledger, request: Bundle, payload: bytes) -> bytes:
        """Keep the model of a study that this silo has answered, once it has ended; it reads no record."""
        account = ledger.accounts.get(request.study)
        if account is None or not account.answers:
            raise RefusalError("unknown-study", "no study that this silo has answered; only such have a model for it")
        if account.live:
            raise RefusalError("open", "the study is open; finish it before its model is handed over")
        from tacit.deploy.silo.models import has, keep

        plan = _stored_plan(ledger, request.study)
        if request.whole is not None and has(self.home.folder, plan.name, request):
            return frame(wire.Kept(study=request.study))
        if request.whole is not None:
            payload = self._arrivals.take(self._asking, request.study, request.whole)
        facts = {
            "proposer": self._asking,
            "epsilon": self._spent(plan, account),
            "delta": plan.delta,
            "received": ledger.now(),
        }
        if keep(self.home.folder, plan.name, request, payload, facts):
            _log.info("the model of study %s (%s) is here: tacit silo models", request.study, plan.name)
        return frame(wire.Kept(study=request.study))

    def _spent(self, plan: Plan, account: Account) -> float:
        """The epsilon of a study's answers at the plan's delta.

        Where they cannot be priced any more it is the plan's own, which they were reserved under: a study can always
        be ended.
        """
        try:
            return price(account.debited(), delta=plan.delta - self._set_aside(plan, account)).epsilon
        except Exception as error:
            _log.error("the answers of study %s cannot be priced (%s)", plan.study, type(error).__name__)
            return plan.epsilon

    def _set_aside(self, plan: Plan, account: Account) -> float:
        """The delta that a plan sets aside; its account's if this Tacit refuses the plan by now."""
        try:
            return accounts.kept_of_plan(self._considered(plan).offer)
        except TacitError:
            return account.delta_set_aside

    def _hold_part(self, ledger: Ledger, request: Part, payload: bytes) -> bytes:
        """Keep a part of a broadcast, or of the model of a study that has ended, for the request that follows it.

        Formal guarantee: nothing is kept of a payload that is longer than the plan's longest broadcast, or than a
        model of the parameters that the policy allows, with its texts.
        """
        account = self._account(ledger, request.study)
        if account.live and self._is_expired(ledger):
            raise RefusalError("expired", "the silo's policy has expired")
        if not account.live and not account.answers:
            raise RefusalError("unknown-study", "no study that this silo has answered; only such have a model for it")
        if account.live:
            most = self._worker(ledger, request.study).longest
        else:
            from tacit.deploy.silo.models import MOST_TEXT

            most = 4 * self.policy.allow.max_parameters + 3 * MOST_TEXT
        if request.whole.size > most:
            raise RefusalError("parts", f"expected a payload of at most {most} bytes, got {request.whole.size}")
        held = self._arrivals.add(self._asking, request, payload)
        return frame(wire.Held(study=request.study, size=held))

    def _rest(self, ledger: Ledger, request: Rest) -> bytes:
        """A part of a stored message, while asking the round again would return it."""
        self._answering(ledger, request.study)
        stored = ledger.stored(request.study, request.round)
        if stored is None:
            raise RefusalError("round", f"round {request.round + 1} was not answered, or is not stored any more")
        return piece(request, stored.payload)

    def _answering(self, ledger: Ledger, study: str) -> tuple[Account, Worker]:
        """The account and worker of a study that is answered now; what the policy does not allow any more is not."""
        account = self._account(ledger, study)
        if not account.live:
            raise _over(ledger, study)
        # The ledger's time may be ahead, and the clock may have been set back: both must be inside.
        if not all(self.policy.allow.is_open(moment) for moment in (ledger.now(), self._clock())):
            spans = ", ".join(self.policy.allow.hours or ())
            raise RefusalError("hours", f"the silo answers at {spans} UTC; ask again then")
        return account, self._worker(ledger, study)

    def _answer(self, ledger: Ledger, request: Answer, payload: bytes) -> bytes:
        # First: what the policy of this moment does not allow leaves no more, not even what was debited before.
        account, worker = self._answering(ledger, request.study)
        asked = _digest(request, payload)
        stored = ledger.stored(request.study, request.round)
        attempt = request.attempt if isinstance(request, AnswerTogether) else 0
        if stored is not None and stored.request == asked:
            return message_frame(request.study, request.round, stored.header, stored.payload)
        if stored is not None and (request.round, attempt) <= (account.last, account.attempt):
            raise RefusalError("answered", f"round {request.round + 1} was answered for another broadcast or roster")
        _check_turn(worker.offer, account, request.round, attempt)
        kind = worker.offer.algorithm.schedule[request.round]
        releases = worker.offer.algorithm.rounds[kind].silo.local_steps
        # What the ledger will not pay for is not computed.
        ledger.after(request.study, request.round, kind, releases, attempt)
        if request.whole is not None:
            payload = self._arrivals.take(self._asking, request.study, request.whole)
        broadcast = worker.broadcast(request.round, wire.read_arrays(request.arrays, payload))
        kept = remembered(ledger.state(request.study))
        if kind not in {**worker.offer.sums, **worker.offer.shares, **worker.offer.streams}:
            _let_go(payload)
        try:
            header, body, after = self._message(worker, kind, request, payload, broadcast, kept)
        except OutsideError as error:
            raise self._without(worker.offer.plan, error) from None
        del broadcast
        # Only now does jax let go of the memory that it was lent.
        gc.collect(0)
        reply = Reply(asked, header, body)
        state = after.to_bytes()
        ledger.debit(request.study, request.round, kind, releases, reply=reply, state=state, attempt=attempt)
        return message_frame(request.study, request.round, header, body)

    def _without(self, plan: Plan, error: OutsideError) -> RefusalError:
        """Use a model that has raised no more, until the owner starts the daemon again.

        Whether it raises may tell of a record, and no account pays for that: it is said once, and not for every
        broadcast that somebody tries.
        """
        name = str(plan.objective.get("model"))
        self._broken.add(name)
        self._workers.clear()
        self._prepared.clear()
        self._refusals.note(f"the model {name} has raised {error} and is not used any more; mend it, then start again")
        return _broken(name)

    def _message(
        self, worker: Worker, kind: str, request: Answer, payload: bytes, broadcast: Any, kept: Remembered
    ) -> tuple[str, bytes, Remembered]:
        """Header and payload of the message, by the channel of its round, and what to remember."""
        offer, sealer = worker.offer, self._sealer
        if isinstance(request, AnswerTogether) != (kind in offer.sums):
            raise RefusalError("bad-message", "expected a roster exactly where a round is a pairwise sum")
        if isinstance(request, AnswerTogether):
            return self._summand(worker, kind, request, payload, broadcast, kept)
        if kind in offer.shares and sealer is not None:
            share = worker.share(request.round, broadcast, kept)
            return *sealer.share(offer.plan, offer.shares, request, payload, share), kept
        if kind in offer.streams and sealer is not None:
            reports = worker.reports(request.round, broadcast, kept)
            return *sealer.reports(offer.plan, offer.streams, request, payload, reports, offer.algorithm), kept
        arrays, after = worker.answer(request.round, broadcast, kept)
        specs, body = wire.write_arrays(arrays)
        return wire.Message(study=request.study, round=request.round, arrays=specs).model_dump_json(), body, after

    def _summand(
        self, worker: Worker, kind: str, request: AnswerTogether, payload: bytes, broadcast: Any, kept: Remembered
    ) -> tuple[str, bytes, Remembered]:
        """The masked message to a pairwise sum."""
        if self._masker is None:
            raise RefusalError("not-allowed", "the owner has pinned no other silos for pairwise sums")
        offer = worker.offer
        masks = self._masker.masks(offer.plan, offer.sums[kind], kind, request, payload, kept.study_key)
        values, after = worker.masked(request.round, broadcast, kept, masks)
        header = wire.Masked(
            study=request.study,
            round=request.round,
            attempt=request.attempt,
            context=masks.context.hex(),
            coordinates=values.size,
        )
        return header.model_dump_json(), values.astype("<u8").tobytes(), after


def _pools_of(records: dict[str, np.ndarray], split: Split | None) -> dict[str | None, dict[str, np.ndarray]]:
    """The records of each pool; of none where they are not split."""
    return {None: records} if split is None else {pool: split.records(records, pool) for pool in POOLS}


def _digest(request: Answer, payload: bytes) -> str:
    """What a stored reply is the answer to; a payload in parts is named by the request."""
    digest = hashlib.sha256(request.model_dump_json().encode() + b"\0")
    digest.update(payload)
    return digest.hexdigest()


def _let_go(payload: bytes | bytearray) -> None:
    """Give the memory of a payload back that was read, whoever still refers to it."""
    with contextlib.suppress(BufferError):
        if isinstance(payload, bytearray):
            payload.clear()


def _broken(name: str) -> RefusalError:
    return RefusalError("model", f"the model {name} has failed at this silo; its owner's log says how")


def _over(ledger: Ledger, study: str) -> RefusalError:
    """The refusal of a study that has ended; where its owner ended it, the code says so."""
    ending = ledger.notes.endings[study]
    if ending.reason in ("rejected", "closed", "revoked"):
        return RefusalError(ending.reason, f"the silo's owner has {ending.reason} this study")
    return RefusalError("finished", "this study has ended; a new run needs a plan with another nonce")


def _cause(error: OSError | DoorError) -> str:
    """The kind of an error and the file that it is about, if any; the text of others might hold values."""
    if not isinstance(error, OSError) or error.filename is None:
        return type(error).__name__
    return f"{type(error).__name__} at {error.filename}; who owns it? tacit silo commands run as the folder's owner"


def _stored_plan(ledger: Ledger, study: str) -> Plan:
    return Plan.model_validate_json(ledger.plan(study) or "{}")


def _check_turn(offer: Offer, account: Account, round_index: int, attempt: int) -> None:
    """Refuse every round, and every attempt of it, but those that this silo may answer now."""
    plan = offer.plan
    spare = 0 if plan.pairwise is None else plan.pairwise.spare_attempts
    if attempt > spare:
        raise RefusalError("attempt", f"expected at most {spare} spare attempts, got attempt {attempt + 1}")
    if round_index >= offer.rounds:
        raise RefusalError("round", f"expected a round up to {offer.rounds}, got {round_index + 1}")
    again = account.last >= 0 and round_index == account.last and attempt > account.attempt
    first = account.last if again else account.last + 1
    upcoming = next((r for r in range(first, offer.rounds) if offer.may_answer(r)), offer.rounds)
    if round_index < upcoming or (plan.everyone and round_index > upcoming):
        raise RefusalError("round", f"expected round {upcoming + 1}, got {round_index + 1}")
    if not offer.may_answer(round_index):
        raise RefusalError("round", f"round {round_index + 1} is another silo's turn")
    if plan.max_participations is not None and account.answers >= plan.max_participations + spare:
        raise RefusalError("exhausted", f"expected at most {plan.max_participations} participations")


_MINUTE = 60.0


class RefusalCounts:
    """Counts refusals by code and proposer, for the ledger."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}
        self._seen: set[tuple[str, str]] = set()
        self._written = -_MINUTE
        self._lock = threading.Lock()

    def add(self, code: str, proposer: str) -> None:
        """Count one; ``proposer`` is empty where the policy names none."""
        with self._lock:
            self._counts[code, proposer] = self._counts.get((code, proposer), 0) + 1

    def write(self, ledger: Ledger, *, now: bool = False) -> None:
        """Write down what was counted, at most once a minute unless something is new or it must be now."""
        with self._lock:
            due = now or set(self._counts) - self._seen or time.monotonic() - self._written >= _MINUTE
            counts = dict(self._counts) if due else {}
            if not counts:
                return
            self._counts, self._written = {}, time.monotonic()
            self._seen |= set(counts)
        # A ledger that cannot be written has greater worries.
        with contextlib.suppress(LedgerError):
            ledger.count_refusals(counts)
