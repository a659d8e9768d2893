"""A picture of what privacy is for: images taken out of one message, and the same attack on a protected one.

The hostile server sends a model whose hidden units measure the brightness of an image, each with its own threshold, and
count the same in the output. The gradient of a unit is a sum over the images that are brighter than its threshold. The
difference of two neighbouring units holds the images between two thresholds: often just one, and dividing by the
gradient of the bias develops it. The silo answers one ordinary round of minibatch SGD: with protection through the door
of a real silo, and without it in the simulator, since no door opens for that.

References:
    Fowl, Geiping, Czaja, Goldblum, Goldstein. Robbing the fed. arXiv:2110.13057.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import data
from tacit.algorithm import Channel, Params, Terms
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.objectives import Objective, Problem, mlp, softmax
from tacit.privacy import gdp_mu
from tacit.silo import answer, check_records, view_of
from tacit.silo.door import NO_PAST, Door
from tacit.silo.sampler import discrete_gaussian

BINS = 512
CLIP = 1.0


@dataclass(frozen=True)
class Reconstruction:
    """Images of a silo, and what the attack makes of its message; similarity is the correlation with the best match."""

    originals: np.ndarray
    unprotected: np.ndarray
    protected: np.ndarray
    similarity_unprotected: np.ndarray
    similarity_protected: np.ndarray
    epsilon: float
    delta: float

    def as_json(self) -> dict[str, Any]:
        """The outcome in numbers."""
        return {
            "images": len(self.originals),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "recovered_unprotected": int(np.sum(self.similarity_unprotected > 0.95)),
            "recovered_protected": int(np.sum(self.similarity_protected > 0.95)),
            "median_similarity_unprotected": float(np.median(self.similarity_unprotected)),
            "median_similarity_protected": float(np.median(self.similarity_protected)),
        }


def _pictures(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images of a silo from 0 to 1, their classes, and images of somebody else: MNIST, or scikit-learn's digits."""
    try:
        silo, other = data.load(
            "mnist", partition="iid", silos=2, records_per_silo=2000, validation=0.0, test=0.0, features="pixels"
        ).silos
        return silo.train["x"][:count], silo.train["y"][:count], other.train["x"]
    except data.DataError:
        from sklearn.datasets import load_digits

        images, classes = load_digits(return_X_y=True)
        return images[:count] / 16.0, classes[:count], images[count:] / 16.0


def _hostile_model(pixels: int, classes: int, thresholds: np.ndarray) -> Params:
    """Hidden units that compare brightness with a threshold each, and all count the same in the output."""
    units = len(thresholds)
    out = np.zeros((units, classes), np.float32)
    out[:, 0] = 1e-3
    return {
        "layer_1": {"w": jnp.full((pixels, units), 1.0 / pixels), "b": jnp.asarray(-thresholds, jnp.float32)},
        "layer_2": {"w": jnp.asarray(out), "b": jnp.zeros(classes)},
    }


def reconstruct(*, epsilon: float = 1.0, delta: float = 1e-5, number: int = 64) -> Reconstruction:
    """Attack one message of a silo with ``number`` images, through the code that ships, twice."""
    images, classes, elsewhere = _pictures(number)
    pixels, kinds = images.shape[1], int(classes.max()) + 1
    # The attacker needs no record of the silo for this: images elsewhere are about as bright.
    thresholds = np.quantile(elsewhere.mean(axis=1), np.linspace(0, 1, BINS))
    objective = Objective(mlp((pixels, BINS, kinds)), softmax())
    model = _hostile_model(pixels, kinds, thresholds)
    plain, plain_like = _develop(_message(objective, model, images, classes, None), images)
    noisy, noisy_like = _develop(_message(objective, model, images, classes, 1 / gdp_mu(epsilon, delta)), images)
    return Reconstruction(images, plain, noisy, plain_like, noisy_like, epsilon, delta)


def _message(objective: Objective, model: Params, images: Any, classes: Any, multiplier: float | None) -> Params:
    """One answer of the silo to one round of minibatch SGD over all its records; without noise where there is none."""
    channel: Channel = "open" if multiplier is None else "direct"
    terms = Terms(clip_norm=CLIP, noise_multiplier=multiplier, batch_size=None, sampling="full", channel=channel)
    algorithm = mb_sgd(step_size=0.1, num_rounds=1)(Problem(objective), terms)
    silo, records = algorithm.rounds["gradient"].silo, check_records({"x": images, "y": classes}, "silo")
    if multiplier is None:
        view = view_of({k: jnp.asarray(v) for k, v in records.items()}, len(classes), None, 0)
        return answer(silo, model, (), view, key=jax.random.key(0), position=0)[0]
    door = Door(silo, records, silo_index=0, form=False)
    batch = door.batch(0, None)
    return door.answer(model, (), batches=[batch], sampler=discrete_gaussian, past=NO_PAST).message


def _develop(message: Params, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each image the most similar of all that the attack develops, and how similar it is."""
    weights, bias = (np.asarray(message["layer_1"][name], np.float64) for name in ("w", "b"))
    steps, scale = np.vstack([np.diff(weights, axis=1).T, weights[:, -1]]), np.append(np.diff(bias), bias[-1])
    seen = np.abs(scale) > 1e-12
    developed = steps[seen] / scale[seen, None]

    def unit(rows: np.ndarray) -> np.ndarray:
        rows = rows - rows.mean(axis=1, keepdims=True)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    likeness = unit(images) @ unit(developed).T
    return developed[likeness.argmax(axis=1)], likeness.max(axis=1)


def draw_picture(found: Reconstruction, path: Path) -> None:
    """Originals, what the attacker has without protection, and what is left of it with protection."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, side = 8, int(np.sqrt(found.originals.shape[1]))
    shown = np.argsort(-found.similarity_unprotected)[:columns]
    rows = (
        ("In the silo", found.originals),
        ("Taken from an\nunprotected message", found.unprotected),
        (f"The same attack\nat ε = {found.epsilon:g}", found.protected),
    )
    figure = Figure(figsize=(1.1 * columns + 2.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), columns)
    for line, (title, images) in zip(grid, rows, strict=True):
        for axis, which in zip(line, shown, strict=True):
            picture = images[which].reshape(side, side)
            low, high = np.percentile(picture, [1, 99]) if images is found.protected else (0.0, 1.0)
            axis.imshow(picture, cmap="gray_r", vmin=low, vmax=high, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
        line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=12)
    outcome = found.as_json()
    figure.suptitle(
        f"One message of a silo with {outcome['images']} images. Without protection the server recovers "
        f"{outcome['recovered_unprotected']} of them; with ε = {found.epsilon:g}, {outcome['recovered_protected']}.",
        fontsize=12,
    )
    figure.savefig(path, dpi=110)
