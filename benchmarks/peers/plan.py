"""What is measured: works, and which peers take part in each."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from benchmarks.peers.peers import PEERS
from benchmarks.peers.works import Work

LOGISTIC = Work("logistic d=785", (784, 1), 25, 123, 500, 3.5)
SOFTMAX = Work("softmax d=7,850", (784, 10), 25, 123, 500, 6.5)
MLP = Work("MLP 50-64-2", (50, 64, 2), 25, 123, 500, 5.0)
WIDE = Work("MLP 784-256-10", (784, 256, 10), 25, 123, 500, 5.5, rounds=4)
CNN = Work("CNN on 32x32x3", (), 25, 32, 200, 13.0, rounds=4)

SLOW = ("torch-loop", "flower")
FAST = tuple(name for name in PEERS if name not in SLOW)


class Entry(NamedTuple):
    """A work, a family for the bars, and who takes part."""

    work: Work
    family: str
    peers: tuple[str, ...]


def _at(work: Work, silos: int) -> Work:
    return dataclasses.replace(work, name=f"{work.name}, {silos} silos", silos=silos)


def _spider(work: Work) -> Work:
    return dataclasses.replace(work, name=f"SPIDER, {work.name}, {work.silos} silos", algorithm="spider")


def entries(quick: bool) -> list[Entry]:
    """Everything, or a small version of everything that shows that it works."""

    def who(silos: int) -> tuple[str, ...]:
        return {10: (*FAST, "torch-loop"), 25: tuple(PEERS)}.get(silos, FAST)

    numbers = (10, 25, 100)
    full = [
        *(Entry(_at(LOGISTIC, n), "logistic", who(n)) for n in numbers),
        Entry(_at(SOFTMAX, 25), "logistic", FAST),
        *(Entry(_at(MLP, n), "mlp", who(n)) for n in numbers),
        Entry(_at(WIDE, 25), "wide", FAST),
        Entry(_at(CNN, 10), "cnn", FAST),
        Entry(_at(CNN, 25), "cnn", FAST),
        Entry(_spider(LOGISTIC), "spider", FAST),
        Entry(_spider(MLP), "spider", FAST),
    ]
    if not quick:
        return full

    def small(entry: Entry) -> Entry:
        sizes: dict[str, Any] = {"silos": 4, "batch": 8, "records": 32, "rounds": 2}
        sizes["name"] = f"{entry.work.name.rsplit(',', 1)[0]}, {sizes['silos']} silos"
        return entry._replace(work=dataclasses.replace(entry.work, **sizes))

    kept = [small(full[4]), small(full[8]), small(full[11])]
    few = (
        ("tacit", "jax-plain", "opacus-ghost", "torch-func"),
        ("tacit", "tacit-torch", "torch-func", "opacus-hooks"),
        ("tacit", "opacus-hooks"),
    )
    return [entry._replace(peers=own) for entry, own in zip(kept, few, strict=True)]
