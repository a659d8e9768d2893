"""MNIST: odd against even in 25 silos of digit pairs, or ten digits in any partition.

The default follows the experiment of Lowy, Ghafelebashi and Razaviyayn ("Private non-convex federated
learning without a trusted server"), repaired: the 25 silos are disjoint (1,543 images each, 1,234 of them for
training), and the PCA to 50 dimensions is fitted on 10,000 training images that belong to no silo.

Options:
    features: ``"pca-50"`` (or another number), ``"pixels"`` (784 in [0, 1]) or ``"unit-pixels"`` (norm at
        most 1). By default the first for digit pairs, else the second.
    task: ``"parity"`` or ``"digits"``. By default the first for digit pairs, else the second.
    holdout: ``"silo"`` tests on records held out of each silo; ``"official"`` on MNIST's own 10,000 test
        images, divided among the silos in the same way, so that all 60,000 others are for training and
        validation.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from tacit.data.encode import bound_norm, norm_step
from tacit.data.federation import DataError, Step
from tacit.data.files import locate
from tacit.data.layout import layout
from tacit.data.table import Encoding, Table

CITATION = (
    "LeCun, Cortes and Burges. The MNIST database of handwritten digits. http://yann.lecun.com/exdb/mnist. "
    "CC BY-SA 3.0."
)

PCA_RESERVE = 10_000
PCA_NORM = 10.0


def read(
    directory: Path | None,
    verify: bool,
    *,
    partition: str = "iid",
    features: str | None = None,
    task: str | None = None,
    holdout: str = "silo",
) -> Table:
    """The 60,000 training images; the test images only if ``holdout`` asks for them."""
    pairs = partition == "digit-pairs"
    features = features or ("pca-50" if pairs else "pixels")
    task = task or ("parity" if pairs else "digits")
    dimensions = _dimensions(features)
    if task not in ("parity", "digits"):
        raise DataError(f"Expected task={task!r} to be 'parity' or 'digits'.")
    if holdout not in ("silo", "official"):
        raise DataError(f"Expected holdout={holdout!r} to be 'silo' or 'official'.")
    images, digits = _pair("train", directory, verify)
    official = None
    if holdout == "official":
        test_images, test_digits = _pair("t10k", directory, verify)
        official = (test_images, _target(test_digits, task), test_digits)
    return Table(
        x=images,
        y=_target(digits, task),
        fit=lambda reserve, _train: _encoding(features, dimensions, reserve),
        task="binary" if task == "parity" else "multiclass",
        class_names=("even", "odd") if task == "parity" else tuple(str(digit) for digit in range(10)),
        citation=CITATION,
        label=digits,
        reserve=PCA_RESERVE if dimensions else 0,
        official_test=official,
    )


def _dimensions(features: str) -> int:
    """How many principal components; 0 for pixels."""
    if features in ("pixels", "unit-pixels"):
        return 0
    number = features.removeprefix("pca-")
    if not (features.startswith("pca-") and number.isdigit() and 1 <= int(number) <= 784):
        raise DataError(
            f"Expected features={features!r} to be 'pixels', 'unit-pixels', or 'pca-50' with a number from 1 to 784."
        )
    return int(number)


def _target(digits: np.ndarray, task: str) -> np.ndarray:
    return (digits % 2 if task == "parity" else digits).astype(np.int32)


def _pair(which: str, directory: Path | None, verify: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images and digits."""
    files = (layout()[f"mnist/{which}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
    pixels, digits = (gzip.decompress(locate(file, directory, verify).read_bytes()) for file in files)
    # The idx format: 16 bytes before the images, 8 before the labels.
    flat = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 784)
    return flat, np.frombuffer(digits, np.uint8, offset=8).astype(np.int32)


def _encoding(features: str, dimensions: int, reserve: np.ndarray) -> Encoding:
    pixels = Step("pixels", True, "Grey levels divided by 255.")
    if features == "pixels":
        return Encoding(_unit_interval, (pixels,), norm=28.0)
    if features == "unit-pixels":
        return Encoding(lambda raw: bound_norm(_unit_interval(raw), 1.0), (pixels, norm_step(1.0)), norm=1.0)
    mean, components = _principal_components(_unit_interval(reserve), dimensions)
    pca = Step(
        "PCA",
        True,
        f"Mean and {dimensions} principal components of {len(reserve):,} training images that are in no silo.",
    )
    return Encoding(
        apply=lambda raw: bound_norm((_unit_interval(raw) - mean) @ components, PCA_NORM),
        steps=(pixels, pca, norm_step(PCA_NORM)),
        norm=PCA_NORM,
    )


def _unit_interval(raw: np.ndarray) -> np.ndarray:
    return raw.astype(np.float32) / np.float32(255)


def _principal_components(images: np.ndarray, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    mean = images.mean(axis=0, dtype=np.float64)
    centred = images - mean
    _, vectors = np.linalg.eigh(centred.T @ centred)
    components = vectors[:, ::-1][:, :dimensions]
    # Eigenvectors have no sign of their own; fixed, the same images give the same features everywhere.
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(dimensions)])
    return mean.astype(np.float32), (components * signs).astype(np.float32)
