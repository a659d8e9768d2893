"""The live view of ``tacit run``: parts of the run, rounds, loss, epsilon spent, time left, and the grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

if TYPE_CHECKING:
    from tacit.studies.run import Prepared
    from tacit.studies.stages import Sight

_BEST = 12  # points of a grid that fit on a screen


class RunView:
    """What there is to see of a run, from the sights that it tells."""

    def __init__(self, title: str, parts: list[str], points: list[dict[str, Any]], epsilon: float | None) -> None:
        self.title, self.points, self.epsilon = title, points, epsilon
        self.sights: dict[str, Sight | None] = dict.fromkeys(parts)
        self._begun: dict[str, tuple[float, int]] = {}
        self._clock = time.monotonic

    def see(self, sight: Sight) -> None:
        """Take in a sight."""
        self.sights[sight.label] = sight
        self._begun.setdefault(sight.label, (self._clock(), sight.done))

    def left(self, sight: Sight) -> float | None:
        """Seconds that this part still takes, at the pace since its first sight (compiling is not counted)."""
        begun, done = self._begun[sight.label]
        if sight.done <= done:
            return None
        return (sight.total - sight.done) * (self._clock() - begun) / (sight.done - done)

    def __rich__(self) -> RenderableType:
        headings = ("part", "", "rounds", "training loss", "epsilon spent", "time left")
        table = Table(*(Column(name, no_wrap=True) for name in headings), title=self.title, title_justify="left")
        for label, sight in self.sights.items():
            table.add_row(label, *self._cells(sight))
        grid = self.sights.get("grid")
        return table if grid is None or grid.loss is None else Group(table, self._grid(grid.loss))

    def _cells(self, sight: Sight | None) -> tuple[RenderableType, ...]:
        if sight is None:
            return (ProgressBar(total=1, completed=0, width=20), "waiting", "", "", "")
        left = self.left(sight)
        loss = "" if sight.loss is None else f"{min(sight.loss):.4f}"
        spent = "" if sight.epsilon is None else f"{sight.epsilon:.3f} of {self.epsilon or sight.epsilon:.3f}"
        ends = "done" if sight.done == sight.total else "" if left is None else f"{_duration(left)}"
        bar = ProgressBar(total=sight.total, completed=sight.done, width=20)
        return bar, f"{sight.done}/{sight.total}", loss, spent, ends

    def _grid(self, losses: Any) -> Table:
        ranked = sorted(range(len(self.points)), key=lambda i: (losses[i] != losses[i], losses[i]))[:_BEST]
        shown = f", the {_BEST} best of {len(self.points)}" if len(self.points) > _BEST else ""
        table = Table(*self.points[0], "training loss", title=f"grid{shown}", title_justify="left")
        for i in sorted(ranked):
            style = "bold" if i == ranked[0] else ""
            table.add_row(*(f"{v}" for v in self.points[i].values()), f"{losses[i]:.4f}", style=style)
        return table


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@contextmanager
def live_view(prepared: Prepared, *, quiet: bool) -> Iterator[Callable[[Sight], None] | None]:
    """Show a run on standard error while it goes on; nothing where a machine reads."""
    from tacit.studies.run import points_of
    from tacit.studies.stages import CONVERGED, NO_NOISE

    if quiet:
        yield None
        return
    study = prepared.study
    private = study.privacy.private
    parts = ["training", NO_NOISE] if private else ["training, not private"]
    parts += [CONVERGED] * (study.run.converged or study.run.alone) + ["grid"] * bool(study.run.grid)
    prices = [silo.price.epsilon for silo in prepared.plan.silos if silo.price is not None]
    title = f"{study.name}: {study.algorithm.name}, {len(prepared.names)} silos, {len(prepared.federations)} seeds"
    view = RunView(title, parts, points_of(study.run.grid), max(prices, default=None))
    with Live(view, console=Console(stderr=True), refresh_per_second=4, transient=True) as live:

        def watch(sight: Sight) -> None:
            view.see(sight)
            live.refresh()

        yield watch


@contextmanager
def progress_bars(*, quiet: bool) -> Iterator[Callable[[str, int, int | None], None] | None]:
    """A progress bar for each label on standard error; none where a machine reads.

    Without a total, which may be a secret, it shows that something goes on, and not how far.
    """
    if quiet:
        yield None
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def watch(label: str, done: int, total: int | None) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=done)

        yield watch
