"""The trust model as a drawing: who holds records, where noise is added, and who sees what is left."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tacit.algorithm import Channel

_WIDTH = 360
_WHERE: dict[Channel, tuple[str, str]] = {
    "direct": ("clip, add noise", "each silo trusts itself alone"),
    "trusted": ("clip", "trusted together"),
    "shuffled-sum": ("add a share of noise", "trusted not to collude"),
    "shuffled-reports": ("randomise each record", "trusted not to collude"),
    "open": ("no noise", "nothing is protected"),
}
_SHUFFLER: dict[Channel, tuple[str, str]] = {
    "shuffled-sum": ("shuffler", "opens nothing but sums"),
    "shuffled-reports": ("shuffler", "mixes reports, cannot read them"),
}
_ARROW: dict[Channel, str] = {
    "direct": "messages, private already",
    "trusted": "statistics without noise",
    "shuffled-sum": "sealed shares",
    "shuffled-reports": "sealed reports",
    "open": "statistics without noise",
}
_SEES: dict[Channel, str] = {
    "direct": "sees every message",
    "trusted": "sees all statistics, adds noise",
    "shuffled-sum": "sees only the noised sum",
    "shuffled-reports": "sees reports, not whose",
    "open": "sees every statistic",
}
_AFTER: dict[Channel, str] = {"shuffled-sum": "the sum", "shuffled-reports": "reports in random order"}


def trust_drawing(channel: Channel, silos: Sequence[str]) -> str:
    """The parties of a channel from top to bottom: silos, shuffler, server, everyone else.

    Inside the dashed line is who must be trusted; solid borders mark who needs no trust.
    """
    does, zone = _WHERE[channel]
    parts: list[str] = []
    bottom = 86
    boxes = [_box(x, 26, width, 52, name, does, "silo") for x, width, name in _places(silos)]
    if channel == "direct":
        parts += [_zone(x - 4, 20, width + 8, 64) for x, width, _ in _places(silos)]
    elif channel in _SHUFFLER:
        bottom = 172
        parts.append(_zone(6, 20, _WIDTH - 12, bottom - 16))
        boxes += [_arrow(82, 116, _ARROW[channel]), _box(80, 116, 200, 44, *_SHUFFLER[channel], "silo")]
    elif channel == "trusted":
        bottom = 172
        parts.append(_zone(6, 20, _WIDTH - 12, bottom - 16))
        boxes += [_arrow(82, 116, _ARROW[channel]), _box(80, 116, 200, 44, "server", _SEES[channel], "silo")]
    parts.append(_text(_WIDTH / 2, 13, zone, "small safe" if channel != "open" else "small danger"))
    parts += boxes
    if channel != "trusted":
        parts.append(_arrow(bottom, bottom + 32, _AFTER.get(channel, _ARROW[channel])))
        parts.append(_box(80, bottom + 32, 200, 44, "server", _SEES[channel], "other"))
        bottom += 76
    parts.append(_arrow(bottom, bottom + 32, "the model, round by round"))
    parts.append(_box(80, bottom + 32, 200, 44, "other silos, the public", "see what is broadcast", "other"))
    name = f"Trust model of the {channel} channel: {zone}"
    return (
        f'<svg class="trust" viewBox="0 0 {_WIDTH} {bottom + 82}" role="img" aria-label="{escape(name)}">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>' + "".join(parts) + "</svg>"
    )


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
    said = "".join(_text(x + width / 2, first + 13 * (i + 1), line, "small") for i, line in enumerate(lines))
    return (
        f'<rect class="{look}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" rx="6"/>'
        + f'<text class="title" x="{x + width / 2:.1f}" y="{first:.1f}" text-anchor="middle" '
        + f'style="font-size:{size:.1f}px">{escape(short)}</text>'
        + said
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


def _text(x: float, y: float, text: str, look: str) -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{escape(text)}</text>'
