"""Convolutions with max pooling as matrix products, tapped.

XLA's convolution is slow on CPUs, and so is a matrix product with as few columns as a first layer has channels. A layer
of convolution and pooling is therefore one product: all outputs that are pooled together are computed from the one
patch of the image that they see. For a kernel of side k pooled in windows of side s,

    patch of side k + s - 1 (a whole number of windows), every s pixels
    matrix   (patch, s^2 channels): the kernel, shifted to each place of the window
    pooling  the largest over the s^2 places

which copies the image far less than one patch for every output would, and pools without moving anything. The kernel
is unfolded into that matrix by a linear function of the parameters; its transpose folds gradients back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.objectives.models import dense, glorot
from tacit.objectives.objective import Architecture, Model, Tap

IMAGE = (32, 32, 3)


def cnn(
    image: tuple[int, int, int] = IMAGE,
    *,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
    outputs: int = 10,
    kernel: int = 5,
    pool: int = 2,
) -> Model:
    """Convolutions, each with ReLU and max pooling, then dense layers; images are (height, width, channels).

    The defaults are the five-layer network of the CIFAR-10 experiment of Lowy, Ghafelebashi and Razaviyayn,
    arXiv:2203.06735: two 5x5 convolutions of 6 and 16 channels, each pooled 2x2, and dense layers of 120, 84 and 10.
    Padding, strides and initialisation are not stated there; as in the tutorial that it follows, convolutions have no
    padding and stride 1. Weights are Glorot-uniform, biases zero.

    >>> [(name, layer["w"].shape) for name, layer in cnn().init(jax.random.key(0)).items()][:3]
    [('conv_1', (75, 6)), ('conv_2', (150, 16)), ('dense_1', (400, 120))]
    """
    sides = _sides(image, len(channels), kernel, pool)
    depths = (image[2], *channels)
    widths = (sides[-1][0] * sides[-1][1] * depths[-1], *hidden, outputs)
    convolutions = tuple(f"conv_{i}" for i in range(1, len(depths)))
    denses = tuple(f"dense_{i}" for i in range(1, len(widths)))
    unfold = {name: _unfolded(kernel, pool, depth) for name, depth in zip(convolutions, depths, strict=False)}

    def init(key: Array) -> Params:
        keys = iter(jax.random.split(key, len(convolutions) + len(denses)))
        params = {}
        for name, fan_in, fan_out in zip(convolutions, depths[:-1], depths[1:], strict=True):
            params[name] = glorot(next(keys), fan_in, fan_out, area=kernel**2)
        for name, fan_in, fan_out in zip(denses, widths[:-1], widths[1:], strict=True):
            params[name] = glorot(next(keys), fan_in, fan_out)
        return params

    def apply(params: Params, x: Array, tap: Tap) -> Array:
        for name in convolutions:
            layer = unfold[name](params[name])
            patches, grid = _patches(x, kernel, pool)
            outs = tap(name, patches, patches @ layer["w"] + layer["b"])
            pooled = outs.reshape(-1, *grid, pool**2, params[name]["w"].shape[1]).max(axis=3)
            x = jax.nn.relu(pooled)
        x = x.reshape(x.shape[0], -1)
        for name in denses[:-1]:
            x = jax.nn.relu(dense(params, name, x, tap))
        return dense(params, denses[-1], x, tap)

    widths_of = {"channels": list(channels), "hidden": list(hidden), "outputs": outputs}
    made = Architecture("cnn", {"image": list(image), **widths_of, "kernel": kernel, "pool": pool})
    return Model(init, apply, (*convolutions, *denses), unfold, architecture=made)


def _sides(image: tuple[int, int, int], layers: int, kernel: int, pool: int) -> list[tuple[int, int]]:
    """Height and width before, between and after the convolutions; each must be a whole number of windows."""
    if layers < 1 or kernel < 1 or pool < 1:
        raise TacitError(f"Expected channels, kernel={kernel} and pool={pool} to be at least 1.")
    sides = [image[:2]]
    for i in range(1, layers + 1):
        after = [side - kernel + 1 for side in sides[-1]]
        if min(after) < 1 or any(side % pool for side in after) or any(side % pool for side in sides[-1]):
            raise TacitError(
                f"Expected convolution {i} to see and to leave a whole number of {pool}x{pool} windows, but a kernel "
                f"of {kernel} makes {tuple(after)} of {sides[-1]}; crop or pad the images, or change kernel or pool."
            )
        sides.append((after[0] // pool, after[1] // pool))
    return sides


def _windows(kernel: int, pool: int) -> int:
    """How many pooling windows a patch spans in each direction."""
    return -(-(kernel + pool - 1) // pool)


def _patches(x: Array, kernel: int, pool: int) -> tuple[Array, tuple[int, int]]:
    """The patches that the windows' outputs see, (records, positions, patch), and the grid of positions."""
    records, height, width, depth = x.shape
    x = x.reshape(records, height // pool, pool, width // pool, pool, depth).swapaxes(2, 3)
    x = x.reshape(records, height // pool, width // pool, pool * pool * depth)
    span = _windows(kernel, pool)
    rows, columns = (height - kernel + 1) // pool, (width - kernel + 1) // pool
    shifted = [x[:, i : i + rows, j : j + columns] for i in range(span) for j in range(span)]
    return jnp.concatenate(shifted, axis=-1).reshape(records, rows * columns, -1), (rows, columns)


def _unfolded(kernel: int, pool: int, depth: int) -> Callable[[Params], dict[str, Array]]:
    """The map from a kernel (kernel^2 depth, channels) to the matrix that takes patches to all outputs of a window."""
    span = _windows(kernel, pool)
    spare = span * pool - kernel
    places = [(i, j) for i in range(pool) for j in range(pool)]

    def unfold(layer: Params) -> dict[str, Array]:
        weights = layer["w"].reshape(kernel, kernel, depth, -1)
        shifted = [jnp.pad(weights, ((i, spare - i), (j, spare - j), (0, 0), (0, 0))) for i, j in places]
        # Rows in the order of `_patches`: windows first, then the pixels of a window.
        matrix = jnp.stack(shifted, axis=3).reshape(span, pool, span, pool, depth, -1).swapaxes(1, 2)
        return {"w": matrix.reshape(span**2 * pool**2 * depth, -1), "b": jnp.tile(layer["b"], pool**2)}

    return unfold
