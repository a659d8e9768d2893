"""Statistics of a study's silos in simulation: one round of `tacit.algorithms.statistics`, priced as any other.

All records of a silo are counted, those that a study holds out too. Silos weigh as many records as they have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import GUARANTEES, Algorithm, Release
from tacit.channel.shuffled_sum import share_terms
from tacit.counting.estimate import Hypothesis, Noisy, Row, Z, hypotheses_of, rows_of
from tacit.counting.request import Table, block, parsed
from tacit.counting.shown import statistic_json
from tacit.data import Federation
from tacit.plans.assemble import Builder, builder_of, problem_of, record_shape
from tacit.plans.spec import Study, StudyError, study_from
from tacit.privacy import SiloPlan
from tacit.silo import answer, enrol, view_of
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import Participation, participation
from tacit.studies.federation import federation_of
from tacit.studies.plan import plan_of

NAME = "statistics"
ALL_SILOS = ""
"""Whose answer is that of all silos together: no silo is called so."""


@dataclass(frozen=True)
class Asked:
    """Statistics, assembled and priced: everything before the round."""

    study: Study
    tables: tuple[Table, ...]
    builder: Builder
    silos: tuple[SiloPlan, ...]
    noise: np.ndarray | None
    cells: tuple[np.ndarray, ...]

    @property
    def algorithm(self) -> Algorithm:
        """The round, with its noise."""
        return self.builder.build(**({} if self.noise is None else {"noise_multiplier": self.noise}))

    @property
    def sizes(self) -> dict[str, int]:
        """How many records each silo counts."""
        return {silo.name: silo.records for silo in self.silos}

    @property
    def who(self) -> Participation:
        """Everybody, with the weight of its records."""
        records = list(self.sizes.values())
        colluding = self.study.pairwise.colluding
        return participation(len(records), weights=records, honest=self.study.run.honest, colluding=colluding)


@dataclass(frozen=True)
class Readings:
    """What the statistics say: of all silos together and, through the direct channel, of each, by its name.

    ``noise`` has the standard deviation of the noise in a cell of each table, by the same names.
    """

    tables: tuple[Table, ...]
    rows: dict[str, list[list[Row]]]
    tests: dict[str, list[list[Hypothesis]]]
    noise: list[Mapping[str, float]]


def asking(study: Study, statistics: Sequence[Mapping[str, Any]], **changes: Any) -> Study:
    """A study's silos and budget with these statistics in place of its algorithm.

    ``changes`` are of epsilon, delta, and channel; what is ``None`` stays the study's own.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    channel = given.pop("channel", study.algorithm.channel)
    own = study.algorithm.own if study.algorithm.name == NAME else {}
    asked = list(statistics) or own.get(NAME)
    if not asked:
        raise StudyError(f"Expected at least one statistic of {study.name}, such as --counts COLUMN or --mean COLUMN.")
    tree = study.model_dump(exclude_none=True, exclude={"preprocessing", "baseline"})
    tree["algorithm"] = {"name": NAME, "channel": channel, "statistics": asked}
    tree["privacy"] = {"delta": study.privacy.delta, "epsilon": study.privacy.epsilon, **given}
    tree["run"] = {"honest": study.run.honest}
    return study_from(tree)


def prepare(study: Study, seed: int) -> Asked:
    """Load, assemble and price the statistics of a study; every mistake in them is found here."""
    federation = federation_of(study, seed)
    cells, columns = _cells(study, federation)
    section = study.algorithm.model_copy(update={"columns": columns})
    named = study.model_copy(update={"algorithm": section})
    tables = parsed(columns, study.algorithm.own[NAME])
    names, records = [silo.name for silo in federation.silos], [len(own) for own in cells]
    builder = builder_of(named, problem_of(named, federation), records)
    record = record_shape(federation.feature_shape, federation.task, len(columns))
    plan = plan_of(named, builder, names, records, record)
    return Asked(study, tables, builder, plan.silos, plan.noise, cells)


def _cells(study: Study, federation: Federation) -> tuple[tuple[np.ndarray, ...], tuple[Mapping[str, Any], ...]]:
    """The declared columns of every silo's records."""
    cells = tuple(silo.cells for silo in federation.silos if silo.cells is not None)
    if len(cells) == len(federation.silos) and federation.columns:
        return cells, federation.columns
    why = "its records have no declared columns"
    if study.data.name == "csv":
        why = (
            "every range and all levels of its schema were read from records, and statistics by them would not be "
            "private; declare them (tacit init --range COLUMN=LOW:HIGH --levels COLUMN=A,B)"
        )
    raise StudyError(f"data.name: no statistics can be asked of {federation.name}: {why}.")


def run(asked: Asked, seed: int) -> Readings:
    """Ask every silo once, and read its answer; deterministic for a seed."""
    algorithm, records, who = asked.algorithm, list(asked.sizes.values()), asked.who
    tables = [{"x": np.zeros((len(own), 1)), "y": np.zeros(len(own)), "columns": own} for own in asked.cells]
    silos = enrol(tables, [silo.name for silo in asked.silos])
    key = jax.random.key(seed)
    means: dict[str, Any] = {}
    release = algorithm.rounds[NAME].silo.release
    if release.channel in ("direct", "open"):
        said = _each(algorithm, silos, key)
        share = np.asarray(records) / sum(records)
        means[ALL_SILOS] = {name: np.tensordot(share, own, axes=1) for name, own in said.items()}
        for place, silo in enumerate(asked.silos):
            means[silo.name] = {name: own[place] for name, own in said.items()}
    else:
        means[ALL_SILOS] = simulate(algorithm, jnp.zeros(()), silos, key=key, who=who, noise="each").params
    return read(asked.tables, asked.sizes, means, block_noise(release, asked.tables, asked.sizes, who))


def _each(algorithm: Algorithm, silos: Any, key: Any) -> dict[str, np.ndarray]:
    """Every silo's own answer, by table, with an axis of silos first."""
    once = algorithm.rounds[NAME]
    broadcast = once.server.ask(algorithm.init(()))

    def one(records: Any, count: Any, silo_index: Any) -> Any:
        view = view_of(records, count, None, silo_index)
        return answer(once.silo, broadcast, (), view, key=jax.random.fold_in(key, silo_index), position=0)[0]

    said = jax.jit(jax.vmap(one))(silos.records, silos.counts, jnp.arange(silos.number))
    return {name: np.asarray(own, np.float64) for name, own in said.items()}


def read(
    tables: tuple[Table, ...],
    sizes: Mapping[str, int],
    means: Mapping[str, Mapping[str, Any]],
    noise: Sequence[Mapping[str, float]],
) -> Readings:
    """What released means say, by silo; ``noise`` has the deviations of each table by the same names."""
    counted = {**sizes, ALL_SILOS: sum(sizes.values())}
    rows: dict[str, list[list[Row]]] = {}
    tests: dict[str, list[list[Hypothesis]]] = {}
    for name, blocks in means.items():
        noisy = [
            Noisy(np.asarray(blocks[block(place)], np.float64).reshape(-1), own[name], counted[name])
            for place, own in enumerate(noise)
        ]
        rows[name] = [rows_of(table, one) for table, one in zip(tables, noisy, strict=True)]
        tests[name] = [hypotheses_of(table, one) for table, one in zip(tables, noisy, strict=True)]
    return Readings(tables, rows, tests, list(noise))


def block_noise(
    release: Release, tables: Sequence[Table], sizes: Mapping[str, int], who: Participation
) -> list[dict[str, float]]:
    """The standard deviation of the noise in a cell of each table, of all silos together and of each by its name."""
    return [_cell_noise(release, block(place), table.size, sizes, who) for place, table in enumerate(tables)]


def _cell_noise(
    release: Release, name: str, dimension: int, silos: Mapping[str, int], who: Participation
) -> dict[str, float]:
    records = list(silos.values())
    total, sizes = sum(records), np.asarray(records, np.float64)
    if release.noise_multiplier is None or release.channel == "open":
        return dict.fromkeys([ALL_SILOS, *silos], 0.0)
    multipliers = np.broadcast_to(np.asarray(release.noise_multiplier[name], np.float64), sizes.shape)
    each = multipliers * release.sensitivity / sizes
    if release.channel == "direct":
        whole = math.sqrt(float(np.sum((sizes / total * each) ** 2)))
        return {ALL_SILOS: whole} | {silo: float(own) for silo, own in zip(silos, each, strict=True)}
    if release.channel == "trusted":
        return {ALL_SILOS: float(np.max(sizes / total * each))}
    worst = float(multipliers.max())
    if release.channel == "pairwise":
        shared = math.sqrt(len(records) / (len(records) - who.colluding))
        return {ALL_SILOS: worst * release.sensitivity / total * shared}
    if release.channel != "shuffled-sum":
        raise StudyError(f'algorithm.channel: how much noise "{release.channel}" leaves in a sum is not known here.')
    terms = share_terms(worst, records, min_silos=who.min_silos, honest=who.honest, dimension=dimension)
    return {ALL_SILOS: 2.0 / terms.grid * math.sqrt((terms.coins + 1) * total / 4) / total}


def noise_half_width(asked: Asked) -> float:
    """How far noise moves a share of all records at most, in 95% of cases, in the table with the most noise."""
    noise = block_noise(asked.algorithm.rounds[NAME].silo.release, asked.tables, asked.sizes, asked.who)
    return max((Z * own[ALL_SILOS] for own in noise), default=0.0)


def priced_silos(asked: Asked) -> list[dict[str, Any]]:
    """The silos with their records and prices, for `statistics_json`."""
    rows = [(silo, None if silo.price is None else silo.price.epsilon) for silo in asked.silos]
    return [{"name": silo.name, "records": silo.records, "epsilon": epsilon} for silo, epsilon in rows]


def statistics_json(study: Study, silos: Sequence[Mapping[str, Any]], found: Readings) -> dict[str, Any]:
    """Everything as plain data; ``silos`` have a name, records and an epsilon."""
    channel = study.algorithm.channel if study.privacy.private else "open"
    return {
        "study": study.name,
        "channel": channel,
        "guarantee": GUARANTEES[channel],
        "epsilon": max((silo["epsilon"] for silo in silos if silo["epsilon"] is not None), default=None),
        "delta": study.privacy.delta,
        "silos": [{**silo, "statistics": _shown(found, silo["name"])} for silo in silos],
        "statistics": _shown(found, ALL_SILOS),
    }


def _shown(found: Readings, name: str) -> list[dict[str, Any]] | None:
    """The statistics of one silo, or of all; none where no silo's own are known."""
    if name not in found.rows:
        return None
    parts = zip(found.tables, found.rows[name], found.tests[name], found.noise, strict=True)
    return [statistic_json(table, rows, tests, noise[name]) for table, rows, tests, noise in parts]
