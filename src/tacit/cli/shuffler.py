"""``tacit shuffler``: the third party that hides who sent what."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli import Metrics, group, template
from tacit.errors import TacitError
from tacit.stopping import stops_at_once

shuffler_app = group(
    "shuffler",
    "A blind shuffler: takes sealed contributions, releases them once, in random order or as a sum."
    "\n\nExample: tacit shuffler init shuffler-a",
)

Folder = Annotated[Path, typer.Argument(help="The shuffler's folder: shuffler.toml, keys and books.")]


@shuffler_app.command("init")
def init_command(
    folder: Folder,
    post_quantum: Annotated[bool, typer.Option("--post-quantum", help="Seal with ML-KEM-768 and X25519.")] = False,
) -> None:
    """Make a shuffler's keys, and terms to start from.

    Example: tacit shuffler init shuffler-a
    """
    from tacit.deploy.permissions import write_secret
    from tacit.deploy.shuffler.config import make_keys

    path = folder / "shuffler.toml"
    if path.exists():
        raise TacitError(f"{path} exists; edit it, or choose another folder.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    make_keys(folder, "mlkem768-x25519" if post_quantum else "x25519")
    write_secret(path, template("shuffler.toml", folder))
    typer.echo(f"Wrote {path}. Give the silos the key `seal`, and whoever leads studies the key `sign`:")
    keys_command(folder)


@shuffler_app.command("keys")
def keys_command(folder: Folder) -> None:
    """Print the public keys: one for sealing, which silos pin, and one for signing, which who leads studies pins.

    Example: tacit shuffler keys shuffler-a
    """
    from tacit.deploy.shuffler.config import load_keys

    keys = load_keys(folder)
    typer.echo(f"seal  {keys.seal.public}\nsign  {keys.sign.public}")


@shuffler_app.command("watch")
def watch_command(folder: Folder, metrics: Metrics = None) -> None:
    """Serve Prometheus metrics of a shuffler until stopped: whether it listens, and how many studies it has released.

    Example: tacit shuffler watch shuffler-a --metrics 9465
    """
    from functools import partial

    from tacit.cli.watch import look_at_shuffler, watch

    watch(partial(look_at_shuffler, folder), folder / "told.json", metrics=metrics, webhook=None, command=None)


@shuffler_app.command("serve")
def serve_command(folder: Folder) -> None:
    """Serve over TLS until stopped.

    Example: tacit shuffler serve shuffler-a
    """
    with stops_at_once():
        from tacit.deploy.shuffler.server import serve

    serve(folder)
