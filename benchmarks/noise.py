"""Noise of a real silo's door against plain normals: ``python -m benchmarks.noise``.

A million discrete Gaussians of width 2^38, as a release of a million coordinates needs, beside as many normal numbers
made of the same entropy (8 bytes each): by Box and Muller's formula in pieces that fit the cache, and by the inverse of
the distribution function. The faster of the two is what the ratio is taken of; the bar is 5. OpenDP's exact sampler
draws a tenth of that and is scaled. Everything is interleaved and compared by medians. The first call for a width also
makes its table. The last line is one JSON object.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import opendp.prelude as dp
from rich.console import Console
from rich.table import Table
from scipy.special import ndtri

from tacit.silo import sampler

COORDINATES, REPEATS, CHUNK = 1_000_000, 9, 1 << 15
SIGMA = 2.0**38
WIDTHS = {"4": 4.0, "2^17": 2.0**17, "2^38": SIGMA, "2^57": 2.0**57}
OPENDP = "OpenDP"


def uniforms(size: int) -> Any:
    words = np.frombuffer(os.urandom(8 * size), "<u8")
    return ((words >> 11) + 0.5) * 2.0**-53


def box_muller(size: int) -> Any:
    normals = np.empty(size)
    for start in range(0, size, CHUNK):
        part = normals[start : start + CHUNK]
        radius, angle = uniforms(part.size + part.size % 2).reshape(2, -1)
        radius, angle = np.sqrt(-2 * np.log(radius)), 2 * np.pi * angle
        part[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[: part.size]
    return normals


def inverted(size: int) -> Any:
    normals = np.empty(size)
    for start in range(0, size, CHUNK):
        part = normals[start : start + CHUNK]
        ndtri(uniforms(part.size), out=part)
    return normals


def opendp(size: int, sigma: float) -> Any:
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
    return dp.m.make_gaussian(*space, scale=sigma)([0] * size)


def seconds(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main() -> None:
    """Time everything side by side."""
    dp.enable_features("contrib")
    ways: dict[str, Callable[[], Any]] = {
        f"tacit, width {name}": lambda sigma=sigma: sampler.discrete_gaussian(COORDINATES, sigma)
        for name, sigma in WIDTHS.items()
    }
    ways |= {
        "normals, Box-Muller": lambda: box_muller(COORDINATES),
        "normals, inverse": lambda: inverted(COORDINATES),
        OPENDP: lambda: opendp(COORDINATES // 10, SIGMA),
    }
    firsts = {name: seconds(lambda s=sigma: sampler.discrete_gaussian(1, s)) for name, sigma in WIDTHS.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for repeat in range(REPEATS + 1):
        for name, run in ways.items():
            taken[name] += [seconds(run)] if repeat else []
    middle = {name: float(np.median(values)) * (10 if name == OPENDP else 1) for name, values in taken.items()}
    floor = min(value for name, value in middle.items() if name.startswith("normals"))
    table = Table("way", "ms", "/ normals", title=f"{COORDINATES:,} coordinates, one thread, width 2^38 unless said")
    for name, value in middle.items():
        table.add_row(name, f"{1e3 * value:.0f}", f"{value / floor:.2f}")
    Console(width=100).print(table)
    found = {f"{name} / normals": round(value / floor, 2) for name, value in middle.items()}
    found["OpenDP / tacit"] = round(middle[OPENDP] / middle["tacit, width 2^38"], 1)
    found["ms"] = {name: round(1e3 * value, 1) for name, value in middle.items()}
    found["ms of the first call"] = {name: round(1e3 * value, 1) for name, value in firsts.items()}
    found["log2 of the distance"] = {
        name: round(float(np.log2(sampler.distance(sigma))), 1) for name, sigma in WIDTHS.items()
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
