"""``python -m soak.load --silos 50 --rounds 20``: many daemons on one machine, over their sockets, with dropouts."""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.simulate.participation import participation
from tests.deploy.silo.consortium import Daemon, LocalTransport, fork_server, make_home, plan_of, records_of


def main() -> None:
    """Train with many silos, some of which are killed and come back, and check every ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dropouts", type=int, default=3, help="daemons killed before each round")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = parser.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    rng, begun = random.Random(chosen.seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        root, context = Path(folder), fork_server()
        sizes = [rng.randrange(20, 60) for _ in range(chosen.silos)]
        names = [f"s{i:02d}" for i in range(chosen.silos)]
        for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
            make_home(root / name, records_of(i, size))
        daemons = {name: Daemon(root / name, context) for name in names}
        try:
            for daemon in daemons.values():
                daemon.ready(300.0)
            print(f"{time.monotonic() - begun:7.1f} s  {chosen.silos} daemons serve", flush=True)
            history, answers = play(daemons, sizes, chosen, rng, root, begun)
            memory = sum(resident(daemon._process.pid) for daemon in daemons.values())
        finally:
            for daemon in daemons.values():
                daemon.stop()
        for name in names:
            accounts = replay(inspect(root / name / "ledger.sqlite"))
            shown = sum(account.answers for account in accounts.values())
            used = sum(name in row["silos"] for row in history)
            # A silo may have answered a round that went on without it; it never answered less than was used.
            assert used <= shown <= chosen.rounds, (name, used, shown)
            assert answers.get(name, shown) == shown
    pace = sorted(row["seconds"] for row in history)
    missed = sum(len(row["missed"]) for row in history)
    print(
        f"{chosen.rounds} rounds with {chosen.silos} silos, {missed} answers missed; a round took "
        f"{pace[len(pace) // 2]:.2f} s in the middle and {pace[-1]:.2f} s at most; the daemons had "
        f"{memory:.0f} MB of their own in all. Every ledger is right."
    )


def resident(pid: int) -> float:
    """A process's own memory in MB, without what it shares with the others."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def play(daemons, sizes, chosen, rng, root, begun):  # type: ignore[no-untyped-def]
    """Play the rounds, killing some daemons before each and starting them again a round later."""
    names = list(daemons)
    algorithm = {"name": "mb-sgd", "sampling": "full", "num_rounds": chosen.rounds}
    plan = plan_of(algorithm, silos=len(names), everyone=False)
    transport = LocalTransport([daemon.home.socket for daemon in daemons.values()])
    patience = Patience(60.0, 300.0)
    found = meet(transport, len(names), patience, lambda event, facts: None)
    point = Checkpoint(plan, tuple(names), tuple(sizes), fresh_state(plan, sizes))
    coordinator = Coordinator(
        point,
        root / "checkpoint.npz",
        transport,
        {name: at for name, (at, _) in found.items()},
        who=participation(len(names), (len(names) // 2, len(names))),
        patience=patience,
        seed=chosen.seed,
    )
    down: list[str] = []

    def after(number: int) -> None:
        row = point.history[-1]
        line = f"round {number}: {len(row['silos'])} silos, {len(row['missed'])} missed, {row['seconds']:.2f} s"
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)
        for name in down:
            daemons[name].start()
            daemons[name].ready(120.0)
        down[:] = rng.sample(names, chosen.dropouts) if number < chosen.rounds else []
        for name in down:
            daemons[name].kill()

    receipts = coordinator.run(after)
    transport.close()
    return point.history, {name: receipt.answers for name, receipt in receipts.items()}


if __name__ == "__main__":
    main()
