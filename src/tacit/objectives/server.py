"""Server optimisers: what a server makes of a direction before it steps along it.

Reddi et al., "Adaptive Federated Optimization" (arXiv:2003.00295), with the update rules of optax. From the direction d
of a round, which is the mean message or the algorithm's own estimate of the gradient:

    sgd         u = d
    momentum    m <- .9 m + .1 d,   u = m / (1 - .9^t)       a mean of directions: steps are as long as those of sgd
    adam        and v <- .99 v + .01 d^2,   u = m / (sqrt(v) + 1e-3), both without their bias to zero
    yogi        as adam, but v moves towards d^2 by a sign
    adagrad     u = d / sqrt(sum of all d^2 so far)
    the step    w <- prox_{eta h}(w - eta u)

Everything here is post-processing of messages: no price depends on it. An adaptive server (adam, yogi, adagrad) steps
by about eta in every coordinate, whatever the length of d; where a regulariser bends the path, it ends elsewhere.

An algorithm whose server steps by `Problem.descend` takes any of these and is not told: it is built on a problem that
turns the direction first, and its state is kept beside that of the optimiser. Descent at silos stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Number, Params, Round, Server, ServerRule, State
from tacit.errors import TacitError, unknown

RULES: tuple[str, ...] = get_args(ServerRule)
Rule = Any
"""A gradient transformation of optax."""


class Served(NamedTuple):
    """An algorithm's state, and the optimiser's."""

    state: State
    moments: Any


class _Turning:
    """An optimiser at work: moments go in before a server is told, and are taken out after; else it does nothing."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.at_work, self.steps, self.moments = rule, False, 0, None

    def direction(self, params: Params, direction: Params) -> Params:
        """The direction to step along."""
        if not self.at_work:
            return direction
        turned, self.moments = self.rule.update(direction, self.moments, params)
        self.steps += 1
        return turned

    def during(self, moments: Any, call: Callable[[], State]) -> Served:
        """What a call returns, and the moments after it."""
        self.at_work, self.steps, self.moments = True, 0, moments
        try:
            return Served(call(), self.moments)
        finally:
            self.at_work, self.moments = False, None


def served(problem: Any, server: ServerRule | Number, build: Callable[[Any], Algorithm]) -> Algorithm:
    """The algorithm that ``build`` makes for a problem, with this server optimiser.

    ``server`` is one of `RULES`, or the place of one in it, which may be traced: a grid over servers is one program.
    Raises where a round ends with another output than it began with and the server did not make that step.
    """
    rule = _rule_of(server)
    turning = _Turning(rule)
    plain = build(replace(problem, turn=turning.direction))

    def told(tell: Callable[[State, Message], State]) -> Callable[[Served, Message], Served]:
        def turned(state: Served, message: Message) -> Served:
            after = turning.during(state.moments, lambda: tell(state.state, message))
            if not turning.steps and not _same(plain.output(state.state), plain.output(after.state)):
                raise TacitError(
                    f"Expected a server that takes a plain step for server={_name(server)}; here silos make the "
                    'steps, or the algorithm has a step of its own. Leave it at "sgd", or use mb-sgd.'
                )
            return after

        return turned

    def of(part: Round) -> Round:
        ask = part.server.ask
        return replace(part, server=Server(lambda state: ask(state.state), told(part.server.tell)))

    return replace(
        plain,
        init=lambda params: Served(plain.init(params), rule.init(params)),
        rounds={kind: of(part) for kind, part in plain.rounds.items()},
        output=lambda state: plain.output(state.state),
        info=lambda state: plain.info(state.state),
    )


def _name(server: ServerRule | Number) -> str:
    return repr(server) if isinstance(server, str) else "one of a grid"


def _same(before: Params, after: Params) -> bool:
    """Whether these are the same arrays, not just equal ones: nothing was computed."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return all(one is other for one, other in pairs)


def _rule_of(server: Any) -> Rule:
    import optax

    rules: dict[str, Callable[[], Rule]] = {
        "sgd": optax.identity,
        "momentum": lambda: optax.ema(0.9),
        "adam": lambda: optax.scale_by_adam(b2=0.99, eps=1e-3),
        "yogi": lambda: optax.scale_by_yogi(b2=0.99, eps=1e-3),
        "adagrad": lambda: optax.scale_by_rss(initial_accumulator_value=0.0),
    }
    if isinstance(server, str):
        if server not in rules:
            raise TacitError(unknown("server", server, rules))
        return rules[server]()
    every, place = [rules[name]() for name in RULES], jnp.asarray(server).astype(jnp.int32)

    def init(params: Params) -> tuple[Any, ...]:
        return tuple(rule.init(params) for rule in every)

    def update(direction: Params, moments: Any, params: Params) -> tuple[Params, Any]:
        turned = [rule.update(direction, own, params) for rule, own in zip(every, moments, strict=True)]
        chosen = jax.tree.map(lambda *leaves: jnp.stack(leaves)[place], *(one for one, _ in turned))
        return chosen, tuple(own for _, own in turned)

    return optax.GradientTransformation(init, update)
