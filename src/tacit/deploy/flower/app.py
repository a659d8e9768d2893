"""The ServerApp: leads the study of a run folder over Flower's grid."""

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
    """Silos behind SuperNodes; an address is a node's id."""

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
        received: dict[str, Replies] = {}
        while waiting and time.monotonic() < deadline:
            for message in self._pull(list(waiting)):
                at = waiting.pop(message.metadata.reply_to_message_id, None)
                replies = _replies(message)
                if at is not None and replies:
                    received[at] = replies
            if enough is not None and enough(set(received)):
                break
            if waiting:
                time.sleep(_POLL)
        return received

    def _push(self, requests: Mapping[str, Frames], seconds: float) -> dict[str, str]:
        """Addresses by the id of the message that was sent there."""
        contents = {at: RecordDict({RECORD: ConfigRecord({FRAMES: list(frames)})}) for at, frames in requests.items()}
        messages = [
            Message(content, dst_node_id=int(at), message_type="query", ttl=max(1.0, seconds))
            for at, content in contents.items()
        ]
        try:
            ids = list(self._grid.push_messages(messages)) if messages else []
        except httpx.HTTPError:
            return {}
        return {sent: at for sent, at in zip(ids, requests, strict=True) if sent}

    def _pull(self, ids: list[str]) -> list[Any]:
        try:
            return list(self._grid.pull_messages(ids))
        except httpx.HTTPError:
            return []


def _replies(message: Any) -> Replies:
    """Header and payload of each reply; none where any of them cannot be read."""
    if message.has_error():
        return []
    try:
        frames = [read_frame(io.BytesIO(raw).read) for raw in message.content[RECORD][FRAMES]]
    except (KeyError, TypeError, RefusalError):
        return []
    return [] if None in frames else [parts for parts in frames if parts is not None]
