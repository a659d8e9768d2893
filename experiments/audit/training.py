"""The whole-training audit: canaries in one silo of a real study, one training run, and its transcript.

Up to half of a silo's records are replaced by canaries, at most one for each feature: a record in which this feature
alone is not zero, with one of two targets, by a fair coin. The study then trains as among real silos: every silo's own
daemon code answers through its door. The attacker knows everything but the coins and the noise. Gradients of a linear
model at different canaries are orthogonal but for the intercept, beside which the feature is large; so canaries hide
each other little. What they have in common is taken out by the linear estimate of least squared error of all coins at
once, from all rounds. The attacker guesses the coins whose log-odds are clearest, as many as pay most under the claim
or, for half the noise of the claim, under twice its mu.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.algorithm import Record, Round
from tacit.audit.bounds import one_run_epsilon, one_run_mu, planned_guesses
from tacit.audit.deployed import offer, proposed
from tacit.audit.mechanism import AuditError
from tacit.channel import weighted_mean
from tacit.deploy.contract import builder_from, record_of
from tacit.deploy.silo.answering import EXACT, Worker
from tacit.plans.spec import Study, study_from
from tacit.privacy import Price, gdp_epsilon, gdp_mu
from tacit.silo import check_records, clipped_sum
from tacit.silo.door import priced_multiplier
from tacit.silo.release import own_clip
from tacit.simulate import program
from tacit.studies.run import Prepared, prepare

_LOUDNESS = 8.0
"""A canary's feature, beside an intercept of one: its gradient is longer than a usual clip."""


@dataclass(frozen=True)
class OneRunResult:
    """Coins guessed in one training run, and what they prove.

    ``route`` is ``"gdp"`` where the bound went through mu: then it refutes a claim that was derived from mu.
    """

    silo: str
    route: str
    canaries: int
    guesses: int
    correct: int
    epsilon_claimed: float
    epsilon_lower_bound: float
    epsilon_lower_bound_direct: float
    delta: float
    confidence: float

    def as_json(self) -> dict[str, Any]:
        """The result as plain data."""
        claimed, bound = self.epsilon_claimed, self.epsilon_lower_bound
        return {**self.__dict__, "tightness": bound / claimed, "violated": bound > claimed}


def audit_training(study: Study, *, seed: int, confidence: float = 0.95) -> OneRunResult:
    """Train a study once, with canaries in its largest silo, and guess them; the seed decides canaries and coins."""
    prepared = prepare(study)
    silo_index = int(np.argmax([silo.records for silo in prepared.plan.silos]))
    if not study.privacy.private:
        raise AuditError(f"Expected a private study, got {study.name} without a budget; set privacy.epsilon.")
    for kind, part in prepared.builder.build(**prepared.plan.parameters).rounds.items():
        release = part.silo.release
        plain = release.mechanism == "gaussian" and release.channel == "direct"
        if not plain or not part.silo.says_what_it_released or isinstance(release.noise_multiplier, Mapping):
            raise AuditError(
                f"Expected messages that are Gaussian releases of one block for a one-run audit, got kind {kind!r} of "
                f"{study.algorithm.name}; audit the mechanism instead."
            )
    generator = np.random.default_rng(seed)
    tables = [dict(silo.train) for silo in prepared.federations[0].silos]
    own = tables[silo_index]
    canaries = min(len(own["y"]) // 2, math.prod(own["x"].shape[1:]))
    coins = generator.choice([-1, 1], canaries)
    versions = _versions(own, canaries, generator)
    planted = {"x": versions[0]["x"], "y": np.where(coins > 0, versions[0]["y"], versions[1]["y"])}
    tables[silo_index] = {k: np.concatenate([v, own[k][canaries:]]).astype(own[k].dtype) for k, v in planted.items()}
    pairs = zip(tables, prepared.names, strict=True)
    checked = [check_records({"x": table["x"], "y": table["y"]}, name) for table, name in pairs]
    workers = _workers(prepared, checked)
    odds = _log_odds(prepared, workers, silo_index, versions, checked[silo_index], seed)
    right = (np.sign(odds) == coins)[np.argsort(-np.abs(odds))]
    name, price = prepared.plan.silos[silo_index].name, workers[silo_index].offer.price
    return max((_proven(name, right, n, price, confidence) for n in _settled(price, canaries, confidence)), key=_bound)


def _settled(price: Price, canaries: int, confidence: float) -> tuple[int, int]:
    """Numbers of guesses that suit the claim, and half the noise of the claim: two, which share the risk."""
    mu, shared = price.mu or gdp_mu(price.epsilon, price.delta), (1 + confidence) / 2
    claimed, doubled = (planned_guesses(canaries, own, confidence=shared) for own in (mu, 2 * mu))
    return claimed, doubled


def _proven(silo: str, right: np.ndarray, guesses: int, price: Price, confidence: float) -> OneRunResult:
    """What so many guesses prove, of coins in the order of their odds, at half the risk."""
    made, shared = (len(right), guesses, int(np.sum(right[:guesses]))), (1 + confidence) / 2
    direct = one_run_epsilon(*made, delta=price.delta, confidence=shared)
    by_mu = gdp_epsilon(one_run_mu(*made, confidence=shared), price.delta) if price.mu is not None else direct
    route = "direct" if price.mu is None else "gdp"
    return OneRunResult(silo, route, *made, price.epsilon, max(by_mu, 0.0), direct, price.delta, confidence)


def _bound(result: OneRunResult) -> float:
    return result.epsilon_lower_bound


def wide_study(epsilon: float, *, features: int = 2000, delta: float = 1e-5) -> Study:
    """A linear model of as many features as canaries fit into half of the larger silo's made-up records."""
    options = {"sizes": [3 * features, features], "features": features}
    return study_from(
        {
            "format": 1,
            "name": f"wide-{features}",
            "data": {"name": "synthetic", "options": options},
            "objective": {"model": "linear", "loss": "logistic"},
            "algorithm": {"name": "mb-sgd", "step_size": 0.5, "num_rounds": 5, "clip_norm": 0.5},
            "privacy": {"epsilon": epsilon, "delta": delta},
            "run": {"seeds": 1, "alone": False},
        }
    )


def _workers(prepared: Prepared, tables: list[Record]) -> list[Worker]:
    """Every silo's worker, as its daemon would make it from the study's plan."""
    plan, workers = proposed(prepared), []
    for silo_index, table in enumerate(tables):
        own = plan.model_copy(update={"silo_index": silo_index})
        made = offer(own, len(table["y"]), record=record_of(own), build=builder_from)
        workers.append(Worker(made, table, EXACT))
    return workers


def _versions(table: Record, canaries: int, generator: np.random.Generator) -> tuple[Record, Record]:
    """Both versions of every canary: one feature, no other's, with the lowest or the highest target of the silo."""
    width = math.prod(table["x"].shape[1:])
    x = np.zeros((canaries, width), table["x"].dtype)
    x[np.arange(canaries), generator.permutation(width)[:canaries]] = _LOUDNESS
    x = x.reshape(canaries, *table["x"].shape[1:])
    low, high = (np.full(canaries, value, table["y"].dtype) for value in (table["y"].min(), table["y"].max()))
    return {"x": x, "y": high}, {"x": x, "y": low}


def _log_odds(
    prepared: Prepared, workers: list[Worker], silo_index: int, versions: Sequence[Record], table: Record, seed: int
) -> np.ndarray:
    """The log-odds of every coin, from the transcript of one training run.

    Other coins are taken for normal; for a canary whose gradients are orthogonal to theirs the odds are exact.
    """
    algorithm, size, count = workers[silo_index].offer.algorithm, len(versions[0]["y"]), len(table["y"])
    keys = program.split_keys(jax.random.key(seed))
    turns = program.turns_of(algorithm, 0, prepared.who, len(workers), keys)
    rest = {k: v[size:] for k, v in table.items()}
    state = algorithm.init(prepared.builder.problem.objective.init(jax.random.key(seed)))
    kept = [worker.begin() for worker in workers]
    precision, signal = np.eye(size), np.zeros(size)
    parts = {kind: _parts(part, silo_index) for kind, part in algorithm.rounds.items()}
    for index, kind in enumerate(algorithm.schedule):
        part = algorithm.rounds[kind]
        broadcast, messages = part.server.ask(state), []
        taken = turns.roster.taken[index]
        for i in turns.roster.silo_indices[index][taken]:
            arrays, kept[i] = workers[i].answer(index, broadcast, kept[i])
            messages.append(arrays)
            if i == silo_index:
                shift, base, deviation = _expected(part, parts[kind], broadcast, versions, rest, count, silo_index)
                heard = np.concatenate([array.ravel() for array in arrays]).astype(np.float64)
                precision += shift @ shift.T / deviation**2
                signal += shift @ (heard - base) / deviation**2
        stacked = [jnp.stack(leaves) for leaves in zip(*messages, strict=True)]
        mean = weighted_mean(stacked, jnp.asarray(turns.roster.weights[index][taken]))
        record = {name: column[0] for name, column in rest.items()}
        form = jax.tree.structure(jax.eval_shape(part.silo.query, part.silo.start(broadcast, ()), record))
        state = part.server.tell(state, jax.tree.unflatten(form, mean))
    spread = np.linalg.inv(precision)
    # The precision of a coin without its own prior is 1/s^2 - 1, and its mean times that the estimate over s^2.
    return 2 * (spread @ signal) / np.diag(spread)


def _parts(part: Round, silo_index: int) -> Any:
    """Every record's own clipped statistic, and the bound it was clipped to, compiled once for a kind of round."""

    @jax.jit
    def parts(broadcast: Any, table: Record) -> Any:
        work = part.silo.start(broadcast, ())
        bound = own_clip(part.silo.release, work, silo_index)

        def one(record: Record) -> Any:
            alone = jax.tree.map(lambda leaf: leaf[None], record)
            return ravel_pytree(clipped_sum(part.silo.query, work, alone, jnp.ones(1, bool), bound))[0]

        return jax.vmap(one)(table), bound

    return parts


def _expected(
    part: Round, parts: Any, broadcast: Any, versions: Sequence[Record], rest: Record, count: int, silo_index: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """What each coin adds to the expected message, the message without coins, and the noise."""
    size = len(versions[0]["y"])
    table = {k: np.concatenate([*(v[k].astype(rest[k].dtype) for v in versions), rest[k]]) for k in ("x", "y")}
    values, bound = parts(broadcast, table)
    # A batch holds K of n records, and its sum is divided by K: a record is expected to add 1/n of itself.
    one, zero, others = np.split(np.asarray(values, np.float64) / count, [size, 2 * size])
    release = part.silo.release
    batch = count if release.batch_size is None else int(np.max(release.batch_size))
    deviation = float(priced_multiplier(release, silo_index)) * release.sensitivity * float(bound) / batch
    return (one - zero) / 2, (one + zero).sum(axis=0) / 2 + others.sum(axis=0), deviation
