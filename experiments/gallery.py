"""The gallery: every committed figure and table, the paper's claim, what is found here, and how to make it again."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from experiments.folder import Experiment, render
from experiments.works import lines
from tacit.errors import TacitError, unknown

HERE = Path(__file__).parent
_LAUNCH = """
import runpy, sys
from tacit.errors import TacitError
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except TacitError as error:
    sys.exit(f"error: {error}")
"""


VERDICTS = ("reproduced", "partly", "level", "differs", "inconclusive", "none")
"""Of a paper's claim by what is found here; ``none`` where there is no claim."""


@dataclass(frozen=True)
class Exhibit:
    """One result folder: a card.

    ``claim`` is in the paper's words where it quotes. ``differs`` says where we find something else than the paper, and
    ``found`` our number: where there is a ``finding`` of the folder's numbers, both follow from them.
    """

    name: str
    source: str
    claim: str
    minutes: int
    verdict: str = "inconclusive"
    found: str = ""
    differs: str = ""
    data: str = "none"
    arguments: Sequence[str] = ()
    page: str = "README.md"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise TacitError(f"Expected verdict={self.verdict!r} of {self.name} to be one of {', '.join(VERDICTS)}.")

    @property
    def call(self) -> Sequence[str]:
        """The module to run and its arguments; ``{out}`` is the folder to write."""
        return self.arguments or (f"experiments.{self.name.replace('-', '_')}", "--out", "{out}")

    def card(self, results: Path) -> Exhibit:
        """The card of the folder's own numbers, where they speak for themselves and are no earlier ones."""
        audit = _data(results / self.name / "audit.json")
        if any("path" in row for row in audit.get("mechanisms", ())):
            said = importlib.import_module("experiments.audit.card").card(audit)
            return replace(self, found=said.found, verdict=said.verdict)
        data = _data(results / self.name / "data.json")
        own = self._experiment() if data else None
        if own is None or own.finding is None or own.is_earlier(data):
            return self
        said = own.finding(data)
        return replace(self, found=said.found, verdict=said.verdict, differs="")

    def _experiment(self) -> Experiment | None:
        """What makes the folder and speaks of its numbers; it is loaded only where there are some."""
        fair = importlib.import_module("experiments.fair.driver")
        if self.name in fair.PAGES:
            return cast(Experiment, fair.experiment(self.name))
        return cast("Experiment | None", getattr(importlib.import_module(self.call[0]), "EXPERIMENT", None))


def _data(path: Path) -> dict[str, Any]:
    """What a result is made of; nothing where it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


EXHIBITS = {
    name: Exhibit(name, **row)
    for name, row in tomllib.loads((HERE / "gallery.toml").read_text(encoding="utf-8")).items()
}


def find_exhibit(name: str) -> Exhibit:
    """The exhibit of this name, or an error that names the nearest one."""
    if name not in EXHIBITS:
        raise TacitError(unknown("result", name, EXHIBITS) + " `tacit reproduce --list` shows all.")
    return EXHIBITS[name]


def reproduce(
    exhibit: Exhibit, results: Path, call: Callable[[Sequence[str]], int] = lambda command: subprocess.call(command)
) -> int:
    """Make one exhibit again under ``results``, in a process of its own; returns its exit code."""
    folder = results / exhibit.name
    folder.mkdir(parents=True, exist_ok=True)
    parts = (part.format(out=folder) for part in exhibit.call)
    return call([sys.executable, "-c", _LAUNCH, str(HERE.parent), *parts])


def index(results: Path) -> str:
    """The text of ``results/README.md``: one row for every folder that is there."""
    here = sorted(path.name for path in results.iterdir() if path.is_dir())
    strangers = [name for name in here if name not in EXHIBITS]
    if strangers:
        raise TacitError(f"{results / strangers[0]} is not in the gallery; describe it in experiments/gallery.toml.")
    shown = [exhibit.card(results) for name, exhibit in EXHIBITS.items() if name in here]
    figures = {e.name: sorted(path.name for path in (results / e.name).glob("*.png")) for e in shown}
    missing = [name for name in EXHIBITS if name not in here]
    return render("results.md.j2", shown=shown, missing=missing, figures=figures)


def short(results: Path) -> str:
    """The text of ``results/does-it-work.md``: ten lines for somebody who asks just that."""
    return render("works.md.j2", lines=lines(results))
