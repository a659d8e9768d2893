"""The engine of a door with a memory, so that many trials share what it computed.

At a door a record's vector depends on the broadcast, the record and its slot alone. So what was computed for one trial
serves the next. Sampling, check, sum and noise are the door's own, in every trial. No guarantee rests on an engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from tacit.algorithm import Record, Silo, Work
from tacit.silo.door import Engine
from tacit.silo.integers import BOUND, Integers, Vectors

Chunks = list[tuple[dict[str, Any], np.ndarray]]
Compute = Callable[[Record, np.ndarray], Iterator[tuple[dict[str, Any], np.ndarray]]]

_MOST_WORKS = 1024
_MOST_BATCHES = 4096


class StoredEngine(Engine):
    """The engine that ships, asked once for each work, record and slot; a work is stored from its second time on."""

    def __init__(self, silo: Silo, *, form: bool) -> None:
        super().__init__(silo, form=form)
        self._shelves: OrderedDict[tuple[Any, ...], _Shelf] = OrderedDict()

    def stored(
        self, work: Work, records: Record, present: np.ndarray
    ) -> Iterator[tuple[dict[str, Vectors], np.ndarray]]:
        """As the engine that ships."""
        return self._kept((), work, records, present, partial(super().stored, work))

    def integers(
        self, work: Work, records: Record, present: np.ndarray, clips: Mapping[str, float], limit: int = BOUND
    ) -> Iterator[tuple[dict[str, Integers], np.ndarray]]:
        """As the engine that ships."""
        plain, terms = super().integers, (limit, *clips.items())
        return self._kept(terms, work, records, present, lambda r, p: plain(work, r, p, clips, limit))

    def _kept(
        self, clips: tuple[Any, ...], work: Work, records: Record, present: np.ndarray, compute: Compute
    ) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
        name = (clips, len(present), *(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(work)))
        shelf = self._shelves.get(name)
        if shelf is None:
            # Not stored yet: the work of a local step has noise in it and never comes again.
            self._shelves[name] = _Shelf()
            if len(self._shelves) > _MOST_WORKS:
                self._shelves.popitem(last=False)
            return compute(records, present)
        self._shelves.move_to_end(name)
        return iter(shelf.batch(records, present, compute))


class _Shelf:
    """What an engine said for one work: whole batches, and batches that hold one record in every slot."""

    def __init__(self) -> None:
        self._batches: dict[bytes, Chunks] = {}
        self._filled: dict[bytes, Chunks] = {}

    def batch(self, records: Record, present: np.ndarray, compute: Compute) -> Chunks:
        name = b"".join([present.tobytes(), *(column.tobytes() for column in records.values())])
        batch = self._batches.get(name)
        if batch is None:
            batch = self._assembled(records, present, compute)
            if len(self._batches) < _MOST_BATCHES:
                self._batches[name] = batch
        return batch

    def _assembled(self, records: Record, present: np.ndarray, compute: Compute) -> Chunks:
        """A batch slot by slot, each from the batch that holds its record in every slot."""
        absent = self._batch_of(b"", {name: column[:1] for name, column in records.items()}, ~present & False, compute)
        if len(absent) != 1:
            return list(compute(records, present))
        names = [
            b"".join(column[slot].tobytes() for column in records.values()) if present[slot] else b""
            for slot in range(len(present))
        ]
        blocks = {name: jax.tree.map(np.array, own) for name, own in absent[0][0].items()}
        for content in set(names) - {b""}:
            here = np.asarray([name == content for name in names])
            slot = names.index(content)
            one = {name: column[slot : slot + 1] for name, column in records.items()}
            [(filled, _)] = self._batch_of(content, one, present | True, compute)
            for name, own in blocks.items():
                _put(own, filled[name], here)
        return [(blocks, present.copy())]

    def _batch_of(self, content: bytes, one: Record, present: np.ndarray, compute: Compute) -> Chunks:
        if content not in self._filled:
            batch = {name: np.repeat(column, len(present), axis=0) for name, column in one.items()}
            self._filled[content] = list(compute(batch, present))
        return self._filled[content]


def _put(block: Any, other: Any, slots: np.ndarray) -> None:
    """Copy the rows of some slots; records are the first axis of what is formed and the second of factors."""
    block.formed[slots] = other.formed[slots]
    for name, (left, right) in block.layers.items():
        left[:, slots], right[:, slots] = other.layers[name].left[:, slots], other.layers[name].right[:, slots]
