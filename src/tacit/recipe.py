"""Algorithms as objects: from a factory to a constructor that an editor completes and a type checker checks.

In its file an algorithm is a factory, a function of a problem, the terms of release and its own parameters. `recipe`
makes it a constructor of the last alone:

    mb_sgd(step_size=8.0, num_rounds=30)    is a `Recipe`, which is called with a problem and terms

A special case is a `preset`: a function that says what it fixes of another algorithm's parameters. Any callable of a
problem and terms that returns an `Algorithm` can stand where a recipe does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, get_args, get_type_hints

from tacit.errors import unknown

if TYPE_CHECKING:
    from tacit.algorithm import Algorithm, Sampling, Terms
    from tacit.objectives import Problem

P = ParamSpec("P")
Fixed = Mapping[str, Any]
"""Parameters by name that a preset fixes of its base."""
_GIVEN_LATER = 2  # the problem and the terms


@dataclass(frozen=True)
class Recipe:
    """An algorithm with its own parameters, ready for a problem and terms of release."""

    name: str
    parameters: Mapping[str, Any]
    factory: Callable[..., Algorithm] = field(repr=False, compare=False)

    def __call__(self, problem: Problem, terms: Terms) -> Algorithm:
        """The algorithm for this problem on these terms."""
        return self.factory(problem, terms, **self.parameters)


def recipe(factory: Callable[Concatenate[Problem, Terms, P], Algorithm]) -> Callable[P, Recipe]:
    """The constructor of a factory's recipes; it takes the factory's own parameters and checks their names."""
    own = list(inspect.signature(factory).parameters.values())[_GIVEN_LATER:]
    return _constructor(factory, factory, own)


def preset(
    base: Callable[..., Recipe], *, sampling: Sampling | None = None
) -> Callable[[Callable[Concatenate[Problem, Terms, P], Fixed]], Callable[P, Recipe]]:
    """A special case of ``base``, from a function that has its own parameters and returns what it fixes of the base's.

    Parameters of the function go to the base as they are. It may name a group of them as
    ``**options: Unpack[SomeTypedDict]``; their defaults are the base's. ``sampling`` is the only one that is allowed.
    """

    def decorate(fixes: Callable[Concatenate[Problem, Terms, P], Fixed]) -> Callable[P, Recipe]:
        name, parameters = name_of(fixes), _expanded(fixes, base)
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

        def factory(problem: Problem, terms: Terms, **given: Any) -> Algorithm:
            if sampling is not None and terms.sampling != sampling:
                raise ValueError(
                    f'Expected sampling="{sampling}" for {name}, got {terms.sampling!r}; {name_of(base)} takes any.'
                )
            own = {**defaults, **given}
            return base(**{**own, **fixes(problem, terms, **own)})(problem, terms)  # type: ignore[call-arg]

        return _constructor(factory, fixes, parameters, base)

    return decorate


def name_of(function: Callable[..., Any]) -> str:
    """The name of an algorithm as studies spell it: that of its function, with hyphens."""
    return function.__name__.replace("_", "-")


def _constructor(
    factory: Callable[..., Algorithm],
    written: Callable[..., Any],
    own: list[inspect.Parameter],
    base: Callable[..., Recipe] | None = None,
) -> Callable[P, Recipe]:
    """A function with the name and docstring of ``written`` that keeps its arguments in a recipe."""
    name, signature = name_of(written), inspect.Signature(own, return_annotation=Recipe)

    @functools.wraps(written)
    def constructor(*args: P.args, **given: P.kwargs) -> Recipe:
        for strange in sorted(set(given) - set(signature.parameters)):
            if base is not None and strange in inspect.signature(base).parameters:
                raise TypeError(f"Expected no {strange}: {name} settles it; use {name_of(base)} to choose it.")
            raise TypeError(unknown(f"parameter of {name}", strange, signature.parameters))
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; it takes {', '.join(signature.parameters)}.") from None
        return Recipe(name, bound.arguments, factory)

    constructor.__signature__ = signature  # type: ignore[attr-defined]
    return constructor


def _expanded(fixes: Callable[..., Fixed], base: Callable[..., Recipe]) -> list[inspect.Parameter]:
    """The parameters of a preset, a group of options replaced by the base's parameters of these names."""
    found: list[inspect.Parameter] = []
    for parameter in list(inspect.signature(fixes).parameters.values())[_GIVEN_LATER:]:
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            found.append(parameter)
            continue
        [options] = get_args(get_type_hints(fixes)[parameter.name])
        known = inspect.signature(base).parameters
        found += [known[name] for name in get_type_hints(options)]
    return found
