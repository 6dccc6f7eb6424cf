"""Which attention kernel a call takes, and in which tiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from graftwork.plugins.toolkit.symbolic import Size, known

from .tiles import LONG, SHORT, SPLIT_KEYS, Tiles, forward_tiles, hopper_tiles, split_tiles


@dataclasses.dataclass(frozen=True)
class Call:
    """What decides on the kernel of one call.

    Attributes:
        queries: of the longest sequence.
        keys: of the longest sequence.
        size: features of a query and of a key.
        size_v: features of a value.
        pairs: how many (sequence, key head) there are.
        group: query heads that share a key head.
        sweep: heads that go over the tiles together.
        causal_heads: query heads under a causal mask; 0 without one.
        bare: whether there is no mask, no page table and no window but the causal one.
        aligned: whether all rows begin at 16 bytes and lie a known distance apart.
        positive: whether the scale is.
        page: keys of a page; 0 without a page table.
    """

    queries: Size
    keys: Size
    size: int
    size_v: int
    itemsize: int
    precision: str
    archs: Sequence[str]
    pairs: Size
    group: int
    sweep: int
    causal_heads: int
    bare: bool
    aligned: bool
    positive: bool
    page: int = 0


def choose(call: Call) -> tuple[bool, Tiles]:
    """Whether keys are worked on in chunks side by side (`run_split`), and the tiles.

    Chunks are for few queries against many keys; else the kernel for Hopper GPUs takes what it
    can, and the one in Triton the rest (`run_forward`).
    """
    size = max(call.size, call.size_v)
    if isinstance(call.queries, int) and call.queries > 0 and not known(call.keys <= SPLIT_KEYS):
        rows = call.queries * call.group
        kind = (size, call.itemsize, call.precision, call.archs)
        tiles = split_tiles(rows, *kind, call.page, call.pairs, call.keys)
        if tiles is not None:
            return True, tiles
    if call.bare and call.aligned and call.positive:
        sizes, short = (call.size, call.size_v, call.itemsize), known(call.keys <= SHORT)
        tiles = hopper_tiles(*sizes, call.archs, call.causal_heads, short)
        if tiles is not None:
            return False, tiles
    long, plain = known(call.keys >= LONG), call.bare and call.causal_heads == 0
    tiles = forward_tiles(size, call.itemsize, call.precision, call.archs, call.sweep, long, plain)
    return False, tiles
