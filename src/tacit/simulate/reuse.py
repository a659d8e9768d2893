"""Keys of what a compiled program follows from, so that a run like an earlier one finds the earlier one's program.

A closure is known by its code and by what it holds, down to numbers and arrays: two models that the same function made
from the same widths have equal keys. A function from outside of Tacit also counts with the global values that it names.
What is not known to stay as it is has no key, and its programs are compiled anew. Lists and mappings count with
what they hold when the key is made: whoever changes one that a closure holds must make a new closure.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
_KEPT = 16  # programs
_FUNCTIONS = 64  # compiled functions
_SETTLED = ("tacit", "jax", "jaxlib", "numpy", "scipy", "math", "builtins", "functools", "operator", "itertools")
_BY_VALUE = (type(None), bool, int, str, bytes, types.CodeType, type(Ellipsis), np.dtype)
_BY_IDENTITY = (type, types.BuiltinFunctionType, np.ufunc, jax.custom_jvp, jax.custom_vjp)
_JITTED = type(jax.jit(lambda: None))


class UnkeyedError(Exception):
    """Something may change without a trace."""


class _Same:
    """An object as a key: equal to itself alone, and kept, so that no other takes its place."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.held is other.held

    def __hash__(self) -> int:
        return id(self.held)


def key_of(value: Any) -> Hashable:
    """A key that is equal for what computes the same; raises `UnkeyedError` where none is known.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> key_of(scaled(2.0)) == key_of(scaled(2.0)), key_of(scaled(2.0)) == key_of(scaled(3.0))
    (True, False)
    """
    return _key(value, ())


def _key(value: Any, above: tuple[int, ...]) -> Hashable:
    if isinstance(value, _BY_VALUE):
        return type(value), value
    if isinstance(value, float):
        return type(value), value.hex()  # zeros of either sign are equal, and not the same
    if isinstance(value, _BY_IDENTITY) or (isinstance(value, _JITTED) and _settled(value)):
        return _Same(value)
    if id(value) in above:
        return "above", len(above) - above.index(id(value))
    inside = functools.partial(_key, above=(*above, id(value)))
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value)
    if isinstance(value, types.ModuleType | types.FunctionType | types.MethodType | functools.partial):
        return _code(value, inside)
    if isinstance(value, tuple | list):
        return type(value), tuple(map(inside, value))
    if isinstance(value, Mapping) and isinstance(value, dict | types.MappingProxyType):
        return "mapping", tuple((inside(name), inside(part)) for name, part in value.items())
    if dataclasses.is_dataclass(value) and getattr(type(value), "__dataclass_params__").frozen:  # noqa: B009
        return type(value), tuple(inside(getattr(value, part.name)) for part in dataclasses.fields(value))
    raise UnkeyedError(f"No key of {type(value).__name__}.")


def _code(value: Any, inside: Callable[[Any], Hashable]) -> Hashable:
    """A module, a function, a method, or a part of one."""
    if isinstance(value, types.ModuleType):
        if value.__name__.partition(".")[0] not in _SETTLED:
            raise UnkeyedError(f"Values of the module {value.__name__} may change.")
        return _Same(value)
    if isinstance(value, types.MethodType):
        return "method", inside(value.__func__), inside(value.__self__)
    if isinstance(value, functools.partial):
        return "partial", inside(value.func), inside(value.args), inside(value.keywords)
    if value.__dict__ and not _settled(value):
        raise UnkeyedError("What is attached to a function may change.")
    return "function", value.__code__, _Same(value.__globals__), tuple(map(inside, _held(value)))


def _array(value: Any) -> Hashable:
    if isinstance(value, jax.core.Tracer) or value.dtype == object:
        raise UnkeyedError("A value that is traced, or holds objects, has no key.")
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    plain = np.asarray(jax.random.key_data(value) if is_key else value)
    return (
        "array",
        isinstance(value, jax.Array),
        str(value.dtype),
        plain.shape,
        hashlib.sha256(plain.tobytes()).digest(),
    )


def _settled(function: Any) -> bool:
    """Whether a function is of a library, whose global values nobody changes."""
    return str(getattr(function, "__module__", None)).partition(".")[0] in _SETTLED


def _held(function: types.FunctionType) -> Iterator[Any]:
    """What a function holds: defaults, its closure, and from outside of libraries the global values that it names."""
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            raise UnkeyedError("A closure is not whole yet.") from None
    if not _settled(function):
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield name
                yield function.__globals__[name]


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(const) for const in code.co_consts if isinstance(const, types.CodeType)]
    return set(code.co_names).union(*inner)


class Programs(Generic[T]):
    """The latest programs by key."""

    def __init__(self, most: int = _KEPT) -> None:
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._most = most

    def get(self, parts: Any, make: Callable[[], T]) -> T:
        """The program of these parts; made, and kept where the parts have a key, unless it is there."""
        try:
            key = key_of(parts)
        except UnkeyedError:
            return make()
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


_COMPILED: Programs[Any] = Programs(_FUNCTIONS)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``jax.jit`` of a function, or that of an earlier one which computes the same: it is compiled already.

    >>> def scaled(by):
    ...     return lambda x: by * x
    >>> compiled(scaled(2.0)) is compiled(scaled(2.0)), compiled(scaled(2.0)) is compiled(scaled(3.0))
    (True, False)
    """
    return _COMPILED.get((function, options), lambda: jax.jit(function, **options))
