"""The gallery: every committed figure and table, the paper's claim, what is found here, and how to make it again."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.folder import render
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


@dataclass(frozen=True)
class Exhibit:
    """One result folder.

    ``differs`` says where we find something else than the paper, ``found`` our number; both are empty until a result is
    there to speak of, and then the page itself has to be read.
    """

    name: str
    source: str
    claim: str
    minutes: int
    found: str = ""
    differs: str = ""
    data: str = "none"
    arguments: Sequence[str] = ()
    page: str = "README.md"

    @property
    def call(self) -> Sequence[str]:
        """The module to run and its arguments; ``{out}`` is the folder to write."""
        return self.arguments or (f"experiments.{self.name.replace('-', '_')}", "--out", "{out}")

    @property
    def difference(self) -> str:
        """What the index says of it."""
        nothing = "see its page" if not self.found else "nowhere"
        return self.differs or ("nothing to compare with" if self.claim == "none" else nothing)


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
    shown = [exhibit for name, exhibit in EXHIBITS.items() if name in here]
    figures = [(e, path) for e in shown for path in sorted((results / e.name).glob("*.png"))]
    missing = [name for name in EXHIBITS if name not in here]
    return render("results.md.j2", shown=shown, missing=missing, figures=figures)
