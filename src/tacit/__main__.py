"""The command ``tacit``, also as ``python -m tacit``."""

from __future__ import annotations

from tacit.stopping import stops_at_once


def main() -> None:
    """Run the command line; Ctrl-C while it is being loaded ends it without a traceback."""
    with stops_at_once():
        from tacit.cli import main as run
    run()


if __name__ == "__main__":
    main()
