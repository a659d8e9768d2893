"""Every algorithm with a theorem, held against a situation: what it promises, or why it does not apply.

A bound with constants and a rate whose constant is set to one are not the same thing; the three *measures* (population
excess risk, empirical excess risk, squared norm of the gradient) are not comparable either. So a winner is chosen
within one measure and by its bound; rates are compared only where no theorem gives more.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tacit.choosing.situation import (
    CONVEX,
    EVERYONE,
    FAIR,
    PL,
    SHUFFLER,
    SMOOTH,
    SQUARED,
    TRUSTED,
    UNFAIR,
    Rule,
    Situation,
)
from tacit.objectives import linear
from tacit.objectives.fairness import Ermi
from tacit.plans.catalogue import find
from tacit.theory import (
    PsgmSetting,
    PsgmTheory,
    Statement,
    TheoryError,
    ce_psgm_from_theory,
    ridge_bound,
    sgda_from_theory,
    stated,
    stationarity_bound,
    steffle_setting,
    table_1,
)

Measure = Literal["population excess risk", "empirical excess risk", "squared gradient"]
ORDER: tuple[Measure, ...] = ("empirical excess risk", "population excess risk", "squared gradient")
"""Which promise decides unless somebody says otherwise: what noise costs is seen best on the records at hand."""
LEAST_PEERS = 3
"""As few silos as share a noise: of two, one may collude."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One algorithm held against a situation; without ``reasons`` its theorem applies.

    ``bound`` has all constants (None where the theorem hides them); ``rate`` has its constant set to one; ``failed``
    are conditions of the theorem that do not hold at these numbers, so that the promise is void. ``sentence`` says all
    this in words, where the theorem has constants.
    """

    algorithm: str
    reasons: tuple[str, ...] = ()
    source: str = ""
    channel: str = "direct"
    measure: Measure | None = None
    bound: float | None = None
    rate: float | None = None
    rounds: int | None = None
    failed: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    smoothing: float | None = None
    sentence: str = ""

    @property
    def applies(self) -> bool:
        """Whether the theorem speaks of this situation."""
        return not self.reasons

    @property
    def score(self) -> tuple[float, float]:
        """What is compared within a measure: bounds, and rates where there is none."""
        return (math.inf if self.bound is None else self.bound), (math.inf if self.rate is None else self.rate)


Theorem = Callable[[Situation], Candidate]


def candidates(situation: Situation) -> tuple[Candidate, ...]:
    """Every algorithm: those whose theorems apply first, best first, then the others with the reasons."""
    return tuple(sorted((_judged(situation, *row) for row in _TABLE), key=_rank))


def _judged(s: Situation, name: str, rules: tuple[Rule, ...], theorem: Theorem) -> Candidate:
    """An algorithm with what its theorem promises, or with the reasons why it does not apply."""
    reasons = tuple(text for holds, text in rules if not holds(s))
    try:
        candidate = Candidate(algorithm=name, reasons=reasons) if reasons else theorem(s)
    except TheoryError as error:
        return Candidate(algorithm=name, reasons=(str(error),))
    if candidate.rounds is not None and candidate.rounds > s.max_rounds:
        reason = f"its theorem asks for {candidate.rounds} rounds, more than {s.max_rounds}; raise --max-rounds"
        return Candidate(algorithm=name, reasons=(reason,))
    return _through_peers(s, candidate) if s.peers else candidate


def _through_peers(s: Situation, candidate: Candidate) -> Candidate:
    """A candidate for direct messages, through pairwise sums where they add less noise.

    Its bound is that of direct messages: a theorem for more noise holds for less.
    """
    reads = find(candidate.algorithm).reads_attribute
    if candidate.channel != "direct" or reads or not candidate.applies or s.present < LEAST_PEERS:
        return candidate
    less = math.sqrt(s.present - 1)
    note = f"Through pairwise sums the noise of the mean is {less:.2g} times smaller than this promise counts on."
    return replace(candidate, channel="pairwise", sentence=f"{candidate.sentence} {note}".strip())


def winner(rows: Iterable[Candidate], goal: Measure | None = None) -> Candidate | None:
    """The best candidate of the first measure that anything speaks of; one whose conditions hold, if there is one.

    >>> s = Situation(convex=True, smoothness=1, sizes=(1000,) * 20, dimension=10, epsilon=1)
    >>> best = winner(candidates(s))
    >>> best.measure, best.failed
    ('empirical excess risk', ())
    """
    listed = [c for c in rows if c.applies]
    order = ORDER if goal is None else (goal, *(m for m in ORDER if m != goal))
    for sound in (True, False):
        for measure in order:
            fitting = [c for c in listed if c.measure == measure and (not c.failed or not sound)]
            if fitting:
                return min(fitting, key=lambda c: c.score)
    return None


def _rank(candidate: Candidate) -> tuple[int, int, int, tuple[float, float]]:
    if not candidate.applies or candidate.measure is None:
        return 1, 0, 0, (0.0, 0.0)
    return 0, int(bool(candidate.failed)), ORDER.index(candidate.measure), candidate.score


def _from_statement(statement: Statement, channel: str = "direct", measure: Measure | None = None) -> Candidate:
    risk: Measure = "population excess risk" if statement.risk == "population" else "empirical excess risk"
    same = ("algorithm", "source", "bound", "rate", "failed", "parameters", "smoothing")
    return Candidate(
        **{name: getattr(statement, name) for name in same},
        channel=channel,
        measure=measure or risk,
        rounds=int(statement.parameters["num_rounds"]),
        sentence=statement.sentence(measure or risk),
    )


def _convex(name: str) -> Theorem:
    def theorem(s: Situation) -> Candidate:
        channel = "trusted" if name == "mu2-sgd" and s.trusted_server else "direct"
        terms: dict[str, Any] = {"heterogeneous": s.heterogeneous, "channel": channel}
        return _from_statement(stated(_theory(name), s.convex_setting(), most_rounds=s.max_rounds, **terms), channel)

    return theorem


def _nonconvex(name: str, measure: Measure | None = None) -> Theorem:
    def theorem(s: Situation) -> Candidate:
        setting, theory = s.nonconvex_setting(), _theory(name)
        limit = {"most_rounds": s.max_rounds} if "most_rounds" in inspect.signature(theory).parameters else {}
        return _from_statement(theory(setting, **limit), setting.channel, measure)

    return theorem


def _theory(name: str) -> Callable[..., Any]:
    """The theorem of an algorithm, from its row in the catalogue."""
    theory = find(name).theory
    assert theory is not None
    return theory


def _psgm_settings(s: Situation, local: bool) -> list[PsgmSetting]:
    """Numbers of rounds, local steps and batches to choose from."""
    assert s.smoothness is not None
    rounds = np.unique(np.geomspace(1, s.max_rounds, 25).astype(int))
    settings = []
    for k in (2, 4, 8, 16) if local else (1,):
        for batch in np.unique(np.geomspace(1, max(1, s.records // k), 6).astype(int)):
            settings += [
                PsgmSetting(
                    **s.shared,
                    smoothness=s.smoothness,
                    gap=s.start_gap,
                    heterogeneity=2 * s.smoothness if s.heterogeneous else 0.0,
                    rounds=int(r),
                    local_steps=k,
                    local_batch=int(batch),
                )
                for r in rounds
                if k * batch <= s.records
            ]
    return settings


def _psgm(local: bool, full: bool) -> Theorem:
    def theorem(s: Situation) -> Candidate:
        options = [ce_psgm_from_theory(setting, full=full) for setting in _psgm_settings(s, local)]
        options = [o for o in options if all(c.holds for c in o.conditions)] or options
        judged = [(option, _psgm_failures(option, s)) for option in options]
        best, failed = min([pair for pair in judged if not pair[1]] or judged, key=lambda pair: pair[0].rate)
        return Candidate(
            algorithm=best.algorithm,
            source=best.source,
            channel="shuffled-reports",
            measure="squared gradient",
            rate=best.rate,
            rounds=int(best.parameters["num_rounds"]),
            failed=failed,
            parameters=best.parameters,
        )

    return theorem


def _psgm_failures(option: PsgmTheory, s: Situation) -> tuple[str, ...]:
    """What fails of the theorem's conditions and of the privacy lemma's that its noise rests on, as in `tacit plan`."""
    parameters = {**option.parameters, "channel": "shuffled-reports"}
    printed = find(option.algorithm).paper_noise(parameters, **_sizes(s))
    conditions = (*option.conditions, *(() if printed is None else printed.conditions))
    return tuple(dict.fromkeys(c.text for c in conditions if not c.holds))


def _sizes(s: Situation) -> dict[str, Any]:
    return {name: s.shared[name] for name in ("records", "silos", "epsilon", "delta")}


def _diff2(s: Situation) -> Candidate:
    options = [(sum(table_1(o)["diff2-gd"].values()), o.rounds) for o in _psgm_settings(s, local=False)]
    rate, rounds = min(options)
    assert s.smoothness is not None
    return Candidate(
        algorithm="diff2-gd",
        source="Murata and Suzuki 2023, as in Table 1 of CE-PSGM",
        channel="trusted",
        measure="squared gradient",
        rate=rate,
        rounds=rounds,
        parameters=_full_batches(s, 1 / (2 * s.smoothness), rounds) | {"difference_slope": s.smoothness},
    )


def _full_batches(s: Situation, step_size: float, rounds: int) -> dict[str, Any]:
    terms = {"clip_norm": s.lipschitz, "batch_size": None, "sampling": "full"}
    return {"step_size": step_size, "num_rounds": rounds, **terms}


def _ridge(s: Situation) -> Candidate:
    """One release of second moments; features have the norm that the losses' smoothness tells of, less an intercept."""
    assert s.smoothness is not None
    norm = math.sqrt(max(s.smoothness - s.strong_convexity - 1.0, 1e-4))
    known = {name: s.shared[name] for name in ("records", "silos", "epsilon", "delta")}
    found = ridge_bound(features=max(1, s.dimension - 1), feature_norm=norm, radius=s.radius, **known)
    failed = (
        ()
        if found.bound <= s.start_gap
        else (f"bound={found.bound:.4g} <= excess risk at the start={s.start_gap:.4g}",)
    )
    return Candidate(
        algorithm="ridge",
        source="perturbation of a quadratic (our own bound)",
        measure="empirical excess risk",
        bound=found.bound,
        rounds=1,
        failed=failed,
        parameters={"strength": found.strength, "clip_norm": norm},
        sentence=f"In one round the empirical excess risk is at most {found.bound:.3g}, in 95% of runs.",
    )


_STRENGTH, _DUAL_RADIUS, _GROUPS = 1.0, 2.0, (0.5, 0.5)


def _steffle(s: Situation) -> Candidate:
    """Two groups of equal size, demographic parity, a linear model on features of norm one."""
    assert s.smoothness is not None
    term = Ermi(linear(max(1, s.dimension - 1), 1), 2, (_GROUPS,))
    setting = steffle_setting(
        term,
        strength=_STRENGTH,
        feature_norm=1.0,
        loss_smoothness=s.smoothness,
        radius=_DUAL_RADIUS,
        gap=s.start_gap,
        **_sizes(s),
    )
    theory = sgda_from_theory(setting)
    rounds = min(theory.num_rounds, s.max_rounds)
    noise = math.sqrt(rounds / theory.num_rounds) * theory.noise_multiplier
    bound = stationarity_bound(setting, rounds, noise, theory.dual_share)
    limit = (s.lipschitz + setting.cross_smoothness * _DUAL_RADIUS) ** 2
    failed = tuple(c.text for c in theory.conditions if not c.holds)
    if bound > limit:
        failed = (*failed, f"bound={bound:.4g} <= squared gradient anywhere={limit:.4g}")
    return Candidate(
        algorithm="steffle",
        source=f"{theory.source} with the constants of Theorem 3.4",
        measure="squared gradient",
        bound=bound,
        rate=theory.rate,
        rounds=rounds,
        failed=failed,
        parameters={
            **_full_batches(s, theory.step_size, rounds),
            "strength": _STRENGTH,
            "frequencies": list(_GROUPS),
            "radius": _DUAL_RADIUS,
            "dual_step_size": theory.dual_step_size,
            "dual_share": theory.dual_share,
        },
    )


_TABLE: tuple[tuple[str, tuple[Rule, ...], Theorem], ...] = (
    ("mb-sgd", (UNFAIR, CONVEX), _convex("mb-sgd")),
    ("accelerated-mb-sgd", (UNFAIR, CONVEX), _convex("accelerated-mb-sgd")),
    ("ridge", (UNFAIR, SQUARED, EVERYONE), _ridge),
    ("one-pass-accelerated", (UNFAIR, CONVEX, SMOOTH), _convex("one-pass-accelerated")),
    ("localised-mb-sgd", (UNFAIR, CONVEX, EVERYONE), _convex("localised-mb-sgd")),
    ("mu2-sgd", (UNFAIR, CONVEX, SMOOTH, EVERYONE), _convex("mu2-sgd")),
    ("prox-sgd", (UNFAIR, SMOOTH, PL), _nonconvex("prox-sgd")),
    ("pl-svrg", (UNFAIR, SMOOTH, PL), _nonconvex("pl-svrg")),
    ("prox-spider", (UNFAIR, SMOOTH), _nonconvex("prox-spider", "squared gradient")),
    ("mb-psgm", (UNFAIR, SMOOTH, SHUFFLER, EVERYONE), _psgm(local=False, full=False)),
    ("mb-psgm-fg", (UNFAIR, SMOOTH, SHUFFLER, EVERYONE), _psgm(local=False, full=True)),
    ("ce-psgm", (UNFAIR, SMOOTH, SHUFFLER, EVERYONE), _psgm(local=True, full=False)),
    ("ce-psgm-fg", (UNFAIR, SMOOTH, SHUFFLER, EVERYONE), _psgm(local=True, full=True)),
    ("diff2-gd", (UNFAIR, SMOOTH, TRUSTED, EVERYONE), _diff2),
    ("steffle", (FAIR, SMOOTH, EVERYONE), _steffle),
)
