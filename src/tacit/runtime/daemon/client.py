"""The other side of the door: a courier's connection, and a driver that trains with a consortium of daemons.

Nothing here is trusted: it could be replaced by an attacker without harm to any record.
"""

from __future__ import annotations

import contextlib
import io
import socket
import time
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
    read_frame,
    write_arrays,
)
from tacit.runtime.participation import Participation, participation, roster


class Client:
    """A connection to one silo's daemon.

    A lost connection is made again for up to ``patience`` seconds and the request is repeated: the daemon gives the
    stored reply to a request that it has answered, so that repeating is always safe.
    """

    def __init__(self, path: Path, patience: float = 0.0) -> None:
        self._path, self._patience = path, patience
        self._socket: socket.socket | None = None
        self._stream: io.BufferedReader | None = None

    def ask(self, request: BaseModel, payload: bytes = b"") -> tuple[Any, bytes]:
        """The response to a request and its payload; a refusal raises with the silo's code and numbers."""
        header, body = self.exchange(frame(request.model_dump_json(), payload))
        response = parse_response(header)
        if isinstance(response, Error):
            raise RefusalError(response.code, response.text, response.numbers)
        return response, body

    def exchange(self, raw: bytes) -> tuple[bytes, bytes]:
        """Send bytes as they are and read one frame."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._once(raw)
            except OSError:
                self.close()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.02)

    def _once(self, raw: bytes) -> tuple[bytes, bytes]:
        if self._socket is None or self._stream is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.connect(str(self._path))
            self._stream = self._socket.makefile("rb")
        self._socket.sendall(raw)
        try:
            found = read_frame(self._stream.read)
        except RefusalError:
            found = None
        if found is None:
            raise ConnectionResetError("the daemon has gone")
        return found

    def close(self) -> None:
        """Hang up."""
        for part in (self._stream, self._socket):
            if part is not None:
                with contextlib.suppress(OSError):
                    part.close()
        self._socket = self._stream = None


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
