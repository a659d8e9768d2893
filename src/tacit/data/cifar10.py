"""CIFAR-10: 50,000 colour images of ten classes, by default one class per silo.

Options:
    features: ``"signed"`` scales pixels to [-1, 1] (the default), ``"unit"`` to [0, 1]. Images stay NHWC.
    holdout: ``"silo"`` tests on records held out of each silo; ``"official"`` on CIFAR's own 10,000 test
        images, divided among the silos in the same way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit.data.federation import DataError, Step
from tacit.data.files import locate
from tacit.data.layout import layout
from tacit.data.table import Encoding, Table

CITATION = "Krizhevsky (2009). Learning multiple layers of features from tiny images. University of Toronto."

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Every pixel has magnitude at most 1.
FEATURE_NORM = float(np.sqrt(32 * 32 * 3))


def read(directory: Path | None, verify: bool, *, features: str = "signed", holdout: str = "silo") -> Table:
    """The 50,000 training images; the test images only if ``holdout`` asks for them."""
    if features not in ("signed", "unit"):
        raise DataError(f"Expected features={features!r} to be 'signed' ([-1, 1]) or 'unit' ([0, 1]).")
    if holdout not in ("silo", "official"):
        raise DataError(f"Expected holdout={holdout!r} to be 'silo' or 'official'.")
    with np.load(locate(layout()["cifar10/cifar10.npz"], directory, verify)) as archive:
        images, labels = archive["X"], archive["y"].astype(np.int32)
        official = None
        if holdout == "official":
            test_labels = archive["yt"].astype(np.int32)
            official = (archive["Xt"], test_labels, test_labels)
    return Table(
        x=images,
        y=labels,
        fit=lambda _reserve, _train: _encoding(features),
        task="multiclass",
        citation=CITATION,
        class_names=CLASSES,
        official_test=official,
    )


def _encoding(features: str) -> Encoding:
    if features == "unit":
        step = Step("pixels", True, "Colour levels divided by 255.")
        return Encoding(lambda raw: raw.astype(np.float32) / np.float32(255), (step,), FEATURE_NORM)
    step = Step("pixels", True, "Colour levels scaled from 0..255 to [-1, 1].")
    return Encoding(lambda raw: raw.astype(np.float32) / np.float32(127.5) - np.float32(1), (step,), FEATURE_NORM)
