"""Records that stay on disk: each round reads the rows of its batches and nothing else.

For simulations of more records than memory holds. Tables are anything that numpy can index, as `np.load(path,
mmap_mode="r")` gives it; sampling needs only how many rows there are, and a batch is read when a round asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from tacit.algorithm import Record
from tacit.errors import TacitError
from tacit.silo.records import RecordsError, check_records

_CHECKED_AT_ONCE = 1 << 16


class StoredSilos:
    """The records of all silos of a simulation, on disk. ``records`` has shapes and types, padded to the largest."""

    def __init__(self, tables: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> None:
        names = [f"silo {i}" for i in range(len(tables))] if names is None else list(names)
        if not tables:
            raise RecordsError("Expected at least one silo, got none.")
        forms = [_checked(table, name) for table, name in zip(tables, names, strict=True)]
        for form, name in zip(forms, names, strict=True):
            if form != forms[0]:
                raise RecordsError(f"Expected {name} to have fields and shapes {forms[0]} of {names[0]}, got {form}.")
        self._tables = tuple(tables)
        self._form = forms[0]
        counts = [len(table["y"]) for table in tables]
        self.counts = jnp.asarray(counts, jnp.int32)
        self.records = {
            field: jax.ShapeDtypeStruct((len(tables), max(counts), *shape), dtype)
            for field, (shape, dtype) in self._form.items()
        }

    @property
    def number(self) -> int:
        """How many silos there are."""
        return len(self._tables)

    def fetch(self, silo_index: Array | int, rows: Int[Array, " slots"] | None) -> Record:
        """Rows of one silo, read when the compiled program comes to them."""
        if rows is None:
            raise TacitError(
                'Expected batches of stored records, got sampling "full", which would hold all of them at once; sample '
                '("wor", "poisson", "one-pass"), or enrol the records in memory.'
            )
        shapes = {
            field: jax.ShapeDtypeStruct((rows.shape[0], *shape), dtype) for field, (shape, dtype) in self._form.items()
        }
        return jax.pure_callback(self._read, shapes, jnp.asarray(silo_index), rows, vmap_method="broadcast_all")

    def _read(self, silo_indices: Any, rows: Any) -> dict[str, np.ndarray]:
        silo_indices, rows = np.asarray(silo_indices), np.asarray(rows)
        found = {}
        for field, (shape, dtype) in self._form.items():
            out = np.empty((silo_indices.size, rows.shape[-1], *shape), dtype)
            for i, (silo_index, own) in enumerate(
                zip(silo_indices.ravel(), rows.reshape(-1, rows.shape[-1]), strict=True)
            ):
                table = self._tables[int(silo_index)][field]
                # A slot that holds nothing may point past the end of a silo; it is masked.
                out[i] = table[np.minimum(own, len(table) - 1)]
            found[field] = out.reshape(*rows.shape, *shape)
        return found


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
