"""What `tacit.fit` is given, looked at before anything runs: silos in all their forms, labels, widths and settings.

Every error names the silo or parameter, the value, the rule and the way out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import CHANNELS, SAMPLINGS, Recipe
from tacit.data.federation import Federation, Target
from tacit.errors import TacitError, counted, nearest, unknown
from tacit.objectives import Loss, Model, Objective, Problem, Saddle, untapped
from tacit.objectives.apart import cause_of, check_apart, first_line
from tacit.privacy.plan import Budget
from tacit.silo.records import RecordsError, check_records

Silos = Federation | Mapping[str, Any] | Sequence[Any]
"""A federation; or silos by name, or in a list, each ``{"x": features, "y": targets}`` or columns by name."""

_ONE_OUTPUT = ("logistic", "hinge", "squared", "absolute", "pinball", "huber", "poisson")
_TWO_CLASSES, _CLASSES = ("logistic", "hinge"), ("logistic", "hinge", "softmax")
_PROTECTS = ("record", "sensitive-attribute")
_LISTED = 8


@dataclass(frozen=True)
class Given:
    """Silos as training takes them: their names and tables, and what their columns and classes are called."""

    names: tuple[str, ...]
    tables: tuple[dict[str, np.ndarray], ...]
    features: tuple[str, ...] = ()
    target: Target | None = None

    @property
    def records(self) -> list[int]:
        """How many records each silo has."""
        return [len(table["y"]) for table in self.tables]


def silos_of(
    silos: Any, *, target: str | None = None, classes: Sequence[Any] | None = None, with_attribute: bool = True
) -> Given:
    """Names and records of silos in any of the forms that `tacit.fit` takes; of a federation the training records.

    ``target`` is the column to predict where silos are columns by name; ``classes`` are the labels in order. Both are
    public knowledge. A federation's sensitive attribute is left out unless ``with_attribute``.
    """
    if isinstance(silos, Federation):
        if target is not None or classes is not None:
            raise TacitError("Expected no target and no classes for a federation, which says itself; leave them out.")
        kept = [{k: v for k, v in silo.train.items() if k != "s" or with_attribute} for silo in silos.silos]
        return Given(tuple(silo.name for silo in silos.silos), tuple(kept), target=silos.target)
    named = _named(silos)
    read = {name: _table(one, name, target) for name, one in named.items()}
    first = next(iter(read))
    columns = _same_columns({name: found for name, (_, found) in read.items()}) if target is not None else ()
    tables = {name: {**table, "y": _labels(table["y"], classes, name)} for name, (table, _) in read.items()}
    told = None
    if target is not None or classes is not None:
        told = Target(target or "y", () if classes is None else tuple(map(str, classes)))
    checked = {name: check_records(table, name) for name, table in tables.items()}
    for name, table in checked.items():
        _same_form(table, name, checked[first], first)
    return Given(tuple(named), tuple(checked.values()), columns, told)


def _named(silos: Any) -> dict[str, Any]:
    """Silos by name, whatever holds them."""
    if isinstance(silos, Mapping) and any(key in silos and not _is_columns(silos[key]) for key in ("x", "y")):
        raise TacitError("Expected one table for each silo, got a single one; for one silo write [table].")
    if isinstance(silos, Mapping):
        found = {str(name): one for name, one in silos.items()}
    elif isinstance(silos, list | tuple):
        found = {f"silo {i}": one for i, one in enumerate(silos)}
    else:
        raise TacitError(
            f"Expected silos={_short(silos)} to be a federation, or silos by name such as "
            '{"bergen": {"x": features, "y": targets}}, or a list of them.'
        )
    if not found:
        raise RecordsError("Expected at least one silo, got none.")
    return found


def _is_columns(value: Any) -> bool:
    """Whether this is columns by name: a mapping, or a data frame of any library."""
    return isinstance(value, Mapping) or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def _table(one: Any, name: str, target: str | None) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """A silo's records as arrays, and the names of its columns where they are given by name."""
    if not _is_columns(one):
        parts = ' Write {"x": x, "y": y}.' if isinstance(one, list | tuple) and len(one) == 2 else ""
        raise TacitError(
            f'Expected {name} as {{"x": features, "y": targets}}, or as a data frame with target=COLUMN, got '
            f"{_short(one)}.{parts}"
        )
    names = [str(key) for key in (one if isinstance(one, Mapping) else one.columns)]
    if target is None:
        if "x" in names and "y" in names:
            return {field: _array(one[field], field, name) for field in names}, ()
        raise TacitError(
            f"Expected {name} to have the fields 'x' (features) and 'y' (targets), got {_some(names)}; for columns by "
            "name say target=COLUMN, the one to predict."
        )
    if target not in names:
        raise TacitError(f"{name}: " + unknown("column", target, names))
    columns = tuple(key for key in names if key != target)
    if not columns:
        raise TacitError(f"Expected {name} to have a column beside the target {target!r}, got none to learn from.")
    x = [_array(one[key], f"column {key!r}", name) for key in columns]
    y = _array(one[target], f"target {target!r}", name)
    _check_lengths(dict(zip((*columns, target), (*x, y), strict=True)), name)
    for key, values in zip(columns, x, strict=True):
        check_records({"x": values, "y": np.zeros(len(values), np.int32)}, f"{name}, column {key!r}")
    return {"x": np.stack(x, axis=1), "y": y}, columns


def _check_lengths(columns: Mapping[str, np.ndarray], name: str) -> None:
    lengths = {key: len(values) for key, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise TacitError(f"Expected columns of one length at {name}, got {lengths}; give one cell per record.")


def _array(value: Any, field: str, name: str) -> np.ndarray:
    """One field of a silo as an array, or an error that says how to make one of it."""
    if hasattr(value, "toarray"):
        raise TacitError(f"Expected {field} of {name} as a dense array, got {_short(value)}; call its .toarray().")
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ma.MaskedArray) and np.ma.getmaskarray(value).any():
        hidden = int(np.ma.getmaskarray(value).sum())
        raise TacitError(
            f"Expected {field} of {name} without missing values, got {hidden} masked; fill them with a public value."
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise TacitError(f"Expected {field} of {name} with rows of one length; fill or cut the others.") from None
    if array.ndim == 0:
        raise TacitError(f"Expected {field} of {name} to be an array with one row per record, got {_short(value)}.")
    is_label = field == "y" or field.startswith("target")
    if array.dtype.kind in "fiub" or (is_label and array.dtype.kind in "OUS"):
        return array
    raise TacitError(
        f"Expected {field} of {name} to be numbers, got {_kind(array)}; encode it by a rule that is public, such as "
        "one column of 0 and 1 per level. For CSV files `tacit init` writes such rules."
    )


def _kind(array: np.ndarray) -> str:
    """What an array holds that is no number, with an example."""
    words = {"U": "text", "S": "bytes", "O": "objects", "M": "dates", "m": "durations", "c": "complex numbers"}
    odd = next((cell for cell in array.ravel().tolist() if not isinstance(cell, int | float)), None)
    return words.get(array.dtype.kind, str(array.dtype)) + ("" if odd is None else f" such as {odd!r}")


def _same_columns(columns: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The columns of all silos, in the order of the first; others must have the same, in the same order."""
    (first, wanted), *others = columns.items()
    for name, found in others:
        strange = sorted(set(found) ^ set(wanted))
        if strange:
            raise TacitError(
                f"Expected {name} to have the columns of {first}, but {_some(strange)} is at one of them alone; rename "
                "it, or drop it there."
            )
        if found != wanted:
            raise TacitError(
                f"Expected the columns of {name} in the order of {first}, {_some(wanted)}, got {_some(found)}; reorder "
                "them."
            )
    return wanted


def _same_form(table: Mapping[str, np.ndarray], name: str, first: Mapping[str, np.ndarray], of: str) -> None:
    if set(table) != set(first):
        raise RecordsError(f"Expected {name} to have the fields {sorted(first)} of {of}, got {sorted(table)}.")
    for field, column in table.items():
        wanted = first[field].shape[1:]
        if column.shape[1:] != wanted:
            raise RecordsError(
                f"Expected {field} of {name} to have shape {wanted} per record as at {of}, got {column.shape[1:]}; "
                "give all silos the same columns."
            )


def _labels(y: np.ndarray, classes: Sequence[Any] | None, name: str) -> np.ndarray:
    """Labels as positions among the classes, where there are any; text needs them."""
    if classes is None:
        if y.dtype.kind not in "OUS":
            return y
        seen = sorted({str(label) for label in y.ravel().tolist()})
        shown = f"classes={seen}" if len(seen) <= _LISTED else f"classes=[{seen[0]!r}, ...]"
        raise TacitError(
            f"Expected the targets of {name} to be numbers, got {_kind(y)}; name the classes in order, which are "
            f"public: {shown}."
        )
    if isinstance(classes, str) or len(set(classes)) != len(classes) or len(classes) < 2:
        raise TacitError(f"Expected classes={classes!r} to be a list of at least two different labels, in order.")
    places = {label: place for place, label in enumerate(classes)}
    if y.ndim != 1:
        raise TacitError(f"Expected y of {name} to have one label per record, got shape {y.shape}; give y[:, 0].")
    for label in y.tolist():
        if label not in places:
            raise TacitError(
                f"Expected the labels of {name} among classes={list(classes)}, got {label!r}; add it, or correct it."
            )
    return np.array([places[label] for label in y.tolist()], np.int32)


def check_problem(problem: Any, given: Given) -> Given:
    """The silos with labels as the loss reads them, or an error if problem and records do not fit each other."""
    if not isinstance(problem, Problem):
        raise TacitError(f"Expected a Problem(Objective(model, loss)), got {_short(problem)}; {_wrapped(problem)}.")
    objective = problem.objective
    x = given.tables[0]["x"]
    _check_features(objective.model, x.shape[1:], given.names[0])
    if isinstance(objective, Saddle):
        # Its function of one record may read any field, in any shape.
        _check_apart(objective, given)
        return given
    outputs = _outputs(objective.model, x.shape[1:])
    _check_outputs(objective.cost, outputs)
    found = tuple(
        _with_labels(table, name, objective.cost, outputs)
        for table, name in zip(given.tables, given.names, strict=True)
    )
    given = Given(given.names, found, given.features, given.target)
    if given.target is not None and given.target.classes:
        _check_classes(given.target.classes, objective.cost, outputs)
    _check_apart(objective, given)
    return given


def _wrapped(problem: Any) -> str:
    if isinstance(problem, Objective):
        return "write Problem(objective)"
    if isinstance(problem, Model):
        return "name a loss too: Problem(Objective(model, logistic()))"
    return "tacit.objectives has models and losses"


def _check_features(model: Model, shape: tuple[int, ...], name: str) -> None:
    """Raise unless the model takes features of this shape; of a model of one's own nothing is known."""
    if not shape:
        raise TacitError(
            f"Expected x of {name} to have shape (records, features), got one number per record; give x[:, None] for "
            "a single feature."
        )
    if model.architecture is None:
        return
    given = model.architecture.arguments
    wanted = {
        "linear": lambda: (given["features"],),
        "mlp": lambda: (given["sizes"][0],),
        "cnn": lambda: tuple(given["image"]),
    }.get(model.architecture.name)
    if wanted is not None and wanted() != shape:
        raise TacitError(
            f"Expected x of {name} to have shape {_rows(wanted())} as the model takes, got {_rows(shape)}; make the "
            f"model for {' x '.join(map(str, shape))} features, or give other columns."
        )


def _rows(shape: Sequence[int]) -> str:
    return f"(records, {', '.join(map(str, shape))})"


def _outputs(model: Model, shape: tuple[int, ...]) -> int:
    """How many outputs the model has for each record."""
    rows = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    try:
        params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
        found = jax.eval_shape(lambda p, x: model.apply(p, x, untapped), params, rows)
    except Exception as error:
        raise TacitError(
            f"Expected the model to take features of shape {_rows(shape)}, but it raises {first_line(error)} "
            f"{cause_of(error) or _apply_alone(model)}"
        ) from None
    if len(getattr(found, "shape", ())) != 2 or found.shape[0] != 2:
        got = getattr(found, "shape", type(found).__name__)
        raise TacitError(
            f"Expected the model to map 2 records to outputs of shape (2, outputs), got {got}; keep the axis of "
            "records, and give one number per output."
        )
    return int(found.shape[1])


def _apply_alone(model: Model) -> str:
    call = "model.apply(params, x[:2], untapped)" if model.outside is None else "your module on torch.from_numpy(x[:2])"
    return f"Run {call} by itself to see where."


def _check_outputs(cost: Loss, outputs: int) -> None:
    if cost.name in _ONE_OUTPUT and outputs != 1:
        other = f", or use softmax() for {outputs} classes" if cost.name in _TWO_CLASSES else ""
        raise TacitError(f"Expected a model with one output for loss {cost.name}, got {outputs}; make one{other}.")
    if cost.name == "softmax" and outputs < 2:
        raise TacitError(
            f"Expected a model with one output per class for loss softmax, got {counted(outputs, 'output')}; for two "
            "classes use logistic(), for more linear(features, CLASSES)."
        )
    if cost.name == "softmax":
        # Finds class weights that are not as many as outputs.
        jax.eval_shape(cost.value, jax.ShapeDtypeStruct((2, outputs), jnp.float32), jnp.zeros(2, jnp.int32))


def _check_classes(classes: Sequence[str], cost: Loss, outputs: int) -> None:
    if cost.name not in _CLASSES:
        if cost.name is not None:
            raise TacitError(f"Expected no classes for loss {cost.name}, which predicts a number; leave classes out.")
        return
    wanted = 2 if cost.name in _TWO_CLASSES else outputs
    if len(classes) != wanted:
        cure = f"use softmax() and a model with {len(classes)} outputs" if wanted == 2 else "give the model as many"
        raise TacitError(
            f"Expected {wanted} classes for loss {cost.name} and {counted(outputs, 'output')}, got {len(classes)}; "
            f"{cure}."
        )


def _with_labels(table: Mapping[str, np.ndarray], name: str, cost: Loss, outputs: int) -> dict[str, np.ndarray]:
    """A silo's records with targets that this loss can read; a loss of one's own reads what it likes."""
    y = table["y"]
    if cost.name is None:
        return dict(table)
    if y.ndim != 1:
        cure = "give y[:, 0]" if y.shape[1:] == (1,) else "give one number per record, such as y.argmax(axis=1)"
        raise TacitError(f"Expected y of {name} to have shape ({len(y)},), got {y.shape}; {cure}.")
    if cost.name == "poisson" and len(y) and y.min() < 0:
        raise TacitError(
            f"Expected counts of at least 0 for loss poisson, got {y.min():g} at {name}; correct it, or use squared()."
        )
    if cost.name not in _CLASSES:
        return dict(table)
    found = np.unique(y)
    most = 2 if cost.name in _TWO_CLASSES else outputs
    broken = found[found != np.floor(found)]
    if len(broken):
        raise TacitError(
            f"Expected whole labels for loss {cost.name}, got {broken[0]:g} at {name}; for a number to predict use "
            "squared()."
        )
    strange = found[(found < 0) | (found >= most)]
    if len(strange):
        raise TacitError(
            f"Expected labels 0 to {most - 1} for loss {cost.name} and {counted(outputs, 'output')}, got "
            f"{strange[0]:g} at {name}; {_label_cure(found, most, cost)}"
        )
    return {**table, "y": y.astype(np.int32)}


def _label_cure(found: np.ndarray, most: int, cost: Loss) -> str:
    labels = [int(label) for label in found]
    if len(labels) <= most:
        return f"name the labels in order, which are public: classes={labels}."
    if len(labels) <= _LISTED:
        return f"for the {len(labels)} classes seen there use softmax() and a model with {len(labels)} outputs."
    return f"there are {len(labels)} different ones: for a number to predict use squared()."


def _check_apart(objective: Objective, given: Given) -> None:
    """Raise if a model or loss of one's own mixes records."""
    record = {field: jax.ShapeDtypeStruct(column.shape[1:], column.dtype) for field, column in given.tables[0].items()}
    y = given.tables[0]["y"]
    _, places = np.unique(y.reshape(len(y), -1), axis=0, return_index=True)
    check_apart(objective, record, y[places])


def check_settings(
    algorithm: Any, budget: Any, given: Given, *, protects: Any, channel: Any, sampling: Any, **numbers: Any
) -> None:
    """Raise unless the settings of a fit are of their kinds and fit its silos."""
    if budget is not None and not isinstance(budget, Budget):
        raise TacitError(
            f"Expected budget=tacit.Budget(epsilon=..., delta=...), or None for no privacy, got {budget!r}."
        )
    _check_algorithm(algorithm)
    for name, value, known in (
        ("channel", channel, CHANNELS),
        ("protects", protects, _PROTECTS),
        ("sampling", sampling, (*SAMPLINGS, None)),
    ):
        if value not in known:
            raise TacitError(unknown(name, value, [one for one in known if one]))
    if budget is not None and numbers["clip_norm"] is None:
        raise TacitError("Expected clip_norm, a bound on each record's part in a message, for a budget; none is given.")
    _check_terms(given, sampling, **numbers)


def _check_terms(
    given: Given, sampling: Any, *, clip_norm: Any, batch_size: Any, capacity: Any, seed: Any, measure_every: Any
) -> None:
    _check_by_silo("clip_norm", clip_norm, given, whole=False)
    _check_by_silo("batch_size", batch_size, given, whole=True)
    _check_by_silo("capacity", capacity, given, whole=True)
    if sampling not in (None, "full") and batch_size is None:
        raise TacitError(f'Expected a batch_size for sampling="{sampling}"; give one, or use sampling="full".')
    if sampling == "full" and batch_size is not None:
        raise TacitError(f'Expected no batch_size={batch_size} for sampling="full", which takes all; leave it out.')
    if batch_size is not None:
        sizes = np.broadcast_to(np.asarray(batch_size), len(given.names))
        for name, table, size in zip(given.names, given.tables, sizes, strict=True):
            if size > len(table["y"]):
                raise TacitError(
                    f"Expected batch_size={int(size)} <= {len(table['y'])}, the records of {name}; lower it, give one "
                    "for each silo, or leave it out for full batches."
                )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise TacitError(f"Expected seed={seed!r} to be a whole number >= 0.")
    if measure_every is not None and (not isinstance(measure_every, int | np.integer) or measure_every < 0):
        raise TacitError(f"Expected measure_every={measure_every!r} to be a whole number >= 0; 0 measures nothing.")


def _check_by_silo(name: str, value: Any, given: Given, *, whole: bool) -> None:
    """Raise unless a setting is a positive number, or one for each silo."""
    if value is None:
        return
    rule = "a whole number >= 1" if whole else "a finite number > 0"
    try:
        numbers = np.asarray(value, float)
    except (TypeError, ValueError):
        raise TacitError(f"Expected {name}={value!r} to be {rule}, or one for each silo.") from None
    if numbers.ndim > 1 or (numbers.ndim == 1 and len(numbers) != len(given.names)):
        raise TacitError(
            f"Expected {name} to be one number or {len(given.names)} of them, one for each silo, got {value!r}."
        )
    if not (np.isfinite(numbers).all() and (numbers > 0).all()) or (whole and (numbers % 1).any()):
        raise TacitError(f"Expected {name}={value!r} to be {rule}, or one for each silo.")


def _check_algorithm(algorithm: Any) -> None:
    from tacit.plans.catalogue import find, known_algorithms

    known = known_algorithms()
    uncalled = callable(algorithm) and inspect.signature(algorithm).return_annotation is Recipe
    if callable(algorithm) and not uncalled:
        return
    name = algorithm.__name__.replace("_", "-") if uncalled else str(algorithm).replace("_", "-")
    near = name if name in known else nearest(name, known)
    shown = near or "mb-sgd"
    required = [p.name for p in find(shown).parameters.values() if p.default is p.empty]
    call = f"tacit.{shown.replace('-', '_')}({', '.join(f'{name}=...' for name in required)})"
    what = f"the function {algorithm.__name__} itself" if uncalled else repr(algorithm)
    raise TacitError(f"Expected an algorithm such as {call}, got {what}; names are for studies.")


def _short(value: Any) -> str:
    """A value for a message: its type, and itself where it is short."""
    text = repr(value)
    return text if len(text) < 40 and "\n" not in text else f"a {type(value).__name__}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(repr, names[:_LISTED])) + more
