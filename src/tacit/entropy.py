"""Random bytes for noise, batches and masks: the operating system's entropy, stretched where much is needed.

`random_bytes` hands out the system's own bytes up to a few thousand. Beyond, it draws a fresh key of 256 bits from the
system for each call and stretches it by the stream cipher ChaCha20 (RFC 8439), the function with which Linux makes its
own bytes from a key of that size. So what rests on the system's generator rests on the same cipher as before, and
millions of coins take a tenth of the time.
"""

from __future__ import annotations

import os

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

_KEY_BYTES = 32
_PLAIN_BYTES = 1 << 12
# A key's stream repeats after 2^32 blocks of 64 bytes; no key is asked for more than a small part of that.
_STREAM_BYTES = 1 << 30


def random_bytes(count: int) -> bytes:
    """So many independent uniform bytes that nobody can tell from the system's own.

    Formal guarantee: computational. Who tells them from uniform bytes tells ChaCha20 under a key of system entropy from
    uniform bytes. No key serves two calls, none is kept, and nothing is drawn from a seed.

    >>> len(random_bytes(10)), len(random_bytes(1 << 20))
    (10, 1048576)
    """
    if count <= _PLAIN_BYTES:
        return os.urandom(count)
    if count > _STREAM_BYTES:
        raise ValueError(f"Expected count={count} <= {_STREAM_BYTES} bytes in one call; ask for them in parts.")
    return Cipher(ChaCha20(os.urandom(_KEY_BYTES), bytes(16)), mode=None).encryptor().update(bytes(count))
