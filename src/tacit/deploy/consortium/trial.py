"""``tacit consortium try``: one's own CSV files as a real consortium on one machine, every party a process of its own.

It is set up as real ones are: kits, replies, a roster. Only users are missing, since all of it is one person's.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.data.csv_silos import csv_files
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.accepting import accept
from tacit.deploy.consortium.joining import join, reply_text
from tacit.deploy.consortium.kits import init
from tacit.deploy.consortium.processes import TACIT, Processes, free_port
from tacit.deploy.consortium.roster import admit, roster_text
from tacit.deploy.consortium.terms import Consortium, ConsortiumError, load_consortium, services
from tacit.deploy.server.deployment import check_study
from tacit.deploy.silo.policy import MOST_EPSILON
from tacit.objectives.installed import installed
from tacit.objectives.models import MODELS
from tacit.plans.spec import QUESTIONS, Study, load_study
from tacit.privacy.anonymity import colluding_silos

HOST = "127.0.0.1"
_GRACE = 90.0
"""Longer than a leader takes to end a study at every silo."""
_ROOM = 2.0
"""How many times the epsilon of its studies a trial's policies allow, so that another one fits as well."""
_SET_ASIDE = 0.2


class Trial(Processes):
    """The consortium of a folder with one CSV file per silo, ``schema.toml`` and ``study.toml``, under ``root``.

    The study goes through its own channel, or through each of ``channels``.
    """

    def __init__(self, folder: Path, root: Path, channels: Sequence[str] = (), **env: str) -> None:
        self.folder, self.studies = folder, _studies(folder, channels)
        super().__init__(root, **env)
        self.files = _silos(folder)
        (root / "consortium.toml").write_text(tomli_w.dumps(self._terms()), encoding="utf-8")
        for name in ("schema.toml", "study.toml"):
            (root / name).write_bytes((folder / name).read_bytes())
        self.terms: Consortium = load_consortium(root / "consortium.toml")
        self.homes = self._set_up()

    def _terms(self) -> dict[str, Any]:
        """What consortium.toml says for these studies: their channels, their algorithm, and twice their budget."""
        study, silos = self.studies[0], len(self.files)
        validates = study.validation.run and study.algorithm.name not in QUESTIONS
        channels = [one.algorithm.channel for one in self.studies]
        shuffled = any(channel in SHUFFLED_CHANNELS for channel in channels)
        # What silos say of a model after shuffled reports leaves as a shuffled sum.
        others = ["shuffled-sum"] if "shuffled-reports" in channels and "shuffled-sum" not in channels else []
        shufflers = {name: {"host": HOST, "port": free_port()} for name in ("shuffler-a", "shuffler-b")}
        assert isinstance(study.privacy.epsilon, float | int)
        epsilon = min(_ROOM * len(channels) * study.privacy.epsilon, MOST_EPSILON)
        return {
            "name": "trial",
            "proposer": "trial",
            "silos": list(self.files),
            "channels": [*channels, *others],
            "colluding": max(_colluding(one, silos) for one in self.studies),
            "algorithms": [study.algorithm.name],
            "validation": _SET_ASIDE if validates else 0.0,
            "schema": "schema.toml",
            "study": "study.toml",
            "budget": {"epsilon": epsilon, "delta": study.privacy.delta},
            "server": {"host": HOST, "port": free_port(), "control_port": free_port()},
            "shufflers": shufflers if shuffled else {},
        }

    def _set_up(self) -> dict[str, Path]:
        """Kits, replies and a roster, as everybody would make them, with all files this user's."""
        kits, replies, homes = init(self.root / "consortium.toml", self.root / "kits"), [], {}
        for party in self.terms.parties:
            _for_a_trial(kits[party], models_of(self.studies))
            home, reply = join(kits[party], self.root / "homes" / party, self.files.get(party), whose="mine")
            homes[party] = home
            path = self.root / f"{party}.reply.toml"
            path.write_text(reply_text(reply), encoding="utf-8")
            replies.append(path)
        roster = admit(replies, kits["authority"])
        path = self.root / "roster.toml"
        path.write_text(roster_text(roster), encoding="utf-8")
        for home in homes.values():
            accept(path, home, roster.fingerprint)
        return homes

    def start_all(self) -> None:
        """Start what the units of all parties start, and wait until everybody serves."""
        for party, home in self.homes.items():
            for service in services(self.terms, party, home, HOST):
                # Couriers first at the end, so that nobody misses its daemon.
                name = service.name if service.first else f"node-{party}"
                self.start(name, [*TACIT, *service.words])
        for party, kind in self.terms.parties.items():
            name = services(self.terms, party, self.homes[party])[0].name
            if kind == "silo":
                self.wait(name, (self.homes[party] / "silo" / "door" / "silo.sock").stat)
            else:
                port = self.terms.server.port if kind == "server" else self.terms.shufflers[party].port
                self.wait(name, partial(_listening, port))

    def lead(self, study: Study, out: Path, *options: str) -> Path:
        """Lead a study with the command that the server's README names; returns the run folder."""
        before = set(out.iterdir()) if out.exists() else set()
        words = pages.run_command(self.terms, self.homes["server"]).split()[1:]
        words[words.index("--out") + 1] = str(out.resolve())
        own = [f"name={study.name}", f"algorithm.channel={study.algorithm.channel}"]
        if study.algorithm.channel in SHUFFLED_CHANNELS:
            silos = len(self.files)
            own += [f"run.honest={min(study.run.honest, 1 - self.terms.colluding / silos)}"]
        else:
            at = [*words, "--shufflers"].index("--shufflers")
            del words[at : at + 2]
        code = _led([*TACIT, *words, *options, *(word for value in own for word in ("--set", value))])
        made = sorted(set(out.iterdir()) - before) if out.exists() else []
        if code or not made:
            logs = self.root / "logs"
            raise ConsortiumError(f"The study has not ended well; the logs of all parties are in {logs}.")
        return made[-1]


def _led(command: list[str]) -> int:
    """Run the command that leads a study; an interrupt is passed on, and what it has started is seen to its end."""
    with subprocess.Popen(command, start_new_session=True) as leader:
        try:
            return leader.wait()
        except KeyboardInterrupt:
            leader.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                leader.wait(_GRACE)
            leader.kill()
            raise


def _listening(port: int) -> None:
    """Raise unless somebody listens on a port."""
    socket.create_connection((HOST, port), 1.0).close()


def _colluding(study: Study, silos: int) -> int:
    """How many silos a study lets work together with the server."""
    if study.algorithm.channel == "pairwise":
        return study.pairwise.colluding
    return colluding_silos(silos, study.run.honest) if study.algorithm.channel in SHUFFLED_CHANNELS else 0


def _studies(folder: Path, channels: Sequence[str]) -> list[Study]:
    """The folder's study through each of the channels, or its own, if real silos can answer it."""
    path = folder / "study.toml"
    if not path.is_file() or not (folder / "schema.toml").is_file():
        raise ConsortiumError(
            f"Expected study.toml and schema.toml in {folder}, beside one CSV file per silo; make them first: tacit "
            f"init {folder} --target COLUMN, with the ranges and levels that are publicly known."
        )
    found = [load_study(path)]
    if channels:
        name = found[0].name
        found = [load_study(path, [f"algorithm.channel={own}", f"name={name}-{own}"]) for own in channels]
    for study in found:
        check_study(study, 2 if study.algorithm.channel in SHUFFLED_CHANNELS else 0)
    return found


def _silos(folder: Path) -> Mapping[str, Path]:
    """The CSV files of a folder by the names of their silos, as messages can carry them."""
    files = csv_files(folder)
    found = {re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "silo": path for path in files}
    if len(found) < len(files):
        lost = ", ".join(sorted(path.name for path in set(files) - set(found.values())))
        raise ConsortiumError(f"Expected CSV files whose names differ in letters and digits; rename {lost}.")
    if len(found) < 2:
        raise ConsortiumError(f"Expected one CSV file for each of at least two silos in {folder}, got {len(found)}.")
    return found


def models_of(studies: Sequence[Study]) -> str:
    """The lines by which a policy lists the models of installed packages that these studies train."""
    names = {study.objective.model for study in studies} - set(MODELS)
    found = [own for name in sorted(names) if (own := installed(name)) is not None]
    if not found:
        return ""
    listed = {own.name: {"version": own.version, "digest": own.digest} for own in found}
    return "\n" + tomli_w.dumps({"allow": {"models": listed}})


def _for_a_trial(kit: Path, models: str) -> None:
    """Let a kit's party listen on this machine only, and its policy consent by itself: owner and proposer are one.

    The policy lists the study's own models, as `tacit silo installed` prints them. Shufflers keep what they receive, to
    look at.
    """
    for name, old, new in (
        ("policy.toml", 'mode = "manual"', 'mode = "auto"'),
        ("shuffler.toml", 'host = "0.0.0.0"', f'host = "{HOST}"\nrecord = "received.bin"'),
    ):
        path = kit / name
        if path.exists():
            more = models if name == "policy.toml" else ""
            path.write_text(path.read_text(encoding="utf-8").replace(old, new) + more, encoding="utf-8")
