"""Data tests never write to the home directory, and skip where the large files are absent."""

import os
from pathlib import Path

import pytest

from tacit.data.layout import layout


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of large files; a test that asks for it skips where there is none."""
    folder = os.environ.get("TACIT_DATA")
    if not folder:
        pytest.skip("TACIT_DATA is not set: the large data files are not at hand")
    absent = [file.path for file in layout().values() if not (Path(folder) / file.path).is_file()]
    if absent:
        pytest.skip(f"TACIT_DATA={folder} lacks {', '.join(absent)}")
    return Path(folder).resolve()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A cache directory of the test's own, and no TACIT_DATA."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TACIT_DATA", raising=False)
    return tmp_path / "cache" / "tacit" / "data"
