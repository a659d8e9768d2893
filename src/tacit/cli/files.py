"""Files that options name: looked for before anything starts, in words that name the option."""

from __future__ import annotations

from pathlib import Path

from tacit.errors import TacitError

AUTHORITY = "give --authority the consortium's ca.pem, see Certificates in docs/deployment.md"


def need_file(path: Path, cure: str) -> None:
    """Raise unless there is a file that this user can read; ``cure`` says what to give instead."""
    try:
        with path.open("rb"):
            return
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"No file at {path};"
    except IsADirectoryError:
        wrong = f"Expected a file, got the folder {path};"
    except PermissionError:
        wrong = f"This user may not read {path}; allow it (chmod, chown), or"
    raise TacitError(f"{wrong} {cure}.")
