"""What the page of benchmarks says of bars that are missed: ``python -m benchmarks.peers.missed`` writes it there.

It is made from ``peers.json`` alone, between two marks, so that it cannot say anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers.bars import BARS, COMPILED, TORCH, floor_of, rows_of, timed
from benchmarks.peers.page import stored
from benchmarks.peers.rounds import ratios

FOLDER = Path("results/benchmarks")
BEGIN, END = "<!-- from peers.json -->", "<!-- until here -->"
Results = Mapping[str, Any]
_COMPILED_LIMIT = next(bar.limit for bar in BARS if bar.title == COMPILED)
_TORCH_LIMIT = next(bar.limit for bar in BARS if bar.title.startswith(TORCH))


def paragraphs(results: Results) -> str:
    """A paragraph for each bar that is missed and known here."""
    missed = {bar.title for bar in BARS if bar.verdict(results) == "missed"}
    known = {BARS[0].title: private_rounds, BARS[2].title: ahead, COMPILED: compilation}
    known |= {title: torch_modules for title in missed if title.startswith(TORCH)}
    strange = missed - set(known)
    if strange:
        raise SystemExit(f"Say why these bars are missed: {', '.join(sorted(strange))}.")
    return "\n".join(say(results) for say in dict.fromkeys(say for title, say in known.items() if title in missed))


def private_rounds(results: Results) -> str:
    """Private rounds over the fastest non-private ones."""
    found = {row["work"]: over for row in _rows(results) if (over := _private(row["peers"])) is not None}
    worst, limit = max(found, key=lambda work: found[work]), BARS[0].limit
    above = [f"{work} ({over:.2f})" for work, over in found.items() if over > limit]
    return (
        f"- **Private over the fastest non-private round, linear models and MLPs ({limit:g})**: medians of "
        f"{min(found.values()):.2f} to {found[worst]:.2f} in\n  [peers.md](peers.md); above the bar: "
        f"{'; '.join(above)}."
    )


def ahead(results: Results) -> str:
    """Peers' rounds over Tacit's."""
    rows = rows_of(results, "mlp")
    silos = [row["silos"] for row in results["rounds"] if row["family"] == "mlp"]
    told = {
        name: ", ".join(f"{ratios(row[name], row['tacit'])[0]:.1f}" for row in rows)
        for name in ("opacus-hooks", "torch-func")
    }
    return (
        f"- **Opacus hooks and torch.func over Tacit, MLP 50-64-2 ({BARS[2].limit:g})**: hooks {told['opacus-hooks']} "
        f"and torch.func {told['torch-func']}\n  at {', '.join(map(str, silos))} silos. With {silos[0]} silos Tacit's "
        f"round takes {_private(rows[0]):.2f} of the fastest non-private one, so that\n  little is left to gain."
    )


def compilation(results: Results) -> str:
    """Seconds to compile algorithms."""
    first, again, limit = results["compiling"]["first"], results["compiling"]["again"], _COMPILED_LIMIT
    slow = {name: seconds for name, seconds in first.items() if seconds > limit}
    rest = [seconds for name, seconds in first.items() if name not in slow]
    told = ", ".join(f"`{name}` {seconds:.2f} s ({again[name]:.2f} from the cache)" for name, seconds in slow.items())
    return (
        f"- **Compilation ({limit:g} s)**: {len(rest)} of {len(first)} algorithms trace, compile and run six rounds in "
        f"{min(rest):.2f} to {max(rest):.2f} s;\n  above the bar: {told}."
    )


def torch_modules(results: Results) -> str:
    """Torch modules through Tacit over Opacus alone."""
    told = [
        f"{bar.title.removeprefix(TORCH)} {bar.value(results):.2f}"
        for bar in BARS
        if bar.title.startswith(TORCH) and bar.verdict(results) == "missed"
    ]
    said = f"- **A torch module through Tacit over Opacus ({_TORCH_LIMIT:g})**: {'; '.join(told)}."
    return f"{said} See *Torch modules* above."


def _rows(results: Results) -> list[dict[str, Any]]:
    """The works with linear models and MLPs, those of SPIDER among them."""
    return [row for row in results["rounds"] if row["family"] != "cnn"]


def _private(peers: Mapping[str, Any]) -> float | None:
    """Tacit's round over the fastest non-private one."""
    own, floor = timed(dict(peers), "tacit"), floor_of(dict(peers))
    return None if own is None or floor is None else ratios(own, floor)[0]


def filled(text: str, results: Results) -> str:
    """A page with these paragraphs between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"Expected a page with {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n\n{paragraphs(results)}\n\n{END}{after}"


def main() -> None:
    """Write the paragraphs into the page."""
    page = FOLDER / "README.md"
    page.write_text(filled(page.read_text(encoding="utf-8"), stored(FOLDER / "peers.json")), encoding="utf-8")


if __name__ == "__main__":
    main()
