"""The tile that the cost model picks is nearly the fastest one, by times measured on an H200."""

import json
import statistics
from pathlib import Path

import pytest

from graftwork.backend.deviceless import gpu
from graftwork.backend.deviceless.gemm_cost import GemmShape, Tile, estimate_us, fits

# Shape -> rows of (tile m, n, k, stages, warps, microseconds); small ones include a launch of
# some 35 us. Products of row-major by column-major matrices, no epilogue.
MEASURED = json.loads((Path(__file__).parent / "data/h200_tiles.json").read_text())
# The same of 3 x 3 convolutions as products, by Inductor's own benchmark.
CONVOLUTIONS = json.loads((Path(__file__).parent / "data/h200_convolutions.json").read_text())
TYPES = {"bf16": "bfloat16", "f32": "float32", "tf32": "float32"}


def shape_of(name, gathered=False):
    kind, sizes = name.split()
    m, n, k = map(int, sizes.split("x"))
    aligned = k % 8 == 0 and n % 8 == 0
    return GemmShape(
        m, n, k, dtype=TYPES[kind], tf32=kind == "tf32", aligned=aligned, gathered=gathered
    )


def slowdown(name, measured=MEASURED):
    """Time of the picked tile over that of the fastest."""
    card, shape = gpu("sm_90"), shape_of(name, gathered=measured is CONVOLUTIONS)
    times = {Tile(*row[:5]): row[5] for row in measured[name]}
    allowed = [tile for tile in times if fits(shape, tile, card)]
    picked = min(allowed, key=lambda tile: estimate_us(shape, tile, card))
    return times[picked] / min(times.values())


@pytest.mark.parametrize("name", MEASURED)
def test_no_shape_is_more_than_a_quarter_slower_than_its_best(name):
    assert slowdown(name) < 1.25


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_near_its_best_too(name):
    """Large tiles spill the addresses of what they load: up to three times as long in float32."""
    assert slowdown(name, CONVOLUTIONS) < 1.1


def test_half_of_the_shapes_are_within_a_tenth():
    assert statistics.median(map(slowdown, MEASURED)) < 1.1


def test_the_guess_itself_is_within_a_factor_of_two_where_the_kernel_is_long():
    card = gpu("sm_90")
    for name, rows in MEASURED.items():
        best = min(rows, key=lambda row: row[5])
        if best[5] > 100:
            guess = estimate_us(shape_of(name), Tile(*best[:5]), card)
            assert 0.5 < guess / best[5] < 2


# A bfloat16 row times a 2048 x 4096 matrix: at most 128 tiles on 132 processors, so that nothing
# but its own pipeline hides what a tile waits for. Tile without its stages -> stages -> us.
ONE_ROW = {
    (16, 64, 32, 4): {2: 51.3, 3: 31.2, 4: 24.7},
    (16, 128, 32, 8): {2: 57.6, 4: 26.2},
    (16, 32, 128, 2): {2: 30.7, 5: 14.6},
}


@pytest.mark.parametrize("tile", ONE_ROW)
def test_a_deeper_pipeline_hides_the_latency_that_was_measured(tile):
    m, n, k, warps = tile
    card, shape = gpu("sm_90"), GemmShape(1, 4096, 2048, dtype="bfloat16")
    measured = ONE_ROW[tile]
    guessed = {s: estimate_us(shape, Tile(m, n, k, s, warps), card) for s in measured}
    first, last = min(measured), max(measured)
    assert guessed[first] / guessed[last] == pytest.approx(
        measured[first] / measured[last], rel=0.25
    )
