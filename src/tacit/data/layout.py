"""The files of the data folder, as ``tables/files.toml`` lists them, and how public files become ours."""

from __future__ import annotations

import io
import pickle
import tarfile
import tomllib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any

import numpy as np

from tacit.data.files import DataFile, Source


@cache
def layout() -> dict[str, DataFile]:
    """The files by their paths in the folder."""
    return {path: _file(path, **row) for path, row in described("files").items()}


def described(name: str) -> dict[str, Any]:
    """A TOML file of the package that describes a table, or the files of all."""
    return tomllib.loads((resources.files("tacit.data") / "tables" / f"{name}.toml").read_text(encoding="utf-8"))


def _file(
    path: str, sha256: list[str], url: str = "", public: str = "", convert: str = "bytes", header: str = "", **more: str
) -> DataFile:
    function = partial(_CONVERSIONS[convert], header=header) if header else _CONVERSIONS[convert]
    return DataFile(path, tuple(sha256), Source(url, public, function) if url else None, **more)


def adult(content: bytes, header: str) -> bytes:
    """UCI's file with a line of column names, without its remark and blank lines."""
    lines = content.decode("ascii").splitlines()
    return "\n".join([header, *(line for line in lines if line.strip() and line[0] != "|"), ""]).encode("ascii")


def credit_card(content: bytes, header: str) -> bytes:
    """UCI's csv file with the columns' own names, and without the row numbers."""
    rows = [line.split(",", 1)[1] for line in content.decode("ascii").splitlines()[1:] if line.strip()]
    return "\n".join([header, *rows, ""]).encode("ascii")


def california_housing(content: bytes) -> bytes:
    """The data file out of the StatLib archive."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        member = archive.extractfile("CaliforniaHousing/cal_housing.data")
        assert member is not None
        return b"\n".join(member.read().split())


def cifar10(content: bytes) -> bytes:
    """The batches of the python archive as one npz file: X, y (training), Xt, yt (test), images as NHWC.

    The archive is a pickle, which is safe to open only because its checksum was compared before.
    """
    images: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name in [*(f"data_batch_{index}" for index in range(1, 6)), "test_batch"]:
            member = archive.extractfile(f"cifar-10-batches-py/{name}")
            assert member is not None
            batch = pickle.load(member, encoding="bytes")
            images.append(batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
            labels.append(np.asarray(batch[b"labels"], dtype=np.uint8))
    stream = io.BytesIO()
    x, y = np.concatenate(images[:-1]), np.concatenate(labels[:-1])
    np.savez(stream, X=x, y=y, Xt=np.ascontiguousarray(images[-1]), yt=labels[-1])
    return stream.getvalue()


_CONVERSIONS: dict[str, Callable[..., bytes]] = {
    function.__name__: function for function in (bytes, adult, credit_card, california_housing, cifar10)
}
