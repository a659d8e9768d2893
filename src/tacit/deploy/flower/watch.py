"""Start a run and watch it: rounds, participants, loss, epsilon spent, time left."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tacit.deploy.flower.commands import await_end, read_control
from tacit.deploy.flower.private import Link
from tacit.errors import TacitError, printable
from tacit.stopping import ToldInterrupt

_LOOK = 0.5
_GRACE = 75.0
"""Longer than a leader takes to end a study at every silo."""
_PRINTED = ("met", "warning", "waiting", "consent", "refusal", "round", "missing", "validating", "validated", "failed")
"""Events that are printed line by line where there is no terminal to draw on."""

_FINAL = "Asking again would end in the same way: change the study, and start it anew without --resume."


class View:
    """The state of a run, from its journal."""

    def __init__(self, path: Path, skip: int = 0) -> None:
        self._path, self._seen = path, skip
        self.rows: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {"state": "starting", "round": 0, "rounds": None, "note": ""}

    def read(self) -> list[dict[str, Any]]:
        """Read what is new in the journal."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        fresh = [json.loads(line, object_hook=_shown) for line in lines[self._seen :]]
        self._seen += len(fresh)
        for row in fresh:
            self._take(row)
        return fresh

    def _take(self, row: dict[str, Any]) -> None:
        event, facts = row["event"], self.facts
        if event in ("started", "finished", "failed"):
            facts["state"] = event
            facts |= {"note": row.get("text", ""), "final": row.get("final", False)}
        elif event == "met":
            facts["note"] = f"met {row['silo']} ({row['records']} records)"
        elif event in ("warning", "validating"):
            facts["note"] = row["text"]
        elif event == "missing":
            facts["note"] = f"round {row['round']} waits for {', '.join(row['silos'])}"
        elif event == "waiting":
            facts["note"] = f"{row['silo']} waits for {row['for']}; compare {row['compare']}"
        elif event == "refusal":
            facts["note"] = f"{row['silo']} refuses ({row['code']}): {row['text']}"
        elif event == "round":
            self.rows.append(row)
            facts |= {"round": row["round"], "rounds": row["rounds"], "note": ""}
        elif event == "measured" and self.rows:
            self.rows[-1] |= {k: row[k] for k in row if k not in ("time", "event", "round", "rounds")}

    @property
    def left(self) -> float | None:
        """Seconds until the last round, at the pace of the latest ones."""
        if not self.rows or self.facts["rounds"] is None:
            return None
        pace = [row["seconds"] for row in self.rows[-5:]]
        return (self.facts["rounds"] - self.facts["round"]) * sum(pace) / len(pace)

    def table(self) -> Table:
        """The latest rounds."""
        facts, left = self.facts, self.left
        title = f"{facts['state']}: round {facts['round']} of {facts['rounds'] or '?'}"
        title = title if left is None else f"{title}, about {left:.0f} s left"
        table = Table(title=title, caption=Text(facts["note"], style="table.caption"))
        for column in ("round", "silos", "missed", "seconds", "loss", "epsilon spent"):
            table.add_column(column)
        for row in self.rows[-8:]:
            loss, spent = row.get("train_loss"), row.get("epsilon")
            silos, missed = Text(", ".join(row["silos"])), Text(", ".join(row["missed"]) or "–")
            loss_text = "–" if loss is None else f"{loss:.4f}"
            spent_text = "–" if spent is None else f"{spent:.3f}"
            table.add_row(str(row["round"]), silos, missed, f"{row['seconds']:.1f}", loss_text, spent_text)
        return table


def follow(
    folder: Path, control: Path, console: Console, still_there: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Start the study of a run folder over a SuperLink and watch it to its end; an interrupt stops it."""
    journal = folder / "progress.jsonl"
    skip = len(journal.read_text(encoding="utf-8").splitlines()) if journal.exists() else 0
    view, leader = View(journal, skip), start(folder, control)
    try:
        with Live(view.table(), console=console, refresh_per_second=2, transient=not console.is_terminal) as live:
            while True:
                ended = leader.poll()
                for row in view.read():
                    if not console.is_terminal and row["event"] in _PRINTED:
                        console.print(Text(_line(row)), soft_wrap=True)
                live.update(view.table())
                if view.facts["state"] in ("finished", "failed"):
                    break
                if ended is not None:
                    raise TacitError(_ended(folder, ended))
                still_there()
                time.sleep(_LOOK)
    except KeyboardInterrupt:
        console.print("Stopping; silos are told if nothing is worth going on with.")
        _end(leader, asked=False)
        view.read()
        console.print(Text(_stopped(folder, final=bool(view.facts.get("final")))), soft_wrap=True)
        raise ToldInterrupt from None
    finally:
        _end(leader, asked=view.facts["state"] in ("finished", "failed"))
    if view.facts["state"] == "failed":
        way_out = _FINAL if view.facts["final"] else f"Go on with --resume {folder}."
        raise TacitError(f"{view.facts['note'].rstrip('.')}. {way_out}")
    return view.facts


def _stopped(folder: Path, *, final: bool) -> str:
    """What became of a run that was interrupted."""
    if final:
        return "Stopped, and ended at its silos: start it anew without --resume."
    return (
        f"Stopped; the study is open at its silos. Go on with: tacit server run ... --resume {folder}, or end it with: "
        f"tacit server abort {folder} ..."
    )


def start(folder: Path, control: Path) -> subprocess.Popen[bytes]:
    """Start the process that leads a study, if there is a SuperLink; it ends with this one."""
    with Link(read_control(control)) as link:
        link.nodes()
    command = [sys.executable, "-m", "tacit.deploy.flower.leader", str(folder), str(control)]
    with (folder / "leader.log").open("ab") as log:
        # A session of its own, so that an interrupt reaches it through this process only.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


def _end(leader: subprocess.Popen[bytes], *, asked: bool) -> None:
    """See a leader end; it ends by itself where its study is over."""
    if not asked:
        leader.terminate()
    await_end(leader, _GRACE)
    if leader.stdin is not None:
        with contextlib.suppress(OSError):
            leader.stdin.close()


def _ended(folder: Path, code: int) -> str:
    lines = (folder / "leader.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = printable(lines[-1]) if lines else f"code {code}"
    log = folder / "leader.log"
    return f"The process that led the study has ended: {last} (all in {log}). Go on with --resume {folder}."


def _shown(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a journal, whose texts may be those of silos: each line of them `printable`."""
    return {k: "\n".join(map(printable, v.split("\n"))) if isinstance(v, str) else v for k, v in facts.items()}


def _line(row: dict[str, Any]) -> str:
    facts = {k: v for k, v in row.items() if k not in ("time", "event")}
    return f"{row['event']}: " + ", ".join(f"{k} {_short(v)}" for k, v in facts.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
