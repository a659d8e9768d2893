"""The part of the page about errors, and its figure, made from the measurements and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.errors.choose import CLIPS, GROWTH, STEPS
from benchmarks.peers.errors.recipes import DELTA, DOCUMENTED, EPSILON, SCHEDULES, TRAINERS

Line = Mapping[str, Any]
MOMENTS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""Seconds at which errors are read."""


def section(tasks: list[dict[str, Any]]) -> str:
    """The words and tables of all tasks."""
    return "\n".join([_head(tasks), *(_of_task(task) for task in tasks)])


def _head(tasks: list[dict[str, Any]]) -> str:
    seeds = _range([len(line["runs"]) for task in tasks for line in trained(task["lines"]).values()])
    schedules = " or ".join(f"{rounds} rounds of a share of {share:g}" for share, rounds in SCHEDULES)
    return f"""## Error after equal seconds

Test error against seconds of training, everybody at epsilon {EPSILON:g} (delta {DELTA:g}) for replacing one record of a
silo, on real records. Noise is the least that Tacit's accountant certifies for each silo's schedule; accountants run
before the clock. Set-up is part of the seconds and shown by itself: what moves records into place, builds a program and
compiles it, for every run anew, but not loading libraries. Each library trains in a process of its own, seed by seed in
turn, {seeds} of them; errors and standard deviations are over seeds, which bring noise, batches and initial weights.
Opacus and torch.func draw the same numbers for a seed, so that their errors are paired.

Opacus and jax-privacy are made for one holder of all records, and torch.func for nobody in particular. Around each
stands the simplest federation that keeps its promise: in every round each silo draws a Poisson batch, clips and adds
noise with the peer's own code, all at the certified epsilon, and the server steps along the mean. Tacit plays full
batches, with the rounds and output of its defaults. *Pairwise* is its channel in which silos share one noise: its
promise is for the sum, against the server and one silo (masks are not part of a simulation). *Defaults untouched* are
what `tacit init` proposes, with nothing chosen.

All others are chosen alike, by the mean error on validation records: {CLIPS} clips and {STEPS} steps for sgd and for
adam on the server, and for peers {schedules} each. Where the best lies at an
edge the grid grows, up to {GROWTH} times a side; *edge* marks what still lies there. Choosing was done in Tacit's
simulator, which computes what the peers compute: everybody must first move the model as float64 does, in one round
without noise. Epsilon is spent at the end of a run; the rounds before show how it got there, not what a shorter run
could do.
{_documented(tasks)}
![Test error against seconds](peers-error.svg)
"""


def _documented(tasks: list[dict[str, Any]]) -> str:
    """Where documented settings come from; nothing where nobody trained with any."""
    ran = [name for name in DOCUMENTED if any(name in trained(task["lines"]) for task in tasks)]
    if not ran:
        return ""
    told = []
    for name in ran:
        linear, network = DOCUMENTED[name]
        told.append(linear.source if linear == network else f"linear models {linear.source}; networks {network.source}")
    loaded = any(line.get("loaded") for task in tasks for line in task["lines"].values())
    marked = (
        " A star marks seconds that were taken while other programs wanted the processors; they are not drawn."
        if loaded
        else ""
    )
    return (
        "\n*As documented* has the settings of a peer's own example, not tuned: its batch at every silo (all records "
        "where there are fewer), passes over\nthe largest silo, step, clip and server; noise is certified as for "
        f"all others. Opacus: {told[0]}.\njax-privacy: {told[-1]}.\ntorch.func and Flower publish no settings for "
        f"training with differential privacy, so that they have no such line.{marked}\n"
    )


def _of_task(task: dict[str, Any]) -> str:
    sizes = task["records"]
    lines = [
        f"### {task['task']}: {len(sizes)} silos of {_range(sizes)} records",
        "",
        f"Settings are chosen on {task['validation']:,} records and tested on {task['test']:,}.",
        "",
        *_words(task["lines"]),
        "",
        *_errors_table(task["lines"]),
        "",
        *_settings_table(task["lines"]),
        "",
    ]
    return "\n".join(lines)


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def trained(lines: Mapping[str, Line]) -> dict[str, Line]:
    """The lines that were trained."""
    return {name: line for name, line in lines.items() if line["runs"]}


def final(line: Line) -> tuple[float, float]:
    """Mean and standard deviation of the error at the end."""
    errors = [run["errors"][-1] for run in line["runs"]]
    return float(np.mean(errors)), float(np.std(errors, ddof=1)) if len(errors) > 1 else 0.0


def seconds(line: Line) -> tuple[float, float]:
    """Median seconds until the end, and of set-up."""
    return (
        float(np.median([run["seconds"][-1] for run in line["runs"]])),
        float(np.median([run["setup"] for run in line["runs"]])),
    )


def at(line: Line, moment: float) -> float | None:
    """The mean error that a run has reached by then; none where some run has no round behind it."""
    found = []
    for run in line["runs"]:
        done = int(np.searchsorted(run["seconds"], moment, side="right"))
        if not done:
            return None
        found.append(run["errors"][done - 1])
    return float(np.mean(found))


def _words(lines: Mapping[str, Line]) -> list[str]:
    """Who ends where, in sentences."""
    ran = trained(lines)
    if not ran:
        return ["Nobody was trained."]
    best = min(ran, key=lambda name: final(ran[name])[0])
    peers = [name for name in ran if TRAINERS[name].plan in ("dp-sgd", "documented")]
    timed = [name for name in peers if not ran[name].get("loaded")]
    told = [f"The lowest error at the end: {_ends(ran[best])}."]
    if peers and "tacit" in ran and best not in peers:
        nearest = min(peers, key=lambda name: final(ran[name])[0])
        told.append(f"The lowest of a peer: {_ends(ran[nearest])}.")
    if timed:
        quickest = min(timed, key=lambda name: seconds(ran[name])[0])
        told.append(f"The first peer to end: {_ends(ran[quickest])}.")
    if "tacit" in ran and best != "tacit":
        told.append(f"Where each silo adds its own noise: {_ends(ran['tacit'])}.")
    return [" ".join(told)]


def _ends(line: Line) -> str:
    error, spread = final(line)
    whole, setup = seconds(line)
    return f"{line['title']}, {error:.3f} +- {spread:.3f} after {whole:.1f} s, of which {setup:.1f} s set-up"


def _errors_table(lines: Mapping[str, Line]) -> list[str]:
    ran = trained(lines)
    timed = [line for line in ran.values() if not line.get("loaded")]
    ends = [seconds(line)[0] for line in timed]
    begins = [min(run["seconds"][0] for run in line["runs"]) for line in timed]
    # From the last moment before anybody has a round behind it to the first at which all have ended.
    first = max([m for m in MOMENTS if m <= min(begins, default=0.0)], default=MOMENTS[0])
    last = min([m for m in MOMENTS if m >= max(ends, default=0.0)], default=MOMENTS[-1])
    moments = [moment for moment in MOMENTS if first < moment <= last]
    found = [
        f"| | error at the end | seconds | set-up | {' | '.join(f'{m:g} s' for m in moments)} |",
        f"| --- {'| --- ' * (3 + len(moments))}|",
    ]
    for line in lines.values():
        if not line["runs"]:
            found.append(f"| {line['title']} | refused: {line['missing']} {'| ' * (2 + len(moments))}|")
            continue
        (error, spread), (whole, setup) = final(line), seconds(line)
        reached = [None if line.get("loaded") else at(line, moment) for moment in moments]
        cells = ["" if value is None else f"{value:.3f}" for value in reached]
        star = "*" if line.get("loaded") else ""
        ending = f"{error:.3f} +- {spread:.3f} | {whole:.2f}{star} | {setup:.2f}{star}"
        found.append(f"| {line['title']} | {ending} | {' | '.join(cells)} |")
    return found


def _settings_table(lines: Mapping[str, Line]) -> list[str]:
    found = [
        "| | settings | tried | sigma / clip | certified epsilon | its own accountant's sigma / clip, and epsilon |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for line in lines.values():
        recipe, own = line["recipe"], line["own_accountant"]
        batches = "full batches" if recipe["sampling"] == "full" else f"batches of {_range(recipe['batch'])}"
        edge = " (edge)" if line["edge"] else ""
        settings = (
            f"{recipe['server']}, step {recipe['step']:.3g}, clip {recipe['clip']:.2g}{edge}, "
            f"{recipe['rounds']} rounds, {batches}, output {recipe['output']}"
        )
        noise = [2.0 * z for z in recipe["noise"]]
        epsilons = f"{min(line['certified']):.4f} to {max(line['certified']):.4f}"
        theirs = f"{own['sigma']:.2f}, {own['epsilon']:.2f}" if own else ""
        spread = f"{min(noise):.2f}" if max(noise) - min(noise) < 0.005 else f"{min(noise):.2f} to {max(noise):.2f}"
        found.append(f"| {line['title']} | {settings} | {line['tried']} | {spread} | {epsilons} | {theirs} |")
    return found


def draw(tasks: list[dict[str, Any]], path: Path) -> None:
    """Mean errors of all rounds against mean seconds, one panel for each task."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(tasks), figsize=(1.5 + 4.2 * len(tasks), 4.0), layout="constrained")
    for task, axes in zip(tasks, np.atleast_1d(panels), strict=True):
        timed = {name: line for name, line in trained(task["lines"]).items() if not line.get("loaded")}
        for number, (name, line) in enumerate(timed.items()):
            errors = np.mean([run["errors"] for run in line["runs"]], axis=0)
            moments = np.mean([run["seconds"] for run in line["runs"]], axis=0)
            style = "-" if name.startswith("tacit") else ":" if name in DOCUMENTED else "--"
            axes.plot(moments, errors, style, color=f"C{number}", label=line["title"])
            axes.plot(moments[-1], errors[-1], "o", color=f"C{number}")
        axes.set_xscale("log")
        axes.set_title(task["task"], fontsize=9)
        axes.set_xlabel("seconds, set-up included")
        axes.grid(alpha=0.3)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("test error")
    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
