"""A rehearsal on public records: how large the gradients of records are, before a clip is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Params
from tacit.objectives.objective import Objective

_AT_ONCE = 64


def gradient_norms(objective: Objective, params: Params, records: Mapping[str, Any]) -> np.ndarray:
    """The norm of each record's gradient at ``params``, for choosing ``clip_norm``: its median is a good start.

    The records must be public, such as those of an open data set or synthetic ones: no price covers what this says.

    >>> from tacit.objectives import linear, logistic
    >>> zeros = Objective(linear(2, 1), logistic())
    >>> norms = gradient_norms(zeros, zeros.init(jax.random.key(0)), {"x": np.eye(2), "y": np.array([0, 1])})
    >>> [round(float(norm), 3) for norm in norms]
    [0.707, 0.707]
    """

    @jax.jit
    def norms(some: Any) -> Any:
        gradients = jax.vmap(jax.grad(objective.loss), in_axes=(None, 0))(params, some)
        squares = [jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(gradients)]
        return jnp.sqrt(sum(squares[1:], squares[0]))

    columns = {"x": jnp.asarray(records["x"], jnp.float32), "y": jnp.asarray(records["y"])}
    starts = range(0, len(columns["y"]), _AT_ONCE)
    parts = [norms({name: column[i : i + _AT_ONCE] for name, column in columns.items()}) for i in starts]
    return np.concatenate([np.asarray(part) for part in parts])
