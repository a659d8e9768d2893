"""The other side of the door: a courier's connection, and a driver that trains with a consortium of daemons.

Nothing here is trusted: it could be replaced by an attacker without harm to any record.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from pydantic import BaseModel

from tacit.algorithm import Params
from tacit.channel import weighted_mean
from tacit.runtime.daemon.contract import builder_from, record_of, shapes_of
from tacit.runtime.daemon.line import Line
from tacit.runtime.daemon.protocol import (
    Answer,
    Error,
    Finish,
    Hello,
    Plan,
    Propose,
    Receipt,
    RefusalError,
    frame,
    parse_response,
    read_arrays,
    write_arrays,
)
from tacit.runtime.participation import Participation, participation, roster


class Client(Line):
    """A connection to one silo's daemon.

    A lost connection is made again for up to ``patience`` seconds and the request is repeated: the daemon gives the
    stored reply to a request that it has answered, so that repeating is always safe.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        super().__init__(patience, pause=0.02, gone="the daemon has gone")
        self._path = path

    def ask(self, request: BaseModel, payload: bytes = b"") -> tuple[Any, bytes]:
        """The response to a request and its payload; a refusal raises with the silo's code and numbers."""
        header, body = self.exchange(frame(request.model_dump_json(), payload))
        response = parse_response(header)
        if isinstance(response, Error):
            raise RefusalError(response.code, response.text, response.numbers)
        return response, body

    def connect(self) -> socket.socket:
        """A connection to the daemon's socket."""
        plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            plain.connect(str(self._path))
        except OSError:
            plain.close()
            raise
        return plain


class Run(NamedTuple):
    """What a consortium leaves: the model, and every silo's receipt."""

    params: Params
    receipts: tuple[Receipt, ...]


def train(
    plan: Plan,
    clients: Sequence[Client],
    params: Params | None = None,
    *,
    key: Array | None = None,
    who: Participation | None = None,
    after_round: Callable[[int], None] | None = None,
) -> Run:
    """Propose a plan to every silo, play its rounds and finish: the server's side of the contract.

    The plan's ``place`` is set for each silo. ``key`` settles who takes part where not everyone does.
    """
    silos = len(clients)
    plans = [plan.model_copy(update={"place": i, "silos": silos}) for i in range(silos)]
    facts, _ = clients[0].ask(Hello())
    builder = builder_from(plan, facts.records)
    algorithm = builder.build(noise_multiplier=1.0)
    if params is None:
        params = builder.problem.objective.init(jax.random.key(0))
    who = participation(silos) if who is None else who
    turns = roster(jax.random.key(0) if key is None else key, algorithm, who, silos)
    messages = shapes_of(algorithm, builder, record_of(plan)).messages
    halves = {k: (jax.jit(part.server.ask), jax.jit(part.server.tell)) for k, part in algorithm.rounds.items()}
    state = algorithm.init(params)
    with ThreadPoolExecutor(max_workers=silos) as pool:
        proposals = [Propose(plan=own) for own in plans]
        studies = [response.study for response, _ in pool.map(Client.ask, clients, proposals)]
        for number, kind in enumerate(algorithm.schedule):
            ask, tell = halves[kind]
            here = turns.taken[number]
            places = turns.places[number][here]
            specs, payload = write_arrays(jax.tree.leaves(ask(state)))
            requests = [Answer(study=studies[i], round=number, arrays=specs) for i in places]
            replies = pool.map(Client.ask, [clients[i] for i in places], requests, [payload] * len(places))
            answers = [read_arrays(response.arrays, body) for response, body in replies]
            state = tell(state, _mean(messages[kind], answers, turns.weights[number][here]))
            if after_round is not None:
                after_round(number)
        receipts = pool.map(Client.ask, clients, [Finish(study=study) for study in studies])
        return Run(algorithm.output(state), tuple(receipt for receipt, _ in receipts))


def _mean(shape: Any, answers: list[list[np.ndarray]], weights: np.ndarray) -> Any:
    """The weighted mean of the messages, in the form that the server half expects."""
    stacked = [jnp.stack([jnp.asarray(leaf) for leaf in column]) for column in zip(*answers, strict=True)]
    return weighted_mean(jax.tree.unflatten(jax.tree.structure(shape), stacked), jnp.asarray(weights))
