"""Whether a model or loss of one's own treats every record by itself: then a clip bounds each record's part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import TacitError, counted
from tacit.objectives.losses import LOSSES
from tacit.objectives.models import MODELS
from tacit.objectives.objective import Objective, untapped
from tacit.objectives.query import Saddle

_APART = 1e-3  # of the size of losses: batches of other sizes round otherwise, by far less
_PROBED = 3
_CAUSES = (
    (
        ("more than 1 value per channel", "batch norm", "batch_norm", "running_mean", "running_var"),
        "It normalises over the batch, which mixes records; use layer or group normalisation.",
    ),
    (
        ("requires a key when running", "dropout", "random operation", "needs PRNG"),
        "It draws random numbers, as dropout does, and a record's gradient must follow from the record alone; leave "
        "that out, or set it to evaluation (.eval() in torch, equinox.nn.inference_mode).",
    ),
)
"""What an error of a library says, and what is wrong then."""


def check_apart(objective: Objective, record: Mapping[str, Any], targets: np.ndarray) -> None:
    """Raise if the loss of a record depends on others of its batch, or on chance; what ships with Tacit does not.

    Losses of three records, with random features and parameters, are compared in different company. ``record`` has the
    shape and type of each field; ``targets`` are some that occur.
    """
    shipped = objective.model.architecture is not None and objective.model.architecture.name in MODELS
    if shipped and objective.cost.name in LOSSES:
        return
    rng = np.random.default_rng(0)
    records = {field: _made(rng, form) for field, form in record.items()} | {
        "y": targets[np.arange(_PROBED) % len(targets)]
    }
    try:
        start = objective.init(jax.random.key(0))
        params = jax.tree.map(lambda leaf: leaf + 0.5 * rng.normal(size=leaf.shape).astype(np.float32), start)
        alone, again, pair, other = (_losses(objective, params, records, rows) for rows in ([0], [0], [0, 1], [0, 2]))
        if objective.model.outside is not None:
            # Whether it has gradients record by record shows when it is asked for some.
            outputs, pull = objective.model.outside.pulled(params, records["x"], ())
            pull(np.ones_like(outputs))
    except Exception as error:
        raise TacitError(
            f"Expected the loss of a record to be computed from its outputs and target, but it raises "
            f"{first_line(error)} {cause_of(error) or _alone(objective)}"
        ) from None
    for rows, found in ((1, alone), (2, pair)):
        if found.shape != (rows,):
            raise TacitError(
                f"Expected one loss per record, shape ({rows},) for {counted(rows, 'record')}, got {found.shape}; do "
                "not take the mean over records, training does."
            )
    if float(again[0]) != float(alone[0]):
        raise TacitError(
            f"Expected the same loss of the same record, asked twice, got {float(alone[0]):.6g} and "
            f"{float(again[0]):.6g}: the model or loss draws random numbers or keeps state, and a record's gradient "
            "must follow from the parameters and the record alone. Leave that out."
        )
    size = _APART * max(1.0, abs(float(alone[0])))
    if any(abs(float(found[0] - alone[0])) > size for found in (pair, other)):
        raise TacitError(
            f"Expected the loss of a record not to depend on others of its batch, got {float(alone[0]):.4g} alone and "
            f"{float(pair[0]):.4g} beside another: the model or loss mixes records (batch normalisation, a mean or "
            "rank over the batch), and no clip bounds one record's part of that. Use layer or group normalisation."
        )


def _made(rng: np.random.Generator, form: Any) -> np.ndarray:
    """Three values of this shape: numbers around zero, or zeros and ones."""
    shape = (_PROBED, *form.shape)
    if np.issubdtype(form.dtype, np.floating):
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(0, 2, shape).astype(np.int32)


def _losses(objective: Objective, params: Any, records: Mapping[str, np.ndarray], rows: list[int]) -> Any:
    batch = {field: jnp.asarray(column[np.array(rows)]) for field, column in records.items()}
    if isinstance(objective, Saddle):
        return objective.values(params, objective.init_duals, batch, untapped)
    return objective.losses(params, batch)


def cause_of(error: Exception) -> str:
    """What is wrong, where the error of a library shows it; else nothing.

    >>> cause_of(ValueError("Expected more than 1 value per channel when training"))[:33]
    'It normalises over the batch, whi'
    """
    text = str(error).lower()
    return next((cure for signs, cure in _CAUSES if any(sign.lower() in text for sign in signs)), "")


def _alone(objective: Objective) -> str:
    if objective.model.outside is not None:
        return "Run your module on torch.from_numpy(x[:2]), and your loss on what it returns, to see where."
    return "Run Objective(model, loss).losses(params, records) by itself to see where."


def first_line(error: Exception) -> str:
    """What an error of other people's code says first, as a sentence."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'without a word'}".rstrip(".") + "."
