"""Flower's simulation engine: every silo is a client that clips and perturbs its own records with ``torch.func``.

A round is what lies between two broadcasts; starting Ray and the clients' first imports are left out, which is in
Flower's favour.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import threading
import time
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch.func import functional_call, grad, vmap

from benchmarks.peers.torch_common import exported, layers_of, loss_of, model_of, reset, tensors
from benchmarks.peers.torch_func import clipped_mean
from benchmarks.peers.works import CHECK_STEP, Layers, Prepared, Work, difference, from_json, parameters, start

Weights = list[np.ndarray]


@functools.cache
def _bench(text: str) -> Any:
    """Data and model of a work, once in each process."""
    work = from_json(text)
    return (*tensors(work), model_of(work), loss_of(work, "mean"))


def answer(text: str, place: int, weights: Weights, noise: bool, full: bool) -> Weights:
    """One silo's clipped mean gradient, with its noise."""
    work = from_json(text)
    x, y, model, cost = _bench(text)
    rows = torch.arange(work.batch) if full else torch.randperm(work.records)[: work.batch]
    names = [name for name, _ in model.named_parameters()]
    params = dict(zip(names, map(torch.as_tensor, weights), strict=True))

    def loss(params: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return cost(functional_call(model, params, (a[None],)), b[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))
    mean = clipped_mean(
        lambda a, b: list(each(params, a, b).values()), work.clip, parameters(work), x[place, rows], y[place, rows]
    )
    sigma = work.noise_multiplier * 2.0 * work.clip / work.batch if noise else 0.0
    return [(leaf + sigma * torch.randn_like(leaf)).numpy() for leaf in mean]


def client_app() -> ClientApp:
    """A client that answers for the silo of its number."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        content: Any = message.content
        asked, weights = content["ask"], content["weights"].to_numpy_ndarrays()
        place = int(context.node_config["partition-id"])
        said = answer(str(asked["work"]), place, weights, bool(asked["noise"]), bool(asked["full"]))
        return Message(content=RecordDict({"said": ArrayRecord(said)}), reply_to=message)

    return app


class Session:
    """One simulation that plays rounds whenever it is asked to, so that Ray is started once."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._asked: queue.Queue[Any] = queue.Queue()
        self._told: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def play(self, rounds: int, step: float, noise: bool, full: bool) -> tuple[Weights, float]:
        """Rounds from the start: the weights at the end, and the seconds of all."""
        self._asked.put((rounds, step, noise, full))
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        return told

    def close(self) -> None:
        """Let the simulation end."""
        self._asked.put(None)
        self._thread.join(timeout=15)

    def _run(self) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            while len(list(grid.get_node_ids())) < self.work.silos:
                time.sleep(0.05)
            while (asked := self._asked.get()) is not None:
                self._told.put(_rounds(self.work, grid, *asked))

        cores = len(os.sched_getaffinity(0))
        resources: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
        try:
            run_simulation(server, client_app(), num_supernodes=self.work.silos, backend_config=resources)
        except BaseException as error:
            self._told.put(error)
        self._told.put(ChildProcessError("the simulation ended"))


def _rounds(work: Work, grid: Grid, rounds: int, step: float, noise: bool, full: bool) -> tuple[Weights, float]:
    weights = [leaf.detach().numpy().copy() for leaf in model_of(work).parameters()]
    began = time.perf_counter()
    for _ in range(rounds):
        ask = ConfigRecord({"work": work.to_json(), "noise": noise, "full": full})
        content = RecordDict({"weights": ArrayRecord(weights), "ask": ask})
        messages = [Message(content=content, message_type="train", dst_node_id=node) for node in grid.get_node_ids()]
        replies: Any = grid.send_and_receive(messages)
        said = [reply.content["said"].to_numpy_ndarrays() for reply in replies]
        if len(said) != work.silos:
            raise RuntimeError(f"Expected answers of {work.silos} silos, got {len(said)}.")
        weights = [w - step * sum(parts) / work.silos for w, *parts in zip(weights, *said, strict=True)]
    return weights, time.perf_counter() - began


def prepare(work: Work) -> Prepared:
    """One simulation; the checked round warms the clients up."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    session = Session(work)

    def moved() -> Layers:
        weights, _ = session.play(work.check_rounds, CHECK_STEP, False, True)
        model = model_of(work)
        reset([w for m in layers_of(model) for w in (m.weight, m.bias)], [torch.as_tensor(w) for w in weights])
        return difference(start(work), exported(work, model))

    def step() -> float:
        return session.play(work.rounds, work.step_size, True, False)[1]

    return Prepared(moved, step)
