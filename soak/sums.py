"""``python -m soak.sums --sums 600``: hostile broadcasts to silos that answer through shufflers, read as a server does.

Daemons and shufflers are processes and threads of their own, noise is on, and nothing is compiled otherwise than for a
user. A share is sealed, so that what can be held against clip and noise is the sum that the shufflers release: no
coordinate of the mean that it stands for may lie farther from zero than the clip and nine deviations of its noise.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from soak.broadcasts import draw
from tacit.channel.shuffled_sum import in_order
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.server.shuffles import Sums
from tacit.deploy.signing import Signer
from tacit.deploy.wire import Answer, Plan, Propose, Shuffle, broadcast_digest, write_arrays
from tacit.silo.release import usable_clips
from tests.deploy.shuffler.parties import Party
from tests.deploy.silo.consortium import Daemon, fork_server, make_home, plan_of, records_of, silo_key

SIZES = (30, 17, 24)
NAMES = ("s0", "s1", "s2")
STUDIES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"name": "mb-sgd"}, {}),
    ({"name": "alternate-spider"}, {"model": "mlp", "hidden": [3]}),
    ({"name": "prox-svrg", "phase_length": 2}, {"model": "mlp", "hidden": [2]}),
    ({"name": "prox-spider", "phase_length": 3, "difference_slope": 4.0}, {}),
)
_DEVIATIONS = 9.0


@contextmanager
def consortium(root: Path) -> Iterator[tuple[list[Daemon], list[Party]]]:
    """Three daemons with noise, and two shufflers."""
    signers = {name: Signer(silo_key(name)) for name in NAMES}
    authority = Authority(root / "certificates")
    parties = [Party(root / name, authority, signers) for name in ("a", "b")]
    seals = {party.terms.name: str(party.keys.seal.public) for party in parties}
    daemons = []
    for index, name in enumerate(NAMES):
        changes = {"allow": {"channels": ["shuffled-sum"]}, "shuffle": {"shufflers": seals, "colluding": 0}}
        make_home(root / name, records_of(index, SIZES[index]), **changes)
        daemons.append(Daemon(root / name, fork_server()))
    try:
        for daemon in daemons:
            daemon.ready()
        yield daemons, parties
    finally:
        for part in [*daemons, *parties]:
            part.stop()


def hostile(
    daemons: list[Daemon],
    parties: list[Party],
    algorithm: dict[str, Any],
    objective: dict[str, Any],
    rounds: int,
    rng: np.random.Generator,
) -> float:
    """The farthest that a sum of a study lay from zero, over what its clip and noise allow."""
    seals = {party.terms.name: str(party.keys.seal.public) for party in parties}
    shuffle = Shuffle(records=SIZES, min_silos=len(SIZES), honest=1.0, shufflers=seals)
    terms = {"sampling": "full", "channel": "shuffled-sum", "num_rounds": rounds, **algorithm}
    plan = plan_of(terms, objective, shuffle=shuffle, silos=len(SIZES), epsilon=5.0)
    plans = [plan.model_copy(update={"silo_index": index}) for index in range(len(SIZES))]
    callers = {party.terms.name: party.caller() for party in parties}
    clients = [daemon.client(60.0) for daemon in daemons]
    try:
        for client, own in zip(clients, plans, strict=True):
            client.ask(Propose(plan=own))
        sums = Sums(plan, NAMES, callers)
        return max(_ratio(sums, clients, plans, index, rng) for index in range(rounds))
    finally:
        for connection in [*clients, *callers.values()]:
            connection.close()


def _ratio(sums: Sums, clients: list[Any], plans: list[Plan], index: int, rng: np.random.Generator) -> float:
    kind = sums._algorithm.schedule[index]
    leaves, form = jax.tree.flatten(sums._shapes.broadcasts[kind])
    half = len(leaves) // 2
    points = 2 if len(leaves) > 1 and [leaf.shape for leaf in leaves[:half]] == [x.shape for x in leaves[half:]] else 1
    arrays = draw(rng, [leaf.shape for leaf in leaves[: len(leaves) // points]], points, 0).arrays
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
    """The largest coordinate of a mean over clip and nine deviations; a statistic whose clip is zero must be zero."""
    worst, records = 0.0, sum(SIZES)
    for name, terms in in_order(sums.terms[kind]):
        block = mean if name is None else mean[name]
        clip = float(clips[name] if isinstance(clips, Mapping) else clips)
        largest = max(float(np.max(np.abs(np.asarray(leaf, float)))) for leaf in jax.tree.leaves(block))
        deviation = 2 * clip / terms.grid * math.sqrt(records * (terms.coins + 1)) / 2 / records
        allowed = clip + _DEVIATIONS * deviation
        worst = max(worst, largest / allowed if allowed else (0.0 if largest == 0.0 else math.inf))
        worst = math.inf if math.isnan(largest) else worst
    return worst


def attack(sums: int, seed: int, say: Any = print) -> float:
    """As many sums, over all studies, and the worst of them."""
    rng, worst = np.random.default_rng(seed), 0.0
    rounds = max(4, sums // len(STUDIES))
    with tempfile.TemporaryDirectory(prefix="tacit-") as root, consortium(Path(root)) as (daemons, parties):
        for algorithm, objective in STUDIES:
            found = hostile(daemons, parties, algorithm, objective, rounds, rng)
            say(f"{algorithm['name']:18} {rounds} sums, worst {found:.3f} of clip and nine deviations", flush=True)
            worst = max(worst, found)
    return worst


def main() -> int:
    """Exit code 1 where a sum lies beyond what is allowed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sums", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    return int(attack(chosen.sums, chosen.seed) > 1.0)


if __name__ == "__main__":
    sys.exit(main())
