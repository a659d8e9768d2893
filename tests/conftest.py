import atexit
import os
import shutil
import tempfile

# Programs are compiled as a user's are, with no flag of ours. What one process of a session compiled the others read.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "PYTEST_XDIST_WORKER" not in os.environ:
    _programs = tempfile.mkdtemp(prefix="tacit-programs-")
    atexit.register(shutil.rmtree, _programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("TACIT_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
