"""Daemons that are killed at random points while a study runs, and what must hold after every kill."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from tacit.deploy.client import Client
from tacit.deploy.wire import Answer, Finish, Plan, Propose
from tacit.silo.chain import Counter, replay
from tacit.silo.ledger import inspect
from tests.deploy.silo.consortium import Daemon, broadcast_of, fork_server, make_home, plan_of, records_of


class Tally(NamedTuple):
    """What a long run did."""

    kills: int
    answers: int
    studies: int
    during_requests: int


class Asker(threading.Thread):
    """Asks for the rounds of a study, one after another; remembers every reply that it was given."""

    def __init__(self, client: Client, plan: Plan) -> None:
        super().__init__(daemon=True)
        self.client, self.plan = client, plan
        self.replies: dict[int, bytes] = {}
        self.asking = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.client.ask(Propose(plan=self.plan))
            specs, payload = broadcast_of(self.plan)
            for number in range(self.plan.algorithm["num_rounds"]):
                request = Answer(study=self.plan.study, round=number, arrays=specs)
                self.asking = True
                self.replies[number] = self.client.ask(request, payload)[1]
                self.asking = False
                # A repeated request, perhaps to another process: the very same reply.
                again = self.client.ask(request, payload)[1]
                if again != self.replies[number]:
                    raise AssertionError(f"round {number} was answered twice, differently")
        except BaseException as error:
            self.error = error


def check_books(daemon: Daemon, plan: Plan, replies: dict[int, bytes]) -> None:
    """With the daemon dead: the chain holds, and shows every release that was received."""
    received = sorted(replies)
    entries = inspect(daemon.home.ledger)
    Counter(daemon.home.counter).check(entries)
    account = replay(entries).get(plan.study)
    debited = sorted(e.data["round"] for e in entries if e.kind == "debit" and e.study == plan.study)
    if not set(received) <= set(debited):
        raise AssertionError(f"received rounds {received}, but the ledger shows only {debited}")
    if received and (account is None or account.answers < len(received)):
        raise AssertionError("the ledger shows less than was released")


def kill_often(folder: Path, times: int, *, seed: int, rounds: int = 40, report: Any = None) -> Tally:
    """Kill a daemon at random points; run studies to their end over as many daemons as it takes."""
    rng, context = random.Random(seed), fork_server()
    make_home(folder, records_of(0, 40), budget={"epsilon": 40.0})
    daemon = Daemon(folder, context)
    daemon.ready()
    kills = answers = studies = during = 0
    while kills < times:
        plan = plan_of({"name": rng.choice(["mb-sgd", "mu2-sgd"]), "num_rounds": rounds}, nonce=f"{studies:08x}")
        asker = Asker(daemon.client(patience=120.0), plan)
        asker.start()
        while asker.is_alive():
            if kills < times and _wait(asker, rng):
                during += asker.asking
                daemon.kill()
                kills += 1
                check_books(daemon, plan, dict(asker.replies))
                daemon.start()
            asker.join(0.005)
        if asker.error is not None:
            raise asker.error
        receipt = asker.client.ask(Finish(study=plan.study))[0]
        if receipt.answers != rounds:
            raise AssertionError(f"expected {rounds} answers, got {receipt.answers}")
        asker.client.close()
        studies, answers = studies + 1, answers + len(asker.replies)
        if report is not None:
            report(Tally(kills, answers, studies, during))
    daemon.stop()
    check_books(daemon, plan, asker.replies)
    return Tally(kills, answers, studies, during)


def _wait(asker: Asker, rng: random.Random) -> bool:
    """Wait for some replies and a random moment more; whether there is still somebody to hurt."""
    goal = len(asker.replies) + rng.randrange(0, 3)
    while asker.is_alive() and len(asker.replies) < goal:
        time.sleep(0.001)
    time.sleep(rng.random() * rng.choice([0.005, 0.03, 0.5]))
    return asker.is_alive()
