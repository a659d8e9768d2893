"""``python -m soak.attack --answers 20000 --seed 0``: a hostile server against real daemons, over their sockets.

It was written from docs/protocol.md for messages and from docs/deployment.md for the owner's side, and imports nothing
of Tacit. It starts `tacit silo serve` with noise on and no flags for XLA, proposes studies of everything that a daemon
answers, and sends broadcasts that no honest server sends. Of 1,000 answers or more the first are to every algorithm on
every kind of model; of fewer, to every algorithm on one. Every answer is held against what its clip and noise allow
(soak/releases.py).

A violation is an answer beyond that; a number that is not finite; noise that is not as loud as promised; a reply whose
kind or size depends on the broadcast; another reply to a repeated request; a refusal without its documented code; a
daemon that ends; a ledger that is overdrawn. Then the exit code is 1.

Through shufflers what leaves a silo is sealed: soak/sums.py attacks the sums that a server reads.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from soak import broadcasts, questions, releases, studies
from soak.silos import Silo, silos
from soak.wire import Connection, Daemon, Reply, tacit

# Of docs/protocol.md, without those that say that the silo itself is out of order.
_CODES = {"bad-frame", "bad-message", "version", "bad-plan", "schema", "unpriceable", "not-allowed", "over-budget"} | {
    *(
        "busy",
        "pending",
        "unknown-study",
        "finished",
        "expired",
        "closed",
        "round",
        "answered",
        "exhausted",
        "shape",
        "changed",
    )
}
_ROUNDS = 60
_WHOLE = 1000  # answers from which on every algorithm meets every model
_TRIES = 3


@dataclass
class Row:
    """What happened to one algorithm, model and scale."""

    answers: int = 0
    worst: float = 0.0
    refused: int = 0
    seconds: float = 0.0


@dataclass
class Outcome:
    """What an attack found."""

    rows: dict[tuple[str, str, str], Row] = field(default_factory=lambda: defaultdict(Row))
    refusals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    violations: list[dict[str, Any]] = field(default_factory=list)
    noise: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    studies: int = 0

    @property
    def answers(self) -> int:
        """Answers in all."""
        return sum(row.answers for row in self.rows.values())

    def violated(self, what: str, **facts: Any) -> None:
        """Note a violation."""
        self.violations.append({"what": what, **facts})

    def table(self) -> str:
        """By algorithm, model and scale: answers, the largest ratio to what is allowed, refusals, seconds."""
        lines = [f"{'algorithm':21} {'model':7} {'scale':9} {'answers':>7} {'worst':>9} {'refused':>7} {'seconds':>8}"]
        for (algorithm, model, scale), row in sorted(self.rows.items()):
            numbers = f"{row.answers:7} {row.worst:9.3g} {row.refused:7} {row.seconds:8.1f}"
            lines.append(f"{algorithm:21} {model:7} {scale:9} {numbers}{' <-- violated' if row.worst > 1.0 else ''}")
        return "\n".join(lines)


class Attack:
    """One study against one daemon: propose, answer every round, probe, finish."""

    def __init__(self, study: studies.Study, silo: Silo, connection: Connection, outcome: Outcome, seed: int):
        self.study, self.silo, self.line, self.outcome = study, silo, connection, outcome
        self.rng = np.random.default_rng([seed, study.number])
        self.shapes = studies.shapes_of(study.objective, silo)
        self.specs: dict[str, Any] = {}
        self.noise: dict[str, float] = {}
        self.identity = ""

    def run(self, nonce: str) -> int:
        """Play the whole study; the number of answers."""
        digest = self.line.welcome["schema_digest"] if self.silo.columns else None
        said = self.line.ask({"type": "propose", "plan": self.study.plan(self.silo, nonce, digest)}).header
        if said["type"] == "error":
            self._refused(said, "plan")
            return 0
        self.identity, self.noise = said["study"], said["noise_multipliers"]
        rounds = releases.rounds_of(self.study.algorithm)
        kinds = releases.kinds_of(self.study.algorithm)
        if kinds != set(self.noise):
            way = "say what its rounds are in docs/protocol.md and in kind_of of soak/releases.py"
            self.outcome.violated("kinds", algorithm=self.study.algorithm, told=self.noise, expected=kinds, text=way)
            return 0
        self._probe(rounds)
        answers = 0
        for number in range(rounds):
            if not self._round(number):
                break
            answers += 1
        self._finish(answers)
        return answers

    def _round(self, number: int) -> bool:
        kind = releases.kind_of(self.study.algorithm, number)
        points, numbers = releases.broadcast_of(self.study.algorithm, kind)
        for _ in range(_TRIES):
            silent = self.study.silo == "zeros" and self.study.objective.get("loss") == "squared" and points > 0
            silent = silent and self.rng.random() < 0.5
            broadcast = (broadcasts.silent if silent else broadcasts.draw)(self.rng, self.shapes, points, numbers)
            begun = time.monotonic()
            reply = self.line.answer(self.identity, number, broadcast.arrays)
            row = self._row(broadcast.scale)
            row.seconds += time.monotonic() - begun
            if reply.header["type"] != "error":
                row.answers += 1
                self._judge(number, kind, broadcast, reply)
                self._replay(number, broadcast, reply)
                return True
            self._refused(reply.header, broadcast.scale)
            if reply.header["code"] == "shape":
                self.outcome.violated("shape", text=reply.header["text"], **self._facts(number, broadcast))
        return False

    def _judge(self, number: int, kind: str, broadcast: broadcasts.Broadcast, reply: Reply) -> None:
        if (
            reply.header["type"] != "message"
            or self.specs.setdefault(kind, reply.header["arrays"]) != reply.header["arrays"]
        ):
            self.outcome.violated("reply", header=reply.header, **self._facts(number, broadcast))
            return
        said = np.concatenate([array.ravel() for array in reply.arrays])
        flat = [np.concatenate([a.ravel() for a in point]).astype(np.float64) for point in broadcast.points]
        blocks = releases.blocks_of(self.study.algorithm, kind, self.noise, self._facts_of(flat, broadcast.numbers))
        sizes = np.cumsum([block.centre.size for block in blocks])
        if sizes[-1] != said.size:
            self.outcome.violated("size", got=said.size, expected=int(sizes[-1]), **self._facts(number, broadcast))
            return
        parts = np.split(said, sizes[:-1])
        ratio = max(block.ratio(part) for block, part in zip(blocks, parts, strict=True))
        row = self._row(broadcast.scale)
        row.worst = max(row.worst, ratio)
        if ratio > 1.0:
            self.outcome.violated("beyond", ratio=ratio, kind=kind, **self._facts(number, broadcast))
        if broadcast.scale == "silent":
            self._listen(kind, blocks, parts)

    def _facts_of(self, points: list[np.ndarray], numbers: list[np.ndarray]) -> releases.Facts:
        objective, told = self.study.objective, [float(number) for number in numbers]
        tables = questions.tables_of(self.study.algorithm, objective.get("loss", ""), self.silo.classes)
        records, features = self.study.records(self.silo), math.prod(self.silo.features)
        return releases.Facts(records, points, told, "regulariser" in objective, tables, features)

    def _listen(self, kind: str, blocks: list[releases.Block], parts: list[np.ndarray]) -> None:
        """Where nothing but noise is said, add up its squares over the promised variance."""
        if kind == "local" or self.study.algorithm["name"] in releases.UNEVEN:
            return
        for block, part in zip(blocks, parts, strict=True):
            sigma = block.deviations / releases.DEVIATIONS
            if 1e-6 < sigma < 1e6:
                heard = self.outcome.noise[self.study.algorithm["name"]]
                heard[0] += float(np.sum(part.astype(np.float64) ** 2)) / sigma**2
                heard[1] += part.size

    def _replay(self, number: int, broadcast: broadcasts.Broadcast, reply: Reply) -> None:
        """The same request again gives the same bytes; another broadcast for the round gives nothing."""
        if self.rng.random() > 0.1:
            return
        again = self.line.answer(self.identity, number, broadcast.arrays)
        if (again.header, again.payload) != (reply.header, reply.payload):
            self.outcome.violated("replay", **self._facts(number, broadcast))
        other = [array.copy() for array in broadcast.arrays]
        if not other:
            return
        other[0].flat[0] = 7.0 if other[0].flat[0] != 7.0 else 8.0
        self._must_refuse("answered", self.line.answer(self.identity, number, other))

    def _probe(self, rounds: int) -> None:
        """Ask for what must be refused."""
        wrong = [np.zeros((2, 3, 5), "<f4")]
        self._must_refuse("round", self.line.answer(self.identity, rounds, wrong))
        self._must_refuse("shape", self.line.answer(self.identity, 0, wrong))
        points, numbers = releases.broadcast_of(self.study.algorithm, releases.kind_of(self.study.algorithm, 0))
        counts = [np.full(shape, 2**31 - 1, "<i4") for shape in self.shapes * points + [()] * numbers]
        if counts:
            self._must_refuse("shape", self.line.answer(self.identity, 0, counts))
        cut = {"type": "answer", "study": self.identity, "round": 0, "arrays": [{"shape": [4], "dtype": "<f4"}]}
        self._must_refuse("bad-message", self.line.ask(cut, b"\0" * 15))
        self._must_refuse("unknown-study", self.line.ask({"type": "status", "study": "0" * 64}))

    def _finish(self, answers: int) -> None:
        """Finish: the receipt counts what was answered, and nothing is answered any more."""
        receipt = self.line.ask({"type": "finish", "study": self.identity}).header
        if receipt.get("answers") != answers or not 0.0 <= receipt.get("epsilon", -1.0) < math.inf:
            self.outcome.violated("receipt", receipt=receipt, answers=answers, study=self.study.number)
        self._must_refuse("finished", self.line.answer(self.identity, 0, [np.zeros((2, 3, 5), "<f4")]))

    def _must_refuse(self, code: str, reply: Reply) -> None:
        said = reply.header
        if said["type"] != "error" or said["code"] != code:
            self.outcome.violated("probe", expected=code, header=said, study=self.study.number)

    def _refused(self, said: dict[str, Any], scale: str) -> None:
        self._row(scale).refused += 1
        self.outcome.refusals[f"{said['code']}: {said['text'][:150]}"] += 1
        if said["code"] not in _CODES or set(said) != {"type", "code", "text", "numbers"}:
            self.outcome.violated("untyped", header=said, study=self.study.number)

    def _row(self, scale: str) -> Row:
        return self.outcome.rows[self.study.algorithm["name"], self.study.model, scale]

    def _facts(self, number: int, broadcast: broadcasts.Broadcast) -> dict[str, Any]:
        return {
            "study": self.study.number,
            "silo": self.study.silo,
            "algorithm": self.study.algorithm,
            "objective": self.study.objective,
            "round": number,
            "scale": broadcast.scale,
            "relation": broadcast.relation,
        }


def proposals(answers: int, seed: int, names: list[str]) -> Iterator[list[studies.Study]]:
    """Studies to play, in batches without end; within a batch those of one silo stand together."""
    whole = answers >= _WHOLE
    many = sum(one.algorithm["name"] not in questions.ONCE for one in studies.core(names, 1, whole=whole))
    rounds = min(max(math.ceil(1.04 * answers / max(many, 1)), 4), _ROUNDS)
    rng = np.random.default_rng(seed)
    first, places = studies.core(names, rounds, whole=whole), list(silos())
    number, turn = len(first), 0
    while True:
        wanted = max(answers // rounds - len(first), len(places))
        more = list[studies.Study]()
        for _ in range(wanted):
            more += studies.random_studies(rng, number + len(more), names[turn % len(names)], rounds)
            turn += 1
        number += len(more)
        if first:
            yield first
        yield sorted(more, key=lambda study: places.index(study.silo))
        first = []


class Journal:
    """One JSON line for every study, so that a stopped attack goes on where it was."""

    def __init__(self, path: Path | None, settings: dict[str, Any], outcome: Outcome):
        self._path, self.done = path, set[int]()
        if path is None:
            return
        if path.exists():
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            if not lines or lines[0] != settings:
                raise SystemExit(f"{path} is the journal of another attack; name another file.")
            for line in lines[1:]:
                self._read(line, outcome)
        else:
            path.write_text(json.dumps(settings) + "\n")

    def _read(self, line: dict[str, Any], outcome: Outcome) -> None:
        self.done.add(line["study"])
        part = Outcome(violations=line["violations"])
        part.refusals.update(line["refusals"])
        part.noise.update(line["noise"])
        for algorithm, model, scale, *values in line["rows"]:
            part.rows[algorithm, model, scale] = Row(*values)
        _merge(outcome, part)

    def write(self, study: studies.Study, part: Outcome) -> None:
        """Note what one study gave."""
        if self._path is None:
            return
        rows = [[*key, row.answers, row.worst, row.refused, row.seconds] for key, row in part.rows.items()]
        line = {"study": study.number, "silo": study.silo, "algorithm": study.algorithm, "objective": study.objective}
        with self._path.open("a") as file:
            found = {"rows": rows, "violations": part.violations, "refusals": part.refusals, "noise": part.noise}
            file.write(json.dumps(line | found, default=str) + "\n")


def _add(row: Row, more: Row) -> None:
    row.answers += more.answers
    row.worst = max(row.worst, more.worst)
    row.refused += more.refused
    row.seconds += more.seconds


def _merge(outcome: Outcome, part: Outcome) -> None:
    for key, row in part.rows.items():
        _add(outcome.rows[key], row)
    for text, count in part.refusals.items():
        outcome.refusals[text] += count
    for name, (total, size) in part.noise.items():
        outcome.noise[name][0] += total
        outcome.noise[name][1] += size
    outcome.violations += part.violations
    outcome.studies += 1


def _visit(
    batch: list[studies.Study],
    root: Path,
    names: list[str],
    outcome: Outcome,
    journal: Journal,
    most: float,
    seed: int,
) -> None:
    """Play a batch of studies about one silo at a daemon of its own."""
    held = silos()[batch[0].silo]

    def fresh(study: studies.Study) -> Daemon:
        folder = root / f"{study.silo}-{study.number}"
        return Daemon(folder, held.files(), held.data(), names)

    daemon = fresh(batch[0])
    try:
        for study in batch:
            if outcome.answers >= most:
                break
            part = _played(study, held, daemon, seed)
            if study is not batch[0] and any(text.startswith("over-budget") for text in part.refusals):
                # A lifetime is spent: its ledger is looked at, and another silo takes its place.
                daemon.stop()
                _audit(daemon, outcome)
                daemon = fresh(study)
                part = _played(study, held, daemon, seed)
            _merge(outcome, part)
            journal.write(study, part)
            if not daemon.alive:
                log = (daemon.folder / "log").read_text()[-2000:]
                outcome.violated("dead", silo=batch[0].silo, study=study.number, log=log)
                return
        last = Connection(daemon.socket)
        if last.ask({"type": "hello", "version": 3}).header["type"] != "welcome":
            outcome.violated("deaf", silo=batch[0].silo)
        last.close()
    finally:
        daemon.stop()
    _audit(daemon, outcome)


def _played(study: studies.Study, held: Silo, daemon: Daemon, seed: int) -> Outcome:
    part, line = Outcome(), Connection(daemon.socket)
    try:
        Attack(study, held, line, part, seed).run(f"{seed:x}")
    except (OSError, ValueError, KeyError) as error:
        part.violated("protocol", error=repr(error), study=study.number, algorithm=study.algorithm)
    finally:
        line.close()
    return part


def _audit(daemon: Daemon, outcome: Outcome) -> None:
    books = daemon.ledger()
    account = books["account"]
    shares = [account["spent_share"], account["charged_share"]]
    if not all(isinstance(part, float) for part in shares) or not 0.0 <= shares[0] <= shares[1] <= 1.0:
        outcome.violated("ledger", books=account, silo=daemon.folder.name)


def _check_noise(outcome: Outcome) -> None:
    """Noise must be as loud as promised: its mean square is within six deviations of the promised variance."""
    for name, (total, size) in outcome.noise.items():
        if size and abs(total / size - 1.0) > 6.0 * math.sqrt(2.0 / size) + 0.01:
            outcome.violated("noise", algorithm=name, variance=total / size, coordinates=int(size))


def attack(
    answers: int,
    seed: int,
    *,
    only: str | None = None,
    journal: Path | None = None,
    study: int | None = None,
    quiet: bool = False,
) -> Outcome:
    """Attack until so many answers were given, and say what was found."""
    listed = [row["name"] for row in json.loads(tacit("algorithms", "--json"))]
    outcome = Outcome()
    names = [name for name in studies.known(listed) if only in (None, name)]
    if not names:
        raise SystemExit(f"Expected --only to name one of {', '.join(studies.known(listed))}, got {only!r}.")
    notes = Journal(journal, {"answers": answers, "seed": seed, "only": only}, outcome)
    begun, barren = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        for batch in proposals(answers, seed, names):
            before = outcome.answers
            left = [one for one in batch if one.number not in notes.done and study in (None, one.number)]
            for silo in dict.fromkeys(one.silo for one in left):
                mine = [one for one in left if one.silo == silo]
                # The first batch has every algorithm, and is played to its end.
                most = answers if batch[0].number else math.inf
                if outcome.answers < most:
                    _visit(mine, Path(folder), listed, outcome, notes, most, seed)
                    if not quiet:
                        _progress(outcome, answers, time.monotonic() - begun)
            barren = barren + 1 if outcome.answers == before else 0
            if outcome.answers >= answers or barren > 3 or (study is not None and left):
                break
    _check_noise(outcome)
    return outcome


def _progress(outcome: Outcome, answers: int, seconds: float) -> None:
    worst = max((row.worst for row in outcome.rows.values()), default=0.0)
    print(
        f"{seconds:7.1f} s  {outcome.answers} of {answers} answers in {outcome.studies} studies, "
        f"largest ratio {worst:.3g}, {len(outcome.violations)} violations",
        flush=True,
    )


def main() -> None:
    """Attack, print what was found, and end with 1 if anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one algorithm")
    parser.add_argument("--study", type=int, help="the study with this number alone, to see a violation again")
    parser.add_argument("--journal", type=Path, help="a file of JSON lines; one that exists is gone on with")
    chosen = parser.parse_args()
    begun = time.monotonic()
    outcome = attack(chosen.answers, chosen.seed, only=chosen.only, journal=chosen.journal, study=chosen.study)
    print(outcome.table())
    for text, count in sorted(outcome.refusals.items(), key=lambda item: -item[1])[:40]:
        print(f"{count:6} refused, {text}")
    for violation in sorted(outcome.violations, key=lambda one: -one.get("ratio", 0.0))[:20]:
        print(json.dumps(violation, default=str))
    kinds = {
        what: sum(one["what"] == what for one in outcome.violations) for what in {v["what"] for v in outcome.violations}
    }
    worst = max((row.worst for row in outcome.rows.values()), default=0.0)
    print(
        f"{outcome.answers} answers in {outcome.studies} studies, {time.monotonic() - begun:.0f} s; "
        f"largest ratio {worst:.3g}; violations: {kinds or 'none'}"
    )
    sys.exit(1 if outcome.violations else 0)


if __name__ == "__main__":
    main()
