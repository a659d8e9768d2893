"""What the papers' experiments share: silos from records, noise from a budget, tuned curves, and result folders."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm
from tacit.data import Federation
from tacit.objectives import Objective
from tacit.privacy.plan import Budget, plan_silos
from tacit.runtime.participation import Participation
from tacit.runtime.simulate import Outcome, Seed, simulate_grid
from tacit.silo import enrol
from tacit.studies.folder import provenance
from tacit.studies.run import measured

Rows = list[dict[str, Any]]


def seeds_of(federations: Sequence[Federation], objective: Objective) -> list[Seed]:
    """One repetition for each federation, measured on the validation and test records of all its silos."""
    found = []
    for number, federation in enumerate(federations):
        key_run, key_init = jax.random.split(jax.random.key(number))
        pooled = {
            part: {
                field: jnp.asarray(np.concatenate([getattr(silo, part)[field] for silo in federation.silos]))
                for field in ("x", "y")
            }
            for part in ("validation", "test")
        }
        silos = enrol([silo.train for silo in federation.silos], [silo.name for silo in federation.silos])
        found.append(Seed(key_run, objective.init(key_init), silos, pooled))
    return found


def noise_for(
    build: Callable[..., Algorithm], records: Sequence[int], epsilon: float, delta: float, cap: int | None = None
) -> np.ndarray:
    """The noise multiplier of each silo at this budget, every silo priced by itself for every round it may answer.

    ``cap`` is how often a silo answers at most (``None``: in every round).
    """
    names = [str(i) for i in range(len(records))]
    crowd: dict[str, Any] = {"honest": 1.0, "fewest": len(records)}  # through shuffled channels
    budget = Budget(epsilon=epsilon, delta=delta, max_participations=cap, **crowd)
    _, noise = plan_silos(build(noise_multiplier=1.0), names, records, budget)
    if noise is None:
        raise ValueError(f"Expected a budget of epsilon={epsilon} to ask for noise.")
    return noise


def grid_of(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the axes' values."""
    points: list[dict[str, Any]] = [{}]
    for name, values in axes.items():
        points = [{**point, name: value} for point in points for value in values]
    return points


def train(
    build: Callable[..., Algorithm],
    points: Sequence[Mapping[str, Any]],
    seeds: Sequence[Seed],
    objective: Objective,
    *,
    who: Participation | None = None,
    rounds: int,
) -> dict[str, np.ndarray]:
    """Final measurements with axes (seeds, points), all points in one program."""
    grid = {name: np.asarray([point[name] for point in points], np.float32) for name in points[0]}
    outcome: Outcome = simulate_grid(build, grid, seeds, who=who, measure=measured(objective), measure_every=rounds)
    return {name: values[:, :, -1] for name, values in outcome.trace.items()}


def best_by(labels: Sequence[Any], scores: np.ndarray) -> dict[Any, int]:
    """For each label, the point of the smallest mean score (a run that diverged counts as infinite)."""
    means = np.where(np.isfinite(scores), scores, np.inf).mean(axis=0)
    return {
        label: min((i for i, own in enumerate(labels) if own == label), key=lambda i: means[i])
        for label in dict.fromkeys(labels)
    }


def interval(values: np.ndarray) -> dict[str, float]:
    """Mean, standard deviation, and the half-width of a 90% interval for the mean."""
    values = np.asarray(values, float)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(values.mean()), "std": spread, "half90": 1.645 * spread / len(values) ** 0.5}


@dataclass
class Parts:
    """Finished parts in a file; one that other ``settings`` (plain data) have made is not read."""

    path: Path
    settings: Any

    def __post_init__(self) -> None:
        plain = json.dumps(self.settings, default=str)
        self.fingerprint = hashlib.sha256(plain.encode()).hexdigest()[:16]
        stored = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.found: dict[str, Any] = stored.get("found", {}) if stored.get("settings") == self.fingerprint else {}

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part of this name, made now and kept if it is not there."""
        if name not in self.found:
            begun, worked = time.perf_counter(), time.process_time()
            found = make()
            spent = {"seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - worked}
            self.found[name] = {"rows": found, **{key: round(value, 1) for key, value in spent.items()}}
            fresh = self.path.with_suffix(".new")
            fresh.write_text(json.dumps({"settings": self.fingerprint, "found": self.found}, indent=1) + "\n")
            fresh.replace(self.path)
            print(name, f"{spent['seconds']:.0f} s", flush=True)
        return self.found[name]["rows"]

    @property
    def cpu_minutes(self) -> float:
        """What all parts have cost."""
        return sum(float(part["cpu_seconds"]) for part in self.found.values()) / 60


def out_folder(name: str) -> Path:
    """The folder that a study writes to, from its command line."""
    parser = argparse.ArgumentParser(prog=f"python -m tacit.studies.papers.{name.replace('-', '_')}")
    parser.add_argument("--out", type=Path, default=Path("results") / name, help="Folder to write.")
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(folder: Path, data: dict[str, Any], readme: str, started: float) -> None:
    """Numbers with their provenance, and the paragraph."""
    module = f"tacit.studies.papers.{folder.name.replace('-', '_')}"
    made = {**provenance(f"python -m {module}"), "seconds": round(time.perf_counter() - started, 1)}
    (folder / "data.json").write_text(json.dumps({"provenance": made, **data}, indent=1) + "\n", encoding="utf-8")
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    footer = (
        f"\nMade by `{made['command']}` on {made['date'][:10]} in {made['seconds']:.0f} s "
        f"(Python {made['python']}, {versions}, {made['machine']}, CPU).\n"
    )
    (folder / "README.md").write_text(readme + footer, encoding="utf-8")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [list(header), ["---"] * len(header), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
