"""The silo's log of refusals, for the owner to read.

Refusals depend on requests, policy, ledger and the number of records, never on the content of a record. Their texts may
hold what a server has sent, so each is logged once, on one line, and few of them in an hour.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping

from tacit.deploy.wire import refuse

_log = logging.getLogger("tacit.silo")
_HOUR = 3600.0
MOST_IN_AN_HOUR = 100
"""How many refusals are logged in an hour; a server could send thousands in a second."""
_LONGEST = 400


class RefusalLog:
    """Logs refusals as they are made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun, self._count = clock, clock(), 0
        self._recent: deque[str] = deque(maxlen=MOST_IN_AN_HOUR)

    def refuse(self, code: str, text: str, numbers: Mapping[str, float] | None = None) -> bytes:
        """The frame of a refusal; it is logged unless the same was logged lately."""
        self._note(code, text, numbers or {})
        return refuse(code, text, numbers)

    def _note(self, code: str, text: str, numbers: Mapping[str, float]) -> None:
        if self._clock() - self._begun >= _HOUR:
            self._begun, self._count = self._clock(), 0
            self._recent.clear()
        listed = f" ({', '.join(f'{name} {value:.6g}' for name, value in numbers.items())})" if numbers else ""
        line = f"refused, {code}: {text}{listed}".encode("unicode_escape").decode("ascii")[:_LONGEST]
        if line in self._recent or self._count > MOST_IN_AN_HOUR:
            return
        self._count += 1
        self._recent.append(line)
        if self._count > MOST_IN_AN_HOUR:
            line = f"more than {MOST_IN_AN_HOUR} different refusals within an hour; the next ones are not logged"
        _log.warning("%s", line)
