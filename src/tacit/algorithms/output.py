"""Which iterate is the output: the last, one of a given index, or one whose index is drawn before anything runs.

Theorems on stationary points speak of an iterate that is drawn uniformly. Its index depends on no record and no noise,
so it is drawn in advance, by a seed that everybody knows; the run then keeps that iterate as it passes by.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from tacit.algorithm import Number, Params
from tacit.errors import TacitError

Output = Literal["last", "random"] | int


def index_of(output: Output, seed: Number, first: int, last: int) -> Any:
    """The index of the output among the iterates ``first`` to ``last``: ``"random"`` draws each with equal chance.

    >>> [index_of(output, 0, 0, 9) for output in ("last", 3)]
    [9, 3]
    >>> sorted({int(index_of("random", seed, 1, 3)) for seed in range(40)})
    [1, 2, 3]
    """
    if isinstance(output, str):
        if output not in ("last", "random"):
            raise TacitError(f'Expected output="last", "random" or the index of an iterate, got {output!r}.')
        return last if output == "last" else jax.random.randint(jax.random.key(seed), (), first, last + 1)
    if not 0 <= output <= last:
        raise TacitError(f"Expected 0 <= output={output} <= {last}, the index of the last iterate.")
    return int(output)


def keep_at(index: jax.Array, wanted: Any, now: Params, kept: Params) -> Params:
    """``now`` if this is the wanted index, else what was kept."""
    return jax.tree.map(lambda new, old: jnp.where(index == wanted, new, old), now, kept)
