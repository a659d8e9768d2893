"""Adapters and a frozen body against training all weights, on text: sections of Debian packages by their synopses.

``python -m experiments.lora_text`` writes ``results/lora-text``; it needs torch, and `apt-cache` of a Debian system or
the file ``debian/available.txt`` with what ``apt-cache dumpavail`` prints, among the data (``TACIT_DATA``). A network
on hashed words learns sections of public packages without noise; private ones, of other sections, lie in five silos.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from experiments.folder import Data, Experiment, Finding
from experiments.frozen_backbone import Method, draw, spent, words
from experiments.search import Trials, refuse_edges
from tacit.errors import TacitError
from tacit.models import from_torch, lora, to_torch
from tacit.objectives import Objective, linear, softmax
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate

EPSILONS, SILOS, ROUNDS, BATCH, RANK = (1.0, 4.0, 8.0), 5, 40, 400, 4
WORDS, HIDDEN, EPOCHS, TESTING = 1024, 64, 6, 5
PRIVATE = ("admin", "devel", "games", "graphics", "net", "science", "sound", "text", "utils", "x11")
PUBLIC = (
    "doc",
    "gnu-r",
    "golang",
    "haskell",
    "java",
    "javascript",
    "libdevel",
    "libs",
    "perl",
    "python",
    "ruby",
    "rust",
)
STEPS, TUNING = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0), (0, 1, 2)
TITLES = {"lora": "adapters and head", "full": "all weights"}
FROZEN = {"frozen": "public body frozen, private head"}


def synopses() -> list[tuple[str, str]]:
    """The section and synopsis of every package that Debian's lists name; a synopsis comes once."""
    path = Path(os.environ.get("TACIT_DATA", ".")) / "debian" / "available.txt"
    try:
        command = ["apt-cache", "dumpavail"]
        text = path.read_text("utf-8") if path.exists() else subprocess.check_output(command, text=True)
    except (OSError, subprocess.CalledProcessError):
        text = ""
    found = {}
    for block in text.split("\n\n"):
        section, synopsis = (re.search(rf"^{name}: (.*)$", block, re.M) for name in ("Section", "Description(?:-en)?"))
        if section and synopsis:
            found[synopsis[1].lower()] = section[1].rpartition("/")[2]
    if len(found) < 10_000:
        raise TacitError(
            f"Expected the lists of Debian's packages, found {len(found)}; run apt-get update, or give {path}."
        )
    return sorted((section, synopsis) for synopsis, section in found.items())


def encoded(texts: list[str]) -> np.ndarray:
    """Words by a public hash, counted and scaled to norm one: nothing is learnt from the texts."""
    x = np.zeros((len(texts), WORDS), np.float32)
    for row, text in enumerate(texts):
        for word, count in Counter(re.findall(r"[a-z0-9+]+", text)).items():
            x[row, zlib.crc32(word.encode()) % WORDS] += count
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)


def tables(sections: tuple[str, ...], rows: list[tuple[str, str]]) -> dict[str, np.ndarray]:
    """The packages of these sections."""
    own = [(sections.index(section), synopsis) for section, synopsis in rows if section in sections]
    return {"x": encoded([synopsis for _, synopsis in own]), "y": np.asarray([y for y, _ in own], np.int32)}


def network(public: dict[str, np.ndarray]) -> nn.Module:
    """A network that knows public sections, with a new last layer for private ones."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(WORDS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
    net = nn.Sequential(body, nn.Linear(HIDDEN, len(PUBLIC)))
    x, y = torch.from_numpy(public["x"]), torch.from_numpy(public["y"]).long()
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y)).split(100):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    return nn.Sequential(body, nn.Linear(HIDDEN, len(PRIVATE)))


def seed_of(private: dict[str, np.ndarray], objective: Any, number: int) -> Seed:
    """Private packages in silos drawn by this seed; a tenth is for validation, a fifth for tests."""
    rng = np.random.default_rng([11, number])
    order = rng.permutation(len(private["y"]))
    tenth = len(order) // 10
    parts = {"validation": order[:tenth], "test": order[tenth : 3 * tenth]}
    each = (len(order) - 3 * tenth) // SILOS
    silos = [order[3 * tenth + i * each : 3 * tenth + (i + 1) * each] for i in range(SILOS)]
    evaluation = {part: {k: jnp.asarray(v[rows]) for k, v in private.items()} for part, rows in parts.items()}
    own = enrol([{k: v[rows] for k, v in private.items()} for rows in silos])
    return Seed(jax.random.key(number), objective.init(None), own, evaluation)


def featured(net: nn.Module, private: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Private packages as what the public body says of each, once: a head learns from that."""
    with torch.no_grad():
        made = torch.cat([net[0](part) for part in torch.from_numpy(private["x"]).split(1000)])
    return {"x": made.numpy(), "y": private["y"]}


def compute(given: Any) -> Iterator[Data]:
    """All methods at every budget, and what moved in one run of the adapters."""
    begun, rows = time.process_time(), synopses()
    public, private = tables(PUBLIC, rows), tables(PRIVATE, rows)
    net = network(public)
    modules = {"lora": lora(net, rank=RANK, seed=0, head=("1",)), "full": net, "frozen": net[1]}
    records = (len(private["y"]) - 3 * (len(private["y"]) // 10)) // SILOS
    terms = {"num_rounds": 2 if given.tiny else ROUNDS, "batch_size": BATCH, "clip_norm": 0.5, "sampling": "wor"}
    trials = Trials(given.out / "trials.jsonl", [len(private["y"]), len(public["y"]), terms, RANK, WORDS], chunk=5)
    found: dict[str, list[Data]] = {}
    trained = {}
    for name, module in modules.items():
        frozen = name == "frozen"
        # The body is no part of the last model: what it says of records is computed once.
        objective = Objective(linear(HIDDEN, len(PRIVATE)), softmax()) if frozen else from_torch(module, softmax())
        shown = featured(net, private) if frozen else private
        trained[name] = sum(weight.numel() for weight in module.parameters() if weight.requires_grad)
        method = Method(name, objective, partial(seed_of, shown, objective), [records] * SILOS, terms, STEPS, TUNING)
        for epsilon in EPSILONS[:1] if given.tiny else EPSILONS:
            found.setdefault(name, []).append(method.at(epsilon, trials, 1 if given.tiny else TESTING))
        if name == "lora":
            moved = moves(method, found[name][-1]["chosen"]["point"], module)
    if not given.tiny:
        refuse_edges({f"{name} at {row['epsilon']:g}": row["chosen"] for name, own in found.items() for row in own})
    facts: Data = {
        "records": records,
        "silos": SILOS,
        "public": len(public["y"]),
        "classes": len(PRIVATE),
        "rank": RANK,
    }
    facts |= {
        "tuning": len(TUNING),
        "delta": 1 / records**2,
        "trained": trained,
        "moved": moved,
        "words": WORDS,
        "hidden": HIDDEN,
        **terms,
    }
    largest = 100 * float(np.bincount(private["y"]).max() / len(private["y"]))
    facts |= {"public_accuracy": largest, "public_label": "the largest section for all"}
    yield {**facts, "methods": found, "cpu_minutes": spent(given.out, time.process_time() - begun)}


def moves(method: Method, point: dict[str, float], module: nn.Module) -> dict[str, float]:
    """How far weights have moved in one run: at most what is frozen, and at least each that is trained."""
    seed = method.seed(1)
    params = simulate(method.build(**point), seed.params, seed.silos, key=seed.key).params
    before, after = (dict(net.named_parameters()) for net in (module, to_torch(module, params)))
    gone = {name: float((before[name] - after[name]).detach().abs().max()) for name in before}
    frozen = max(gone[name] for name, weight in before.items() if not weight.requires_grad)
    trained = min(gone[name] for name, weight in before.items() if weight.requires_grad)
    if frozen > 0 or trained == 0:
        raise TacitError(f"Expected what is frozen to stay and all else to move, got {frozen} and {trained}.")
    return {"frozen": frozen, "trained": trained}


def finding(data: Data) -> Finding:
    """By how much adapters are ahead of training all weights."""
    found = told(data)
    said = f"adapters are {_beside(found)} training all weights from the same public start"
    if found["frozen"] is not None:
        said += f", a head on the frozen body {_beside(found['frozen'])} it"
    return Finding(f"{said}; what is frozen has moved by {data['moved']['frozen']:g}", "none")


def _beside(found: Data) -> str:
    least, most = found["least"], found["most"]
    if most <= 0:
        return f"{-most:.1f} to {-least:.1f} points behind"
    return f"{least:+.1f} to {most:+.1f} points beside"


def told(data: Data) -> Data:
    """The words of both comparisons: adapters, and the frozen body, beside all weights."""
    if "frozen" not in data["methods"]:
        return {**words(data, TITLES), "frozen": None}
    frozen = words(data, FROZEN | {"full": TITLES["full"]})
    return {**words(data, TITLES), "frozen": {name: frozen[name] for name in ("table", "least", "most")}}


EXPERIMENT = Experiment(
    "lora-text",
    compute,
    partial(draw, titles=TITLES | FROZEN),
    told,
    tiny=True,
    finding=finding,
)

if __name__ == "__main__":
    EXPERIMENT.main()
