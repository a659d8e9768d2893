"""The page and the figure, made from the measurements and nothing else."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.accountants import Found
from benchmarks.peers.bars import BARS, floor_of, timed
from benchmarks.peers.errors import page as errors
from benchmarks.peers.peers import PEERS
from benchmarks.peers.rounds import TOLERANCE, Measured, ratios
from benchmarks.peers.works import CLEAR

VERSIONS = (
    "jax",
    "torch",
    "opacus",
    "jax-privacy",
    "flwr",
    "ray",
    "dp-accounting",
    "autodp",
    "prv-accountant",
    "numpy",
)


def write(results: Mapping[str, Any], folder: Path) -> None:
    """``peers.md``, ``peers.json`` and the figures in a folder; parts that were not measured are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = json.dumps(results, default=asdict, indent=1)
    (folder / "peers.json").write_text(plain + "\n", encoding="utf-8")
    if "rounds" in results:
        draw(results, folder / "peers.svg")
    if "errors" in results:
        errors.draw(results["errors"], folder / "peers-error.svg")
    (folder / "peers.md").write_text(page(results), encoding="utf-8")


def page(results: Mapping[str, Any]) -> str:
    """``peers.md``."""
    told = [_head(results), *(PAGES[name](results) for name in PAGES if name in results)]
    if "rounds" in results:
        told.insert(1, "\n".join([_bars(results), *_refused(results)]))
    return "\n".join(told)


def about(command: str, beside: str) -> dict[str, str]:
    """When, where and beside what a run was made."""
    return {
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{os.cpu_count()} cores,\n{platform.system()} {platform.machine()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in VERSIONS),
        "beside": beside,
    }


def stored(path: Path) -> dict[str, Any]:
    """The measurements that `write` left."""
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for row in results.get("rounds", ()):
        row["peers"] = {name: Measured(**own) for name, own in row["peers"].items()}
    for block in results.get("accountants", ()):
        block["found"] = [Found(**own) for own in block["found"]]
    return results


def _head(results: Mapping[str, Any]) -> str:
    own = results["about"]
    quick = "**A quick run on small works: it shows that everything works, and measures nothing.**\n\n"
    warning = quick if results["quick"] else ""
    return f"""# Tacit beside its peers

{warning}`{own["command"]}` on {own["date"]}, {results["threads"]} threads each, {own["machine"]},
{own["versions"]}. Load of the machine when it began: {results["load"]:.1f}.
{own["beside"]}

Here stands what one machine computes. Tacit's own link beside Flower with its SuperNodes is in
[deployment.md](deployment.md), and round times that others publish are quoted in [README.md](README.md).
"""


def _bars(results: Mapping[str, Any]) -> str:
    lines = ["## Bars", "", "| bar | limit | worst measured | |", "| --- | --- | --- | --- |"]
    for bar in BARS:
        value = bar.value(results)
        shown = "" if value is None else f"{value:.2f}"
        lines.append(
            f"| {bar.title} | {'>=' if bar.at_least else '<='} {bar.limit:g} | {shown} | {bar.verdict(results)} |"
        )
    return "\n".join([*lines, ""])


def refused(results: Mapping[str, Any]) -> list[str]:
    """Who was not timed, and why."""
    rows = [(row["work"], PEERS[name].title, own.missing) for row in results.get("rounds", ())
            for name, own in row["peers"].items()]  # fmt: skip
    rows += [(task["task"], line["title"], line["missing"]) for task in results.get("errors", ())
             for line in task["lines"].values()]  # fmt: skip
    return [f"{title} on {work}: {why}" for work, title, why in rows if why is not None]


def _refused(results: Mapping[str, Any]) -> list[str]:
    found = refused(results)
    return (
        ["**Not timed**, so that bars about it stay open:", "", *(f"- {line}" for line in found), ""] if found else []
    )


def _spread(over: Measured, under: Measured) -> str:
    middle, low, high = ratios(over, under)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _rounds(results: Mapping[str, Any]) -> str:
    lines = [f"""## Rounds

Everybody does the same: batches without replacement at every silo, gradients clipped record by record, the mean over
silos with noise, a step. Before it is timed, a peer must move the model from the same start where a loop over records
in float64 moves it, to a relative {TOLERANCE:.0e}; the records by which that is seen lie {CLEAR:g} or more from every
tie of a ReLU or a pool, where float32 and float64 may take different sides. Peers that know no silos get all silos'
batches as one, with one draw of noise, which is the fastest way to simulate them. Repetitions are interleaved, each
peer in a process of its own; a ratio is the median over repetitions, with quartiles. Compilation is not part of a round
and is shown by itself.

![Seconds per round](peers.svg)
"""]  # fmt: skip
    for row in results["rounds"]:
        peers = row["peers"]
        tacit, floor = timed(peers, "tacit"), floor_of(peers)
        lines += [
            f"### {row['work']}: batch {row['batch']}, {row['parameters']:,} parameters",
            "",
            "| peer | ms per round | over Tacit | over the fastest non-private | compile s | peak MB | agrees to |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for name, own in peers.items():
            title = PEERS[name].title
            if not own.seconds:
                lines.append(f"| {title} | left out: {own.missing} | | | | | |")
                continue
            cells = [
                f"{1e3 * float(np.median(own.seconds)):.2f}",
                _spread(own, tacit) if tacit else "",
                _spread(own, floor) if floor else "",
                f"{own.compile_seconds:.1f}",
                f"{own.peak_megabytes:.0f}",
                f"{own.distance:.0e}",
            ]
            lines.append(f"| {title} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _accountants(results: Mapping[str, Any]) -> str:
    lines = [
        "## Accountants",
        "",
        "The noise that each finds for a budget, and what that noise costs on a fine grid in the adjacency of who",
        "found it: above the budget is wrong, below it is noise in vain. Replacing a record is a harder question than",
        "adding one.",
        "",
    ]
    for block in results["accountants"]:
        lines += [
            f"### {block['question']}",
            "",
            "| accountant | adjacency | seconds | over Tacit | sigma / clip | epsilon of it |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        rows: list[Found] = block["found"]
        base = float(np.median(rows[0].seconds))
        for own in rows:
            if own.missing is not None:
                lines.append(f"| {own.asker} | {own.adjacency} | left out: {own.missing} | | | |")
                continue
            low, middle, high = np.quantile(own.seconds, (0.25, 0.5, 0.75))
            spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            found = f"{own.sigma:.4f} | {own.epsilon:.4f}"
            lines.append(f"| {own.asker} | {own.adjacency} | {spread} | {middle / base:.2f} | {found} |")
        lines.append("")
    return "\n".join(lines)


def _compiling(results: Mapping[str, Any]) -> str:
    found = results["compiling"]
    singles = found["single_seconds"]
    lines = [
        "## Compilation",
        "",
        f"A grid of {found['points']} runs took {found['grid_seconds']:.1f} s, as many single runs {sum(singles):.1f},",
        "compilation included. Six rounds of every algorithm at 25 silos, tracing, compiling and running, for the",
        "first time and from the cache:",
        "",
        "| algorithm | s at first | s again |",
        "| --- | --- | --- |",
        *(f"| {name} | {first:.2f} | {found['again'][name]:.2f} |" for name, first in found["first"].items()),
        "",
    ]
    return "\n".join(lines)


def _scale(results: Mapping[str, Any]) -> str:
    lines = [
        "## Scale",
        "",
        "Tacit alone: milliseconds per round (quartiles), what the compiled program reserves for temporaries, and what",
        "the process holds in memory of its own. Records on disk are mapped and only batches are read.",
        "",
        "| axis | value | ms per round | temporaries MB | process MB | compile s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in results["scale"]:
        low, high = (1e3 * q for q in row["quartiles"])
        sizes = f"{row['temporary_megabytes']:.1f} | {row['own_megabytes']:.0f} | {row['compile']:.1f}"
        time = f"{1e3 * row['seconds']:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {row['axis']} | {row['value']:,} | {time} | {sizes} |")
    drawn = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in results["generators"].items())
    return "\n".join([*lines, "", f"A million normals: {drawn}. Tacit draws with threefry2x32.", ""])


PAGES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "errors": lambda results: errors.section(results["errors"]),
    "rounds": _rounds,
    "accountants": _accountants,
    "compiling": _compiling,
    "scale": _scale,
}
"""The parts of the page, in order, by what was measured."""


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Seconds per round of every peer on every work: medians and quartiles on a logarithmic scale."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = results["rounds"]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.75 * len(rows)), layout="constrained")
    names = [name for name in PEERS if any(timed(row["peers"], name) for row in rows)]
    for number, name in enumerate(names):
        places, medians, low, high = [], [], [], []
        for place, row in enumerate(rows):
            own = timed(row["peers"], name)
            if own is not None:
                quartiles = np.quantile(1e3 * np.asarray(own.seconds), (0.25, 0.5, 0.75))
                places.append(place + 0.7 * (number / max(1, len(names) - 1) - 0.5))
                medians.append(quartiles[1])
                low.append(quartiles[1] - quartiles[0])
                high.append(quartiles[2] - quartiles[1])
        style: dict[str, Any] = {
            "fmt": "D" if name == "tacit" else "o",
            "color": "black" if name == "tacit" else f"C{number % 10}",
        }
        axes.errorbar(medians, places, xerr=[low, high], label=PEERS[name].title, markersize=5, **style)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [row["work"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per round")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
