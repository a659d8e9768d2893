"""The ServerApp: leads the study whose run folder it is given, over Flower's grid."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from tacit.deploy.flower.courier import FRAMES, RECORD
from tacit.deploy.server.study import lead
from tacit.deploy.server.transport import Enough, Frames, Replies
from tacit.deploy.wire import RefusalError, read_frame

_POLL = 0.3

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Lead a study; everything about it lies in the run folder."""
    lead(Path(str(context.run_config["folder"])), GridTransport(grid))


class GridTransport:
    """Silos behind SuperNodes; an address is a node's number."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def present(self) -> list[str]:
        """Nodes that are connected."""
        try:
            return [str(node) for node in self._grid.get_node_ids()]
        except httpx.HTTPError:
            return []

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """One message to each courier; late replies are left to expire."""
        deadline = time.monotonic() + seconds
        waiting = self._push(requests, seconds)
        found: dict[str, Replies] = {}
        while waiting and time.monotonic() < deadline:
            for message in self._pull(list(waiting)):
                at = waiting.pop(message.metadata.reply_to_message_id, None)
                replies = _replies(message)
                if at is not None and replies:
                    found[at] = replies
            if enough is not None and enough(set(found)):
                break
            if waiting:
                time.sleep(_POLL)
        return found

    def _push(self, requests: Mapping[str, Frames], seconds: float) -> dict[str, str]:
        addresses = list(requests)
        messages = [
            Message(
                RecordDict({RECORD: ConfigRecord({FRAMES: list(requests[at])})}),
                dst_node_id=int(at),
                message_type="query",
                ttl=max(1.0, seconds),
            )
            for at in addresses
        ]
        if not messages:
            return {}
        try:
            numbers = list(self._grid.push_messages(messages))
        except httpx.HTTPError:
            return {}
        return {number: at for number, at in zip(numbers, addresses, strict=True) if number}

    def _pull(self, numbers: list[str]) -> list[Any]:
        try:
            return list(self._grid.pull_messages(numbers))
        except httpx.HTTPError:
            return []


def _replies(message: Any) -> Replies:
    """Header and payload of each reply; a courier that sends nonsense has sent nothing."""
    if message.has_error():
        return []
    found = []
    try:
        for raw in message.content[RECORD][FRAMES]:
            parts = read_frame(io.BytesIO(raw).read)
            if parts is None:
                return []
            found.append(parts)
    except (KeyError, TypeError, RefusalError):
        return []
    return found
