"""Localised accelerated noisy minibatch SGD: phases, each nearer to where the one before ended, on records of its own.

After Gao, Lowy, Zhou and Wright, "Private Heterogeneous Federated Learning Without a Trusted Server Revisited"
(arXiv:2407.09690), who bring the localisation of Feldman, Koren and Talwar 2020 (arXiv:2005.04763) to silos. Phase
i = 1, 2, ... has lambda_i = lambda_1 4^(i-1), and of each silo a part of K 2^(1-i) records that no other phase reads.
From its end w_{i-1} it takes steps of `tacit.algorithms.accelerated_mb_sgd` (restarted) towards the minimum of

    mean loss on the parts of phase i  +  lambda_i/2 |w - w_{i-1}|^2

    message of silo i     mean over its part of clip_C(grad f(md; record)) + N(0, sigma^2 I)
    server                adds lambda_i (md - w_{i-1}), which is public, and takes the accelerated step
    output                the end of the last phase

    paper       here
    -----       ----
    R           num_rounds
    tau         phases
    n_1         batch_size (of the first part; all parts together are less than twice that)
    lambda_1    strength

A record is in one part, and pays for the rounds of one phase. With other than one-pass sampling all phases read batches
of all records: the way to a minimum of the empirical risk. Parameters and theorem: `tacit.theory.localised`.

Every message is the Gaussian mechanism on a clipped mean, so all of them together are differentially private for
each record of the silo, whatever points the server asks about.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm, Message, Number, Params, Release, Round, Server, Silo, Terms, recipe
from tacit.algorithms.accelerated_mb_sgd import AcceleratedState, accelerated_mb_sgd
from tacit.objectives import Problem, gradient_at


class LocalisedState(NamedTuple):
    """The accelerated method at work, and where the phase began."""

    inner: AcceleratedState
    centre: Params


@recipe
def localised_mb_sgd(problem: Problem, terms: Terms, *, step_size: Number, num_rounds: int, strength: Number,
                     phases: int = 2, restarts: int = 1) -> Algorithm:  # fmt: skip
    """Localised accelerated noisy minibatch SGD; ``phases=1`` with ``strength=0`` is accelerated-mb-sgd.

    ``step_size`` is one number, or one for each of ``restarts`` in each of ``phases``; rounds are divided among these
    evenly. ``strength`` is lambda of the first phase.
    """
    lengths = _lengths(num_rounds, phases, restarts)
    rounds = np.asarray(lengths).reshape(phases, restarts).sum(axis=1)
    inner = accelerated_mb_sgd(step_size=step_size, num_rounds=num_rounds, stages=lengths)(problem, terms)
    [accelerated] = [part.server for part in inner.rounds.values()]
    ends = jnp.asarray(np.isin(np.arange(1, num_rounds + 1), np.cumsum(rounds)))
    pulls = jnp.asarray(strength, jnp.float32) * jnp.asarray(np.repeat(4.0 ** np.arange(phases), rounds), jnp.float32)

    def init(params: Params) -> LocalisedState:
        return LocalisedState(inner.init(params), params)

    def ask(state: LocalisedState) -> Params:
        return accelerated.ask(state.inner)

    def tell(state: LocalisedState, gradient: Message) -> LocalisedState:
        at = state.inner.round_index
        pulled = jax.tree.map(lambda g, md, c: g + pulls[at] * (md - c), gradient, ask(state), state.centre)
        after = accelerated.tell(state.inner, pulled)
        centre = jax.tree.map(lambda c, ag: jnp.where(ends[at], ag, c), state.centre, after.aggregate)
        return LocalisedState(after, centre)

    query, server = gradient_at(problem.objective), Server(ask, tell)
    releases = _releases(terms, [int(length) for length in rounds])
    kinds = {kind: Round(Silo(query, release), server) for kind, release in releases.items()}
    schedule = tuple(np.repeat(list(kinds) * (phases // len(kinds)), rounds).tolist())
    return Algorithm(init, kinds, schedule, lambda state: state.inner.aggregate)


def _releases(terms: Terms, rounds: list[int]) -> dict[str, Release]:
    """A release for each phase, of a part of the records; or one for all, where sampling is not one-pass."""
    if terms.sampling != "one-pass":
        return {"gradient": terms.release()}
    first = terms.batch_size
    if not isinstance(first, int | np.integer) or first < 2 ** (len(rounds) - 1):
        raise ValueError(
            f"Expected batch_size={first!r}, the records of the first part, to be one whole number for all silos, and "
            f"at least {2 ** (len(rounds) - 1)} for {len(rounds)} phases; each part has half of the one before."
        )
    sizes = [int(first) >> i for i in range(len(rounds))]
    places = np.cumsum([0, *sizes]).tolist()
    return {
        f"phase_{i + 1}": replace(terms, batch_size=size).release(part=places[i], passes=max(rounds))
        for i, size in enumerate(sizes)
    }


def _lengths(num_rounds: int, phases: int, restarts: int) -> list[int]:
    if phases < 1 or restarts < 1 or num_rounds < phases * restarts:
        raise ValueError(
            f"Expected phases={phases} >= 1 and restarts={restarts} >= 1, with a round for each: num_rounds="
            f"{num_rounds} is fewer than {phases * restarts}."
        )
    return [len(some) for some in np.array_split(np.arange(num_rounds), phases * restarts)]
