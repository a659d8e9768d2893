"""The pictures of the documentation: ``python docs/site/pictures.py`` writes docs/pictures.

Drawn from the accountant and from the report's own charts, so that they cannot say anything else than the code does.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import numpy as np

from tacit.algorithm import Channel
from tacit.plans.catalogue import paper_noise
from tacit.privacy import Event, calibrate, price, risk_of
from tacit.privacy.gaussian import gdp_tpr
from tacit.studies.charts import Bar, bars, curves, trust_drawing

FOLDER = Path(__file__).parents[1] / "pictures"
RECORDS, DELTA = 1234, 1e-6
_STYLE = """<style>
svg { color-scheme: light dark; --ink: #1c2128; --soft: #57606a; --line: #d0d7de; --card: #f6f8fa; --accent: #1a66b8;
  --open: #8a6d1d; --alone: #a3abb4; --safe: #1a7f4b; --danger: #b3261e; background: #fff; }
text { fill: var(--ink); font: 11px system-ui, sans-serif; } .name, .small { fill: var(--soft); }
.title { font-weight: 600; } .small { font-size: 10.5px; } .safe { fill: var(--safe); } .danger { fill: var(--danger); }
.silo { fill: var(--card); stroke: var(--safe); } .other { fill: var(--card); stroke: var(--danger); }
.zone { fill: #1a7f4b18; stroke: var(--safe); stroke-dasharray: 4 3; } .arrow { stroke: var(--soft); fill: none; }
.tip { fill: var(--soft); } .axis { stroke: var(--soft); } .rule { stroke: var(--line); } .track { fill: var(--card); }
.line { fill: none; stroke-width: 1.8; stroke: var(--accent); } .line.open { stroke: var(--open); }
.line.alone { stroke: var(--alone); stroke-dasharray: 4 3; }
.bar { fill: var(--alone); } .bar.private { fill: var(--accent); } .bar.open { fill: var(--open); }
</style>"""


def pictures() -> dict[str, str]:
    """Every picture by name."""
    found = {
        f"trust-{channel}": trust_drawing(channel, ["clinic", "hospital", "practice"]) for channel in get_args(Channel)
    }
    found["epsilon-by-noise"] = epsilon_by_noise()
    found["epsilon-by-rounds"] = epsilon_by_rounds()
    found["noise-by-design"] = noise_by_design()
    found["attacker"] = attacker()
    return {name: _alone(svg) for name, svg in found.items()}


def _alone(svg: str) -> str:
    """A picture as a file of its own: namespace, size and style."""
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg" width="540">{_STYLE}{rest}\n'


def _event(noise: float, count: int, batch: int = RECORDS, sampling: str = "full") -> Event:
    return Event(kind="g", noise_multiplier=noise, count=count, records=RECORDS, batch=batch, sampling=sampling)


def _line(across: np.ndarray, up: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(across, float), np.asarray(up)[:, None]


def epsilon_by_noise() -> str:
    """Fifty full-batch rounds: epsilon against the noise multiplier."""
    noise = np.linspace(10, 60, 26)
    line = _line(noise, [price([_event(z, 50)], delta=DELTA).epsilon for z in noise])
    return curves({"private": line}, across="noise multiplier z", up="epsilon")


def epsilon_by_rounds() -> str:
    """At one noise multiplier: what rounds cost, all records each time against one pass."""
    rounds = np.arange(1, 51)
    full = [price([_event(20.0, int(r))], delta=DELTA).epsilon for r in rounds]
    once = [price([_event(20.0, int(r), RECORDS // 50, "one-pass")], delta=DELTA).epsilon for r in rounds]
    lines = {"private": _line(rounds, full), "open": _line(rounds, once)}
    return curves(lines, across="rounds (blue: all records; brown: one pass)", up="epsilon")


def noise_by_design() -> str:
    """The deviation of the noise on a mean that epsilon = 1 asks for, in units of the clip, fifty rounds."""
    designs = [("all records in every round", RECORDS, "full"), ("one pass, 24 records a round", 24, "one-pass")]
    rows = []
    for label, batch, sampling in designs:
        [event] = calibrate([_event(1.0, 50, batch, sampling)], epsilon=1.0, delta=DELTA)
        rows.append(Bar(label, event.noise_multiplier * 2 / batch, look="private"))
    same = {"records": RECORDS, "num_rounds": 50, "sampling": "full"}
    printed = paper_noise("mb-sgd", **same, epsilon=1.0, delta=DELTA)
    rows.append(Bar("all records, the theorem's printed noise", printed.sigma_over_clip[0], look="open"))
    return bars(rows, name="Noise per coordinate, in units of the clip")


def attacker() -> str:
    """The best true-positive rate against the false-positive rate, at three prices."""
    rates = np.linspace(0, 1, 101)
    lines = {"alone": _line(rates, list(rates))}
    for epsilon, look in ((1.0, "private"), (8.0, "open")):
        [event] = calibrate([_event(1.0, 50)], epsilon=epsilon, delta=DELTA)
        mu = 50**0.5 / event.noise_multiplier
        assert abs(risk_of([event]).tpr_at_1pct_fpr - gdp_tpr(mu, 0.01)) < 1e-9
        lines[look] = _line(rates, [gdp_tpr(mu, float(a)) if 0 < a < 1 else float(a) for a in rates])
    return curves(lines, across="false alarms (blue: epsilon 1; brown: 8; dashed: a coin)", up="records exposed")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
        sys.stdout.write(f"{FOLDER / name}.svg\n")
