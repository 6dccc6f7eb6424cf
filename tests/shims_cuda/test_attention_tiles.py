"""Which tiles the attention kernels take, by head size, dtype, GPU and number of keys."""

from __future__ import annotations

import itertools

import pytest
import torch

from graftwork.shims_cuda.attention.packed import varlen_attention
from graftwork.shims_cuda.attention.tiles import Tiles, forward_tiles, split_tiles


def decoding(pairs: int, keys: int, page: int = 64, size: int = 128) -> Tiles:
    found = split_tiles(4, size, 2, "ieee", ("sm_90",), page, pairs, keys)
    assert found is not None
    return found


def test_chunks_hold_whole_tiles() -> None:
    """Else the last tile would look pages up past the end of the table."""
    for pairs in (8, 32, 512):
        for itemsize, arch in itertools.product((2, 4), ("sm_80", "sm_90", "gfx942")):
            for size, page in itertools.product((16, 64, 128, 256), (0, 16, 64)):
                tiles = split_tiles(8, size, itemsize, "ieee", (arch,), page, pairs, 8192)
                assert tiles is not None and tiles.chunk % tiles.keys == 0
    query, key = torch.randn(1, 1, 16), torch.randn(2000, 1, 16)
    ends = [torch.tensor([0, end], dtype=torch.int32) for end in (1, 2000)]
    call = (query, key, key, *ends, None, None, 2000, [-1, -1], 0.25, True)
    with pytest.raises(Exception, match="chunks hold whole tiles"):
        varlen_attention(*call, "ieee", True, Tiles(16, 512, 1, 2, chunk=256).numbers())


def test_few_programs_get_short_chunks() -> None:
    chunks = [decoding(8 * n, 8192).chunk for n in (1, 2, 3, 4, 5, 64)]
    assert chunks == [256, 512, 512, 1024, 1024, 1024]
    assert decoding(8, 65536).chunk == 1024 and decoding(256, 2048).chunk == 1024


def test_programs_of_four_warps_where_there_are_two_a_multiprocessor() -> None:
    for pairs, keys, page, size, expected in (
        (32, 8192, 64, 128, 4),
        (32, 8192, 0, 128, 4),
        (8, 32768, 128, 128, 4),
        (8, 16384, 64, 128, 1),
        (24, 8192, 64, 128, 1),
        (40, 8192, 64, 128, 1),
        (32, 8192, 16, 128, 1),
        (32, 8192, 32, 128, 1),
        (32, 8192, 64, 64, 1),
    ):
        found = decoding(pairs, keys, page, size)
        assert found.warps == expected, (pairs, keys, page, size)
        assert expected == 1 or (found.keys, found.chunk) == (64, 1024)
    other = split_tiles(4, 128, 2, "ieee", ("sm_80",), 64, 32, 8192)
    assert other is not None and other.warps == 1


def test_tiles_fit_shared_memory() -> None:
    for itemsize, precision in ((2, "ieee"), (4, "tf32")):
        for size in (16, 64, 128, 256):
            for arch, kib in (("sm_80", 163), ("sm_89", 99), ("sm_90", 227), ("gfx942", 64)):
                t = forward_tiles(size, itemsize, precision, (arch,))
                rows = 0 if arch == "gfx942" else t.rows  # there the query is kept in registers
                assert size * itemsize * (rows + 2 * t.stages * t.keys) <= kib * 1024, arch
                for page, many in itertools.product((0, 16), ((1, 9), (32, 8192))):
                    s = split_tiles(8, size, itemsize, precision, (arch,), page, *many)
                    assert s is not None
                    # Hopper and before: one stage less than is said, and the queries.
                    held = s.keys if arch == "gfx942" else 16 + 2 * (s.stages - 1) * s.keys
                    assert size * itemsize * held <= kib * 1024, arch


def test_operands_are_cut_where_their_parts_fit_shared_memory() -> None:
    """64 keys of 64 elements take 80 KiB, 32 of 128 take 104 (compiled for sm_90)."""
    fits = {"sm_80": [1, 1, 0], "sm_89": [1, 0, 0], "sm_90": [1, 1, 0], "gfx942": [0, 0, 0]}
    for arch, expected in fits.items():
        found = [forward_tiles(size, 4, "ieee", (arch,)).cut for size in (64, 128, 256)]
        assert found == expected, arch
    assert not forward_tiles(64, 4, "tf32", ("sm_90",)).cut
