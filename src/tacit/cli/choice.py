"""What ``tacit choose`` found, as tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from tacit.choosing import Candidate, Situation
    from tacit.choosing.candidates import Measure

GOALS: dict[str, Measure] = {
    "population": "population excess risk",
    "empirical": "empirical excess risk",
    "gradient": "squared gradient",
}


@dataclass(frozen=True)
class Choice:
    """A situation, every algorithm held against it, the winner, and what was wanted."""

    situation: Situation
    found: tuple[Candidate, ...]
    best: Candidate | None
    assumed: list[str]
    written: str | None
    goal: Measure | None
    can_tune: bool

    @property
    def missed(self) -> str | None:
        """A sentence where the winner's promise is of another kind than was asked for."""
        if self.best is None or self.goal in (None, self.best.measure):
            return None
        return f"No promise on {self.goal} holds here: the winner's is on {self.best.measure}, which is another thing."


def print_choice(told: Choice) -> None:
    """The theorems that apply, those that do not and why, what was assumed, and the winner."""
    console, found = Console(), told.found
    _print_theorems(found, told.best, console)
    others = Table(Column("algorithm", no_wrap=True), "why not", title="theorems that do not apply")
    for c in found:
        if not c.applies:
            others.add_row(c.algorithm, escape("; ".join(c.reasons)))
    if others.row_count:
        console.print(others)
    console.print(
        f"At the smallest silo, {told.situation.records} records. Bounds are on population or empirical excess risk, "
        "or on the squared gradient. A bound has all its constants; a rate has its constant set to one and compares, "
        "but promises nothing."
    )
    for line in told.assumed:
        console.print(f"assumed  {line}", highlight=False)
    _print_winner(told, console)


def _print_theorems(found: tuple[Candidate, ...], best: Candidate | None, console: Console) -> None:
    from tacit.theory import conditions_text

    headings = ("algorithm", "channel", "bounds", "bound", "rate", "rounds")
    # Narrow enough for 80 columns, with the longest names.
    table = Table(
        *(Column(name, no_wrap=True) for name in headings),
        title="theorems that apply",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    short = {measure: goal for goal, measure in GOALS.items()}
    failures = []
    for c in found:
        if c.applies:
            name = f"[bold green]{c.algorithm}[/]" if c is best else c.algorithm
            measure = "" if c.measure is None else short[c.measure]
            table.add_row(name, c.channel, measure, _number(c.bound), _number(c.rate), str(c.rounds))
            failures += [f"{c.algorithm}: {conditions_text(c.failed)}"] if c.failed else []
    if table.row_count:
        console.print(table)
    for line in failures:
        console.print(escape(line), highlight=False)


def _print_winner(told: Choice, console: Console) -> None:
    best, written = told.best, told.written
    if best is None:
        console.print("[bold red]No theorem applies.[/] See the reasons above.")
        return
    from tacit.theory import conditions_text

    console.print(f"Winner: [bold green]{best.algorithm}[/] ({best.source}), {best.rounds} rounds.")
    console.print(escape(best.sentence or conditions_text(best.failed)))
    if told.missed is not None:
        console.print(f"[bold red]{told.missed}[/]")
    if best.failed:
        console.print(
            "More records or silos, a larger epsilon, or fewer parameters would help; practice is often better than "
            "theory."
        )
    if written is None:
        console.print("A study of it: add --out FILE.toml")
    else:
        console.print(f"Wrote {written}. Next: tacit plan {written}; tacit run {written}", highlight=False)
        if told.can_tune:
            _print_tuning(best, written, console)


def _print_tuning(best: Candidate, written: str, console: Console) -> None:
    """How to look for a longer step than the theorem's, where it has one."""
    step = best.parameters.get("step_size")
    if isinstance(step, int | float):
        longer = [float(f"{step * factor:.3g}") for factor in (1, 10, 100)]
        console.print(
            "Its step is the theorem's, safe for the worst records. This looks for a better one within the budget: "
            f'tacit tune {written} --grid "algorithm.step_size={longer}"',
            markup=False,
            highlight=False,
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
