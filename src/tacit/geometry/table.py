"""Regularisers by name, as study files and command lines write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tacit.errors import TacitError, unknown
from tacit.geometry.proximal import Regulariser, elastic_net, group_lasso, l1, squared_l2, zero
from tacit.geometry.sets import box, frobenius_ball, l1_ball, l2_ball, simplex
from tacit.geometry.sums import add

FACTORIES: dict[str, tuple[Callable[..., Regulariser], tuple[str, ...], tuple[str, ...]]] = {
    "zero": (zero, (), ()),
    "l1": (l1, ("strength",), ()),
    "squared-l2": (squared_l2, ("strength",), ()),
    "elastic-net": (elastic_net, ("l1_strength", "l2_strength"), ()),
    "group-lasso": (group_lasso, ("strength",), ("groups",)),
    "box": (box, ("low", "high"), ()),
    "l2-ball": (l2_ball, ("radius",), ()),
    "l1-ball": (l1_ball, ("radius",), ()),
    "simplex": (simplex, (), ("total",)),
    "frobenius-ball": (frobenius_ball, ("radius",), ("per_leaf",)),
}
"""Kind: factory, parameters that it needs, parameters that it may have."""


def regulariser(spec: Mapping[str, Any] | str) -> Regulariser:
    """A regulariser from a table of a study file, or from a short name.

    A table has a ``kind`` and the parameters of that kind; ``kind = "sum"`` has a list of such tables,
    ``terms``. A short name is a kind with its numbers, in order, after colons; ``+`` adds.

    >>> import jax.numpy as jnp
    >>> regulariser({"kind": "l1", "strength": 1.0}).prox(jnp.array([3.0, 0.5]), 1.0).tolist()
    [2.0, 0.0]
    >>> regulariser("l1:1+l2-ball:1").prox(jnp.array([3.0, 0.5]), 1.0).tolist()
    [1.0, 0.0]
    """
    if isinstance(spec, str):
        parts = terms(spec)
        spec = parts[0] if len(parts) == 1 else {"kind": "sum", "terms": parts}
    if spec.get("kind") == "sum":
        return _sum(spec)
    kind, arguments = _checked(spec)
    return FACTORIES[kind][0](**arguments)


def terms(spec: Mapping[str, Any] | str) -> list[Mapping[str, Any]]:
    """The tables of which a regulariser is the sum.

    >>> terms("l1:0.5+l2-ball:10")
    [{'kind': 'l1', 'strength': 0.5}, {'kind': 'l2-ball', 'radius': 10.0}]
    """
    if isinstance(spec, str):
        return [_term(part.strip()) for part in spec.split("+")]
    return list(spec.get("terms", ())) if spec.get("kind") == "sum" else [spec]


def _term(text: str) -> dict[str, Any]:
    kind, *numbers = text.split(":")
    _check_kind(kind)
    _, needed, optional = FACTORIES[kind]
    if not len(needed) <= len(numbers) <= len(needed) + len(optional):
        shape = ":".join([kind, *(name.upper() for name in needed)])
        raise TacitError(f"Expected {text!r} to have {len(needed)} numbers, as in {shape!r}; it has {len(numbers)}.")
    return {"kind": kind} | {
        name: _number(text, number) for name, number in zip(needed + optional, numbers, strict=False)
    }


def _number(text: str, number: str) -> float | str:
    if number in ("leaves", "rows", "columns"):
        return number
    try:
        return float(number)
    except ValueError:
        raise TacitError(f"Expected {number!r} in {text!r} to be a number, as in 'l1:0.01'.") from None


def _sum(spec: Mapping[str, Any]) -> Regulariser:
    parts = spec.get("terms")
    if set(spec) != {"kind", "terms"} or not isinstance(parts, list | tuple) or not parts:
        raise TacitError(f"Expected a sum to have 'terms', a list of regularisers, and nothing else; got {dict(spec)}.")
    for part in parts:
        if not isinstance(part, Mapping) or part.get("kind") == "sum":
            raise TacitError(
                f"Expected every term of a sum to be a single regulariser with a 'kind', got {part!r}; list the terms "
                'of a sum within a sum beside the others, as { kind = "l1", strength = 0.01 }.'
            )
    _check_groups_within_leaves(parts)
    terms: list[tuple[str, Regulariser]] = []
    squared: Any = 0.0
    for part in parts:
        kind, arguments = _checked(part)
        FACTORIES[kind][0](**arguments)  # checks the numbers before they are taken apart
        if kind in ("squared-l2", "elastic-net"):
            squared = squared + arguments.get("l2_strength", arguments.get("strength"))
        if kind == "elastic-net":
            kind, arguments = "l1", {"strength": arguments["l1_strength"]}
        if kind not in ("squared-l2", "zero"):
            terms.append((kind, FACTORIES[kind][0](**arguments)))
    return add(terms or [("zero", zero())], squared)


def _check_groups_within_leaves(parts: Sequence[Mapping[str, Any]]) -> None:
    apart = any(part.get("per_leaf") for part in parts)
    numbered = any(not isinstance(part.get("groups", ""), str) for part in parts)
    if apart and numbered:
        raise TacitError(
            "Expected groups that lie within leaves, such as 'rows', beside a frobenius-ball with "
            "per_leaf: numbered groups may reach across leaves, and then the sum is not closed; leave "
            "per_leaf out."
        )


def _checked(spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "kind" not in spec:
        kinds = ", ".join([*FACTORIES, "sum"])
        raise TacitError(f"Expected a regulariser to have a 'kind', one of {kinds}; got {dict(spec)}.")
    kind = spec["kind"]
    _check_kind(kind)
    _, needed, optional = FACTORIES[kind]
    arguments = {key: value for key, value in spec.items() if key != "kind"}
    for key in arguments:
        if key not in needed + optional:
            known = ", ".join(needed + optional) or "none"
            raise TacitError(f"Unknown parameter {key!r} of regulariser {kind!r}; its parameters are: {known}.")
    for key in needed:
        if key not in arguments:
            raise TacitError(f"Expected regulariser {kind!r} to have {key!r}; add {key} = a number.")
    return kind, arguments


def _check_kind(kind: object) -> None:
    if kind == "sum":
        raise TacitError(
            "Expected a sum as its terms with + between them, as in 'l1:0.01+l2-ball:10', or as a table with "
            "kind = \"sum\" and terms; got the word 'sum' alone."
        )
    if kind not in FACTORIES:
        raise TacitError(unknown("regulariser", kind, [*FACTORIES, "sum"]))
