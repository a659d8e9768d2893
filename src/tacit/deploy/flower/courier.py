"""The courier's way to the daemon: frames go in, replies come out, and nothing that is carried is read.

It holds no state. Whoever replaces it can delay and drop what it carries, and nothing else: requests and replies are
signed.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_MOST_FRAME = 1 << 26
_MOST_FRAMES, _MOST_REPLIES = 16, 1 << 27
_PATIENCE = 600.0


def exchange(path: Path, frames: Sequence[bytes]) -> list[bytes]:
    """The daemon's replies to frames; none where it cannot be reached, or where there are too many to hold."""
    replies: list[bytes] = []
    if len(frames) > _MOST_FRAMES:
        return []
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
                    if sum(map(len, replies)) > _MOST_REPLIES:
                        return []
    except OSError:
        return []
    return replies
