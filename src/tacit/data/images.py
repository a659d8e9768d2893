"""MNIST and CIFAR-10.

Both have an option ``holdout``: ``"silo"`` (the default) tests on records held out of each silo; ``"official"`` on the
source's own 10,000 test images, divided among the silos in the same way, so that all others are for training and
validation.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from tacit.data.encode import Norm, Projected, Scaled, norm_step
from tacit.data.federation import DataError, Encoding, Step, Table, Target
from tacit.data.files import locate
from tacit.data.layout import layout

MNIST = (
    "LeCun, Cortes and Burges. The MNIST database of handwritten digits. http://yann.lecun.com/exdb/mnist. "
    "CC BY-SA 3.0."
)
CIFAR10 = "Krizhevsky (2009). Learning multiple layers of features from tiny images. University of Toronto."
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PCA_RESERVE = 10_000
PCA_NORM = 10.0
_GREY = Scaled(255.0)


def read_mnist(
    directory: Path | None,
    verify: bool,
    *,
    partition: str = "iid",
    features: str | None = None,
    task: str | None = None,
    holdout: str = "silo",
) -> Table:
    """MNIST: odd against even in 25 silos of digit pairs, or ten digits in any partition.

    The default follows the experiment of Lowy, Ghafelebashi and Razaviyayn ("Private non-convex federated learning
    without a trusted server"), repaired: the 25 silos are disjoint (1,543 images each, 1,234 of them for training), and
    the PCA to 50 dimensions is fitted on 10,000 training images that belong to no silo.

    Options:
        features: ``"pca-50"`` (or another number), ``"pixels"`` (784 in [0, 1]) or ``"unit-pixels"`` (norm at
            most 1). By default the first for digit pairs, else the second.
        task: ``"parity"`` or ``"digits"``. By default the first for digit pairs, else the second.
    """
    pairs = partition == "digit-pairs"
    features = features or ("pca-50" if pairs else "pixels")
    task = task or ("parity" if pairs else "digits")
    dimensions = _dimensions(features)
    if task not in ("parity", "digits"):
        raise DataError(f"Expected task={task!r} to be 'parity' or 'digits'.")
    _check_holdout(holdout)
    modulus = 2 if task == "parity" else 10
    images, digits = _mnist("train", directory, verify)
    official = None
    if holdout == "official":
        test_images, test_digits = _mnist("t10k", directory, verify)
        official = (test_images, test_digits % modulus, test_digits)
    classes = ("even", "odd") if task == "parity" else tuple(str(digit) for digit in range(10))
    return Table(
        x=images,
        y=digits % modulus,
        fit=lambda reserve, _train: _mnist_encoding(features, dimensions, reserve),
        task="binary" if task == "parity" else "multiclass",
        citation=MNIST,
        class_names=classes,
        target=Target(task.removesuffix("s"), classes),
        label=digits,
        reserve=PCA_RESERVE if dimensions else 0,
        official_test=official,
    )


def _check_holdout(holdout: str) -> None:
    if holdout not in ("silo", "official"):
        raise DataError(f"Expected holdout={holdout!r} to be 'silo' or 'official'.")


def _dimensions(features: str) -> int:
    """How many principal components; 0 for pixels."""
    if features in ("pixels", "unit-pixels"):
        return 0
    count = features.removeprefix("pca-")
    if not (features.startswith("pca-") and count.isdigit() and 1 <= int(count) <= 784):
        raise DataError(
            f"Expected features={features!r} to be 'pixels', 'unit-pixels', or 'pca-50' with a number from 1 to 784."
        )
    return int(count)


def _mnist(which: str, directory: Path | None, verify: bool) -> tuple[np.ndarray, np.ndarray]:
    """Images and digits."""
    files = (layout()[f"mnist/{which}-{kind}-ubyte.gz"] for kind in ("images-idx3", "labels-idx1"))
    pixels, digits = (gzip.decompress(locate(file, directory, verify).read_bytes()) for file in files)
    # The idx format: 16 bytes before the images, 8 before the labels.
    flat = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, 784)
    return flat, np.frombuffer(digits, np.uint8, offset=8).astype(np.int32)


def _mnist_encoding(features: str, dimensions: int, reserve: np.ndarray) -> Encoding:
    pixels = Step("pixels", True, "Grey levels divided by 255.")
    if features == "pixels":
        return Encoding((_GREY,), (pixels,), norm=28.0)
    if features == "unit-pixels":
        return Encoding((_GREY, Norm(1.0)), (pixels, norm_step(1.0)), norm=1.0)
    mean, components = _principal_components(_GREY.apply(reserve), dimensions)
    detail = f"Mean and {dimensions} principal components of {len(reserve):,} training images that are in no silo."
    return Encoding(
        stages=(_GREY, Projected(mean, components), Norm(PCA_NORM)),
        steps=(pixels, Step("PCA", True, detail), norm_step(PCA_NORM)),
        norm=PCA_NORM,
    )


def _principal_components(images: np.ndarray, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    mean = images.mean(axis=0, dtype=np.float64)
    centred = images - mean
    _, vectors = np.linalg.eigh(centred.T @ centred)
    components = vectors[:, ::-1][:, :dimensions]
    # Eigenvectors have no sign of their own; fixed, the same images give the same features everywhere.
    signs = np.sign(components[np.abs(components).argmax(axis=0), np.arange(dimensions)])
    return mean.astype(np.float32), (components * signs).astype(np.float32)


def read_cifar10(directory: Path | None, verify: bool, *, features: str = "signed", holdout: str = "silo") -> Table:
    """CIFAR-10: 50,000 colour images of ten classes, by default one class per silo; images stay NHWC.

    ``features="signed"`` (the default) scales pixels to [-1, 1], ``"unit"`` to [0, 1].
    """
    if features not in ("signed", "unit"):
        raise DataError(f"Expected features={features!r} to be 'signed' ([-1, 1]) or 'unit' ([0, 1]).")
    _check_holdout(holdout)
    with np.load(locate(layout()["cifar10/cifar10.npz"], directory, verify)) as archive:
        images, labels = archive["X"], archive["y"].astype(np.int32)
        official = None
        if holdout == "official":
            test_labels = archive["yt"].astype(np.int32)
            official = (archive["Xt"], test_labels, test_labels)
    step = Step("pixels", True, "Colour levels scaled from 0..255 to [-1, 1].")
    norm = float(np.sqrt(32 * 32 * 3))  # every pixel has magnitude at most 1
    encoding = Encoding((Scaled(127.5, -1.0),), (step,), norm)
    if features == "unit":
        encoding = Encoding((_GREY,), (Step("pixels", True, "Colour levels divided by 255."),), norm)
    return Table(
        x=images,
        y=labels,
        fit=lambda _reserve, _train: encoding,
        task="multiclass",
        citation=CIFAR10,
        class_names=CIFAR10_CLASSES,
        target=Target("class", CIFAR10_CLASSES),
        official_test=official,
    )
