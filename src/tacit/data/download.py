"""Public sources: fetching them, and turning them into the files of the layout."""

from __future__ import annotations

import http.client
import io
import pickle
import tarfile
import urllib.error
import urllib.request

import numpy as np

from tacit.data.federation import DataError

TIMEOUT = 30.0
"""Seconds without an answer after which a source counts as unreachable."""

ADULT_HEADER = (
    "age, workclass, fnlwgt, education, education-num, marital-status, occupation, relationship, race, sex, "
    "capital-gain, capital-loss, hours-per-week, native-country, Y"
)

CREDIT_CARD_HEADER = (
    "LIMIT_BAL,SEX,EDUCATION,MARRIAGE,AGE,PAY_0,PAY_2,PAY_3,PAY_4,PAY_5,PAY_6,BILL_AMT1,BILL_AMT2,BILL_AMT3,"
    "BILL_AMT4,BILL_AMT5,BILL_AMT6,PAY_AMT1,PAY_AMT2,PAY_AMT3,PAY_AMT4,PAY_AMT5,PAY_AMT6,default.payment.next.month"
)


def download(url: str) -> bytes:
    """The bytes at ``url``."""
    request = urllib.request.Request(url, headers={"User-Agent": "tacit"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            content: bytes = response.read()
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"Could not fetch it from its public source {url} ({reason}): connect to the internet, or "
            "download it elsewhere and copy it into that folder."
        ) from error
    return content


def adult_data(content: bytes) -> bytes:
    """UCI's ``adult.data`` with a line of column names, and without the blank line at the end."""
    return _adult(content.decode("ascii").splitlines())


def adult_test(content: bytes) -> bytes:
    """UCI's ``adult.test`` with a line of column names in place of its remark."""
    return _adult(content.decode("ascii").splitlines()[1:])


def _adult(lines: list[str]) -> bytes:
    return "\n".join([ADULT_HEADER, *(line for line in lines if line.strip()), ""]).encode("ascii")


def credit_card(content: bytes) -> bytes:
    """UCI's csv file with the columns' own names, and without the row numbers."""
    rows = [line.split(",", 1)[1] for line in content.decode("ascii").splitlines()[1:] if line.strip()]
    return "\n".join([CREDIT_CARD_HEADER, *rows, ""]).encode("ascii")


def california_housing(content: bytes) -> bytes:
    """The data file out of the StatLib archive."""
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        member = archive.extractfile("CaliforniaHousing/cal_housing.data")
        assert member is not None
        lines = member.read().decode("ascii").split()
    return "\n".join(lines).encode("ascii")


def cifar10(content: bytes) -> bytes:
    """The batches of the python archive as one npz file: X, y (training), Xt, yt (test), images as NHWC.

    The archive is a pickle, which is safe to open only because its checksum was compared before.
    """
    images: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
            member = archive.extractfile(f"cifar-10-batches-py/{name}")
            assert member is not None
            batch = pickle.load(member, encoding="bytes")
            images[name] = batch[b"data"].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            labels[name] = np.asarray(batch[b"labels"], dtype=np.uint8)
    test_images, test_labels = images.pop("test_batch"), labels.pop("test_batch")
    stream = io.BytesIO()
    np.savez(
        stream,
        X=np.concatenate(list(images.values())),
        y=np.concatenate(list(labels.values())),
        Xt=np.ascontiguousarray(test_images),
        yt=test_labels,
    )
    return stream.getvalue()
