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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Count the tests that had no browser."""
    skipped = terminalreporter.stats.get("skipped", [])
    config.stash[_UNSEEN] = sum("no Chromium on this machine" in str(report.longrepr) for report in skipped)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line of a run what nobody has looked at."""
    unseen = config.stash.get(_UNSEEN, 0)
    if unseen:
        print(f"NOT TESTED in a browser: {unseen} tests were skipped, because there is no Chromium (`make browser`).")


_UNSEEN = pytest.StashKey[int]()
