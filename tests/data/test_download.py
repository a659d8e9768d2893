"""Fetching from public sources, rehearsed with a server on this machine."""

import dataclasses
import gzip
import hashlib
import io
import pickle
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tacit import data
from tacit.data import files, layout

FILES = layout.layout()


class Server(ThreadingHTTPServer):
    content: dict[str, bytes]


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.server.content.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    running = Server(("127.0.0.1", 0), Handler)
    running.content = {}
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def public(server, file, content, *, accepted=None):
    """``file`` as if its public source were ``content`` on the local server."""
    server.content["/file"] = content
    url = f"http://127.0.0.1:{server.server_address[1]}/file"
    source = dataclasses.replace(file.source, url=url, sha256=hashlib.sha256(content).hexdigest())
    return dataclasses.replace(file, source=source, sha256=accepted or file.sha256)


def tar(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


INSURANCE = (
    "age,sex,bmi,children,smoker,region,charges\n"
    + "".join(f"{20 + i},male,{20 + i % 9},1,no,southeast,{1000 + 10 * i}\n" for i in range(40))
).encode()


@pytest.fixture
def insurance(server, monkeypatch):
    accepted = (hashlib.sha256(INSURANCE).hexdigest(),)
    file = public(server, FILES["insurance/insurance.csv"], INSURANCE, accepted=accepted)
    monkeypatch.setitem(FILES, "insurance/insurance.csv", file)
    return file


def test_a_missing_file_is_fetched_once(insurance, server, cache):
    first = data.load("insurance", silos=4)
    assert (cache / "insurance" / "insurance.csv").read_bytes() == INSURANCE
    server.content.clear()
    second = data.load("insurance", silos=4)
    np.testing.assert_array_equal(first.silos[0].train["x"], second.silos[0].train["x"])


def test_a_source_that_changed_is_refused(insurance, server, cache):
    server.content["/file"] = INSURANCE + b"64,male,30,1,no,southeast,1\n"
    with pytest.raises(data.DataError, match="the source has changed") as error:
        data.load("insurance")
    assert insurance.source.sha256 in str(error.value)
    assert not list(cache.rglob("*.csv"))


def test_a_conversion_that_goes_wrong_leaves_nothing(server, cache):
    file = public(server, FILES["insurance/insurance.csv"], INSURANCE)  # the real checksum, which this content has not
    with pytest.raises(data.DataError, match="sha256"):
        files.locate(file, None, True)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_an_absent_page(insurance, server, cache):
    server.content.clear()
    with pytest.raises(data.DataError, match="Not Found") as error:
        data.load("insurance")
    assert "TACIT_DATA" in str(error.value)


def test_an_unreachable_source(insurance, server, cache, monkeypatch):
    source = dataclasses.replace(insurance.source, url="http://127.0.0.1:9/file")
    monkeypatch.setitem(FILES, "insurance/insurance.csv", dataclasses.replace(insurance, source=source))
    with pytest.raises(data.DataError, match="connect to the internet") as error:
        data.load("insurance")
    assert "insurance/insurance.csv" in str(error.value)


def test_a_silent_source_times_out(insurance, server, cache, monkeypatch):
    import socket

    monkeypatch.setattr(files, "TIMEOUT", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        source = dataclasses.replace(insurance.source, url=f"http://127.0.0.1:{silent.getsockname()[1]}/file")
        monkeypatch.setitem(FILES, "insurance/insurance.csv", dataclasses.replace(insurance, source=source))
        with pytest.raises(data.DataError, match="timed out"):
            data.load("insurance")


def test_a_cache_that_cannot_be_written(insurance, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.delenv("TACIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(data.DataError, match="Could not store it"):
        data.load("insurance")


def test_mnist_is_stored_as_it_comes(server, cache):
    content = gzip.compress(b"\0" * 8 + bytes([3, 1, 4]), mtime=0)
    file = public(
        server, FILES["mnist/train-labels-idx1-ubyte.gz"], content, accepted=(hashlib.sha256(content).hexdigest(),)
    )
    assert files.locate(file, None, True).read_bytes() == content


def test_cifar_archive_becomes_npz(server, cache):
    generator = np.random.default_rng(0)
    batches = {
        f"cifar-10-batches-py/{name}": pickle.dumps(
            {b"data": generator.integers(0, 256, (2, 3072), np.uint8), b"labels": [1, 2]}
        )
        for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    }
    content = tar(batches)
    made = np.load(io.BytesIO(layout.cifar10(content)))
    assert made["X"].shape == (10, 32, 32, 3)
    assert made["yt"].tolist() == [1, 2]
    first = pickle.loads(batches["cifar-10-batches-py/data_batch_1"], encoding="bytes")
    # Red comes first in the source's rows; here it is the first channel.
    np.testing.assert_array_equal(made["X"][0, :, :, 0].ravel(), first[b"data"][0, :1024])
    file = public(server, FILES["cifar10/cifar10.npz"], content)
    path = cache / "made.npz"
    cache.mkdir(parents=True)
    path.write_bytes(layout.cifar10(content))
    file = dataclasses.replace(file, arrays=files._arrays_digest(path))
    assert files.locate(file, None, True).is_file()


def test_california_archive(server, cache):
    content = tar({"CaliforniaHousing/cal_housing.data": b"1.0,2.0\n3.0,4.0\n"})
    assert layout.california_housing(content) == b"1.0,2.0\n3.0,4.0"


def test_adult_conversion_is_exact(shared):
    """The public files, rebuilt from ours, have the public checksums, and convert back to ours."""
    for file, first in ((FILES["adult/adult.data"], b""), (FILES["adult/adult.test"], b"|1x3 Cross validator\n")):
        ours = (shared / file.path).read_bytes()
        theirs = first + ours.split(b"\n", 1)[1] + b"\n"
        assert hashlib.sha256(theirs).hexdigest() == file.source.sha256
        assert file.source.convert(theirs) == ours


def test_credit_card_conversion_is_exact(shared):
    ours = (shared / FILES["credit_card/default_of_credit_card_clients.csv"].path).read_text().splitlines()
    rows = [",".join(str(int(float(cell))) for cell in row.split(",")) for row in ours[1:]]
    header = ",".join(["ID", *(f"X{number}" for number in range(1, 24)), "Y"])
    theirs = "\r\n".join([header, *(f"{n},{row}" for n, row in enumerate(rows, 1)), ""]).encode()
    assert hashlib.sha256(theirs).hexdigest() == FILES["credit_card/default_of_credit_card_clients.csv"].source.sha256
    converted = FILES["credit_card/default_of_credit_card_clients.csv"].source.convert(theirs)
    assert hashlib.sha256(converted).hexdigest() == FILES["credit_card/default_of_credit_card_clients.csv"].sha256[1]


def test_california_conversion_is_exact(shared):
    ours = (shared / FILES["california_housing/cal_housing.data"].path).read_bytes()
    archive = tar({"CaliforniaHousing/cal_housing.data": ours})
    converted = layout.california_housing(archive)
    assert hashlib.sha256(converted).hexdigest() == FILES["california_housing/cal_housing.data"].sha256[1]
