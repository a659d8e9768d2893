"""What silos say, read by a server that does not trust them: nonsense is a refusal of the silo that said it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from tacit.channel import weighted_mean
from tacit.deploy.wire import Error, Message, RefusalError, Sealed, parse_response, read_arrays

NONSENSE = "nonsense"
"""The code of a reply that cannot be what the plan asked for."""


def heard(reply: tuple[bytes, bytes]) -> Any:
    """The response in a reply; one that cannot be read is as good as an error."""
    try:
        return parse_response(reply[0])
    except RefusalError as error:
        return _nonsense(str(error))


def fitting(response: Message | Sealed, body: bytes, shape: Any) -> Message | Sealed | Error:
    """A message whose arrays have the plan's shapes and finite entries, or what is wrong with it.

    Without a shape it must be sealed: what is inside is for the shufflers to judge.
    """
    if isinstance(response, Sealed) or shape is None:
        sealed = isinstance(response, Sealed)
        return response if sealed == (shape is None) else _nonsense("expected the answer on the plan's channel")
    try:
        arrays = read_arrays(response.arrays, body)
    except RefusalError as error:
        return _nonsense(str(error))
    wanted = [(leaf.shape, leaf.dtype.kind == "i") for leaf in jax.tree.leaves(shape)]
    if [(a.shape, a.dtype.kind == "i") for a in arrays] != wanted:
        return _nonsense("expected a message of the plan's shapes")
    if not all(np.isfinite(a).all() for a in arrays):
        return _nonsense("expected a message of finite numbers")
    return response


def mean_of(answers: Mapping[str, tuple[Any, bytes]], shape: Any, weights: Mapping[str, float]) -> Any:
    """The weighted mean of messages that fit, in the form of ``shape``."""
    names = sorted(answers)
    columns = zip(*(read_arrays(answers[name][0].arrays, answers[name][1]) for name in names), strict=True)
    stacked: list[Array] = [jnp.stack([jnp.asarray(leaf) for leaf in column]) for column in columns]
    own = jnp.asarray([weights[name] / len(names) for name in names], jnp.float32)
    return weighted_mean(jax.tree.unflatten(jax.tree.structure(shape), stacked), own)


def _nonsense(text: str) -> Error:
    return Error(code=NONSENSE, text=text)
