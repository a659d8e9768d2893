"""The records of a silo, and those of all silos of a simulation: checked once, then finite and of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


Gather = Callable[[str, Int[np.ndarray, " some"], Int[np.ndarray, "some slots"]], np.ndarray]
"""Reads rows of a field: those of the second array, for each silo of the first."""


class StoredSilos:
    """The records of all silos of a simulation, on disk, for more than memory holds: a round reads only its batches.

    ``records`` has shapes and types, padded to the largest silo.
    """

    def __init__(self, form: Mapping[str, tuple[tuple[int, ...], Any]], counts: np.ndarray, gather: Gather) -> None:
        self._form, self._gather = form, gather
        self._last = np.asarray(counts) - 1
        self.counts = jnp.asarray(counts, jnp.int32)
        self.records = self._shapes(len(counts), int(max(counts)))

    @property
    def number(self) -> int:
        """How many silos there are."""
        return len(self._last)

    def _shapes(self, *lead: int) -> dict[str, jax.ShapeDtypeStruct]:
        return {field: jax.ShapeDtypeStruct((*lead, *shape), dtype) for field, (shape, dtype) in self._form.items()}

    def fetch(self, silo_index: Array | int, rows: Int[Array, " slots"] | None) -> Record:
        """Rows of one silo (``None``: all), read when the compiled program comes to them."""
        rows = jnp.arange(self.records["y"].shape[1]) if rows is None else rows
        shapes, at = self._shapes(rows.shape[0]), jnp.asarray(silo_index)
        return jax.pure_callback(self._read, shapes, at, rows, vmap_method="broadcast_all")

    def _read(self, silo_indices: Any, rows: Any) -> dict[str, np.ndarray]:
        shape, some = np.shape(rows), np.asarray(silo_indices).ravel()
        # A slot that holds nothing may point past the end of a silo; it is masked.
        inside = np.minimum(np.asarray(rows).reshape(-1, shape[-1]), self._last[some][:, None])
        return {
            field: np.asarray(self._gather(field, some, inside), dtype).reshape(*shape, *own)
            for field, (own, dtype) in self._form.items()
        }


def stored_silos(tables: Sequence[Mapping[str, Any]], names: Sequence[str] | None = None) -> StoredSilos:
    """Silos from one table each, of anything that numpy can index, as ``np.load(path, mmap_mode="r")`` gives it."""
    names = _names(tables, names)
    forms = [_checked(table, name) for table, name in zip(tables, names, strict=True)]
    for form, name in zip(forms, names, strict=True):
        if form != forms[0]:
            raise RecordsError(f"Expected {name} to have fields and shapes {forms[0]} of {names[0]}, got {form}.")

    def gather(field: str, silo_indices: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return np.stack([tables[i][field][own] for i, own in zip(silo_indices, rows, strict=True)])

    return StoredSilos(forms[0], np.asarray([len(table["y"]) for table in tables]), gather)


def open_silos(folders: Sequence[Path]) -> StoredSilos:
    """Silos whose folders hold one ``.npy`` file for each field (``x.npy``, ``y.npy``), mapped and not read."""
    tables = [{path.stem: np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))} for folder in folders]
    return stored_silos(tables, [folder.name for folder in folders])


def open_ragged(folder: Path) -> StoredSilos:
    """Very many silos in one folder: a ``.npy`` file for each field, silo after silo, and ``offsets.npy``.

    Silo ``i`` has the rows from ``offsets[i]`` up to, and without, ``offsets[i + 1]``.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    if "offsets" not in files:
        raise RecordsError(f"Expected offsets.npy in {folder}: where each silo's rows begin, and where the last end.")
    offsets = np.load(files.pop("offsets"))
    form = _checked(files, folder.name)
    columns = {field: np.load(path, mmap_mode="r") for field, path in files.items()}
    _check_offsets(offsets, len(columns["y"]))

    def gather(field: str, silo_indices: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return columns[field][offsets[silo_indices][:, None] + rows]

    return StoredSilos(form, np.diff(offsets), gather)


def _check_offsets(offsets: np.ndarray, total: int) -> None:
    whole = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) > 1
    if not whole or offsets[0] != 0 or offsets[-1] != total:
        raise RecordsError(f"Expected offsets of whole numbers from 0 to the {total} records, got {offsets}.")
    empty = np.flatnonzero(np.diff(offsets.astype(np.int64)) <= 0)
    if len(empty):
        raise RecordsError(f"Expected every silo to hold at least one record; silo {empty[0]} has none, leave it out.")


def _checked(table: Mapping[str, Any], name: str) -> dict[str, tuple[tuple[int, ...], Any]]:
    """The fields of a table with shape and type of a record, after a look at every record, some at a time.

    A column may be the path of its file, which is then mapped anew for each part: memory holds one part.
    """

    def column(field: str) -> Any:
        own = table[field]
        return np.load(own, mmap_mode="r") if isinstance(own, Path) else own

    lengths = {field: len(column(field)) for field in table}
    if len(set(lengths.values())) > 1:
        raise RecordsError(f"Expected all fields of {name} to have as many rows, got {lengths}.")
    total = max(lengths.values(), default=0)
    form: dict[str, tuple[tuple[int, ...], Any]] = {}
    for first in range(0, max(total, 1), _CHECKED_AT_ONCE):
        part = {field: np.array(column(field)[first : first + _CHECKED_AT_ONCE]) for field in table}
        form = {field: (column.shape[1:], column.dtype) for field, column in check_records(part, name).items()}
    return form
