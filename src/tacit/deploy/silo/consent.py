"""From a proposed plan to an offer: built with the silo's own Tacit, checked against its policy, and priced."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tacit.algorithm import SHUFFLED_CHANNELS, Algorithm
from tacit.deploy.contract import affordable, builder_from, seat_of
from tacit.deploy.silo.policy import AllowSection, PairwiseSection, ShuffleSection
from tacit.deploy.wire import (
    MOST_FRAMED,
    MOST_WHOLE,
    REPORTS,
    Consent,
    Description,
    Enrolment,
    Plan,
    RefusalError,
    frame,
)
from tacit.errors import TacitError
from tacit.objectives.losses import LOSSES, SURVIVAL
from tacit.objectives.models import MODELS
from tacit.plans.assemble import Builder, Shapes, coordinates, shapes_of
from tacit.plans.catalogue import QUESTIONS, shipped
from tacit.plans.price import MOST_KEPT, TAILS, samples_of
from tacit.privacy import Event, Price, PricingError
from tacit.privacy.filter import Rule
from tacit.privacy.strategy import strategy_of
from tacit.silo.door import noise_scale
from tacit.silo.engine import layouts, vectors_of
from tacit.silo.gradients import is_outside
from tacit.silo.ledger import Ledger
from tacit.silo.noise import check_rounding
from tacit.silo.pools import TRAINING, VALIDATION, Split
from tacit.silo.release import own_clip, own_multiplier
from tacit.silo.sampler import sampler_delta
from tacit.silo.spending import Charge, fitting_epsilon, over_budget, percent, rule_words, share

if TYPE_CHECKING:
    from tacit.channel.pairwise import SumTerms
    from tacit.channel.shuffled_sum import BlockTerms
    from tacit.deploy.shuffling import Streams

# Schedules grow with the product of a plan's counts; beyond this none is worth building.
_MOST_WORK = 10**7
_MOST_LAYERS = 32
_NOT_COUNTS = {"batch_size", "capacity"}


@dataclass(frozen=True)
class Offer:
    """A plan as this silo would run it.

    By kind of round: ``grid_sigma`` is the priced noise in grid units, ``broadcasts`` are shapes, ``shares`` are the
    terms of shuffled sums, ``streams`` those of shuffled reports and ``sums`` those of pairwise sums, and ``weights``
    say what this silo's records count in them, beside those that count most. ``memory`` is the silo's before the first
    round; ``positions`` say where in a pass over the records each round begins; ``samples`` counts the discrete
    Gaussians that the study draws.
    """

    plan: Plan
    algorithm: Algorithm
    events: tuple[Event, ...]
    price: Price
    grid_sigma: Mapping[str, float]
    broadcasts: Mapping[str, Any]
    memory: Any
    positions: tuple[int, ...]
    shares: Mapping[str, BlockTerms] = field(default_factory=dict)
    streams: Streams = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    sums: Mapping[str, SumTerms] = field(default_factory=dict)
    samples: int = 0

    @property
    def rounds(self) -> int:
        """How many rounds the study has."""
        return len(self.algorithm.schedule)

    def may_answer(self, round_index: int) -> bool:
        """Whether a round is this silo's to answer: every round is, but for other silos' turns."""
        algorithm, plan = self.algorithm, self.plan
        in_turn = algorithm.rounds[algorithm.schedule[round_index]].participants == "in turn"
        return not in_turn or algorithm.turns[round_index] % plan.silos == plan.silo_index


def consider(
    plan: Plan,
    *,
    records: int,
    record: Any,
    allow: AllowSection,
    shuffle: ShuffleSection | None = None,
    pairwise: PairwiseSection | None = None,
    silo: str = "",
    build: Callable[[Plan, int], Builder] = builder_from,
) -> Offer:
    """Build and price a plan for a silo with this many records of this shape; a plan that is not allowed is refused.

    ``shuffle`` and ``pairwise`` are what the policy says of those channels, and ``silo`` is this silo's name in them.
    ``build`` makes the algorithm of a plan; audits bring their own.

    Formal guarantee: a run of the offer's algorithm, with the noise and grids that the offer names and the answers that
    the plan allows, releases no more than the offer's events, which are (epsilon, delta)-DP as the plan asks. Nothing
    here depends on the content of a record.
    """
    _check_allowed(plan, allow)
    if plan.shuffle is not None:
        from tacit.deploy.silo.shuffled import check_shuffle

        check_shuffle(plan, records, allow, shuffle)
    if plan.pairwise is not None:
        from tacit.deploy.silo.pairwise import check_pairwise

        check_pairwise(plan, silo, records, pairwise)
    try:
        return _offer(build(plan, records), plan, records, record, allow, shuffle)
    except TacitError:
        raise
    except Exception as error:
        # Odd parameters may break a factory in its own ways; no record is in reach here.
        raise RefusalError("bad-plan", f"the plan cannot be built: {str(error)[:300]}") from None


def _offer(
    builder: Builder, plan: Plan, records: int, record: Any, allow: AllowSection, policy: ShuffleSection | None
) -> Offer:
    # What the server makes of messages is nothing to a silo, which loads no optimiser.
    builder = dataclasses.replace(builder, fixed={**builder.fixed, "server": "sgd"})
    unit = builder.noised(1.0)
    shapes = shapes_of(unit, builder.problem, record)
    _check_built(unit, shapes, allow, _channels(plan))
    if plan.shuffle is not None:
        from tacit.deploy.silo.shuffled import check_rounds, shuffled_terms

        check_rounds(unit, plan, policy)
    algorithm, events, cost = affordable(builder, plan, records, shapes.dimensions)
    samples = samples_of(events, shapes.dimensions, seat_of(plan, records).noises)
    _check_noise(algorithm, plan, samples, shapes.dimensions)
    others: dict[str, Any] = {}
    if plan.shuffle is not None:
        others = shuffled_terms(algorithm, plan, shapes, records, policy)._asdict()
    if plan.pairwise is not None:
        from tacit.deploy.silo.pairwise import sums_at

        others = sums_at(algorithm, plan, shapes)._asdict()
    grids = {e.kind: e.grid_sigma for e in events if e.grid_sigma is not None}
    memory = _first_memory(algorithm, shapes.params)
    _rehearse(algorithm, plan, shapes, memory, record)
    rest = {"positions": algorithm.positions, "samples": samples, **others}
    return Offer(plan, algorithm, events, cost, grids, shapes.broadcasts, memory, **rest)


def _check_noise(algorithm: Algorithm, plan: Plan, samples: int, dimensions: Mapping[str, int]) -> None:
    """Refuse noise that the door cannot draw, or not exactly enough for the plan's price."""
    if sampler_delta(samples, plan.epsilon) > MOST_KEPT * plan.delta:
        raise RefusalError("unpriceable", f"expected a smaller epsilon than {plan.epsilon}, which hides nothing")
    for kind, part in algorithm.rounds.items():
        release = part.silo.release
        if release.channel in ("direct", "pairwise") and not part.silo.is_free:
            for multiplier in jax.tree.leaves(own_multiplier(release, plan.silo_index)):
                sigma = noise_scale(float(multiplier), release.sensitivity)
                check_rounding(strategy_of(release), dimensions[kind], sigma, sigma / float(multiplier))


def _channels(plan: Plan) -> tuple[str, ...]:
    """The channels that a plan's releases may take; with reports and pairwise sums, rounds in turn are direct."""
    if plan.pairwise is not None:
        return ("pairwise", "direct")
    if plan.shuffle is None:
        return ("direct",)
    return (REPORTS, "direct") if plan.algorithm.get("channel") == REPORTS else ("shuffled-sum",)


def _rehearse(algorithm: Algorithm, plan: Plan, shapes: Shapes, memory: Any, record: Any) -> None:
    """Trace every kind of round with shapes alone: what cannot run is refused before it is consented to."""
    table = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), record)
    for kind, part in algorithm.rounds.items():
        silo = part.silo
        work = jax.eval_shape(silo.start, shapes.broadcasts[kind], memory)
        blocks = layouts(silo, work, record)
        if not is_outside(silo.query):
            traced = lambda work, table, silo=silo, blocks=blocks: vectors_of(silo, blocks, work, table)  # noqa: E731
            jax.eval_shape(traced, work, table)
        clip = jax.eval_shape(lambda work, silo=silo: own_clip(silo.release, work, plan.silo_index), work)
        noise = silo.release.noise_multiplier
        if isinstance(clip, Mapping) != isinstance(noise, Mapping) or len(jax.tree.leaves(clip)) != len(blocks):
            raise RefusalError("bad-plan", "expected a clip and a noise multiplier for each block of the statistic")
        statistic = jax.eval_shape(silo.query, work, record)
        jax.eval_shape(lambda w, s, silo=silo: silo.report(silo.absorb(w, s), memory), work, statistic)


def check_objective(plan: Plan, allow: AllowSection) -> None:
    """Refuse a model or loss that is not Tacit's own, nor of a package that the owner has listed."""
    for part, own in (("model", (*MODELS, *allow.models)), ("loss", LOSSES)):
        if plan.objective.get(part) not in (*own, None):
            raise RefusalError("not-allowed", f"expected a {part} among {', '.join(own)}; no other code is loaded")
    if plan.objective.get("model") not in (*MODELS, None):
        from tacit.deploy.silo.packages import check_installed

        check_installed(plan, allow)


def _check_allowed(plan: Plan, allow: AllowSection) -> None:
    name, rounds = plan.algorithm.get("name"), plan.algorithm.get("num_rounds")
    if name not in allow.algorithms:
        raise RefusalError("not-allowed", f"expected an algorithm among {', '.join(allow.algorithms)}")
    if name not in shipped():
        raise RefusalError("not-allowed", "expected an algorithm of Tacit's own; this silo loads no other code")
    check_objective(plan, allow)
    if shipped()[name].reads_attribute:
        raise RefusalError("not-allowed", f"{name} reads a sensitive attribute, which this silo does not hold")
    if plan.algorithm.get("channel", "direct") not in allow.channels:
        raise RefusalError("not-allowed", f"expected a channel among {', '.join(allow.channels)}")
    most = allow.max_epsilon_per_study
    if most is not None and plan.epsilon > most:
        numbers = {"epsilon": plan.epsilon, "limit": most}
        raise RefusalError(
            "not-allowed", f"expected a study of epsilon at most {most:g}, got {plan.epsilon:g}", numbers
        )
    widths = [plan.objective.get(name) for name in ("hidden", "channels")]
    if sum(len(own) for own in widths if isinstance(own, list | tuple)) > _MOST_LAYERS:
        raise RefusalError("not-allowed", f"expected a model of at most {_MOST_LAYERS} layers")
    if plan.silos < allow.min_silos:
        raise RefusalError("not-allowed", f"expected at least {allow.min_silos} silos", {"silos": plan.silos})
    if not isinstance(rounds, int) or not 1 <= rounds <= allow.max_rounds:
        raise RefusalError("not-allowed", f"expected num_rounds from 1 to {allow.max_rounds}")
    counts = [v for k, v in plan.algorithm.items() if k not in _NOT_COUNTS and type(v) is int and v > 0]
    if math.prod(counts) > _MOST_WORK:
        raise RefusalError("not-allowed", f"expected fewer rounds and steps than {_MOST_WORK} in all")


def _first_memory(algorithm: Algorithm, shapes: Any) -> Any:
    """The silo's memory before the first round, which must not depend on parameters that the silo never sees."""
    zeros, ones = (
        algorithm.memory(jax.tree.map(lambda leaf, v=v: jnp.full(leaf.shape, v, leaf.dtype), shapes)) for v in (0, 1)
    )
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), zeros, ones)
    if not all(jax.tree.leaves(same)):
        raise RefusalError("bad-plan", "expected a memory that does not depend on the initial parameters")
    return zeros


def _check_built(algorithm: Algorithm, shapes: Shapes, allow: AllowSection, channels: tuple[str, ...]) -> None:
    if coordinates(shapes.params) > allow.max_parameters:
        raise RefusalError("not-allowed", f"expected a model of at most {allow.max_parameters} parameters")
    # A gradient and a difference may be said together; statistics have no parameters at all.
    most, largest = 2 * allow.max_parameters, max(shapes.dimensions.values())
    if largest > most:
        raise RefusalError("not-allowed", f"expected at most {most} numbers in a round, got {largest}; ask for less")
    # What goes to a shuffler has no parts.
    sealed = any(part.silo.release.channel in SHUFFLED_CHANNELS for part in algorithm.rounds.values())
    whole = MOST_FRAMED if sealed else MOST_WHOLE
    if 8 * largest > whole or 4 * max(map(coordinates, shapes.broadcasts.values())) > MOST_WHOLE:
        raise RefusalError("not-allowed", f"expected messages of at most {whole} bytes, broadcasts of {MOST_WHOLE}")
    steps = sum(algorithm.rounds[kind].silo.local_steps for kind in algorithm.schedule)
    if steps > 10 * allow.max_rounds:
        raise RefusalError("not-allowed", f"expected at most {10 * allow.max_rounds} releases in all")
    for part in algorithm.rounds.values():
        # Checked on what was built, whatever the plan calls it.
        if part.silo.release.channel not in channels:
            raise RefusalError("not-allowed", f"expected every release through {' or '.join(channels)}, and its terms")
        if part.silo.release.channel not in allow.channels:
            raise RefusalError("not-allowed", f"expected every release through {' or '.join(allow.channels)}")
        if part.silo.release.protects != "record":
            raise RefusalError("not-allowed", "expected every release to protect whole records")


_State = Literal["consented", "pending"]
_log = logging.getLogger("tacit.silo")


class Shares(NamedTuple):
    """Shares of the account: what a study takes, and what is left then."""

    takes: float
    left: float


def terms_of(plan: Plan) -> str:
    """A digest of what a plan asks for, whoever proposes it, under whatever name and for whichever place.

    It is the same for plans that differ in name, nonce, proposer, purpose, silo_index, the order of keys, numbers
    written with or without a fraction, and keys that are null. Any other difference, however small, makes other terms.
    """
    tree = plan.model_dump(mode="json", exclude={"name", "nonce", "proposer", "silo_index", "purpose"})
    return hashlib.sha256(json.dumps(_canonical(tree), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _canonical(part) for key, part in value.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    # Adding zero makes one of both zeros.
    return value + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else value


def check_columns(plan: Plan, description: Description) -> None:
    """Refuse statistics of columns that are not what the plan says, or that this silo does not have.

    Formal guarantee: what a plan that passes calls a column is that column of this silo's own schema.
    """
    claimed = plan.algorithm.get("columns")
    if plan.algorithm.get("name") not in QUESTIONS or (plan.algorithm["name"] == VALIDATION and not claimed):
        return
    from tacit.counting.request import columns_of, same_columns

    own = columns_of(description.model_dump()) if description.columns is not None else []
    if not isinstance(claimed, list | tuple) or not claimed or not same_columns(claimed, own):
        raise RefusalError("schema", "expected columns as this silo's schema declares them, each at its place")


def check_times(plan: Plan, description: Description) -> None:
    """Refuse survival regression of a target that is no time of an event, and any other model of one that is.

    Counts are refused of a number that may be negative by the schema, whatever the records hold.
    """
    target, survives = description.target, plan.objective.get("loss") == SURVIVAL
    if target is None or target.low is None or plan.algorithm.get("name") == "statistics":
        return
    if survives and target.event is None:
        text = f"{SURVIVAL} needs the times of an event, and {target.column} is a number that was scaled to [0, 1]"
        raise RefusalError("schema", f"{text}; name the column of its event in the schema (target.event)")
    if target.event is not None and not survives:
        text = f"{target.column} is the time of an event ({target.event}), negative where it was not seen"
        raise RefusalError("schema", f'{text}; expected loss = "{SURVIVAL}"')
    if plan.objective.get("loss") == "poisson" and target.low < 0:
        raise RefusalError("schema", f"poisson is of counts, and the range of {target.column} begins at {target.low:g}")


def charge_of(offer: Offer) -> Charge:
    """What a study reserves: its releases, the delta for short tails, and how many samples it draws."""
    return Charge(offer.events, TAILS * bool(offer.shares), offer.samples)


def kept_of_plan(offer: Offer) -> float:
    """The part of a plan's own delta that is kept for short tails and for the sampler."""
    return TAILS * bool(offer.shares) + sampler_delta(offer.samples, offer.plan.epsilon)


def check_delta(delta: float, account: Rule) -> None:
    """Refuse a plan's delta that is larger than the account's.

    Formal guarantee: if the releases of a plan that passes are (epsilon, delta)-DP as it asks, they are so for its
    epsilon at the account's delta. So a bound on a plan's epsilon is one on its price at the account's delta.
    """
    if not delta <= account.delta:
        numbers = {"delta": delta, "limit": account.delta}
        text = f"expected a study of delta at most {account.delta:g}, which is this account's, got {delta:g}"
        raise RefusalError("not-allowed", text, numbers)


def check_sampling(offer: Offer, allow: AllowSection) -> None:
    """Refuse a sampling that the owner does not allow."""
    for event in offer.events:
        if event.sampling not in allow.sampling:
            listed = " or ".join(f'"{name}"' for name in allow.sampling)
            raise RefusalError("not-allowed", f'expected sampling {listed}, got "{event.sampling}" in {event.kind}')


def pool_of(plan: Plan, split: Split | None) -> str | None:
    """The pool that a plan reads: models are validated on records that were set aside, and nothing else reads those.

    None where nothing was set aside: then every record may train.
    """
    validates = plan.algorithm.get("name") == VALIDATION
    if split is None:
        if validates:
            raise RefusalError("not-allowed", "this silo has set no records aside to test models (data.validation)")
        return None
    return VALIDATION if validates else TRAINING


def proposed(ledger: Ledger, offer: Offer) -> Shares:
    """Shares of a study that is not reserved yet; one that does not fit even an empty account is refused."""
    charge, pool = charge_of(offer), pool_of(offer.plan, ledger.notes.split)
    _check_balance(ledger, pool)
    try:
        alone = share(ledger.rule, [charge])
        after = ledger.charged_with(pool, charge)
    except PricingError as error:
        raise RefusalError("not-allowed", str(error)) from None
    if not alone <= 1.0:
        raise over_budget(ledger.rule, 0.0, alone, fitting_epsilon(ledger.rule, [], charge, delta=offer.plan.delta))
    return Shares(after - ledger.charged_in(pool), max(0.0, 1 - after))


def check_fits(ledger: Ledger, offer: Offer) -> None:
    """Refuse a study that needs more than is left now, with the epsilon that would fit; the ledger refuses it too."""
    charge, pool = charge_of(offer), pool_of(offer.plan, ledger.notes.split)
    after = ledger.charged_with(pool, charge)
    if not after <= 1.0:
        others = [
            own.charged(ledger.rule) for own in ledger.accounts.values() if pool is None or own.pool in (None, pool)
        ]
        fits = fitting_epsilon(ledger.rule, others, charge, delta=offer.plan.delta)
        raise over_budget(ledger.rule, ledger.charged_in(pool), after, fits)


def reserved(ledger: Ledger, study: str) -> Shares:
    """Shares of a study that is reserved; a refusal if the account is overdrawn by now."""
    pool = ledger.accounts[study].pool
    _check_balance(ledger, pool)
    charged = ledger.charged_in(pool)
    return Shares(charged - ledger.charged_with(pool, without=study), 1 - charged)


def _check_balance(ledger: Ledger, pool: str | None) -> None:
    charged = ledger.charged_in(pool)
    if not charged <= 1.0:
        raise over_budget(ledger.rule, charged, charged)


def consent(
    ledger: Ledger,
    offer: Offer,
    shares: Shares,
    state: _State = "consented",
    next_round: int = 0,
    enrolment: Enrolment | None = None,
) -> bytes:
    """The silo's consent as a frame: the plan's own price, and what the study takes from this account."""
    message = Consent(
        study=offer.plan.study,
        state=state,
        epsilon=offer.price.epsilon,
        delta=offer.price.delta,
        rule=ledger.rule.name,
        takes=shares.takes,
        left=shares.left,
        noise_multipliers={event.kind: event.noise_multiplier for event in offer.events},
        next_round=next_round,
        enrolment=enrolment,
    )
    return frame(message)


def log_reserved(ledger: Ledger, offer: Offer) -> None:
    """Log that a study was reserved, with both of its prices."""
    study, price = offer.plan.study, offer.price
    takes, left = map(percent, reserved(ledger, study))
    own = f"its own price is epsilon {price.epsilon:.4f} at delta {price.delta:g}"
    _log.info("study %s reserved: %s; it takes %s of the account, %s is left", study, own, takes, left)


def log_account(ledger: Ledger) -> None:
    """Log by which rule the account is kept, and whether anything is left of it."""
    rule, used = ledger.rule, percent(ledger.charged)
    if ledger.joint_share is not None:
        _log.warning(
            "a ledger without a rule, as version 0.1 kept it, has the rule %s from now on: what its studies have "
            "reserved, %s of the account as one joint price, takes %s by this rule",
            rule_words(rule),
            percent(ledger.joint_share),
            used,
        )
    budget = f"epsilon {rule.epsilon:g} at delta {rule.delta:g}, rule {rule_words(rule)}"
    _log.info("the account: %s; %s of it is used or reserved", budget, used)
    if not ledger.charged <= 1.0:
        _log.warning(
            "the account is overdrawn: what was released or reserved takes %s of it (%s), so nothing more is granted; "
            "raise budget.epsilon if these records may lose more, or serve others from a new folder",
            used,
            budget,
        )
