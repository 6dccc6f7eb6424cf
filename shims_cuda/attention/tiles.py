"""Tile sizes of the attention kernels, by head size, dtype and GPU architecture.

Measured on an H200 (bfloat16); elsewhere they are chosen to fit the shared memory of a
multiprocessor. Autotuning would not help an ahead-of-time compiler, which times kernels on
offsets that it makes up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from graftwork.plugins.toolkit import gluon
from graftwork.plugins.toolkit.kernels import cdiv
from graftwork.plugins.toolkit.symbolic import Size, known

SPLIT_ROWS = 64
SPLIT_KEYS = 1024  # fewer keys are not worth a second kernel
LONG = 2048
SHORT = 512

# Less than 100 KiB of shared memory a block.
_SMALL = ("sm_86", "sm_87", "sm_89", "sm_120", "sm_121")


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the work is cut.

    Attributes:
        rows: query rows of a tile.
        keys: keys of a tile.
        warps: of a program.
        stages: of the pipeline that loads tiles of keys and values.
        sweep: heads that go over the tiles together.
        fixed: 1 where the kernel is to be compiled for the strides between keys and between
            values, if they are known, else 0. Addresses are then one pointer and constants,
            which saves registers and, in all tiles but one, time.
        cut: 1 where float32 operands are cut into three bfloat16 numbers, for tensor cores.
        programs: of the kernel for Hopper GPUs, that share the tiles out among themselves; 0
            for the kernel in Triton, with a program for each tile.
        short: 1 where the kernel for Hopper GPUs is to expect few tiles of keys for one of rows.
        chunk: keys of a program of the split kernel, whole tiles; 0 for the other kernels.
    """

    rows: int
    keys: int
    warps: int
    stages: int
    sweep: int = 1
    fixed: int = 1
    cut: int = 0
    programs: int = 0
    short: int = 0
    chunk: int = 0

    def numbers(self) -> list[int]:
        """As an operator takes them: `Tiles(*tiles.numbers())` are the same."""
        return list(dataclasses.astuple(self))


def block(size: int) -> int:
    """The tile extent for `size`: a power of two of at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def forward_tiles(
    size: int,
    itemsize: int,
    precision: str,
    archs: Sequence[str],
    sweep: int = 1,
    long: bool = False,
    plain: bool = False,
) -> Tiles:
    """Tiles of the forward kernel for the larger of the two head sizes.

    `long` says that sequences are known to have `LONG` keys or more, `plain` that there is no
    mask, no window and no page table.
    """
    width = block(size) * itemsize  # bytes of one row
    if _scalar(itemsize, precision):
        # 80 KiB of shared memory, and 104.
        fits = width <= (256 if any(arch in _SMALL for arch in archs) else 512)
        if fits and not is_amd(archs):
            return Tiles(64, 64 if width <= 256 else 32, 4, 2, sweep, cut=1)
        return Tiles(32, 32 if width <= 256 else 16, 4, 1 if is_amd(archs) else 2, sweep)
    if is_amd(archs):  # 64 KiB of shared memory, keys and values in turn
        return Tiles(64 if width <= 512 else 32, max(16, min(64, 16384 // width)), 4, 1, sweep)
    tight = any(arch in _SMALL for arch in archs)
    if width <= 128:
        return Tiles(64, 64, 4, 3, sweep)
    if width <= 256:
        if long and not tight:
            return Tiles(64, 64, 4, 3, sweep)
        # Two programs of the first, three of the second share a multiprocessor, which hides the
        # start of each. The first reads keys half as often, and wastes more on a mask's edge.
        if plain:
            return Tiles(128, 32, 8, 3, sweep)
        return Tiles(64, 32, 4, 3, sweep, fixed=0)
    if width <= 512:
        return Tiles(64, 32, 4, 2, sweep)
    return Tiles(32, 16, 4, 2, sweep)


def hopper_tiles(
    size: int,
    size_v: int,
    itemsize: int,
    archs: Sequence[str],
    causal_heads: int,
    short: bool = False,
) -> Tiles | None:
    """Tiles of the kernel for Hopper GPUs, or None where it is not the one to take.

    That is for half types with heads of 64 or 128, without a mask, pages or a window but the
    causal one, for which `causal_heads` says how many heads there are (0: all keys). `short`
    says that sequences are known to have at most `SHORT` keys.
    """
    if tuple(archs) != ("sm_90",) or not gluon.available():
        return None
    if itemsize != 2 or size != size_v or size not in (64, 128):
        return None
    stages, sweep = 2 if size == 128 else 3, max(1, causal_heads)
    one_loop = int(short and causal_heads > 0)
    return Tiles(128, 128, 4, stages, sweep, programs=_multiprocessors(), short=one_loop)


def split_tiles(
    rows: int,
    size: int,
    itemsize: int,
    precision: str,
    archs: Sequence[str],
    page: int = 0,
    pairs: Size = 1,
    keys: Size = 0,
) -> Tiles | None:
    """Tiles of the split kernel for `rows` rows a sequence; None where they are too many.

    `page` is how many keys a page holds, 0 where there are none: a tile that lies in one page
    needs one number of the page table. `pairs` counts (sequence, key head) pairs, `keys` those of
    the longest sequence.
    """
    width = block(size) * itemsize
    chunk = _chunk_keys(pairs, keys)
    if rows > (16 if _scalar(itemsize, precision) else SPLIT_ROWS):
        return None
    if _scalar(itemsize, precision):
        return Tiles(16, 32 if width <= 512 else 16, 4, 1 if is_amd(archs) else 2, chunk=chunk)
    most = 128 if rows <= 16 else 64
    if is_amd(archs):
        return Tiles(block(rows), max(16, min(most, 16384 // width)), 4, 1, chunk=chunk)
    if rows <= 16 and width <= 256:
        if width == 256 and page % 64 == 0 and _two_each(pairs, keys, archs):
            return Tiles(16, 64, 4, 3, chunk=1024)
        # One warp needs no other to find a maximum or to hand weights over; six fit.
        if page % 32 == 16:
            return Tiles(16, 16, 1, 5, chunk=chunk)
        return Tiles(16, 32, 1, 3, chunk=chunk)
    return Tiles(block(rows), max(16, min(most, 32768 // width)), 4, 2, chunk=chunk)


def _chunk_keys(pairs: Size, keys: Size) -> int:
    """Keys of one chunk of the split kernel, for so many (sequence, key head) pairs.

    Then there are 256 programs or more, if keys allow; an H200 runs 792 at once. Longer chunks
    took less time where that many are left (49 against 51 us for 40 pairs of 8192 keys, 74
    against 86 for 8 of 65536), until programs come to an end one by one (271 against 264 us with
    2048 for 256 of 8192).
    """
    if known(pairs * keys < 128 * 1024):
        return 256
    return 1024 if known(pairs * keys >= 256 * 1024) else 512


def _two_each(pairs: Size, keys: Size, archs: Sequence[str]) -> bool:
    """Whether chunks of 1024 keys are two for each multiprocessor of a Hopper GPU, or nearly so.

    Programs of four warps are then the faster ones (40.1 against 41.6 us for 32 pairs of 8192
    keys, 43 against 45 for 8 of 32768), else up to a tenth slower.
    """
    if tuple(archs) != ("sm_90",):
        return False
    programs, places = pairs * cdiv(keys, 1024), 2 * _multiprocessors()
    return known(8 * programs >= 7 * places) and known(programs <= places)


def _multiprocessors() -> int:
    """Of this machine's GPU where that is a Hopper GPU, else those of an H100, H200 or GH200."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0):
        return torch.cuda.get_device_properties().multi_processor_count
    return 132


def _scalar(itemsize: int, precision: str) -> bool:
    """Whether products go through scalar units: their code is unrolled, so tiles are small."""
    return itemsize == 4 and precision == "ieee"


def is_amd(archs: Sequence[str]) -> bool:
    """Whether the program is for an AMD GPU."""
    return any(arch.startswith("gfx") for arch in archs) or torch.version.hip is not None


def target_archs(archs: Sequence[str]) -> Sequence[str]:
    """The architectures asked for, else this machine's GPU, else none."""
    if archs or not torch.cuda.is_available():
        return archs
    major, minor = torch.cuda.get_device_capability()
    return (f"sm_{major}{minor}",)
