"""Every test prices from scratch: neither the user's cache nor another test's."""

from collections.abc import Iterator

import pytest

from tacit.privacy import cache


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TACIT_CACHE", "")
    cache.forget()
    yield
    cache.forget()
