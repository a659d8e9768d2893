"""Set up a pilot by the READMEs of its kits alone: four silos and a server, with users of their own, on this machine.

``python -m soak.pilot --tacit /opt/tacit/bin/tacit`` needs root, and a Tacit that all users can execute. It makes
users, homes in /srv/tacit and units, plays every party by the commands of its README, counts them, waits for the end of
the study, and takes away what it has made. Where there is no systemd, what ``systemctl enable --now`` would start is
started from the units that ``join`` has installed: their command, as their user.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tomli_w

from tacit.deploy.consortium.joining import UNITS
from tacit.deploy.consortium.pages import HOMES
from tacit.deploy.consortium.terms import account_name

SILOS = ("pilot-north", "pilot-south", "pilot-east", "pilot-west")
STUDY = "pilot"


class Pilot:
    """The parties' desks: a folder for each kit, and what was typed at each."""

    def __init__(self, root: Path, tacit: Path) -> None:
        self.root, self.typed = root, dict[str, list[str]]()
        self.running: list[subprocess.Popen[bytes]] = []
        # As root has it: the home of root is shut to everybody else.
        self.env = {"PATH": f"{tacit.parent}:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root"}
        self.env |= {"JAX_PLATFORMS": "cpu"}

    def type(self, party: str, command: str, folder: Path, answer: str = "", *, wait: bool = True) -> str:
        """Type a command of a README at a party's desk."""
        self.typed.setdefault(party, []).append(command)
        print(f"[{time.strftime('%H:%M:%S')}] {party}: {command}", flush=True)
        words = shlex.split(command)
        if words[:1] == ["systemctl"]:
            for unit in words[3:]:
                self._start(unit)
            return ""
        if not wait:
            with (self.root / f"{party}.log").open("wb") as log:
                self.running.append(subprocess.Popen(words, cwd=folder, env=self.env, stdout=log, stderr=log))
            return ""
        done = subprocess.run(words, cwd=folder, env=self.env, input=answer, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{party}: {command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _start(self, unit: str) -> None:
        """Start a unit as systemd would: its command, as its user."""
        text = (UNITS / f"{unit}.service").read_text(encoding="utf-8")
        lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        user = pwd.getpwnam(lines["User"])
        env = {**self.env, "HOME": user.pw_dir, "USER": user.pw_name}
        with (self.root / f"{unit}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    shlex.split(lines["ExecStart"]),
                    cwd="/",
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    user=user.pw_uid,
                    group=user.pw_gid,
                    extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
                    umask=0o077,
                    start_new_session=True,
                )
            )

    def stop(self) -> None:
        """End what was started."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def commands_of(kit: Path) -> list[str]:
    """The commands that a README tells its reader to type."""
    lines = (kit / "README.md").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.startswith("       ")]


def made_up(root: Path, pilot: Pilot) -> Path:
    """Four clinics' files, a schema, a study, and consortium.toml, as a coordinator would have them."""
    pilot.type("preparing", "tacit init clinics --example clinics", root)
    folder = root / "pilot"
    folder.mkdir()
    with (root / "clinics" / "bergen.csv").open(encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    for number, name in enumerate(SILOS):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([head, *rows[number::4]])
    bounds = root / "clinics" / "public.toml"
    pilot.type("preparing", f"tacit init pilot --target readmitted --bounds {bounds}", root)
    tree = {
        "name": STUDY,
        "proposer": "university",
        "silos": list(SILOS),
        "channels": ["direct", "pairwise"],
        "colluding": 1,
        "schema": "schema.toml",
        "study": "study.toml",
        "server": {"host": "localhost", "port": 29092, "control_port": 29093},
    }
    (folder / "consortium.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
    return folder


def play(root: Path, pilot: Pilot) -> dict[str, float]:
    """From consortium.toml to a finished study; returns the minutes that each part took."""
    folder, parties, marks = made_up(root, pilot), ("server", *SILOS), {"begun": time.monotonic()}
    coordinator = root / "coordinator"
    (coordinator / "replies").mkdir(parents=True)
    pilot.type("coordinator", f"tacit consortium init {folder / 'consortium.toml'} --out kits", coordinator)
    kits = {party: coordinator / "kits" / party for party in parties}
    steps = {party: commands_of(kits[party]) for party in parties}
    for party in parties:
        if party in SILOS:
            shutil.copy(folder / f"{party}.csv", kits[party] / "records.csv")
        pilot.type(party, steps[party][0], kits[party])
        shutil.copy(kits[party] / f"{party}.reply.toml", coordinator / "replies")
    said = pilot.type("coordinator", "tacit consortium admit replies --authority kits/authority", coordinator)
    told = said.strip().splitlines()[-3:]
    for party in parties:
        shutil.copy(coordinator / "roster.toml", kits[party])
        pilot.type(party, steps[party][1], kits[party], answer="".join(f"{row}\n" for row in told))
        pilot.type(party, steps[party][2], kits[party])
    _wait(lambda: _listens(29092), "the server")
    for party in SILOS:
        _wait((HOMES / party / "silo" / "door" / "silo.sock").exists, party)
    for party in parties:
        pilot.type(party, steps[party][3], kits[party])
    marks["set up"] = time.monotonic()
    pilot.type("server", steps["server"][4], HOMES / "server" / "proposer", wait=False)
    leader = pilot.running[-1]
    _approve(pilot, kits, steps, STUDY)
    [run] = (HOMES / "server" / "proposer" / "runs").glob(f"{STUDY}-*")
    _wait((run / "model").exists, "the model", 900.0)
    marks["study"] = time.monotonic()
    if leader.wait(300):
        raise SystemExit(f"The study failed:\n{(root / 'server.log').read_text()[-3000:]}")
    # Nobody has approved the test of the model within the minute; it is asked again, for as long as that takes.
    pilot.type("server, again", steps["server"][4].split("run ")[0] + f"evaluate {run} {_control()}", run, wait=False)
    _approve(pilot, kits, steps, f"{STUDY}-validation", ", again")
    if pilot.running[-1].wait(600) or not (run / "validation.json").exists():
        raise SystemExit(f"The validation failed:\n{(root / 'server, again.log').read_text()[-3000:]}")
    print((root / "server, again.log").read_text(), flush=True)
    marks["validation"] = time.monotonic()
    times = list(marks.values())
    return {name: (b - a) / 60 for name, a, b in zip(list(marks)[1:], times, times[1:], strict=False)}


def _approve(pilot: Pilot, kits: dict[str, Path], steps: dict[str, list[str]], study: str, again: str = "") -> None:
    """Approve what waits at every silo, by the last command of its README."""
    for party in SILOS:
        _wait(lambda party=party: _pending(pilot, party), f"a proposal at {party}")
        pilot.type(f"{party}{again}", steps[party][4].replace("STUDY", study), kits[party], answer="y\n")


def _control() -> str:
    return f"--control {HOMES / 'server' / 'proposer' / 'control.toml'}"


def _pending(pilot: Pilot, party: str) -> bool:
    """Whether a study waits for approval; looking is not counted among the commands."""
    words = [
        "runuser",
        "-u",
        account_name(party),
        "--",
        "tacit",
        "silo",
        "status",
        str(HOMES / party / "silo"),
        "--json",
    ]
    done = subprocess.run(words, env=pilot.env, capture_output=True, text=True)
    return done.returncode == 0 and any(not row["approved"] for row in json.loads(done.stdout)["pending"])


def _listens(port: int) -> bool:
    import socket

    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def _wait(ready: object, what: str, seconds: float = 240.0) -> None:
    until = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        if time.monotonic() > until:
            raise SystemExit(f"No sign of {what} within {seconds:.0f} s; see the logs.")
        time.sleep(1.0)


def _made() -> tuple[list[Path], list[str]]:
    """The homes and users that a pilot makes, and nothing else."""
    users = [account_name(party) for party in SILOS] + [f"{account_name(party)}-courier" for party in SILOS]
    users += [account_name("server"), f"{account_name('server')}-proposer"]
    return [HOMES / party for party in ("server", *SILOS)], users


def clean_up() -> None:
    """Take away the homes, users and units of the pilot, by their names."""
    homes, users = _made()
    for user in reversed(users):
        subprocess.run(["userdel", user], capture_output=True)
        (UNITS / f"{user}.service").unlink(missing_ok=True)
        (UNITS / f"{user}-watch.service").unlink(missing_ok=True)
    for home in homes:
        shutil.rmtree(home, ignore_errors=True)
    with contextlib.suppress(OSError):  # others may live there
        HOMES.rmdir()


def main() -> None:
    """Play the pilot, and say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tacit", type=Path, required=True, help="the command, which all users can execute")
    parser.add_argument("--keep", action="store_true", help="leave homes, users and units as they are in the end")
    chosen = parser.parse_args()
    homes, users = _made()
    there = [str(home) for home in homes if home.exists()]
    there += [user for user in users if any(user == found.pw_name for found in pwd.getpwall())]
    if os.geteuid() or there:
        raise SystemExit(f"Expected root, and none of these on the machine: {', '.join(there)}")
    with tempfile.TemporaryDirectory(prefix="tacit-pilot-") as folder:
        pilot = Pilot(Path(folder), chosen.tacit)
        try:
            minutes = play(Path(folder), pilot)
        finally:
            pilot.stop()
            if not chosen.keep:
                clean_up()
    counts = {party: len(typed) for party, typed in pilot.typed.items() if party != "preparing"}
    json.dump({"commands": counts, "minutes": minutes}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
