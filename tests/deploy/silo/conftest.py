"""What tests of a real daemon share."""

import pytest

from tests.deploy.silo.consortium import Daemon, fork_server, make_home, records_of


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A daemon of its own process with forty records."""
    folder = tmp_path_factory.mktemp("d") / "silo"
    make_home(folder, records_of(0, 40))
    started = Daemon(folder, fork_server())
    started.ready()
    yield started
    started.stop()
