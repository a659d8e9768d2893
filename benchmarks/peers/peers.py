"""The peers: what each is called on the page, where its code is, what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.peers.works import Prepared, Work


@dataclass(frozen=True)
class Peer:
    """A row of the table. ``most_rounds`` keeps slow peers from being timed for minutes."""

    title: str
    module: str
    private: bool = True
    spider: bool = True
    most_rounds: int | None = None

    def takes(self, work: Work) -> bool:
        """Whether this peer can do this work."""
        return self.spider or work.algorithm != "spider"

    @property
    def prepare(self) -> Callable[[Work], Prepared]:
        """The peer's code, imported only where it is installed."""
        return import_module(f"benchmarks.peers.{self.module}").prepare


PEERS = {
    "tacit": Peer("Tacit", "tacit_rounds"),
    "tacit-torch": Peer("Tacit, a torch module", "tacit_torch", most_rounds=3),
    "jax-plain": Peer("jax, not private", "jax_plain", private=False),
    "torch-plain": Peer("torch, not private", "torch_plain", private=False),
    "jax-vmap": Peer("jax vmap(grad)", "jax_materialised", most_rounds=3),
    "jax-privacy": Peer("jax-privacy", "jax_privacy_clipped", most_rounds=3),
    "torch-func": Peer("torch.func", "torch_func", most_rounds=3),
    "opacus-hooks": Peer("Opacus, hooks", "opacus_hooks", most_rounds=3),
    "opacus-ghost": Peer("Opacus, ghost clipping", "opacus_ghost", spider=False, most_rounds=5),
    "torch-loop": Peer("research loop in torch", "torch_loop", most_rounds=1),
    "flower": Peer("Flower simulation", "flower_simulation", spider=False, most_rounds=3),
}
