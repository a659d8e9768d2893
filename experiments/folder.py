"""Result folders: numbers (``data.json``), figures, and a page that follows from the numbers alone."""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from tacit.studies.folder import provenance

Data = dict[str, Any]

PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "pages"),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters["fmt"] = format
PAGES.filters["paragraph"] = lambda text: " ".join(text.split()) + "\n"


def render(template: str, **told: Any) -> str:
    """The text of a page; a name that the template needs and is not told raises."""
    return PAGES.get_template(template).render(**told)


PROTOCOL = 2
"""Of numbers with three tuning seeds, no choice at an edge and intervals; numbers without it have an earlier page."""


EARLIER = """
**Earlier numbers.** Settings were chosen with less care than on other pages: on one seed, or at an edge of what was
tried, or not alike for all methods. They stand until the study is run again; read differences with that in mind.
"""
"""What a page says under its title where its numbers are of an earlier protocol."""


@dataclass(frozen=True)
class Earlier:
    """How numbers of an earlier protocol are shown until their study is run again: ``pages/earlier/NAME.md.j2``."""

    draw: Callable[[Path, Data], None]
    words: Callable[[Data], Data]


@dataclass(frozen=True)
class Finding:
    """What a card of the gallery says of numbers: one sentence, and a word."""

    found: str
    verdict: str


@dataclass(frozen=True)
class Experiment:
    """A result folder and how it is made.

    ``compute`` makes the numbers from the command line's options, at once or yielding what there is after each of its
    ``parts``; ``draw`` makes the figures, and ``words`` what the template ``pages/NAME.md.j2`` says beyond the numbers.
    Both read numbers as they stand in ``data.json`` (and their folder as ``folder``): a page can be written again
    (``--page``) without running anything. ``finding`` says what the gallery shows of them. Numbers of a protocol before
    ``since`` are earlier ones: their page says so, and the gallery's words are then those of ``gallery.toml``.
    """

    name: str
    compute: Callable[[argparse.Namespace], Data | Iterator[Data]]
    draw: Callable[[Path, Data], None]
    words: Callable[[Data], Data]
    module: str = ""
    template: str = ""
    tiny: bool = False
    parts: tuple[str, ...] = ()
    earlier: Earlier | None = None
    finding: Callable[[Data], Finding] | None = None
    since: int = 0

    def is_earlier(self, data: Data) -> bool:
        """Whether these numbers are of a protocol before the one that the study has now."""
        return int(data.get("protocol", 0)) < self.since

    @property
    def command(self) -> str:
        """What makes the folder."""
        return f"python -m experiments.{self.module or self.name.replace('-', '_')}"

    def parser(self) -> argparse.ArgumentParser:
        """The options that every experiment has."""
        parser = argparse.ArgumentParser(prog=self.command)
        parser.add_argument("--out", type=Path, default=Path("results") / self.name, help="Folder to write.")
        parser.add_argument("--page", action="store_true", help="Write figures and page again from data.json alone.")
        if self.tiny:
            parser.add_argument("--tiny", action="store_true", help="A small setting, to see that everything runs.")
        if self.parts:
            only = "Leave the others out."
            parser.add_argument("--parts", nargs="+", choices=self.parts, default=self.parts, help=only)
        return parser

    def main(self, arguments: Sequence[str] | None = None) -> None:
        """Make the folder."""
        started, given = time.perf_counter(), self.parser().parse_args(arguments)
        given.out.mkdir(parents=True, exist_ok=True)
        if given.page:
            self.show(given.out, json.loads((given.out / "data.json").read_text(encoding="utf-8")))
            return
        made = self.compute(given)
        for data in [made] if isinstance(made, dict) else made:
            self.publish(given.out, data, started)

    def publish(self, folder: Path, data: Data, started: float) -> None:
        """Write the numbers with what made them, the figures and the page."""
        seconds = max(time.perf_counter() - started, worked(folder))
        made = {**provenance(self.command), "seconds": round(seconds, 1)}
        text = json.dumps({"provenance": made, **data}, indent=1) + "\n"
        (folder / "data.json").write_text(text, encoding="utf-8")
        self.show(folder, json.loads(text))

    def show(self, folder: Path, data: Data) -> None:
        """Write the figures and the page."""
        self._shown(data).draw(folder, data)
        (folder / "README.md").write_text(self.page(folder, data), encoding="utf-8")

    def _shown(self, data: Data) -> Experiment | Earlier:
        """Who shows these numbers."""
        return self.earlier if self.earlier is not None and self.is_earlier(data) else self

    def page(self, folder: Path, data: Data) -> str:
        """The page of these numbers."""
        shown = self._shown(data)
        told = {**data, **shown.words({**data, "folder": folder})}
        own = self.template or f"{self.name}.md.j2"
        body = render(own if shown is self else f"earlier/{self.name}.md.j2", **told)
        if self.is_earlier(data):
            body = body.replace("\n", f"\n{EARLIER}", 1)
        return body + render("footer.md.j2", made=data["provenance"], now=self.command)


def worked(folder: Path) -> float:
    """The seconds of all trials, or of all parts, that lie in a folder: what a study took that was stopped between."""
    parts, trials = folder / "parts.json", folder / "trials.jsonl"
    found = json.loads(parts.read_text(encoding="utf-8"))["found"] if parts.exists() else {}
    lines = trials.read_text(encoding="utf-8").splitlines() if trials.exists() else []
    return max(
        sum(part["seconds"] for part in found.values()), sum(json.loads(line).get("seconds", 0.0) for line in lines)
    )


def fingerprint_of(settings: Any) -> str:
    """A short name of plain data: what was made with other settings is not read again."""
    return hashlib.sha256(json.dumps(settings, default=str).encode()).hexdigest()[:16]


@dataclass
class Parts:
    """Finished parts in a file; one that other ``settings`` (plain data) have made is not read."""

    path: Path
    settings: Any
    found: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.fingerprint = fingerprint_of(self.settings)
        stored = json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        self.found = stored.get("found", {}) if stored.get("settings") == self.fingerprint else {}

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


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table.

    >>> print(table(["in", "slope"], [["rounds", -1]]))
    | in | slope |
    | --- | --- |
    | rounds | -1 |
    """
    lines = [list(header), ["---"] * len(header), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def save(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a figure and forget it."""
    figure.savefig(path, dpi=dpi)
    plt.close(figure)
