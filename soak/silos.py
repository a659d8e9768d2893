"""The silos that are attacked: records that the attacker makes itself, as files of a silo's folder."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

COLUMNS: tuple[dict[str, Any], ...] = (
    {"name": "age", "kind": "number", "low": 0.0, "high": 110.0, "unit": "years"},
    {"name": "days", "kind": "number", "low": -5.0, "high": 365.0},
    {"name": "sex", "kind": "category", "levels": ["f", "m"]},
    {"name": "ward", "kind": "category", "levels": ["east", "north", "west"]},
)
"""What the schemas declare, beside a target."""
_WIDTH = 1 + 1 + 1 + 3  # features of these columns
_CELLS = (
    ("0", "110", "-1e30", "1e30", "", "40.5", "39", "71"),
    ("365", "", "-5", "1e-30", "3e38", "12", "0", "-4.75"),
    ("f", "m", "m", "", "other", "f", "m"),
    ("east", "", "west", "north", "nowhere"),
)


@dataclass(frozen=True)
class Silo:
    """Records to serve; ``aside`` of them test models. Where ``columns`` are declared, ``cells`` are the CSV file."""

    x: np.ndarray
    y: np.ndarray
    task: str
    classes: int | None
    aside: int = 0
    columns: tuple[dict[str, Any], ...] = ()
    cells: str = ""

    @property
    def records(self) -> int:
        """How many train."""
        return len(self.y) - self.aside

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one record's x."""
        return self.x.shape[1:]

    def files(self) -> dict[str, bytes]:
        """What is in the silo's folder beside its policy."""
        if self.columns:
            return {"records.csv": self.cells.encode(), "schema.toml": _schema(self.columns).encode()}
        held = io.BytesIO()
        np.savez(held, x=self.x, y=self.y)
        return {"records.npz": held.getvalue()}

    def data(self) -> str:
        """The section [data] of its policy."""
        told: dict[str, Any] = {"file": "records.npz", "task": self.task, "classes": self.classes}
        if self.columns:
            told |= {"file": "records.csv", "columns": "schema.toml"}
        told["validation"] = self.aside / len(self.y) or None
        return "\n".join(f"{key} = {part!r}" for key, part in told.items() if part is not None)


@cache
def silos() -> dict[str, Silo]:
    """Small silos: ordinary records of several widths; hostile, equal and single ones; zeros, labels and images.

    Two have a schema, with cells that are missing, unknown or beyond their ranges; they and one of images have set
    records aside.
    """
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    harsh = normal(8, 3)
    harsh[:5] = [[0, 0, 0], [1e30, -1e30, 1e30], [1e-30, 1e-38, 0], [1, 1, 1], [1, 1, 1]]
    far = np.array([0, 1e30, 1e-30, 1, 1, -1e30, 1e8, -1], np.float32)
    bright = np.array([1, 1e30, 1e-30, 0], np.float32).reshape(4, 1, 1, 1)
    return {
        "plain": Silo(normal(24, 3), normal(24), "regression", None),
        "narrow": Silo(normal(16, 1), normal(16), "regression", None),
        "wide": Silo(normal(8, 5), normal(8), "regression", None),
        "pair": Silo(normal(2, 3), normal(2), "regression", None),
        "harsh": Silo(harsh, far, "regression", None),
        "twins": Silo(np.ones((2, 3), np.float32), np.ones(2, np.float32), "regression", None),
        "alone": Silo(np.full((1, 2), 0.7, np.float32), np.full(1, -3.0, np.float32), "regression", None),
        "zeros": Silo(np.zeros((4, 3), np.float32), np.zeros(4, np.float32), "regression", None),
        "binary": Silo(harsh, np.arange(8, dtype=np.int32) % 2, "binary", 2),
        "classes": Silo(normal(6, 3), np.arange(6, dtype=np.int32) % 3, "multiclass", 3),
        "images": Silo(normal(4, 6, 6, 1) * bright, np.array([0, 1, 2, 1], np.int32), "multiclass", 3),
        "photos": Silo(
            np.tile(normal(4, 6, 6, 1) * bright, (3, 1, 1, 1)), np.arange(12, dtype=np.int32) % 3, "multiclass", 3, 6
        ),
        "clinic": _declared({"name": "ill", "kind": "category", "levels": ["no", "yes"]}, ("no", "yes", "yes"), 2),
        "survey": _declared({"name": "cost", "kind": "number", "low": 0.0, "high": 1e3}, ("0", "999", "1e9"), None),
    }


def _declared(target: dict[str, Any], values: tuple[str, ...], classes: int | None) -> Silo:
    """Thirty records of a CSV file, ten of them set aside."""
    rows = [",".join(column["name"] for column in (*COLUMNS, target))]
    for row in range(30):
        rows.append(",".join(cells[row % len(cells)] for cells in (*_CELLS, values)))
    x, y = np.zeros((30, _WIDTH), np.float32), np.zeros(30, np.float32)
    task = "regression" if classes is None else "binary"
    return Silo(x, y, task, classes, 10, (*COLUMNS, target), "\n".join(rows) + "\n")


def _schema(columns: tuple[dict[str, Any], ...]) -> str:
    """The schema's file, with the last column as its target."""
    *declared, target = columns
    lines = ["format = 1", "[target]", f'column = "{target["name"]}"']
    lines += _terms({"classes": target["levels"]} if "levels" in target else {k: target[k] for k in ("low", "high")})
    for column in declared:
        lines += [f"[columns.{column['name']}]", *_terms({k: part for k, part in column.items() if k != "name"})]
    return "\n".join(lines) + "\n"


def _terms(tree: dict[str, Any]) -> Iterable[str]:
    for key, part in tree.items():
        yield f"{key} = {part!r}"
