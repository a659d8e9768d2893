"""The courier: a Flower ClientApp that carries frames between the SuperNode and the silo's daemon, and nothing else.

It holds no secret and no state, and reads nothing that it carries. Whatever Flower runs at a silo comes from the server
and is untrusted; an attacker could replace it without harm. The silo's owner names the daemon's socket (``tacit silo
join``). It imports no jax: Flower starts a process for each message.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

RECORD, FRAMES, SOCKET = "tacit", "frames", "socket"
_MOST_FRAME = 1 << 26
_PATIENCE = 600.0

app = ClientApp()


@app.query()
def carry(message: Message, context: Context) -> Message:
    """Hand a message's frames to the daemon, one after another, and carry its replies back."""
    sent = message.content[RECORD][FRAMES]
    frames = [raw for raw in sent if isinstance(raw, bytes)] if isinstance(sent, list) else []
    replies = exchange(Path(str(context.node_config[SOCKET])), frames)
    return Message(RecordDict({RECORD: ConfigRecord({FRAMES: replies})}), reply_to=message)


def exchange(path: Path, frames: Sequence[bytes]) -> list[bytes]:
    """The daemon's replies to frames; none where it cannot be reached."""
    replies: list[bytes] = []
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
            daemon.settimeout(_PATIENCE)
            daemon.connect(str(path))
            with daemon.makefile("rb") as stream:
                for raw in frames:
                    daemon.sendall(raw)
                    prefix = stream.read(4)
                    length = struct.unpack(">I", prefix)[0] if len(prefix) == 4 else _MOST_FRAME + 1
                    if length > _MOST_FRAME:
                        return []
                    body = stream.read(length)
                    if len(body) < length:
                        return []
                    replies.append(prefix + body)
    except OSError:
        return []
    return replies
