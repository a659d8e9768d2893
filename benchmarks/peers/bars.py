"""The bars, all of them, in one table; a bar is met, missed or not measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.rounds import Measured, ratios

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Bar:
    """A limit on a number of the results; the worst case counts."""

    title: str
    limit: float
    at_least: bool
    value: Callable[[Results], float | None]

    def verdict(self, results: Results) -> str:
        """In one word or two."""
        value = self.value(results)
        if value is None:
            return "not measured"
        return "met" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"


def rows_of(results: Results, family: str, silos: int | None = None) -> list[dict[str, Measured]]:
    """The measurements of all works of a family."""
    return [
        row["peers"] for row in results.get("rounds", ()) if row["family"] == family and silos in (None, row["silos"])
    ]


def timed(row: dict[str, Measured], name: str) -> Measured | None:
    """A peer of a row, if it was timed."""
    found = row.get(name)
    return found if found is not None and found.seconds and found.missing is None else None


def floor_of(row: dict[str, Measured]) -> Measured | None:
    """The fastest peer that is not private; none unless all of them were timed."""
    plain = [own for name in ("jax-plain", "torch-plain") if (own := timed(row, name)) is not None]
    if len(plain) < 2:
        return None
    return min(plain, key=lambda own: sorted(own.seconds)[len(own.seconds) // 2], default=None)


def over_floor(*families: str) -> Callable[[Results], float | None]:
    """Tacit over the fastest non-private round, at its worst."""

    def value(results: Results) -> float | None:
        pairs = [(timed(row, "tacit"), floor_of(row)) for family in families for row in rows_of(results, family)]
        if any(own is None or floor is None for own, floor in pairs):
            return None
        return max((ratios(own, floor)[0] for own, floor in pairs if own and floor), default=None)

    return value


def ahead_of(family: str, *peers: str, silos: int | None = None) -> Callable[[Results], float | None]:
    """A peer's round over Tacit's, at its worst; a peer that was not timed leaves the bar open."""

    def value(results: Results) -> float | None:
        found = []
        for row in rows_of(results, family, silos):
            own = timed(row, "tacit")
            others = [timed(row, name) for name in peers]
            if own is None or None in others:
                return None
            found += [ratios(other, own)[0] for other in others if other is not None]
        return min(found, default=None)

    return value


def torch_over(peer: str, *families: str) -> Callable[[Results], float | None]:
    """A torch module's round through Tacit over one of a peer alone, at its worst."""

    def value(results: Results) -> float | None:
        rows = [row for family in families for row in rows_of(results, family)]
        pairs = [(timed(row, "tacit-torch"), timed(row, peer)) for row in rows]
        if any(None in pair for pair in pairs):
            return None
        return max((ratios(own, other)[0] for own, other in pairs if own and other), default=None)

    return value


def number(*path: str) -> Callable[[Results], float | None]:
    """A number that lies in the results."""

    def value(results: Results) -> float | None:
        found: Any = results
        for step in path:
            found = found.get(step) if found is not None else None
        return found

    return value


COMPILED = "seconds to trace, compile and run six rounds of the slowest algorithm"
TORCH = "Tacit, a torch module / "
BARS = (
    Bar("private / fastest non-private round, logistic and MLP", 1.3, False, over_floor("logistic", "mlp", "wide")),
    Bar("private / fastest non-private round, CNN", 1.5, False, over_floor("cnn")),
    Bar("torch.func and Opacus hooks / Tacit, MLP 50-64-2", 20.0, True, ahead_of("mlp", "torch-func", "opacus-hooks")),
    Bar("the same, MLP 784-256-10", 20.0, True, ahead_of("wide", "torch-func", "opacus-hooks")),
    Bar("Opacus ghost clipping / Tacit, MLP 50-64-2", 2.0, True, ahead_of("mlp", "opacus-ghost")),
    Bar("the same, MLP 784-256-10", 2.0, True, ahead_of("wide", "opacus-ghost")),
    Bar(
        "torch.func and Opacus / Tacit, CNN",
        1.5,
        True,
        ahead_of("cnn", "torch-func", "opacus-hooks", "opacus-ghost"),
    ),
    Bar("Tacit, a torch module / Opacus hooks, MLPs", 1.3, False, torch_over("opacus-hooks", "mlp", "wide")),
    Bar("Tacit, a torch module / Opacus hooks, linear", 1.3, False, torch_over("opacus-hooks", "logistic")),
    Bar("Tacit, a torch module / Opacus hooks, CNN", 1.3, False, torch_over("opacus-hooks", "cnn")),
    Bar("Tacit, a torch module / Opacus ghost clipping, MLPs", 1.3, False, torch_over("opacus-ghost", "mlp", "wide")),
    Bar("Tacit, a torch module / Opacus ghost clipping, linear", 1.3, False, torch_over("opacus-ghost", "logistic")),
    Bar("Tacit, a torch module / Opacus ghost clipping, CNN", 1.3, False, torch_over("opacus-ghost", "cnn")),
    Bar("Flower simulation / Tacit, 25 silos", 100.0, True, ahead_of("mlp", "flower", silos=25)),
    Bar("grid of 25 runs / 25 single runs, compilation included", 0.8, False, number("compiling", "grid_ratio")),
    Bar(COMPILED, 5.0, False, number("compiling", "slowest")),
    Bar("seconds with its programs in the cache on disk", 5.0, False, number("compiling", "slowest_again")),
)
