"""What ``tacit choose`` found, as tables and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

if TYPE_CHECKING:
    from tacit.choosing import Candidate, Situation

GOALS = {
    "population": "population excess risk",
    "empirical": "empirical excess risk",
    "gradient": "squared gradient",
}


def print_choice(
    situation: Situation, found: tuple[Candidate, ...], best: Candidate | None, assumed: list[str], written: str | None
) -> None:
    """The theorems that apply, those that do not and why, what was assumed, and the winner."""
    console = Console()
    _print_theorems(found, best, console)
    others = Table(Column("algorithm", no_wrap=True), "why not", title="theorems that do not apply")
    for c in found:
        if not c.applies:
            others.add_row(c.algorithm, escape("; ".join(c.reasons)))
    if others.row_count:
        console.print(others)
    console.print(
        f"At the smallest silo, {situation.records} records. Bounds are on population or empirical excess risk, or on "
        "the squared gradient. A bound has all its constants; a rate has its constant set to one and compares, but "
        "promises nothing."
    )
    for line in assumed:
        console.print(f"assumed  {line}", highlight=False)
    _print_winner(best, written, console)


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
            measure = short.get(c.measure or "", c.measure or "")
            table.add_row(name, c.channel, measure, _number(c.bound), _number(c.rate), str(c.rounds))
            failures += [f"{c.algorithm}: {conditions_text(c.failed)}"] if c.failed else []
    if table.row_count:
        console.print(table)
    for line in failures:
        console.print(escape(line), highlight=False)


def _print_winner(best: Candidate | None, written: str | None, console: Console) -> None:
    if best is None:
        console.print("[bold red]No theorem applies.[/] See the reasons above.")
        return
    from tacit.theory import conditions_text

    console.print(f"Winner: [bold green]{best.algorithm}[/] ({best.source}), {best.rounds} rounds.")
    console.print(escape(best.sentence or conditions_text(best.failed)))
    if best.failed:
        console.print(
            "More records or silos, a larger epsilon, or fewer parameters would help; practice is often better than "
            "theory."
        )
    if written is None:
        console.print("A study of it: add --out FILE.toml")
    else:
        console.print(f"Wrote {written}. Next: tacit plan {written}; tacit run {written}", highlight=False)
        _print_tuning(best, written, console)


def _print_tuning(best: Candidate, written: str, console: Console) -> None:
    """How to look for a longer step than the theorem's, where it has one."""
    step = best.parameters.get("step_size")
    if isinstance(step, int | float):
        longer = [float(f"{step * factor:.3g}") for factor in (1, 10, 100)]
        console.print(
            "Its step is the theorem's, safe for the worst records; a better one within the budget: "
            f'tacit tune {written} --grid "algorithm.step_size={longer}"',
            markup=False,
            highlight=False,
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
