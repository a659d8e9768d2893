"""Pictures of the report as inline SVG: no file, no script, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from tacit.algorithm import Channel

_WIDTH, _HEIGHT = 360, 216
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 12, 34
_WHISKERS = 8  # error bars on a curve; the band shows the rest
_LARGE = 100  # numbers from here on are shown without digits after the point
_SMALL = 0.01  # numbers below have more of them


def number(value: float | None, digits: int = 3, *, beside: float | None = None) -> str:
    """A number for people: three digits after the point, none of a large one, more of one that is nearly zero.

    A deviation has as many as the mean ``beside`` it.

    >>> number(0.1234), number(-6860.98), number(0.00955149), number(None)
    ('0.123', '-6,861', '0.00955', '–')
    >>> number(0.0004, beside=0.415), number(1.923, beside=121.0), number(0.000812, beside=0.00955149)
    ('0.000', '2', '0.00081')
    """
    if value is None:
        return "–"
    size = abs(value if beside is None else beside)
    if size >= _LARGE:
        return f"{value:,.0f}"
    after = digits - 1 - math.floor(math.log10(size)) if 0 < size < _SMALL else digits
    return f"{value:.{after}f}"


@dataclass(frozen=True)
class Bar:
    """One bar: a label, a mean with its deviation, and the class that colours it."""

    label: str
    mean: float
    std: float = 0.0
    look: str = "plain"


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers that cover a range.

    >>> ticks(0.18, 0.43)
    [0.2, 0.3, 0.4]
    """
    span = high - low
    if not span > 0:
        return [low]
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5) if factor * power >= rough), 10 * power)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def curves(lines: Mapping[str, tuple[np.ndarray, np.ndarray]], *, across: str, up: str) -> str:
    """Curves with error bars: for each CSS class the rounds, and values with axes (rounds, seeds)."""
    kept = {look: _kept(*line) for look, line in lines.items()}
    drawn = {look: line for look, line in kept.items() if len(line[0])}
    if not drawn:
        return ""
    low = min(float((mean - std).min()) for _, mean, std in drawn.values())
    high = max(float((mean + std).max()) for _, mean, std in drawn.values())
    margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    floor = max(low - margin, 0.0) if low >= 0 else low - margin
    right = max(float(rounds.max()) for rounds, _, _ in drawn.values())
    frame = _Frame(0.0, right, floor, high + margin)
    parts = [frame.axes(across, up), *(_curve(frame, look, *line) for look, line in drawn.items())]
    return _svg(_HEIGHT, f"{up} against {across}", parts)


def _kept(rounds: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean and deviation by round, where all seeds are finite."""
    there = np.isfinite(values).all(axis=1)
    values = values[there]
    std = values.std(axis=1, ddof=1) if values.shape[1] > 1 else np.zeros(len(values))
    return rounds[there], values.mean(axis=1), std


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        share = (value - self.left) / ((self.right - self.left) or 1.0)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self, across: str, up: str) -> str:
        end, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        parts = [f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{end}" y2="{bottom}"/>']
        for value in ticks(self.low, self.high):
            y = self.y(value)
            parts.append(f'<line class="rule" x1="{_LEFT}" y1="{y:.1f}" x2="{end}" y2="{y:.1f}"/>')
            parts.append(_text(_LEFT - 5, y + 4, f"{value:g}", anchor="end"))
        parts += [_text(self.x(value), bottom + 14, f"{value:g}") for value in ticks(self.left, self.right)]
        parts.append(_text((_LEFT + end) / 2, _HEIGHT - 4, across, "name"))
        parts.append(
            f'<text class="name" text-anchor="middle" transform="translate(10 {(_TOP + bottom) / 2:.0f}) rotate(-90)">'
            f"{escape(up)}</text>"
        )
        return "".join(parts)


def _curve(frame: _Frame, look: str, rounds: np.ndarray, mean: np.ndarray, std: np.ndarray) -> str:
    def path(values: np.ndarray, order: slice = slice(None)) -> str:
        return " ".join(
            f"{frame.x(float(r)):.1f},{frame.y(float(v)):.1f}"
            for r, v in zip(rounds[order], values[order], strict=True)
        )

    back = slice(None, None, -1)
    parts = [f'<polyline class="line {look}" points="{path(mean)}"/>']
    if std.any():
        parts.insert(0, f'<polygon class="band {look}" points="{path(mean + std)} {path(mean - std, back)}"/>')
        chosen = np.unique(np.linspace(0, len(rounds) - 1, min(_WHISKERS, len(rounds))).round().astype(int))
        for i in chosen:
            x, top, end = frame.x(rounds[i]), frame.y(mean[i] + std[i]), frame.y(mean[i] - std[i])
            whisker = f"M{x:.1f} {top:.1f}V{end:.1f}M{x - 3:.1f} {top:.1f}h6M{x - 3:.1f} {end:.1f}h6"
            parts.append(f'<path class="whisker {look}" d="{whisker}"/>')
    return "".join(parts)


def bars(rows: Sequence[Bar], *, name: str, start: float = 0.0, end: float | None = None, percent: bool = False) -> str:
    """Bars to the right, each with its label above, its number beside it and, if it has a deviation, an error bar."""
    rows = [row for row in rows if math.isfinite(row.mean) and math.isfinite(row.std)]
    if not rows:
        return ""
    most = end if end is not None else max(row.mean + row.std for row in rows)
    width = _WIDTH - 92

    def x(value: float) -> float:
        return 2 + width * min(max((value - start) / ((most - start) or 1.0), 0.0), 1.0)

    parts = []
    for i, row in enumerate(rows):
        y = 34 * i
        shown = f"{100 * row.mean:.1f}%" if percent else number(row.mean)
        shown += f" ± {number(row.std, beside=row.mean)}" if row.std and not percent else ""
        parts.append(_text(2, y + 12, row.label, "name", "start"))
        length = max(x(row.mean) - 2, 1.0)
        if end is not None:
            parts.append(f'<rect class="track" x="2" y="{y + 17}" width="{width}" height="12" rx="2"/>')
        parts.append(f'<rect class="bar {row.look}" x="2" y="{y + 17}" width="{length:.1f}" height="12" rx="2"/>')
        if row.std:
            low, high, middle = x(row.mean - row.std), x(row.mean + row.std), y + 23
            parts.append(
                f'<path class="whisker ink" d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 3}v6'
                f'M{high:.1f} {middle - 3}v6"/>'
            )
        beside = width + 2 if end is not None else max(x(row.mean), x(row.mean + row.std))
        parts.append(_text(beside + 5, y + 27, shown, anchor="start"))
    return _svg(34 * len(rows) + 2, name, parts)


_SILOS: dict[Channel, tuple[str, str, str]] = {
    "direct": ("clip, add noise", "each silo trusts itself alone", "messages, private already"),
    "pairwise": ("add a share, masks", "all but a few trusted not to collude", "masked messages"),
    "trusted": ("clip", "trusted together", "statistics without noise"),
    "shuffled-sum": ("add a share of noise", "trusted not to collude", "sealed shares"),
    "shuffled-reports": ("randomise each record", "trusted not to collude", "sealed reports"),
    "open": ("no noise", "nothing is protected", "statistics without noise"),
}
"""What silos do, who trusts whom, and what leaves a silo."""
_SHUFFLER: dict[Channel, tuple[str, str]] = {
    "shuffled-sum": ("opens nothing but sums", "the sum"),
    "shuffled-reports": ("mixes reports, cannot read them", "reports in random order"),
}
"""What the shuffler does, and what leaves it."""
_SERVER: dict[Channel, str] = {
    "direct": "sees every message",
    "pairwise": "sees only the noised sum",
    "trusted": "sees all statistics, adds noise",
    "shuffled-sum": "sees only the noised sum",
    "shuffled-reports": "sees reports, not whose",
    "open": "sees every statistic",
}


def trust_drawing(channel: Channel, silos: Sequence[str]) -> str:
    """The parties of a channel from top to bottom: silos, shuffler, server, everyone else.

    Inside the dashed line is who must be trusted; solid borders mark who needs no trust.
    """
    (does, zone, leaves), sees, places = _SILOS[channel], _SERVER[channel], _places(silos)
    parts: list[str] = []
    bottom = 86
    boxes = [_box(x, 26, width, 52, name, does, "silo") for x, width, name in places]
    if channel == "direct":
        parts += [_zone(x - 4, 20, width + 8, 64) for x, width, _ in places]
    elif channel == "pairwise":
        parts.append(_zone(6, 20, _WIDTH - 12, 64))
    elif channel != "open":
        bottom = 172
        parts.append(_zone(6, 20, _WIDTH - 12, bottom - 16))
        inner = ("server", sees) if channel == "trusted" else ("shuffler", _SHUFFLER[channel][0])
        boxes += [_arrow(82, 116, leaves), _box(80, 116, 200, 44, *inner, "silo")]
    parts.append(_text(_WIDTH / 2, 13, zone, "small safe" if channel != "open" else "small danger"))
    parts += boxes
    if channel != "trusted":
        parts.append(_arrow(bottom, bottom + 32, _SHUFFLER[channel][1] if channel in _SHUFFLER else leaves))
        parts.append(_box(80, bottom + 32, 200, 44, "server", sees, "other"))
        bottom += 76
    parts.append(_arrow(bottom, bottom + 32, "the model, round by round"))
    parts.append(_box(80, bottom + 32, 200, 44, "other silos, the public", "see what is broadcast", "other"))
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return _svg(bottom + 82, f"Trust model of the {channel} channel: {zone}", [tip, *parts], "trust")


def _places(silos: Sequence[str]) -> list[tuple[float, float, str]]:
    """Up to four boxes; more silos are counted in the last one."""
    shown = list(silos) if len(silos) <= 4 else [*silos[:3], f"{len(silos) - 3} more"]
    gap, width = 12, min((_WIDTH - 20 - 12 * (len(shown) - 1)) / len(shown), 160)
    first = (_WIDTH - len(shown) * width - gap * (len(shown) - 1)) / 2
    return [(first + i * (width + gap), width, name) for i, name in enumerate(shown)]


def _box(x: float, y: float, width: float, height: float, title: str, text: str, look: str) -> str:
    size = max(9.0, min(12.0, width / (0.66 * max(len(title), 1))))
    fitting = int(width / (0.66 * size))
    short = title if len(title) <= fitting else title[: fitting - 1] + "…"
    lines = [text] if len(text) * 5.4 < width else _halves(text)
    first = y + height / 2 + 4 - 6.5 * len(lines)
    return "".join(
        [
            f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="6"/>',
            f'<text class="title" x="{x + width / 2:.1f}" y="{first:.1f}" text-anchor="middle" '
            f'style="font-size:{size:.1f}px">{escape(short)}</text>',
            *(_text(x + width / 2, first + 13 * (i + 1), line, "small") for i, line in enumerate(lines)),
        ]
    )


def _halves(text: str) -> list[str]:
    words = text.split()
    cut = min(range(1, len(words)), key=lambda i: abs(len(" ".join(words[:i])) - len(" ".join(words[i:]))), default=0)
    return [" ".join(words[:cut]), " ".join(words[cut:])] if cut else [text]


def _zone(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="zone" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="9"/>'


def _arrow(top: float, end: float, text: str) -> str:
    middle = _WIDTH / 2
    line = f'<path class="arrow" d="M{middle} {top + 2}V{end - 2}" marker-end="url(#tip)"/>'
    return line + f'<text class="small" x="{middle + 8}" y="{(top + end) / 2 + 4}">{escape(text)}</text>'


def _text(x: float, y: float, text: str, look: str = "number", anchor: str = "middle") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, name: str, parts: Sequence[str], look: str = "chart") -> str:
    head = f'<svg class="{look}" viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(name)}">'
    return head + "".join(parts) + "</svg>"
