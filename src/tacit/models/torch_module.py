"""A PyTorch module as a model: parameters are one tree on both sides, gradients are computed record by record.

    problem = Problem(from_torch(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2)), softmax()))

The tree of parameters maps the names of layers to their weights, ``params["0"]["weight"]``, in torch's own shapes. It
holds what ``requires_grad``: everything else in the module, buffers too, is frozen, never moves and is never sent.
Training starts at the module's own weights.

What a record adds must depend on the parameters and that record alone. So layers that mix records, draw random numbers
or keep state are refused by name, and `tacit.objectives.apart` tests what is left by changing the other records.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.models.outside import asked, outside, tensor
from tacit.objectives.objective import Loss, Model, Objective, Pull, Pulled, Tap

_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)


def from_torch(module: nn.Module, loss: Loss | Callable[[Tensor, Tensor], Tensor]) -> Objective:
    """The objective of a torch module and a loss: what `tacit.Problem` takes.

    ``loss`` is one of Tacit's, whose outputs can be read as predictions, or a function of outputs and targets in torch
    that returns one number for each record (``nn.CrossEntropyLoss(reduction="none")``). The module is copied: training
    does not change it. `to_torch` puts trained parameters into one.
    """
    return Objective(torch_model(module), loss if isinstance(loss, Loss) else _torch_loss(loss))


def to_torch(module: nn.Module, params: Params) -> nn.Module:
    """A copy of a module with trained parameters in it; what is frozen stays as it is."""
    made = copy.deepcopy(module)
    own = {name: weight for name, weight in made.named_parameters() if weight.requires_grad}
    given = flat(params)
    if set(own) != set(given):
        raise TacitError(f"Expected parameters {sorted(own)}, got {sorted(given)}; give the module of this training.")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(tensor(given[name]))
    return made


def torch_model(module: nn.Module) -> Model:
    """The model of a torch module; it maps a batch of features to outputs, one row for each record."""
    own = TorchModule(module)
    asked_of_torch = outside(own.outputs, own.width)

    def init(key: Array) -> Params:
        return by_layer({name: jnp.asarray(weight) for name, weight in own.initial.items()})

    def applied(params: Params, x: Array, tap: Tap) -> Array:
        whole = own.dense_layers(x.shape[1:], x.dtype).whole
        if whole is None:
            return asked_of_torch(flat(params), x)
        outputs = x @ params[whole]["weight"].T
        return outputs + params[whole]["bias"] if "bias" in params[whole] else outputs

    return Model(init, applied, outside=own)


def by_layer(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Leaves by torch's names as a tree by layer.

    >>> by_layer({"body.0.weight": 1, "body.0.bias": 2, "scale": 3})
    {'body.0': {'weight': 1, 'bias': 2}, '': {'scale': 3}}
    """
    tree: dict[str, dict[str, Any]] = {}
    for name, leaf in leaves.items():
        layer, _, last = name.rpartition(".")
        tree.setdefault(layer, {})[last] = leaf
    return tree


def flat(tree: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The tree of `by_layer` as leaves by torch's names."""
    return {f"{layer}.{last}" if layer else last: leaf for layer, own in tree.items() for last, leaf in own.items()}


class Dense(NamedTuple):
    """The dense layers that see each record once, as one vector, and whose parameters are all trained.

    ``sizes`` are their inputs and outputs. The inputs of those in ``direct`` are the records themselves. ``whole`` is
    the layer that is all there is: a linear model, which needs no other library.
    """

    sizes: dict[str, tuple[int, int]]
    direct: frozenset[str]
    whole: str | None


class TorchModule:
    """A module that is sure to treat every record by itself, as far as its layers tell."""

    def __init__(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Module):
            raise TacitError(f"Expected a torch.nn.Module, got {type(module).__name__}; give the module itself.")
        check_layers(module)
        self._module = copy.deepcopy(module)
        for layer in self._module.modules():
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                # An index that is out of range must not make an answer fail: that would tell of a record.
                layer.register_forward_pre_hook(_within)
        trained = {name: weight for name, weight in self._module.named_parameters() if weight.requires_grad}
        if not trained:
            raise TacitError("Expected a module with a parameter that requires_grad; all of this one are frozen.")
        self.initial = {name: weight.detach().float().numpy().copy() for name, weight in trained.items()}
        self._widths: dict[Any, tuple[int, ...]] = {}
        self._dense: dict[Any, Dense] = {}
        # Torch puts the parameters into the module while it runs, so one thread at a time may.
        self._lock = threading.RLock()

    def outputs(self, params: dict[str, Tensor], x: Tensor) -> Tensor:
        """What the module says of a batch, one row for each record."""
        with self._lock, differentiable_attention():
            found = torch.func.functional_call(self._module, params, (x,))
        return found[:, None] if found.ndim == 1 else found

    def width(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
        """The shape of the outputs of one record with features of this shape; a public record of zeros is tried."""
        if (shape, str(dtype)) not in self._widths:
            found = self._tried(tensor(np.zeros((1, *shape), dtype)))
            if found.ndim != 2 or found.shape[0] != 1:
                raise TacitError(
                    f"Expected a module that makes of one record a row of outputs, got shape {tuple(found.shape)} for "
                    f"features of shape (1, {', '.join(map(str, shape))}); flatten what it returns."
                )
            self._widths[shape, str(dtype)] = (int(found.shape[1]),)
        return self._widths[shape, str(dtype)]

    def _tried(self, record: Tensor) -> Tensor:
        params = {name: tensor(weight) for name, weight in self.initial.items()}
        with torch.no_grad():
            return self.outputs(params, record)

    def dense(self, shape: tuple[int, ...], dtype: Any) -> dict[str, tuple[int, int]]:
        """The dense layers that see each record once, as one vector, and whose parameters are all trained."""
        return self.dense_layers(shape, dtype).sizes

    def dense_layers(self, shape: tuple[int, ...], dtype: Any) -> Dense:
        """The same, and what is known of their inputs and outputs; a public record of zeros is tried."""
        if (shape, str(dtype)) not in self._dense:
            self.width(shape, dtype)
            self._dense[shape, str(dtype)] = self._found_dense(shape, dtype)
        return self._dense[shape, str(dtype)]

    def _found_dense(self, shape: tuple[int, ...], dtype: Any) -> Dense:
        seen: dict[str, list[tuple[int, bool, Tensor, int]]] = {}
        layers = {name: layer for name, layer in self._module.named_modules() if type(layer) is nn.Linear}
        trained = {n: layer for n, layer in layers.items() if all(w.requires_grad for w in layer.parameters())}
        record = tensor(np.zeros((1, *shape), dtype))

        def see(name: str, x: Tensor, z: Tensor) -> None:
            direct = _is_same(x, record) and record._version == 0
            seen.setdefault(name, []).append((x.ndim, direct, z, z._version))

        with self._hooked(trained, see):
            outputs = self._tried(record)
        once = {name: calls[0] for name, calls in seen.items() if [call[0] for call in calls] == [2]}
        usable = self._agreeing(tuple(once), shape, dtype)
        sizes = {name: (layers[name].in_features, layers[name].out_features) for name in once if name in usable}
        direct = frozenset(name for name in sizes if once[name][1])
        alone = [name for name in direct if set(by_layer(self.initial)) == {name} and self._is_linear(name, shape)]
        kept = [n for n in alone if _is_same(outputs, once[n][2]) and outputs._version == once[n][3]]
        return Dense(sizes, direct, kept[0] if kept else None)

    def _agreeing(self, names: tuple[str, ...], shape: tuple[int, ...], dtype: Any) -> list[str]:
        """The layers whose factors multiply to the gradient itself: weights that are used elsewhere too do not."""
        rng, params = np.random.default_rng(0), by_layer(self.initial)
        x = np.asarray(rng.normal(size=(2, *shape)), dtype)
        cotangents = rng.normal(size=(2, *self.width(shape, dtype))).astype(np.float32)
        formed, tapped = (self.pulled(params, x, own)[1](cotangents) for own in ((), names))
        found = []
        for name in names:
            made = np.einsum("ro,ri->roi", tapped.cotangents[name], tapped.inputs[name])
            wanted = formed.formed.get(name, {}).get("weight")
            if wanted is not None and np.allclose(made, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max()):
                found.append(name)
        return found

    def _is_linear(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether the module says of random records what the layer itself says."""
        x, layer = tensor(np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)), by_layer(self.initial)
        expected = nn.functional.linear(
            x, *(tensor(layer[name][part]) for part in ("weight", "bias") if part in layer[name])
        )
        with torch.no_grad():
            found = self.outputs({name: tensor(weight) for name, weight in self.initial.items()}, x)
        return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-5))

    @contextlib.contextmanager
    def _hooked(self, layers: Mapping[str, nn.Module], see: Callable[[str, Tensor, Tensor], Any]) -> Iterator[None]:
        """Let ``see`` have the input and output of these layers, and change the output; one thread at a time."""

        def hook(name: str) -> Any:
            return lambda layer, given, output: see(name, given[0], output)

        with self._lock:
            handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
            try:
                yield
            finally:
                for handle in handles:
                    handle.remove()

    def pulled(self, params: Params, x: np.ndarray | Tensor, tapped: Sequence[str]) -> tuple[np.ndarray, Pull]:
        """The outputs of some records, and the map from their cotangents to each record's gradient.

        Every record has parameters of its own, all with the same values: one backward pass then yields all gradients.
        A tapped layer has one matrix for all; to its output each record adds a zero, whose gradient is its cotangent.
        """
        count, layers = len(x), dict(self._module.named_modules())
        shared = flat({name: {last: tensor(leaf) for last, leaf in own.items()} for name, own in params.items()})
        own = flat({name: dict.fromkeys(leaves) for name, leaves in params.items() if name not in tapped})
        each = {name: shared[name].expand(count, *shared[name].shape).requires_grad_() for name in own}
        zeros = {name: torch.zeros(count, layers[name].out_features).requires_grad_() for name in tapped}

        def one(each: dict[str, Tensor], zeros: dict[str, Tensor], row: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            inputs: dict[str, Tensor] = {}

            def see(name: str, given: Tensor, output: Tensor) -> Tensor:
                inputs[name] = given[0]
                return output + zeros[name][None]

            with self._hooked({name: layers[name] for name in tapped}, see):
                return self.outputs({**shared, **each}, row[None])[0], inputs

        outputs, inputs = torch.func.vmap(one)(each, zeros, tensor(x))

        def pull(cotangents: np.ndarray | Tensor) -> Pulled:
            leaves = [*each.values(), *zeros.values()]
            found = torch.autograd.grad(outputs, leaves, tensor(cotangents), allow_unused=True, materialize_grads=True)
            arrays = [leaf.numpy() for leaf in found]
            formed = by_layer(dict(zip(each, arrays, strict=False)))
            pulled = dict(zip(zeros, arrays[len(each) :], strict=True))
            return Pulled(formed, {name: inputs[name].detach().numpy() for name in tapped}, pulled)

        return outputs.detach().numpy(), pull

    def factors(self, params: Params, x: Array, cotangents: Array) -> Pulled:
        """What `pulled` says for these cotangents, inside of a jax program: every layer of `dense` in factors.

        Inputs that are the records themselves are not asked for, and a linear model asks for nothing.
        """
        dense, direct, whole = self.dense_layers(x.shape[1:], x.dtype)
        if whole is not None:
            return Pulled({}, {whole: x}, {whole: cotangents})
        leaves = flat(params)
        formed = [name for name in leaves if name.rpartition(".")[0] not in dense]
        widths: dict[Any, tuple[int, ...]] = {("formed", name): leaves[name].shape for name in formed}
        for name, (inputs, outputs) in dense.items():
            widths |= {} if name in direct else {("inputs", name): (inputs,)}
            widths["cotangents", name] = (outputs,)

        def call(tree: dict[str, Tensor], rows: Tensor, given: Tensor) -> dict[Any, np.ndarray]:
            pulled = self.pulled(by_layer(tree), rows, tuple(dense))[1](given)
            parts = zip(pulled._fields, (flat(pulled.formed), pulled.inputs, pulled.cotangents), strict=True)
            return {(part, name): leaf for part, own in parts for name, leaf in own.items() if (part, name) in widths}

        result = {name: jax.ShapeDtypeStruct((x.shape[0], *own), jnp.float32) for name, own in widths.items()}
        found = asked(call, result, leaves, x, cotangents)
        own = {part: {name: leaf for (of, name), leaf in found.items() if of == part} for part in Pulled._fields}
        return Pulled(by_layer(own["formed"]), own["inputs"] | dict.fromkeys(direct, x), own["cotangents"])


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same numbers in the same memory."""
    same = (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
    return same and one.data_ptr() == other.data_ptr()


@contextlib.contextmanager
def differentiable_attention() -> Iterator[None]:
    """Attention of evaluation mode as torch differentiates it: its faster kernels have no gradients and no ``vmap``."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _within(layer: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    return (given[0].clamp(0, layer.num_embeddings - 1), *given[1:])


def check_layers(module: nn.Module) -> None:
    """Raise where a layer mixes records, draws random numbers, keeps state or is not complete; its name is told."""
    for name, layer in module.named_modules():
        called = f"layer {name!r} ({type(layer).__name__})" if name else f"the module ({type(layer).__name__})"
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            raise TacitError(
                f"{called} mixes the records of a batch, and no clip bounds one record's part of that; use "
                f"nn.GroupNorm or nn.LayerNorm, or freeze public statistics: call .eval() on the module."
            )
        if isinstance(layer, _NormBase) and layer.training and layer.track_running_stats:
            raise TacitError(f"{called} keeps statistics of records; make it with track_running_stats=False.")
        if layer.training and _drops(layer):
            raise TacitError(
                f"{called} draws random numbers, and a record's gradient must follow from the record alone; leave it "
                "out, or call .eval() on it: the noise of privacy regularises too."
            )
        if layer.training and _iterates(layer):
            raise TacitError(
                f"{called} has a spectral norm, which changes its state at every call; call .eval() on it, or leave "
                "it out."
            )
        if isinstance(layer, nn.RNNBase):
            cell = f"nn.{layer.mode.partition('_')[0]}Cell"
            raise TacitError(
                f"{called} has no gradients record by record in torch.func; {cell} in a loop over the steps has them."
            )
        if any(isinstance(weight, nn.parameter.UninitializedParameter) for weight in layer.parameters(recurse=False)):
            raise TacitError(f"{called} has no weights yet; run the module once on a public record.")
    for name, weight in module.named_parameters():
        if weight.device.type != "cpu" or not weight.is_floating_point():
            raise TacitError(f"Expected {name!r} as floats on the CPU, got {weight.dtype} on {weight.device}.")


def _iterates(layer: nn.Module) -> bool:
    """Whether a layer has a spectral norm, as a parametrisation or as the hook of earlier torch."""
    hooks = [type(hook).__name__ for hook in layer._forward_pre_hooks.values()]
    return type(layer).__name__ == "_SpectralNorm" or "SpectralNorm" in hooks


def _drops(layer: nn.Module) -> bool:
    """Whether a layer in training mode leaves parts out at random; attention does so without a layer for it."""
    if isinstance(layer, nn.MultiheadAttention):
        return bool(layer.dropout)
    return isinstance(layer, _DROPOUTS) and bool(getattr(layer, "p", 1.0))


def _torch_loss(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """A loss in torch, which has one number for each record; that is tried on zeros before anything runs."""
    called = outside(lambda tree, targets: loss(tree["outputs"], targets), lambda shape, dtype: ())

    def value(outputs: Array, targets: Array) -> Array:
        with torch.no_grad():
            zeros = [tensor(np.zeros(array.shape, array.dtype)) for array in (outputs, targets)]
            found = tuple(loss(*zeros).shape)
        if found != targets.shape[:1]:
            raise TacitError(
                f'Expected one loss per record, shape {targets.shape[:1]}, got {found}; make it with reduction="none".'
            )
        return called({"outputs": outputs}, targets)

    return Loss(value)
