"""Finding and checking files."""

import hashlib
import os

import pytest

from tacit import data
from tacit.data import files
from tacit.data.files import DataFile
from tacit.data.layout import layout

CONTENT = b"some,data\n1,2\n"
FILE = DataFile("small/small.csv", (hashlib.sha256(CONTENT).hexdigest(),), how="Make one by hand.")


def put(folder, content=CONTENT):
    path = folder / FILE.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_argument_goes_before_the_environment(tmp_path, cache, monkeypatch):
    named, environment = put(tmp_path / "a"), put(tmp_path / "b")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "b"))
    assert files.locate(FILE, None, True) == environment
    assert files.locate(FILE, tmp_path / "a", True) == named


def test_the_cache_is_the_last_place(tmp_path, cache):
    path = put(cache)
    assert files.locate(FILE, tmp_path / "nowhere", True) == path


def test_a_missing_file_says_where_and_how(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "b"))
    with pytest.raises(data.DataError) as error:
        files.locate(FILE, None, True)
    for words in ("small/small.csv", str(tmp_path / "b"), str(cache), "TACIT_DATA", "Make one by hand."):
        assert words in str(error.value)


def test_a_missing_acs_file_says_how_to_make_one(tmp_path, cache):
    with pytest.raises(data.DataError, match="folktables"):
        data.load("acs-income", directory=tmp_path)


def test_a_damaged_file(tmp_path, cache):
    path = put(tmp_path, CONTENT + b"3,4\n")
    with pytest.raises(data.DataError, match=f"Expected {path} to have sha256 {FILE.sha256[0]}"):
        files.locate(FILE, tmp_path, True)
    assert files.locate(FILE, tmp_path, False) == path


def test_a_checked_file_is_read_once(tmp_path, cache, monkeypatch):
    path = put(tmp_path)
    files.locate(FILE, tmp_path, True)
    monkeypatch.setattr(files, "digest", lambda path: pytest.fail("the file was read again"))
    assert files.locate(FILE, tmp_path, True) == path


def test_a_changed_file_is_read_again(tmp_path, cache):
    path = put(tmp_path)
    files.locate(FILE, tmp_path, True)
    path.write_bytes(CONTENT.replace(b"1", b"9"))
    os.utime(path, ns=(1, 1))
    with pytest.raises(data.DataError, match="sha256"):
        files.locate(FILE, tmp_path, True)


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = put(tmp_path)
    assert files.locate(FILE, tmp_path, True) == path


def test_damaged_memory_is_ignored(tmp_path, cache):
    path = put(tmp_path)
    cache.mkdir(parents=True)
    (cache / "verified.json").write_text("not json")
    assert files.locate(FILE, tmp_path, True) == path


def test_own_acs_file(tmp_path, cache):
    """The way out that the message names works: a file of one's own, with verify=False."""
    path = tmp_path / "acs_income/acs_income_ca_2018_sample.csv"
    path.parent.mkdir()
    header = "AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP"
    people = [f"{20 + i},1,{1 + i % 24},1,{10 + i},6,0,40,{1 + i % 2},1,{i % 3 == 0}" for i in range(60)]
    path.write_text("\n".join([header, *people]))
    federation = data.load("acs-income", directory=tmp_path, verify=False)
    assert sum(len(silo.train["y"]) for silo in federation.silos) == 45
    path.write_text("AGEP,COW\n1,2\n")
    with pytest.raises(data.DataError, match="a column WKHP"):
        data.load("acs-income", directory=tmp_path, verify=False)


def test_every_file_of_the_layout_has_a_checksum_and_a_way_to_get_it():
    for file in layout().values():
        assert all(len(checksum) == 64 for checksum in file.sha256)
        assert file.source is not None or file.how
        if file.source is not None:
            assert file.source.url.startswith("https://")
            assert len(file.source.sha256) == 64


@pytest.mark.parametrize("file", layout().values(), ids=lambda file: file.path)
def test_checksums_of_the_real_files(file, shared):
    assert files.digest(shared / file.path) == file.sha256[0]
