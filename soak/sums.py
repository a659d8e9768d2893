"""``python -m soak.sums --sums 600``: hostile broadcasts to silos that answer through shufflers, read as a server does.

Three daemons and two shufflers are processes of their own, noise is on, and nothing is compiled otherwise than for a
user. A share is sealed, so that what can be held against clip and noise is the sum that the shufflers release: no
coordinate of the mean that it stands for may lie farther from zero than the clip and nine deviations of its noise, and
its norm no farther than the clip and the noise's norm.

Every algorithm that trains through this channel meets a linear model, a network and a convolution; those whose
differences found most come first. Local steps, running sums and noise that remembers are refused there.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.parties import PROPOSER, Consortium, Silo
from soak.broadcasts import draw
from soak.releases import DEVIATIONS, Block, broadcast_of
from soak.studies import algorithm_of
from tacit.channel.shuffled_sum import in_order
from tacit.deploy.client import Client
from tacit.deploy.server.shuffles import Sums
from tacit.deploy.shuffler.client import Caller
from tacit.deploy.wire import Answer, Plan, Propose, Shuffle, broadcast_digest, write_arrays
from tacit.silo.release import usable_clips

SIZES = (30, 17, 24)
NAMES = ("s0", "s1", "s2")
FEATURES: dict[str, tuple[int, ...]] = {"rows": (5,), "images": (6, 6, 1)}
"""What the records of a consortium are: networks and linear models read rows, convolutions images."""
_FIRST = ("alternate-spider", "prox-svrg", "prox-spider")
_FURTHER = (
    *("mb-sgd", "accelerated-mb-sgd", "one-pass-accelerated", "localised-mb-sgd", "prox-sgd"),
    *("quantile-clip", "preconditioned-sgd", "pl-svrg", "warm-spider", "mb-psgm", "mb-psgm-fg", "diff2-gd", "sgda"),
)
ALGORITHMS = (*_FIRST, *_FURTHER)
"""All that train through shuffled sums: with fresh noise, in rounds that every silo answers."""
_NETWORKS: tuple[list[int], ...] = ([3], [16], [32], [8, 8])
_CONVOLUTIONS: tuple[list[int], ...] = ([1], [2], [4])
_PATIENCE = 600.0
_LEAST = 4  # rounds of a study


def studies() -> Iterator[tuple[str, dict[str, Any]]]:
    """An algorithm and an objective each; the first six have convolutions and networks."""
    for names in (_FIRST, _FURTHER):
        for model in ("cnn", "mlp", "linear"):
            for place, name in enumerate(names):
                yield name, _objective(model, place)


def _objective(model: str, place: int) -> dict[str, Any]:
    if model == "cnn":
        return {"model": "cnn", "channels": _CONVOLUTIONS[place % len(_CONVOLUTIONS)], "hidden": [4]}
    return {"model": "mlp", "hidden": _NETWORKS[place % len(_NETWORKS)]} if model == "mlp" else {"model": "linear"}


STUDIES = tuple(studies())


@contextmanager
def consortium(root: Path, kind: str) -> Iterator[Consortium]:
    """Three daemons with noise that have such records, and two shufflers."""
    rng = np.random.default_rng(0)
    policy = {
        "budget": {"epsilon": 40.0, "delta": 0.05},
        "allow": {"algorithms": list(ALGORITHMS), "channels": ["shuffled-sum"], "min_silos": 2, "max_open": 100},
        "pad_seconds": 0.0,
    }
    silos = []
    for name, size in zip(NAMES, SIZES, strict=True):
        records = {"x": rng.normal(size=(size, *FEATURES[kind])).astype(np.float32)}
        records["y"] = rng.integers(0, 2, size).astype(np.int32)
        silos.append(Silo(name, {"file": "records.npz", "task": "binary", "classes": 2}, policy, records))
    parties = Consortium(root, silos)
    try:
        parties.start_silos()
        parties.start_shufflers()
        parties.ready()
        yield parties
    finally:
        parties.stop()


def hostile(
    parties: Consortium, name: str, objective: dict[str, Any], rounds: int, rng: np.random.Generator
) -> tuple[int, float]:
    """How many sums a study gave, and the farthest that one lay from zero over what its clip and noise allow."""
    callers = {place: Caller(parties.address(place), parties.proposer, _PATIENCE) for place in parties.shufflers}
    shufflers = {place: seal for place, (_, seal) in parties.shufflers.items()}
    terms = algorithm_of(name, min(SIZES), rounds, {}) | {"channel": "shuffled-sum"}
    shape = FEATURES[_kind(objective)]
    plan = _plan(terms, objective, shape, Shuffle(records=SIZES, min_silos=len(SIZES), honest=1.0, shufflers=shufflers))
    plans = [plan.model_copy(update={"silo_index": index}) for index in range(len(SIZES))]
    clients = [_client(parties, silo) for silo in NAMES]
    try:
        for client, own in zip(clients, plans, strict=True):
            client.ask(Propose(plan=own))
        sums = Sums(plan, NAMES, callers)
        played = len(sums._algorithm.schedule)
        return played, max(_ratio(sums, clients, plans, index, rng) for index in range(played))
    finally:
        for connection in [*clients, *callers.values()]:
            connection.close()


def _client(parties: Consortium, silo: str) -> Client:
    return Client(parties.folder(silo) / "door" / "silo.sock", _PATIENCE, proposer=parties.proposer, silo=silo)


def _kind(objective: dict[str, Any]) -> str:
    return "images" if objective["model"] == "cnn" else "rows"


def _plan(algorithm: dict[str, Any], objective: dict[str, Any], shape: tuple[int, ...], shuffle: Shuffle) -> Plan:
    return Plan(
        name="sums",
        nonce="",
        features=shape,
        task="binary",
        classes=2,
        objective=objective,
        algorithm=algorithm,
        epsilon=5.0,
        delta=1e-6,
        silos=len(SIZES),
        silo_index=0,
        shuffle=shuffle,
        proposer=PROPOSER,
    )


def _ratio(sums: Sums, clients: list[Client], plans: list[Plan], index: int, rng: np.random.Generator) -> float:
    kind = sums._algorithm.schedule[index]
    leaves, form = jax.tree.flatten(sums._shapes.broadcasts[kind])
    points, numbers = broadcast_of(plans[0].algorithm, kind)
    shapes = [leaf.shape for leaf in leaves[: (len(leaves) - numbers) // points]]
    arrays = draw(rng, shapes, points, numbers).arrays
    specs, payload = write_arrays(arrays)
    answers = {}
    for name, client, own in zip(NAMES, clients, plans, strict=True):
        answers[name] = client.ask(Answer(study=own.study, round=index, arrays=specs), payload)
    broadcast = jax.tree.unflatten(
        form, [jax.numpy.asarray(a, leaf.dtype) for a, leaf in zip(arrays, leaves, strict=True)]
    )
    mean = sums.mean(kind, index, broadcast_digest(specs, payload), broadcast, answers)
    return _over(mean, sums, kind, usable_clips(sums._algorithm.rounds[kind].silo.release, broadcast))


def _over(mean: Any, sums: Sums, kind: str, clips: Any) -> float:
    """How far a mean went over how far it may go; a statistic whose clip is zero must be zero."""
    worst, size = 0.0, sums._algorithm.rounds[kind].silo.release.batch_size
    records = sum(SIZES) if size is None else int(np.max(size)) * len(SIZES)
    for name, terms in in_order(sums.terms[kind]):
        part = mean if name is None else mean[name]
        clip = float(clips[name] if isinstance(clips, Mapping) else clips)
        said = np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(part)])
        deviation = 2 * clip / terms.grid * math.sqrt(records * (terms.coins + 1)) / 2 / records
        norm = deviation * (math.sqrt(said.size) + DEVIATIONS)
        worst = max(worst, Block(np.zeros(said.size), clip, DEVIATIONS * deviation, norm).ratio(said))
    return worst


def attack(sums: int, seed: int, say: Any = print) -> float:
    """As many sums, over all studies or the first of them, and the worst."""
    rng, found, begun = np.random.default_rng(seed), list[tuple[int, float]](), time.monotonic()
    rounds = max(_LEAST, math.ceil(sums / len(STUDIES)))
    chosen = STUDIES if rounds > _LEAST else STUDIES[: math.ceil(sums / rounds)]
    for kind in FEATURES:
        own = [study for study in chosen if _kind(study[1]) == kind]
        with tempfile.TemporaryDirectory(prefix="tacit-") as root, consortium(Path(root) / kind, kind) as parties:
            for name, objective in own:
                found.append(hostile(parties, name, objective, rounds, rng))
                say(f"{name:21} {_shown(objective):18} {found[-1][0]:4} sums, worst {found[-1][1]:.3f}", flush=True)
    worst, played = max(ratio for _, ratio in found), sum(number for number, _ in found)
    end = "violated" if worst > 1.0 else "none beyond"
    say(
        f"{played} sums in {len(found)} studies, {time.monotonic() - begun:.0f} s; "
        f"largest ratio {worst:.3f} to clip and nine deviations: {end}"
    )
    return worst


def _shown(objective: dict[str, Any]) -> str:
    """A model with its widths, as in `cnn 2 4`."""
    widths = (*objective.get("channels", ()), *objective.get("hidden", ()))
    return " ".join([objective["model"], *map(str, widths)])


def main() -> int:
    """Exit code 1 where a sum lies beyond what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    return int(attack(chosen.sums, chosen.seed) > 1.0)


if __name__ == "__main__":
    sys.exit(main())
