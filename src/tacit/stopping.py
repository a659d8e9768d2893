"""Ctrl-C: how it ends a command at once, and who has told the user."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType


class ToldInterrupt(KeyboardInterrupt):
    """An interruption of which the user has been told, with what is left to do."""


@contextlib.contextmanager
def stops_at_once() -> Iterator[None]:
    """While libraries are loaded, Ctrl-C ends the process with one word.

    As an exception it would be shown in the middle of an import, or be swallowed by a library that is half loaded.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def was_told(error: BaseException | None) -> bool:
    """Whether an error comes from an interruption of which the user has been told."""
    while error is not None and not isinstance(error, ToldInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _stop(number: int, frame: FrameType | None) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(128 + number)
