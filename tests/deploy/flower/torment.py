"""Kill parties of a consortium at random, or cut its network, and see that the study still ends as it should."""

from __future__ import annotations

import contextlib
import io
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tomli_w
from rich.console import Console

from experiments.parties import Consortium
from tacit.deploy.consortium.processes import below
from tacit.deploy.contract import builder_from
from tacit.deploy.flower.watch import follow
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import fresh_state
from tacit.errors import TacitError
from tacit.silo import enrol
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.simulate.compiled import simulate
from tacit.studies.folder import new_folder
from tests.deploy.flower.drive import consortium_of, study_of, tables
from tests.deploy.silo.consortium import SEED, as_direct, rounding_of

SIZES = {"north": 30, "south": 40, "west": 25}
STUDIES: tuple[tuple[str, list[int] | None], ...] = (
    ("shuffled-sum", [2, 3]),
    ("direct", None),
    ("shuffled-reports", [2, 3]),
    ("shuffled-sum", None),
    ("direct", [2, 3]),
)
"""Channel and how many silos a round has; where it may do without one, nobody waits for a silo that was killed."""

VICTIMS = ("node", "server", "shuffler", "daemon", "superlink")
NAMESPACE, HERE, THERE = "tacit-cut", "10.231.0.1", "10.231.0.2"


@dataclass
class Tally:
    """What was done, and how often the run had to be taken up again."""

    done: list[str] = field(default_factory=list)
    resumed: int = 0
    seconds: float = 0.0


def leaders(folder: Path) -> list[int]:
    """The processes that lead a study of a consortium."""
    return [pid for pid, command in below(os.getpid()).items() if "flower.leader" in command and str(folder) in command]


def strike(consortium: Consortium, kind: str, rng: random.Random) -> str | None:
    """Kill one party of a kind with SIGKILL and start it again where it does not come back by itself."""
    name = rng.choice(sorted(SIZES))
    if kind == "server":
        hit = [pid for pid in leaders(consortium.root.parent) if _kill(pid)]
        return kind if hit else None
    key = {"node": f"node-{name}", "shuffler": f"shuffler-{rng.choice('ab')}", "daemon": name, "superlink": "superlink"}
    party = consortium.parties[key[kind]]
    party.kill()
    time.sleep(rng.uniform(0.0, 3.0))
    party.start()
    return key[kind]


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def lead_to_the_end(consortium: Consortium, folder: Path, tally: Tally, limit: float) -> None:
    """Follow a run, and take it up again whenever it ends early; nothing may take longer than ``limit`` seconds."""
    begun = time.monotonic()
    while True:
        try:
            follow(folder, consortium.control, Console(file=io.StringIO()))
            break
        except (TacitError, subprocess.TimeoutExpired) as error:
            if time.monotonic() - begun > limit:
                raise TacitError(f"The run is wedged after {limit:.0f} s: {error}") from None
            tally.resumed += 1
            time.sleep(2.0)
    tally.seconds += time.monotonic() - begun


def prepare_run(
    consortium: Consortium, channel: str, rounds: int, out: Path, participants: list[int] | None = None
) -> Path:
    """A run folder for a study with short patience."""
    study = study_of(channel, rounds, participants)
    folder = new_folder(out, study).resolve()
    tree = study.model_dump(exclude_none=True, mode="json")
    (folder / "study.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
    shufflers = consortium.shuffler_entries() if channel != "direct" else []
    terms = {"silos": len(SIZES), "folder": str(folder), "round_seconds": 40.0, "patience": 240.0}
    (folder / "deployment.toml").write_text(
        tomli_w.dumps({**terms, **consortium.proposer_entries, "shufflers": shufflers}), encoding="utf-8"
    )
    return folder


def check_end(root: Path, folder: Path, rounds: int) -> None:
    """Every ledger shows the rounds that were played; with everybody in them the model is that of the simulation."""
    point = load_checkpoint(folder / "checkpoint.npz", fresh_state)
    assert point.finished
    assert len(point.history) == rounds
    for silo_index, name in enumerate(SIZES):
        own = point.plan.model_copy(update={"silo_index": silo_index})
        entries = inspect(root / "c" / name / "ledger.sqlite")
        debits = [entry.data["round"] for entry in entries if entry.study == own.study and entry.kind == "debit"]
        assert replay(entries)[own.study].answers == len(debits), name
        assert debits == sorted(set(debits)), name
        used = {row["round"] - 1 for row in point.history if name in row["silos"]}
        # A silo may have answered a round that went on without it; it never answered less than was used.
        assert used <= set(debits) <= set(range(rounds)), name
        assert not point.plan.everyone or len(used) == rounds
    if point.plan.everyone:
        check_model(point)


def check_model(point: Checkpoint) -> None:
    """The model is that of the simulation, to rounding."""
    builder = builder_from(as_direct(point.plan), point.records[0])
    algorithm = builder.build(noise_multiplier=0.0)
    _, key = jax.random.split(jax.random.key(0))
    params, silos = builder.problem.objective.init(key), enrol(list(tables(SIZES).values()))
    expected = simulate(algorithm, params, silos, key=jax.random.key(SEED), noise="each").params
    found = algorithm.output(point.state)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.max(np.abs(np.asarray(a) - np.asarray(b))) < rounding_of(point.plan)


@contextlib.contextmanager
def running(root: Path, host: str = "127.0.0.1", before: tuple[str, ...] = ()) -> Iterator[Consortium]:
    """A consortium at work; ``before`` is how nodes are started."""
    consortium = consortium_of(root, host, SIZES)
    try:
        consortium.start_all()
        if before:
            for name in SIZES:
                consortium.parties.pop(f"node-{name}").stop()
                consortium.start_node(name, before=before)
        yield consortium
    finally:
        consortium.stop()


def kill_parties(root: Path, *, kills: int, rounds: int, seed: int, report: Any = print) -> Tally:
    """Kill parties of every kind, in turn, while studies run, until as many were hit; every study must end well."""
    rng, tally, studies = random.Random(seed), Tally(), 0
    with running(root) as consortium:
        while len(tally.done) < kills:
            channel, participants = STUDIES[studies % len(STUDIES)]
            studies += 1
            folder = prepare_run(consortium, channel, rounds, root / "runs", participants)
            over = threading.Event()

            def torment(over: threading.Event = over) -> None:
                while not over.wait(rng.uniform(3.0, 10.0)) and len(tally.done) < kills:
                    hit = strike(consortium, VICTIMS[len(tally.done) % len(VICTIMS)], rng)
                    if hit is not None:
                        tally.done.append(hit)
                        report(f"killed {hit}")

            thread = threading.Thread(target=torment, daemon=True)
            thread.start()
            try:
                lead_to_the_end(consortium, folder, tally, limit=1800.0)
            finally:
                over.set()
                thread.join()
            check_end(root, folder, rounds)
            silos = "all silos" if participants is None else f"{participants[0]} to {participants[1]} silos"
            report(
                f"{channel}: {rounds} rounds of {silos}, {len(tally.done)} kills so far, resumed {tally.resumed} times"
            )
    return tally


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def cut_network(root: Path, *, cuts: int, rounds: int, seed: int, report: Any = print) -> Tally:
    """Cut all silos off for a while, some times, while a study runs; needs the right to make network namespaces."""
    rng, tally = random.Random(seed), Tally()
    with contextlib.suppress(subprocess.CalledProcessError):
        _ip("netns", "del", NAMESPACE)
    _ip("netns", "add", NAMESPACE)
    try:
        _ip("link", "add", "tacit0", "type", "veth", "peer", "name", "tacit1")
        _ip("link", "set", "tacit1", "netns", NAMESPACE)
        _ip("addr", "add", f"{HERE}/30", "dev", "tacit0")
        _ip("link", "set", "tacit0", "up")
        for line in (f"addr add {THERE}/30 dev tacit1", "link set tacit1 up", "link set lo up"):
            _ip("netns", "exec", NAMESPACE, "ip", *line.split())
        with running(root, HERE, ("ip", "netns", "exec", NAMESPACE)) as consortium:
            folder, over = prepare_run(consortium, "shuffled-sum", rounds, root / "runs"), threading.Event()

            def cut() -> None:
                while not over.wait(rng.uniform(10.0, 25.0)) and len(tally.done) < cuts:
                    seconds = rng.uniform(5.0, 20.0)
                    _ip("link", "set", "tacit0", "down")
                    time.sleep(seconds)
                    _ip("link", "set", "tacit0", "up")
                    tally.done.append(f"{seconds:.0f} s")
                    report(f"cut for {seconds:.0f} s")

            thread = threading.Thread(target=cut, daemon=True)
            thread.start()
            try:
                lead_to_the_end(consortium, folder, tally, limit=1800.0)
            finally:
                over.set()
                thread.join()
            check_end(root, folder, rounds)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", NAMESPACE)
    return tally
