"""``python -m soak.bytes --runs 50000``: coverage-guided bytes against the protocol, with atheris."""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["tacit.deploy", "pydantic"]):
    pass

from tacit.deploy import wire
from tests.deploy.silo.hostile import ALGORITHMS, Attacker, Siege


def main() -> None:
    """Let atheris bend good messages; whatever it finds must get a typed reply from both silos."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50_000)
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    siege, attacker = Siege(folder / "silos"), Attacker(random.Random(0), ALGORITHMS)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(200):
        (corpus / str(number)).write_bytes(attacker.next())

    def one(raw: bytes) -> None:
        siege.send(raw)
        # Mutations seldom keep the lengths right, so the same bytes are also tried as a header.
        siege.send(wire.frame(raw[8:]))
        try:
            found = wire.read_frame(io.BytesIO(raw).read)
            if found is not None:
                request = wire.parse_request(found[0])
                wire.read_arrays(getattr(request, "arrays", ()), found[1])
        except wire.RefusalError:
            pass

    atheris.Setup([sys.argv[0], f"-runs={chosen.runs}", "-max_len=2048", "-timeout=120", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
