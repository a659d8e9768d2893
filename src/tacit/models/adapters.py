"""Less to train, clip and noise in a torch module: low-rank adapters, and frozen weights from a file.

Noise grows with the number of trained parameters, and what is frozen costs no privacy. LoRA (Hu et al.,
arXiv:2106.09685) adds to a dense layer ``W x`` a product ``B A x`` of small matrices. Here A is frozen at random values
and only B is trained, from zero: then the adapter is linear in what is trained, and a record's gradient needs no second
factor with noise of its own (Sun et al., arXiv:2403.12313, freeze A for that reason).
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from tacit.errors import TacitError
from tacit.models.outside import tensor
from tacit.models.torch_module import check_layers, differentiable_attention

_AT_ONCE = 64


class LoraLinear(nn.Module):  # type: ignore[misc]
    """A frozen dense layer and its adapter: ``W x + bias + scale B A x``.

    ``weight`` and ``bias`` are there for modules that read those of a layer instead of calling it, such as
    ``nn.MultiheadAttention``.
    """

    def __init__(self, base: nn.Linear, rank: int, rng: np.random.Generator, scale: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), scale
        self.down = nn.Linear(base.in_features, rank, bias=False).requires_grad_(False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        with torch.no_grad():
            deviation = base.in_features**-0.5
            self.down.weight.copy_(tensor(rng.normal(0.0, deviation, self.down.weight.shape).astype(np.float32)))
            self.up.weight.zero_()

    @property
    def weight(self) -> Tensor:
        """The matrix of the layer with its adapter, ``W + scale B A``."""
        return self.base.weight + self.scale * self.up.weight @ self.down.weight

    @property
    def bias(self) -> Tensor | None:
        """The bias, which is frozen."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its adapter."""
        return self.base(x) + self.scale * self.up(self.down(x))


def lora(module: nn.Module, *, rank: int, seed: int, head: Sequence[str] = (), scale: float = 1.0) -> nn.Module:
    """A copy of a module whose dense layers have adapters; B of these and the layers of ``head`` are all it trains.

    A is drawn with ``seed``, so that all silos and the server have the same. ``head`` names layers that are trained in
    full, such as the last one of a model for other classes than it was trained on.
    """
    if rank < 1:
        raise TacitError(f"Expected rank={rank} >= 1.")
    made, rng = copy.deepcopy(module).requires_grad_(False), np.random.default_rng(seed)
    layers = dict(made.named_modules())
    for name in head:
        if name not in layers:
            raise TacitError(f"Expected the layers of head among {sorted(filter(None, layers))}, got {name!r}.")
        layers[name].requires_grad_(True)
    adapted = [n for n, layer in layers.items() if isinstance(layer, nn.Linear) and not _below(n, head)]
    if not adapted:
        raise TacitError("Expected a module with an nn.Linear that is not of the head; there is none to adapt.")
    if adapted == [""]:
        return LoraLinear(made, rank, rng, scale)
    for name in adapted:
        above, _, last = name.rpartition(".")
        setattr(layers[above], last, LoraLinear(layers[name], rank, rng, scale))
    return made


def _below(name: str, tops: Sequence[str]) -> bool:
    return any(name == top or name.startswith(f"{top}.") for top in tops)


def with_weights(module: nn.Module, path: str | Path, *, digest: str) -> nn.Module:
    """A copy of a module with the weights of a safetensors file whose SHA-256 is ``digest``, all of them frozen.

    The module is in evaluation mode, so that statistics of batch normalisation stay what the file says.
    """
    raw = Path(path).read_bytes()
    found = hashlib.sha256(raw).hexdigest()
    if found != digest:
        raise TacitError(f"Expected weights with the digest {digest}, but {path} has {found}; it is another file.")
    made = copy.deepcopy(module)
    try:
        made.load_state_dict(load(raw))
    except (SafetensorError, RuntimeError) as error:
        raise TacitError(f"{path}: the weights do not fit the module: {str(error).splitlines()[0]}") from None
    return made.requires_grad_(False).eval()


def backbone(module: nn.Module, path: str | Path, *, digest: str) -> Callable[[np.ndarray], np.ndarray]:
    """The features that a frozen module makes of records: a function from ``x`` to one row of floats for each record.

    Formal guarantee: a row is computed from its record alone, by ``torch.func.vmap``, as long as the module's own code
    keeps no state; layers that do are refused by name, and every call tries whether a record is answered alike twice.
    So a record's features are a record, and what protects one protects the other.
    """
    own = with_weights(module, path, digest=digest)
    check_layers(own)
    each = torch.func.vmap(lambda row: own(row[None])[0].flatten().float())

    def features(x: np.ndarray) -> np.ndarray:
        with torch.no_grad(), differentiable_attention():
            some = [tensor(x[i : i + _AT_ONCE]) for i in range(0, len(x), _AT_ONCE)]
            made = [each(part).numpy() for part in some]
            again = each(some[0]).numpy()
        if not np.array_equal(made[0], again, equal_nan=True):
            raise TacitError("Expected the same features of the same record, asked twice; the backbone keeps state.")
        return np.concatenate(made).astype(np.float32)

    return features
