"""Everybody in turn: settings are chosen, programs checked against float64, and then each seed is trained by all."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.errors import choose as choosing
from benchmarks.peers.errors.recipes import (
    DOCUMENTED,
    TRAINERS,
    Recipe,
    certified,
    checking,
    documented,
    from_json,
    of_their_own,
)
from benchmarks.peers.errors.tasks import Source, Task, initial, load, save
from benchmarks.peers.rounds import Held
from benchmarks.peers.worker import load as layers_at
from benchmarks.peers.works import Layers, distance

TOLERANCE = 1e-3
"""Of real records some may lie near a tie, which thousands of others outweigh."""


def measure(source: Source, quick: bool, threads: int) -> dict[str, Any]:
    """One task: who trained with what, and the error of every round beside the seconds until then."""
    task = load(source)
    print(f"{task.title}: {', '.join(TRAINERS)}", flush=True)
    plans = {trainer.plan for trainer in TRAINERS.values() if trainer.plan != "documented"}
    chosen = {plan: choosing.choose(task, plan, 2 if quick else source.tuning, quick) for plan in sorted(plans)}
    recipes = {name: _recipe(name, task, chosen) for name in TRAINERS}
    lines = {name: _line(name, task, recipes[name], chosen) for name in TRAINERS}
    _raced(task, recipes, lines, 1 if quick else source.seeds, threads, checking(recipes["tacit"], task.records))
    sizes = {"records": task.records, "validation": len(task.validation[1]), "test": len(task.test[1])}
    return {"task": task.title, **sizes, "lines": lines}


def completed(row: dict[str, Any], source: Source, threads: int) -> dict[str, Any]:
    """A task that was measured, with the documented lines that it lacks, marked as timed beside other work."""
    task = load(source)
    names = [name for name in DOCUMENTED if name not in row["lines"]]
    recipes = {name: _recipe(name, task, {}) for name in names}
    lines = {name: {**_line(name, task, recipes[name], {}), "loaded": True} for name in names}
    first = from_json(json.dumps(row["lines"]["tacit"]["recipe"]))
    _raced(task, recipes, lines, source.seeds, threads, checking(first, task.records))
    return {**row, "lines": {**row["lines"], **lines}}


def _raced(
    task: Task, recipes: dict[str, Recipe], lines: dict[str, Any], seeds: int, threads: int, check: Recipe
) -> None:
    """Let all lines train, and tell how it went."""
    with tempfile.TemporaryDirectory() as folder:
        _play(task, recipes, lines, range(seeds), threads, Path(folder), check)
    for own in lines.values():
        finals = [run["errors"][-1] for run in own["runs"]]
        told = own["missing"] or f"{np.mean(finals):.4f} after {np.mean([r['seconds'][-1] for r in own['runs']]):.1f} s"
        print(f"  {own['title']}: {told}", flush=True)


def _recipe(name: str, task: Task, chosen: dict[str, choosing.Chosen]) -> Recipe:
    trainer = TRAINERS[name]
    if trainer.plan == "documented":
        return documented(name, task.records, len(task.sizes) > 2)
    return chosen[trainer.plan].recipe if trainer.tuned else choosing.settings_of(task, "direct")


def _line(name: str, task: Task, recipe: Recipe, chosen: dict[str, choosing.Chosen]) -> dict[str, Any]:
    """What is known of a trainer before it trains."""
    trainer = TRAINERS[name]
    own = chosen[trainer.plan] if trainer.tuned else None
    return {
        "title": trainer.title,
        "recipe": asdict(recipe),
        "tried": own.tried if own else 0,
        "edge": own.edge if own else False,
        "validation_error": own.error if own else None,
        "certified": certified(recipe, task.records),
        "own_accountant": of_their_own(name, recipe, task.records),
        "distance": None,
        "missing": None,
        "runs": [],
    }


def _play(
    task: Task,
    recipes: dict[str, Recipe],
    lines: dict[str, Any],
    seeds: range,
    threads: int,
    folder: Path,
    check: Recipe,
) -> None:
    path = folder / "task.npz"
    save(task, path)
    held = {name: _held(name, path, threads) for name in (*lines, "reference")}
    try:
        wanted = _moved(task, held["reference"], check, folder)[0]
        held.pop("reference").close()
        for name, line in lines.items():
            _check(task, held[name], check, wanted, line, folder)
        for seed in seeds:
            for name, line in lines.items():
                if line["missing"] is None:
                    line["runs"].append(_run(task, held[name], recipes[name], seed, folder))
    finally:
        for worker in held.values():
            worker.close()


def _held(name: str, path: Path, threads: int) -> Held:
    worker = Held(name, str(path), threads, module="benchmarks.peers.errors.worker")
    worker.hear()
    return worker


def _trained(worker: Held, recipe: Recipe, seed: int, folder: Path) -> tuple[dict[str, Any], list[Layers]]:
    """What a worker says of a run, and the parameters after every round."""
    path = folder / f"{worker.name}.npz"
    told = worker.ask(f"train {seed} {path} {recipe.to_json()}")
    stacked = layers_at(str(path))
    each = [{n: {k: stacked[n][k][i] for k in stacked[n]} for n in stacked} for i in range(len(told["seconds"]))]
    return told, each


def _moved(task: Task, worker: Held, recipe: Recipe, folder: Path) -> list[Layers]:
    """Start minus end."""
    before, [after] = initial(task, 0), _trained(worker, recipe, 0, folder)[1]
    return [{n: {k: np.float64(before[n][k]) - after[n][k] for k in before[n]} for n in before}]


def _check(task: Task, worker: Held, check: Recipe, wanted: Layers, line: dict[str, Any], folder: Path) -> None:
    """Everybody must move the model where float64 moves it; who does not is not timed, and the page says so."""
    try:
        [found] = _moved(task, worker, check, folder)
    except ChildProcessError as error:
        line["missing"] = str(error)
        return
    line["distance"] = distance(found, wanted)
    if not line["distance"] <= TOLERANCE:
        line["missing"] = f"moves the model elsewhere: relative distance {line['distance']:.1e} > {TOLERANCE:.0e}"


def _run(task: Task, worker: Held, recipe: Recipe, seed: int, folder: Path) -> dict[str, Any]:
    told, each = _trained(worker, recipe, seed, folder)
    return {**told, "errors": [task.error(params, task.test) for params in each]}
