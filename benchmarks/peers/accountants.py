"""Calibration: how long each accountant takes to find the noise, and how near the budget the noise is.

A question is a schedule of subsampled Gaussian releases and a budget; an answer is sigma / clip on the sum of a batch.
Accountants that know only add-or-remove adjacency answer an easier question, and are judged by it: the found noise is
priced again, on a fine grid of dp-accounting, in the adjacency of who found it. An epsilon above the budget is wrong;
one below it is noise in vain.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

Adjacency = Literal["replace-one", "add-or-remove"]
Sampling = Literal["poisson", "wor"]


@dataclass(frozen=True)
class Question:
    """How much noise do so many rounds need?"""

    rounds: int
    records: int
    batch: int
    sampling: Sampling
    epsilon: float
    delta: float

    @property
    def rate(self) -> float:
        """The share of records in a batch."""
        return self.batch / self.records

    @property
    def title(self) -> str:
        """As the page has it."""
        scheme = "Poisson" if self.sampling == "poisson" else "without replacement"
        return f"{self.rounds} rounds, {self.batch} of {self.records} {scheme}, epsilon {self.epsilon:g}"


QUESTIONS = (
    Question(1000, 10_000, 100, "poisson", 1.0, 1e-6),
    Question(1000, 10_000, 100, "poisson", 8.0, 1e-6),
    Question(1000, 10_000, 100, "wor", 1.0, 1e-6),
)
QUICK = (Question(100, 10_000, 100, "poisson", 1.0, 1e-5),)


@dataclass(frozen=True)
class Asker:
    """An accountant: the adjacency that it answers for, the sampling that it knows, and how to ask it."""

    title: str
    adjacency: Adjacency
    sampling: tuple[Sampling, ...]
    find: Callable[[Question], float]


@dataclass
class Found:
    """What one accountant said to one question."""

    asker: str
    adjacency: Adjacency
    seconds: list[float] = field(default_factory=list)
    sigma: float | None = None
    epsilon: float | None = None
    missing: str | None = None


def _tacit(question: Question) -> float:
    from tacit.privacy import Event, cache, calibrate

    os.environ["TACIT_CACHE"] = ""
    cache.forget()
    event = Event(
        kind="g",
        noise_multiplier=1.0,
        count=question.rounds,
        records=question.records,
        batch=question.batch,
        sampling=question.sampling,
    )
    [tuned] = calibrate([event], epsilon=question.epsilon, delta=question.delta)
    return 2.0 * tuned.noise_multiplier


def _event(question: Question, sigma: float, per: float = 1.0) -> Any:
    import dp_accounting as dp

    one = dp.GaussianDpEvent(sigma / per)
    if question.sampling == "poisson":
        one = dp.PoissonSampledDpEvent(question.rate, one)
    else:
        one = dp.SampledWithoutReplacementDpEvent(question.records, question.batch, one)
    return dp.SelfComposedDpEvent(one, question.rounds)


def _pld(adjacency: Adjacency, interval: float = 1e-4) -> Any:
    import dp_accounting as dp

    relation = dp.NeighboringRelation
    own = relation.REPLACE_ONE if adjacency == "replace-one" else relation.ADD_OR_REMOVE_ONE
    return dp.pld.PLDAccountant(own, value_discretization_interval=interval)


def _dp_accounting(make: Callable[[], Any], per: float = 1.0) -> Callable[[Question], float]:
    def find(question: Question) -> float:
        import dp_accounting as dp

        bracket = dp.LowerEndpointAndGuess(0.3, 2.0)
        target = (question.epsilon, question.delta, bracket)
        return dp.calibrate_dp_mechanism(make, lambda sigma: _event(question, sigma, per), *target, tol=1e-3)

    return find


def _rdp(adjacency: Adjacency) -> Callable[[], Any]:
    def make() -> Any:
        import dp_accounting as dp

        relation = dp.NeighboringRelation
        own = relation.REPLACE_ONE if adjacency == "replace-one" else relation.ADD_OR_REMOVE_ONE
        return dp.rdp.RdpAccountant(neighboring_relation=own)

    return make


def _autodp(question: Question) -> float:
    from autodp.calibrator_zoo import eps_delta_calibrator
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    poisson = question.sampling == "poisson"

    def mechanism(sigma: float) -> Any:
        base = GaussianMechanism(sigma=sigma, name="g")
        if not poisson:
            base.neighboring = "replace_one"
        sampled = AmplificationBySampling(PoissonSampling=poisson)(base, question.rate, improved_bound_flag=True)
        composed = Composition()([sampled], [question.rounds])
        composed.chosen = sigma
        return composed

    found = eps_delta_calibrator()(mechanism, question.epsilon, question.delta, [0.3, 30.0])
    # Its multiplier is relative to the sensitivity: two clips where a record is replaced.
    return float(found.chosen) * (1.0 if poisson else 2.0)


def _prv(question: Question) -> float:
    from prv_accountant.dpsgd import find_noise_multiplier

    budget = (question.epsilon, question.delta)
    return float(find_noise_multiplier(question.rate, question.rounds, *budget, eps_error=0.01 * question.epsilon))


ASKERS = (
    Asker("Tacit", "replace-one", ("poisson", "wor"), _tacit),
    Asker("dp-accounting, PLD", "replace-one", ("poisson",), _dp_accounting(lambda: _pld("replace-one"))),
    Asker("dp-accounting, PLD", "add-or-remove", ("poisson",), _dp_accounting(lambda: _pld("add-or-remove"))),
    Asker("dp-accounting, RDP", "add-or-remove", ("poisson",), _dp_accounting(_rdp("add-or-remove"))),
    Asker("dp-accounting, RDP", "replace-one", ("wor",), _dp_accounting(_rdp("replace-one"), per=2.0)),
    Asker("autodp", "add-or-remove", ("poisson",), _autodp),
    Asker("autodp", "replace-one", ("wor",), _autodp),
    Asker("prv-accountant", "add-or-remove", ("poisson",), _prv),
)


def true_epsilon(question: Question, adjacency: Adjacency, sigma: float) -> float:
    """The price of a noise on a fine grid; without replacement, where dp-accounting has no grid, on Tacit's own."""
    if question.sampling == "poisson":
        accountant = _pld(adjacency, interval=5e-5 * question.epsilon)
        accountant.compose(_event(question, sigma))
        return float(accountant.get_epsilon(question.delta))
    from functools import partial

    from tacit.privacy.pld import Composition
    from tacit.privacy.profiles import without_replacement

    profile = partial(without_replacement, multiplier=sigma / 2.0, rate=question.rate)
    return Composition([(profile, question.rounds)], question.delta, refine=4.0).epsilon_at(question.delta)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop with an error what takes longer."""

    def stop(number: int, frame: Any) -> None:
        raise TimeoutError(f"no answer in {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def compare(question: Question, repetitions: int, patience: float) -> list[Found]:
    """Everybody who knows the sampling, interleaved; of several answers the first is not timed."""
    asked = [asker for asker in ASKERS if question.sampling in asker.sampling]
    found = [Found(asker.title, asker.adjacency) for asker in asked]
    for repetition in range(repetitions + 1 if repetitions > 1 else 1):
        for asker, own in zip(asked, found, strict=True):
            if own.missing is not None:
                continue
            began = time.perf_counter()
            try:
                with at_most(patience):
                    own.sigma = asker.find(question)
            except Exception as error:  # a peer that fails is a result
                own.missing = f"{type(error).__name__}: {error}"
                continue
            if repetition or repetitions == 1:
                own.seconds.append(time.perf_counter() - began)
    for own in found:
        if own.sigma is not None:
            own.epsilon = true_epsilon(question, own.adjacency, own.sigma)
    return found
