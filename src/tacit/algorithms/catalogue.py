"""The table of algorithms: what a study can name, and what each promises and assumes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from tacit.algorithm import Algorithm
from tacit.algorithms.local_sgd import local_sgd
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.errors import TacitError, unknown


@dataclass(frozen=True)
class Entry:
    """One algorithm of the table."""

    name: str
    factory: Callable[..., Algorithm]
    paper: str
    guarantee: str
    assumes: str

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keyword parameters of the factory."""
        found = inspect.signature(self.factory).parameters
        return {name: p for name, p in found.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


ALGORITHMS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "mb-sgd",
            mb_sgd,
            "Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 1",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "convex losses for its theorems; any differentiable loss in practice",
        ),
        Entry(
            "local-sgd",
            local_sgd,
            "McMahan et al. 2017 (arXiv:1602.05629); private baseline of arXiv:2106.09779 and arXiv:2203.06735",
            "ISRL-DP, every local step is priced",
            "nothing; a baseline",
        ),
    )
}


def find(name: str) -> Entry:
    """The entry of this name, or an error that names the nearest one."""
    if name not in ALGORITHMS:
        raise TacitError(unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name]
