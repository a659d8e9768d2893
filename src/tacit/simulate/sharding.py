"""Silos spread over devices: a simulation on several cores, accelerators or machines, with the same numbers.

Every device plays its own silos, and only the mean crosses; jax derives that from where the records lie. Hand what
`spread` returns to `simulate` or `simulate_grid`. For several machines see docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tacit.errors import TacitError
from tacit.silo import Silos


def spread(silos: Silos, devices: Sequence[jax.Device] | None = None) -> Silos:
    """The same silos, as many on each of the devices (default: all there are)."""
    chosen = np.asarray(jax.devices() if devices is None else list(devices))
    if silos.number % len(chosen):
        raise TacitError(
            f"Expected a number of silos that {len(chosen)} devices divide evenly, got {silos.number}; "
            "name fewer devices."
        )
    place = NamedSharding(Mesh(chosen, ("silos",)), PartitionSpec("silos"))

    def put(leaf: Array) -> Array:
        # Every process hands over the rows of its own devices; together they are the whole.
        rows = np.asarray(leaf)
        return jax.make_array_from_callback(rows.shape, place, lambda index: rows[index])

    return Silos(jax.tree.map(put, silos.records), put(silos.counts))
