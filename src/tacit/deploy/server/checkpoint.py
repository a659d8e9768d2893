"""What the server needs to go on after a crash: one file, written whole or not at all."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.deploy.wire import Plan
from tacit.errors import TacitError
from tacit.keeping import load_arrays, plain, restored, save_arrays


@dataclass
class Checkpoint:
    """The plan (at index 0), the silos by index, the next round, and the algorithm's state before it.

    ``decided`` names the silos of the next round. They are settled before shufflers are asked, which release a round
    only once. ``answers`` are their sealed answers, so that a server that starts again need not ask for them.
    ``attempts`` are the rosters of pairwise sums that the next round was asked of so far, the last one now.
    ``history`` has a row for every finished round.
    """

    plan: Plan
    silos: tuple[str, ...]
    records: tuple[int, ...]
    state: Any
    round: int = 0
    decided: tuple[str, ...] | None = None
    answers: dict[str, tuple[bytes, bytes]] | None = None
    finished: bool = False
    attempts: tuple[tuple[str, ...], ...] = ()
    history: list[dict[str, Any]] = field(default_factory=list)

    def save(self, path: Path) -> None:
        """Write it so that a crash leaves the old one or the new one."""
        names = ("silos", "records", "round", "decided", "finished", "attempts", "history")
        meta = {name: getattr(self, name) for name in names}
        meta["plan"] = json.loads(self.plan.model_dump_json())
        meta["answers"] = None if self.answers is None else sorted(self.answers)
        leaves = {f"leaf{i}": plain(leaf) for i, leaf in enumerate(jax.tree.leaves(self.state))}
        for i, (_, parts) in enumerate(sorted((self.answers or {}).items())):
            leaves |= {f"answer{i}{part}": np.frombuffer(raw, np.uint8) for part, raw in zip("hp", parts, strict=True)}
        save_arrays(path, meta, leaves)


def load_checkpoint(path: Path, like: Any) -> Checkpoint:
    """A checkpoint; its state has the form of ``like(plan, records)``, a fresh state."""
    try:
        meta, arrays = load_arrays(path)
    except (OSError, ValueError, KeyError) as error:
        raise TacitError(f"{path} is not a checkpoint: {error}.") from None
    plan = Plan.model_validate_json(json.dumps(meta["plan"]))
    leaves, form = jax.tree.flatten(like(plan, meta["records"]))
    answers = {
        name: (arrays.pop(f"answer{i}h").tobytes(), arrays.pop(f"answer{i}p").tobytes())
        for i, name in enumerate(meta["answers"] or ())
    }
    if len(leaves) != len(arrays):
        raise TacitError(f"{path} was written for another algorithm, or another version of Tacit.")
    state = jax.tree.unflatten(form, [restored(arrays[f"leaf{i}"], leaf) for i, leaf in enumerate(leaves)])
    return Checkpoint(
        plan=plan,
        silos=tuple(meta["silos"]),
        records=tuple(meta["records"]),
        state=state,
        round=meta["round"],
        decided=None if meta["decided"] is None else tuple(meta["decided"]),
        answers=None if meta["answers"] is None else answers,
        finished=meta["finished"],
        attempts=tuple(tuple(roster) for roster in meta.get("attempts", ())),
        history=meta["history"],
    )
