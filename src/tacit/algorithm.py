"""The five types that every algorithm is written in, and the terms on which it releases. Read this file first.

An algorithm is a set of *kinds of round*. A round has a silo half and a server half; privacy sits between
the two and belongs to neither:

    server.ask(state) -> broadcast                                              untrusted
    silo.start -> local_steps x [sample -> query -> clip -> mean -> noise -> absorb] -> report      trusted
    server.tell(state, mean message) -> state                                   untrusted

Only ``query`` ever reads a record. ``start``, ``absorb`` and ``report`` see released values alone, so they
are post-processing by signature: the author of an algorithm has no way to leak.

Price is static, content is dynamic. Noise multiplier, batch, sampling, mechanism and schedule are fixed before
anything runs, so the whole price is known in advance; the clip may depend on the (public) broadcast. Noise has
standard deviation ``noise_multiplier x sensitivity`` and the sensitivity is computed from clip, batch and
adjacency (replace one record in one silo), never written down by hand. A study's clip, noise, batches and channel are
one object, its `Terms`; an algorithm makes every `Release` from them and says only what is its own.

In its file an algorithm is a factory, a function of a problem, the terms of release and its own parameters. `recipe`
makes it a constructor of the last alone: ``mb_sgd(step_size=8.0, num_rounds=30)`` is a `Recipe`, which is called with a
problem and terms. A special case is a `preset`, a function that says what it fixes of another algorithm's parameters.
``.with_server("adam")`` has the server step by another rule than plain descent.

This module imports no jax: ``tacit.privacy`` reads plans out of these types without jax.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import Any, Concatenate, Literal, ParamSpec, get_args, get_type_hints

import numpy as np

from tacit.errors import TacitError, unknown

Params = Any  # a pytree of arrays: the model
State = Any  # a pytree: what the server remembers
Broadcast = Any  # a pytree: what the server says
Work = Any  # a pytree: what a silo computes with; public or already released
Memory = Any  # a pytree: released values that a silo keeps between rounds
Record = Any  # one record: a dict of arrays
Statistic = Any  # a pytree: what a query computes from one record
Message = Any  # a pytree: what a silo says
Info = Mapping[str, Any]  # named numbers: what people look at, by round

# One number, or one per silo; it may be a traced jax value when a grid is compiled.
Number = Any
# One number, or one per named block of the statistic.
PerBlock = Any
# A bound on the norm of a record's statistic, from public or released values alone.
Clip = Callable[[Work], PerBlock]

Sampling = Literal["full", "wor", "wr", "poisson", "allocation", "one-pass"]
Mechanism = Literal["gaussian", "cumulative", "correlated"]
Channel = Literal["direct", "pairwise", "trusted", "shuffled-sum", "shuffled-reports", "open"]
Randomiser = Literal["auto", "duchi", "privunit2", "privunitg"]
Protects = Literal["record", "sensitive-attribute"]
Participants = Literal["all", "sampled", "in turn"]
ServerRule = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]

SAMPLINGS: tuple[Sampling, ...] = ("full", "wor", "wr", "poisson", "allocation", "one-pass")
CHANNELS: tuple[Channel, ...] = ("direct", "pairwise", "trusted", "shuffled-sum", "shuffled-reports", "open")
SHUFFLED_CHANNELS: tuple[Channel, ...] = ("shuffled-sum", "shuffled-reports")
"""Channels in which a record hides among those of other silos."""
GUARANTEES: dict[Channel, str] = {
    "direct": "ISRL-DP: every message is private before it leaves its silo; nobody else is trusted",
    "pairwise": "DP of the sum: against the server and as many silos as are declared to collude with it; trusts the "
    "other silos of a round to add their shares of noise, and nobody else",
    "trusted": "central DP: trusts the server, which sees messages without noise and adds the noise itself",
    "shuffled-sum": "shuffle DP: trusts a shuffler to open only sums, and the declared share of silos not to collude",
    "shuffled-reports": "shuffle DP: trusts a shuffler to hide whose report is whose, and the declared share of silos "
    "not to collude; without the shuffler only each report's own epsilon is left",
    "open": "none",
}


def _several(value: Any) -> bool:
    """Whether a term has an entry for each silo."""
    return value is not None and np.ndim(value) > 0


@dataclass(frozen=True)
class Release:
    """How one statistic leaves a silo. Everything but the value of ``clip`` is static and priced.

    ``clip`` maps the silo's work to a norm bound per record; ``noise_multiplier`` is sigma over the
    replace-one sensitivity; both are one number or a mapping from blocks of the statistic to numbers, and
    each number may be an array with one entry per silo. ``batch_size`` is the fixed divisor K (``None``: every
    record); ``capacity`` is the physical limit of a batch of random size (Poisson, allocation), over which a
    uniformly random subset of that size is kept.

    A ``"gaussian"`` release has fresh noise. A ``"cumulative"`` one is an increment of a running sum: what is private
    is the sum so far plus fresh noise, so an increment leaves with its round's noise less that of the silo's round
    before. A ``"correlated"`` one takes off part of what all rounds before added, so that sums over ``rounds`` rounds
    have little noise (`tacit.privacy.strategy`). Noise that depends on earlier rounds needs one clip for all of them:
    it is not shown the work.

    Through the ``"pairwise"`` channel every silo adds a share of the noise and masks that cancel in the sum over silos;
    the noise multiplier is that of the sum, and the largest of all silos' is used.
    Through the ``"trusted"`` channel the server adds the noise, once, to the mean of un-noised messages. Through the
    ``"shuffled-sum"`` channel every record adds a share of binomial noise and only the sum over all silos is seen; the
    noise multiplier is that of the sum, and the largest of all silos' is used. Through ``"shuffled-reports"`` every
    record of the batch says its clipped statistic through a local randomiser (``randomiser``; block by block, each
    block a stream of its own) and the reports of all silos are shuffled; the noise multiplier is then the reciprocal
    of the randomiser's epsilon, again the largest of all silos'. A release whose ``channel`` is
    ``"open"`` is not private: no clip, no noise, an infinite price.

    ``protects="sensitive-attribute"`` protects the field ``s`` alone, which takes ``groups`` values: features and
    target count as known. The clip then bounds half of how far a record's statistic can move as ``s`` takes any other
    value, and everything else about the record leaves as it is. ``passes`` is how often one-pass sampling may go
    through the records, in the same batches each time. With a ``part`` all rounds of a kind have one batch: the records
    from that place on in the silo's order. Parts of several kinds do not overlap, and ``passes`` is how often a record
    of a part is read.

    ``nonnegative`` says that the product of two records' statistics is never negative: they have no negative entry, as
    counts, or are matrices u u^T (`SquareQuery`). A door checks either and leaves other rows out, so that two rows are
    at most sqrt(2) clips apart, not two: `sensitivity`.
    """

    clip: Clip
    noise_multiplier: PerBlock
    batch_size: Number | None
    sampling: Sampling
    capacity: Number | None = None
    mechanism: Mechanism = "gaussian"
    channel: Channel = "direct"
    protects: Protects = "record"
    randomiser: Randomiser = "auto"
    groups: int | None = None
    passes: int = 1
    nonnegative: bool = False
    rounds: int | None = None
    part: int | None = None

    def __post_init__(self) -> None:
        _check_part(self)
        _check_correlated(self)
        if self.nonnegative and self.sampling in ("poisson", "allocation"):
            raise ValueError(
                f'Expected sampling "full", "one-pass", "wor" or "wr" for rows of counts, got "{self.sampling}": its '
                "price compares with a batch without the record, and such rows are farther from that than it counts on."
            )
        if self.nonnegative and self.protects == "sensitive-attribute":
            raise ValueError('Expected protects="record" for rows of counts; only whole records are counted.')
        if (self.protects == "sensitive-attribute") != (self.groups is not None):
            raise ValueError('Expected groups, the number of values of s, exactly for protects="sensitive-attribute".')
        if self.protects == "sensitive-attribute" and self.channel in ("pairwise", *SHUFFLED_CHANNELS):
            raise ValueError(
                'Expected protects="record" through pairwise and shuffled channels; use channel="direct" to protect s.'
            )
        if self.passes < 1 or (self.passes > 1 and (self.sampling != "one-pass" or _several(self.batch_size))):
            raise ValueError(
                f"Expected passes={self.passes} to be 1, or more with one-pass sampling in batches of one size for all "
                "silos."
            )

    @property
    def sensitivity(self) -> float:
        """How far replacing one record moves a sum of clipped rows at most, in clips.

        Rows a and b whose product is not negative have |a - b|^2 <= |a|^2 + |b|^2. Shuffled sums are not checked for
        it.
        """
        return math.sqrt(2.0) if self.nonnegative and self.channel not in SHUFFLED_CHANNELS else 2.0


def _check_part(release: Release) -> None:
    if release.part is None:
        return
    one_size = release.batch_size is not None and not _several(release.batch_size)
    if release.part < 0 or release.sampling != "one-pass" or release.mechanism != "gaussian" or not one_size:
        raise ValueError(
            f"Expected part={release.part} >= 0 only for one-pass sampling with fresh noise, and a batch_size that is "
            "one number for all silos."
        )


def _check_correlated(release: Release) -> None:
    if (release.mechanism == "correlated") != (release.rounds is not None):
        raise ValueError('Expected rounds, of which sums have little noise, exactly for mechanism="correlated".')
    if release.rounds is None:
        return
    if release.rounds < 1:
        raise ValueError(f"Expected rounds={release.rounds} >= 1 of correlated noise.")
    if release.sampling not in ("full", "one-pass"):
        raise ValueError(
            f'Expected sampling "one-pass" or "full" for correlated noise, got "{release.sampling}": no price is known '
            "for random batches."
        )
    if release.channel not in ("direct", "trusted", "open") or release.protects != "record":
        raise ValueError(
            f'Expected correlated noise for whole records through the "direct" or "trusted" channel, got '
            f'"{release.channel}": shares of a sum would each round what they remember, and no price is known for that.'
        )


@dataclass(frozen=True)
class Terms:
    """On what terms an algorithm's statistics leave a silo: one object, from the study to every `Release`.

    Fields are those of `Release`; ``clip_norm`` is the bound of every statistic for which the algorithm has none of its
    own. Numbers may be traced, or arrays with one entry per silo. Through the ``"open"`` channel clip and noise may be
    ``None``; elsewhere only a clip may, where every statistic has a bound of its own. ``silos`` is how many there
    are, where that is known: an algorithm may follow it in how it splits its noise.
    """

    clip_norm: Number | None
    noise_multiplier: Number | None
    batch_size: Number | None
    sampling: Sampling
    capacity: Number | None = None
    channel: Channel = "direct"
    protects: Protects = "record"
    silos: int | None = None

    @classmethod
    def split(cls, given: Mapping[str, Any]) -> tuple[Terms, dict[str, Any]]:
        """The terms among named values, and the rest: a study names an algorithm's parameters beside its terms.

        >>> named = {"clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": None, "sampling": "full", "step_size": 3}
        >>> terms, own = Terms.split(named)
        >>> terms.clip_norm, own
        (1.0, {'step_size': 3})
        """
        names = {field.name for field in fields(cls)}
        return (
            cls(**{name: value for name, value in given.items() if name in names}),
            {name: value for name, value in given.items() if name not in names},
        )

    def drawn(self, batch_size: Number | None, sampling: Sampling | None, capacity: Number | None = None) -> Terms:
        """The same terms for batches that are drawn otherwise; as they are, where no sampling is given."""
        if sampling is None:
            if batch_size is not None or capacity is not None:
                raise ValueError(
                    f"Expected a sampling for batches of their own, of batch_size={batch_size}; none is given."
                )
            return self
        if capacity is not None and sampling not in ("poisson", "allocation"):
            raise ValueError(
                f'Expected capacity={capacity} only for sampling="poisson" or "allocation", got {sampling!r}; leave it '
                "out."
            )
        return replace(self, batch_size=batch_size, sampling=sampling, capacity=capacity)

    def release(
        self,
        *,
        clip: Clip | None = None,
        noise: PerBlock = 1.0,
        groups: int | None = None,
        passes: int = 1,
        mechanism: Mechanism = "gaussian",
        rounds: int | None = None,
        randomiser: Randomiser = "auto",
        nonnegative: bool = False,
        part: int | None = None,
    ) -> Release:
        """A release on these terms.

        ``clip`` is the algorithm's own bound in place of ``clip_norm``; ``noise`` is how many times the noise
        multiplier it has, one number or one for each block; ``groups`` is how many values ``s`` takes, for algorithms
        that can protect it alone; ``rounds`` is how many rounds correlated noise is made for.
        """
        alone = self.protects == "sensitive-attribute"
        if alone and groups is None:
            raise ValueError(
                'Expected protects="record": this algorithm protects whole records; use steffle or lagrangian-dual to '
                "protect the sensitive attribute alone."
            )
        return Release(
            clip=(lambda work: self.clip_norm) if clip is None else clip,
            noise_multiplier=_times(self.noise_multiplier, noise),
            batch_size=self.batch_size,
            sampling=self.sampling,
            capacity=self.capacity,
            mechanism=mechanism,
            channel=self.channel,
            protects=self.protects,
            randomiser=randomiser,
            groups=groups if alone else None,
            passes=passes,
            nonnegative=nonnegative,
            rounds=rounds if mechanism == "correlated" else None,
            part=part,
        )


def _times(noise_multiplier: Number | None, ratio: PerBlock) -> PerBlock:
    """The noise multiplier of a release, or of each of its blocks; none where there is no noise."""
    if noise_multiplier is None or (isinstance(ratio, float | int) and ratio == 1):
        return noise_multiplier
    if isinstance(ratio, Mapping):
        return {block: _times(noise_multiplier, own) for block, own in ratio.items()}
    by_silo = isinstance(noise_multiplier, list | tuple)
    return (np.asarray(noise_multiplier) if by_silo else noise_multiplier) * ratio


def _broadcast_is_work(broadcast: Broadcast, memory: Memory) -> Work:
    return broadcast


def _released_is_work(work: Work, released: Statistic) -> Work:
    return released


def _work_is_message(work: Work, memory: Memory) -> tuple[Message, Memory]:
    return work, memory


@dataclass(frozen=True)
class Silo:
    """The silo half. ``query`` maps (work, record) to a statistic and is the only reader of a record.

    ``reads`` names the fields of a record that the query is handed (``None``: all). A release of which the protected
    field is no part costs nothing: it cannot depend on what it is not handed.
    """

    query: Callable[[Work, Record], Statistic]
    release: Release
    local_steps: int = 1
    start: Callable[[Broadcast, Memory], Work] = _broadcast_is_work
    absorb: Callable[[Work, Statistic], Work] = _released_is_work
    report: Callable[[Work, Memory], tuple[Message, Memory]] = _work_is_message
    reads: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        crowded = self.release.channel in ("pairwise", "trusted", *SHUFFLED_CHANNELS)
        if self.release.mechanism == "cumulative" and self.release.channel == "shuffled-reports":
            raise ValueError(
                "Expected fresh reports in every round; a running sum cannot be shuffled record by record."
            )
        special = self.release.mechanism != "gaussian" or crowded
        if special and not self.says_what_it_released:
            raise ValueError(
                "Expected one local step, and a message that is the release itself, for noise that remembers and for "
                'the pairwise, trusted and shuffled channels; use mechanism="gaussian" through the direct channel for '
                "local steps."
            )

    @property
    def is_free(self) -> bool:
        """Whether only the sensitive attribute is protected and the query is not handed it."""
        return self.release.protects == "sensitive-attribute" and self.reads is not None and "s" not in self.reads

    @property
    def stride(self) -> int:
        """How far each local step goes on: in a pass its records, in an epoch one batch, else nowhere.

        A part of the records stays where it is.
        """
        release = self.release
        if release.sampling == "allocation":
            return 1
        if release.sampling != "one-pass" or release.part is not None:
            return 0
        if release.batch_size is None:
            raise ValueError("Expected a batch_size for one-pass sampling; the pass is cut into batches of that size.")
        return int(np.max(release.batch_size))

    @property
    def says_what_it_released(self) -> bool:
        """Whether the message is the released statistic itself, so that a sum of messages is a sum of releases."""
        return (
            self.local_steps == 1
            and self.start is _broadcast_is_work
            and self.absorb is _released_is_work
            and self.report is _work_is_message
        )


@dataclass(frozen=True)
class Server:
    """The server half. It never sees a record nor a silo's memory; proximal steps live in ``tell``."""

    ask: Callable[[State], Broadcast]
    tell: Callable[[State, Message], State]


@dataclass(frozen=True)
class Round:
    """One kind of round, and who takes part in it."""

    silo: Silo
    server: Server
    participants: Participants = "sampled"


def _no_memory(params: Params) -> Memory:
    return ()


def _no_info(state: State) -> Info:
    return {}


@dataclass(frozen=True)
class Algorithm:
    """Kinds of round and the order in which they happen. ``schedule`` is static: the price is read from it.

    The state is what the next round or the output needs. ``info`` is what people look at, computed from it.
    ``personal`` is the model that a silo has of its own, from its memory, where an algorithm makes one for each: it is
    post-processing of releases, as all memory is. Such an algorithm asks every silo in every round.
    """

    init: Callable[[Params], State]
    rounds: Mapping[str, Round]
    schedule: Sequence[str]
    output: Callable[[State], Params]
    memory: Callable[[Params], Memory] = _no_memory
    info: Callable[[State], Info] = _no_info
    personal: Callable[[Memory], Params] | None = None

    def __post_init__(self) -> None:
        unknown = sorted(set(self.schedule) - set(self.rounds))
        if unknown:
            raise ValueError(f"Expected every kind of the schedule among {sorted(self.rounds)}, got {unknown}.")
        for kind, part in self.rounds.items():
            made_for, asked = part.silo.release.rounds, list(self.schedule).count(kind)
            if made_for is not None and asked > made_for:
                raise ValueError(
                    f"Expected rounds={made_for} of correlated noise to be at least the {asked} rounds of {kind!r} in "
                    "the schedule: nothing is promised of rounds that the noise was not made for."
                )

    @property
    def turns(self) -> tuple[int, ...]:
        """For each round of the schedule, how many rounds of its kind came before: whose turn it is, modulo silos."""
        seen: dict[str, int] = {}
        found = []
        for kind in self.schedule:
            found.append(seen.get(kind, 0))
            seen[kind] = found[-1] + 1
        return tuple(found)

    @property
    def positions(self) -> tuple[int, ...]:
        """For each round of the schedule, how many records of its pass, or batches of epochs, came before."""
        silos = [self.rounds[kind].silo for kind in self.schedule]
        return tuple(accumulate((silo.stride * silo.local_steps for silo in silos[:-1]), initial=0)) if silos else ()


P = ParamSpec("P")
Fixed = Mapping[str, Any]
"""Parameters by name that a preset fixes of its base."""
_GIVEN_LATER = 2  # the problem and the terms
_PLAIN = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class Recipe:
    """An algorithm with its own parameters, ready for a problem and terms of release."""

    name: str
    parameters: Mapping[str, Any]
    factory: Callable[..., Algorithm] = field(repr=False, compare=False)
    server: ServerRule | Number = "sgd"

    def with_server(self, server: ServerRule | Number) -> Recipe:
        """The same algorithm with another server optimiser, at the same price; see `tacit.objectives.server`."""
        return replace(self, server=server)

    def __call__(self, problem: Any, terms: Terms) -> Algorithm:
        """The algorithm for this problem on these terms."""

        def build(problem: Any) -> Algorithm:
            return self.factory(problem, terms, **self.parameters)

        plain = isinstance(self.server, str) and self.server == "sgd"
        return build(problem) if plain else problem.served(self.server, build)


def recipe(factory: Callable[Concatenate[Any, Terms, P], Algorithm]) -> Callable[P, Recipe]:
    """The constructor of a factory's recipes; it takes the factory's own parameters and checks their names."""
    own = list(inspect.signature(factory).parameters.values())[_GIVEN_LATER:]
    return _constructor(factory, factory, own)


def preset(
    base: Callable[..., Recipe], *, sampling: Sampling | None = None
) -> Callable[[Callable[Concatenate[Any, Terms, P], Fixed]], Callable[P, Recipe]]:
    """A special case of ``base``, from a function that has its own parameters and returns what it fixes of the base's.

    Parameters of the function go to the base as they are. It may name a group of them as
    ``**options: Unpack[SomeTypedDict]``; their defaults are the base's. ``sampling`` is the only one that is allowed.
    """

    def decorate(fixes: Callable[Concatenate[Any, Terms, P], Fixed]) -> Callable[P, Recipe]:
        name, parameters = name_of(fixes), _expanded(fixes, base)
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

        def factory(problem: Any, terms: Terms, **given: Any) -> Algorithm:
            if sampling is not None and terms.sampling != sampling:
                raise ValueError(
                    f'Expected sampling="{sampling}" for {name}, got {terms.sampling!r}; {name_of(base)} takes any.'
                )
            own = {**defaults, **given}
            return base(**{**own, **fixes(problem, terms, **own)})(problem, terms)  # type: ignore[call-arg]

        return _constructor(factory, fixes, parameters, base)

    return decorate


def name_of(function: Callable[..., Any]) -> str:
    """The name of an algorithm as studies spell it: that of its function, with hyphens."""
    return function.__name__.replace("_", "-")


def _constructor(
    factory: Callable[..., Algorithm],
    written: Callable[..., Any],
    own: list[inspect.Parameter],
    base: Callable[..., Recipe] | None = None,
) -> Callable[P, Recipe]:
    """A function with the name and docstring of ``written`` that keeps its arguments in a recipe."""
    name, signature = name_of(written), inspect.Signature(own, return_annotation=Recipe)

    @functools.wraps(written)
    def constructor(*args: P.args, **given: P.kwargs) -> Recipe:
        for strange in sorted(set(given) - set(signature.parameters)):
            if base is not None and strange in inspect.signature(base).parameters:
                raise TypeError(f"Expected no {strange}: {name} settles it; use {name_of(base)} to choose it.")
            raise TypeError(unknown(f"parameter of {name}", strange, signature.parameters))
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; it takes {', '.join(signature.parameters)}.") from None
        _check_numbers(name, bound.arguments)
        return Recipe(name, bound.arguments, factory)

    constructor.__signature__ = signature  # type: ignore[attr-defined]
    return constructor


def _check_numbers(name: str, given: Mapping[str, Any]) -> None:
    """Raise if steps do not go forward or there are no rounds; what is traced is not known yet."""
    rounds, step = given.get("num_rounds"), given.get("step_size")
    if isinstance(rounds, bool | str) or (isinstance(rounds, _PLAIN) and not (rounds >= 1 and rounds % 1 == 0)):
        raise TacitError(f"Expected num_rounds={rounds!r} of {name} to be a whole number >= 1.")
    for one in step if isinstance(step, list | tuple) else [step]:
        if isinstance(one, str) or (isinstance(one, _PLAIN) and not 0 < one < float("inf")):
            raise TacitError(f"Expected step_size={step!r} of {name} to be a finite number > 0.")


def _expanded(fixes: Callable[..., Fixed], base: Callable[..., Recipe]) -> list[inspect.Parameter]:
    """The parameters of a preset, a group of options replaced by the base's parameters of these names."""
    found: list[inspect.Parameter] = []
    for parameter in list(inspect.signature(fixes).parameters.values())[_GIVEN_LATER:]:
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found.append(parameter)
            continue
        [options] = get_args(get_type_hints(fixes)[parameter.name])
        known = inspect.signature(base).parameters
        found += [known[name] for name in get_type_hints(options)]
    return found
