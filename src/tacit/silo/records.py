"""The records of a silo, and those of all silos of a simulation: checked once, then finite and of one shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from tacit.algorithm import Record
from tacit.errors import TacitError

_CHECKED_AT_ONCE = 1 << 16


class RecordsError(TacitError):
    """Records that cannot be enrolled; the message names the silo, the field and the fix."""


class Silos(NamedTuple):
    """The records of all silos of a simulation, padded to the largest; row ``i`` is one silo."""

    records: Record
    counts: Int[Array, " silos"]

    @property
    def number(self) -> int:
        """How many silos there are."""
        return int(self.counts.shape[0])

    def fetch(self, silo_index: Array | int, rows: Int[Array, " slots"] | None) -> Record:
        """Rows of one silo (``None``: all)."""
        return jax.tree.map(lambda leaf: leaf[silo_index] if rows is None else leaf[silo_index, rows], self.records)


def enrol(tables: Sequence[Mapping[str, np.ndarray]], names: Sequence[str] | None = None) -> Silos:
    """Check every silo's records and pad them to one length.

    >>> two = enrol([{"x": np.ones((3, 2)), "y": np.zeros(3)}, {"x": np.ones((1, 2)), "y": np.ones(1)}])
    >>> two.records["x"].shape, two.counts.tolist()
    ((2, 3, 2), [3, 1])
    """
    names = _names(tables, names)
    checked = [check_records(table, name) for table, name in zip(tables, names, strict=True)]
    for table, name in zip(checked, names, strict=True):
        if set(table) != set(checked[0]):
            raise RecordsError(
                f"Expected {name} to have the fields {sorted(checked[0])} of {names[0]}, got {sorted(table)}."
            )
        for field, column in table.items():
            if column.shape[1:] != checked[0][field].shape[1:]:
                raise RecordsError(
                    f"Expected {field} of {name} to have shape {checked[0][field].shape[1:]} per record as at "
                    f"{names[0]}, got {column.shape[1:]}."
                )
    counts = [len(next(iter(table.values()))) for table in checked]
    longest = max(counts)

    def pad(column: np.ndarray) -> np.ndarray:
        return np.pad(column, [(0, longest - len(column))] + [(0, 0)] * (column.ndim - 1))

    stacked = {field: jnp.asarray(np.stack([pad(table[field]) for table in checked])) for field in checked[0]}
    return Silos(stacked, jnp.asarray(counts, jnp.int32))


def _names(tables: Sequence[Any], names: Sequence[str] | None) -> Sequence[str]:
    if not tables:
        raise RecordsError("Expected at least one silo, got none.")
    return [f"silo {i}" for i in range(len(tables))] if names is None else names


def check_records(table: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Records of one silo as float32 and int32 arrays, or an error that names what is wrong."""
    if "x" not in table or "y" not in table:
        raise RecordsError(f"Expected {name} to have fields 'x' (features) and 'y' (target), got {sorted(table)}.")
    arrays = {field: np.asarray(column) for field, column in table.items()}
    length = len(arrays["y"])
    if length == 0:
        raise RecordsError(f"Expected {name} to hold at least one record, got none; leave an empty silo out.")
    for field, column in arrays.items():
        if len(column) != length:
            raise RecordsError(f"Expected {field} of {name} to have {length} rows as y has, got {len(column)}.")
        if column.dtype.kind not in "fiub":
            raise RecordsError(f"Expected {field} of {name} to be numbers, got {column.dtype}; encode it first.")
        bad = int(np.count_nonzero(~np.isfinite(column))) if column.dtype.kind == "f" else 0
        if bad:
            raise RecordsError(
                f"Expected {field} of {name} to be finite, got {bad} missing or infinite values; fill them with a "
                "public value, or drop the column at every silo."
            )
        is_float = field == "x" or column.dtype.kind == "f"
        limit = float(np.finfo(np.float32).max if is_float else np.iinfo(np.int32).max)
        if np.abs(column.astype(np.float64)).max(initial=0.0) > limit:
            size = "float32" if is_float else "int32"
            raise RecordsError(f"Expected {field} of {name} to fit in {size}; scale it by a public bound.")
        arrays[field] = column.astype(np.float32 if is_float else np.int32)
    return arrays


def rows_of(silos: Silos, silo_index: int) -> Record:
    """The records of one silo without padding."""
    return jax.tree.map(lambda leaf: leaf[silo_index, : int(silos.counts[silo_index])], silos.records)


class StoredSilos:
    """The records of all silos of a simulation, on disk, for more than memory holds: a round reads only its batches.

    Tables are anything that numpy can index, as ``np.load(path, mmap_mode="r")`` gives it. ``records`` has shapes and
    types, padded to the largest.
    """

    def __init__(self, tables: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> None:
        names = _names(tables, names)
        forms = [_checked(table, name) for table, name in zip(tables, names, strict=True)]
        for form, name in zip(forms, names, strict=True):
            if form != forms[0]:
                raise RecordsError(f"Expected {name} to have fields and shapes {forms[0]} of {names[0]}, got {form}.")
        self._tables = tuple(tables)
        self._form = forms[0]
        counts = [len(table["y"]) for table in tables]
        self.counts = jnp.asarray(counts, jnp.int32)
        self.records = self._shapes(len(tables), max(counts))

    @property
    def number(self) -> int:
        """How many silos there are."""
        return len(self._tables)

    def _shapes(self, *lead: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {field: jax.ShapeDtypeStruct((*lead, *shape), dtype) for field, (shape, dtype) in self._form.items()}

    def fetch(self, silo_index: Array | int, rows: Int[Array, " slots"] | None) -> Record:
        """Rows of one silo, read when the compiled program comes to them."""
        if rows is None:
            raise TacitError(
                'Expected batches of stored records, got sampling "full", which would hold all of them at once; sample '
                '("wor", "poisson", "one-pass"), or enrol the records in memory.'
            )
        shapes, at = self._shapes(rows.shape[0]), jnp.asarray(silo_index)
        return jax.pure_callback(self._read, shapes, at, rows, vmap_method="broadcast_all")

    def _read(self, silo_indices: Any, rows: Any) -> dict[str, np.ndarray]:
        silo_indices, rows = np.asarray(silo_indices), np.asarray(rows)
        batch = {}
        for field, (shape, dtype) in self._form.items():
            out = np.empty((silo_indices.size, rows.shape[-1], *shape), dtype)
            for place, silo_index, own in zip(out, silo_indices.ravel(), rows.reshape(-1, rows.shape[-1]), strict=True):
                table = self._tables[int(silo_index)][field]
                # A slot that holds nothing may point past the end of a silo; it is masked.
                place[:] = table[np.minimum(own, len(table) - 1)]
            batch[field] = out.reshape(*rows.shape, *shape)
        return batch


def open_silos(folders: Sequence[Path]) -> StoredSilos:
    """Silos whose folders hold one ``.npy`` file for each field (``x.npy``, ``y.npy``), mapped and not read."""
    tables = [{path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))} for folder in folders]
    return StoredSilos(tables, [folder.name for folder in folders])


def _checked(table: Mapping[str, Any], name: str) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The fields of a table with shape and type of a record, after a look at every record, some at a time."""
    lengths = {field: len(column) for field, column in table.items()}
    if len(set(lengths.values())) > 1:
        raise RecordsError(f"Expected all fields of {name} to have as many rows, got {lengths}.")
    total = max(lengths.values(), default=0)
    form: dict[str, tuple[tuple[int, ...], Any]] = {}
    for first in range(0, max(total, 1), _CHECKED_AT_ONCE):
        part = {field: np.asarray(column[first : first + _CHECKED_AT_ONCE]) for field, column in table.items()}
        form = {field: (column.shape[1:], column.dtype) for field, column in check_records(part, name).items()}
    return form
