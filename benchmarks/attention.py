"""Attention on one GPU: our kernels, torch's packed flash attention, padded SDPA.

    python benchmarks/attention.py [--search] [--json FILE]

All in one process, bfloat16 but for the rows in float32, medians of CUDA graph replays, random
inputs. TFLOP/s count the products that the mask leaves (half of them under a causal mask).
Decoding is timed against a copy of as many bytes as its keys and values hold, both over several
inputs in turn, so that none is found in the L2 cache. `--search` also times other tile sizes. The
errors are against attention in float64, sequence by sequence.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from graftwork.plugins.toolkit.packed import VARLEN_ATTN, bind, reference
from graftwork.shims_cuda.attention.dense import dense_attention
from graftwork.shims_cuda.attention.packed import varlen_attention
from graftwork.shims_cuda.attention.tiles import (
    LONG,
    SHORT,
    Tiles,
    forward_tiles,
    hopper_tiles,
    split_tiles,
)

HEADS = 16
BATCHES = {
    "16 x 1024, heads of 64": ([1024] * 16, 64),
    "64 x 512, heads of 128": ([512] * 64, 128),
    "4 x 4096, heads of 128": ([4096] * 4, 128),
}
SINGLE = {
    "16 x 1024, heads of 64": ([1024] * 16, 64),
    "4 x 2048, heads of 128": ([2048] * 4, 128),
}
OTHERS = {
    64: [(64, 64, 4, 2), (128, 64, 8, 3)],
    128: [(64, 32, 4, 3), (64, 64, 4, 3), (128, 32, 8, 3), (128, 64, 8, 3)],
}
# Sequences, query heads, key heads, keys, page size (0: packed keys).
DECODING = [
    (32, 32, 8, 8192, 64),
    (32, 32, 8, 8192, 16),
    (64, 8, 8, 8192, 0),
    (4, 32, 8, 8192, 64),
]


def packed(
    lengths: Sequence[int], size: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, ...]:
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")
    shape = (sum(lengths), HEADS, size)
    tensors = [torch.randn(shape, device="cuda", dtype=dtype) for _ in range(3)]
    return *tensors, offsets


def ours(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu: torch.Tensor,
    causal: bool,
    tiles: Tiles,
    precision: str = "ieee",
) -> torch.Tensor:
    window = [-1, 0 if causal else -1]
    scale = q.shape[-1] ** -0.5
    out, _ = varlen_attention(
        *(
            q,
            k,
            v,
            cu,
            cu,
            None,
            None,
            q.shape[0],
            window,
            scale,
            True,
            precision,
            False,
            tiles.numbers(),
        )
    )
    return out


def default(
    size: int, causal: bool, keys: int, itemsize: int = 2, precision: str = "ieee"
) -> Tiles:
    sweep, long = HEADS if causal else 1, keys >= LONG
    heads, short = HEADS if causal else 0, keys <= SHORT
    hopper = hopper_tiles(size, size, itemsize, ("sm_90",), heads, short)
    if hopper is not None:
        return hopper
    return forward_tiles(size, itemsize, precision, ("sm_90",), sweep, long, not causal)


def candidates(size: int, causal: bool, keys: int, search: bool) -> list[Tiles]:
    sweep = HEADS if causal else 1
    others = [Tiles(*numbers, sweep) for numbers in OTHERS[size]] if search else []
    if search:
        others.append(forward_tiles(size, 2, "ieee", ("sm_90",), sweep, keys >= LONG, not causal))
    return list(dict.fromkeys([default(size, causal, keys), *others]))


def decode(case: tuple[int, int, int, int, int]) -> tuple[Callable[[], Any], int]:
    sequences, heads, kv_heads, keys, page = case
    query = torch.randn(sequences, heads, 128, device="cuda", dtype=torch.bfloat16)
    offsets = torch.arange(sequences + 1, device="cuda", dtype=torch.int32)
    shape = (sequences * keys // page, page, kv_heads) if page else (sequences * keys, kv_heads)
    key, value = (torch.randn(*shape, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    used = table = None
    if page:
        used = torch.full((sequences,), keys, device="cuda", dtype=torch.int32)
        table = torch.randperm(shape[0], device="cuda").view(sequences, -1).int()
    pairs = sequences * kv_heads
    tiles = split_tiles(heads // kv_heads, 128, 2, "ieee", ("sm_90",), page, pairs, keys)
    assert tiles is not None
    begins = offsets * keys  # a launch of its own, no part of what is timed
    rest = (keys, [-1, -1], 128**-0.5, True, "ieee", True, tiles.numbers())
    return (
        lambda: varlen_attention(query, key, value, offsets, begins, used, table, *rest),
        2 * key.numel() * key.element_size(),
    )


def compile_one(job: tuple[Any, ...]) -> None:
    """Compile into Triton's cache, in a process of its own; shapes differ only in counts."""
    kind, *what = job
    if kind == "packed":
        size, causal, tiles = what
        ours(*packed([256, 256], size), causal, tiles)
    elif kind == "float32":
        size, precision = what
        batch = packed([256, 256], size, torch.float32)
        ours(*batch, False, default(size, False, 0, 4, precision), precision)
    elif kind == "ones":
        ones(range(16, 17))
    else:
        decode(what[0])[0]()
    torch.cuda.synchronize()


def seconds(*calls: Callable[[], Any], repeats: int = 12) -> float:
    """Median time of a call in replays of a graph of all `calls`."""
    return in_turn([calls], repeats)[0]


def in_turn(groups: Sequence[Sequence[Callable[[], Any]]], repeats: int = 12) -> list[float]:
    """`seconds` of each group, in turn, as a GPU that has just worked hard is slower."""
    stream = torch.cuda.Stream()
    graphs = [torch.cuda.CUDAGraph() for _ in groups]
    times: list[list[float]] = [[] for _ in groups]
    with torch.cuda.stream(stream):
        for calls, graph in zip(groups, graphs, strict=True):
            for call in calls:
                call()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                for call in calls:
                    call()
        for _ in range(repeats + 2):
            for calls, graph, taken in zip(groups, graphs, times, strict=True):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                graph.replay()
                end.record()
                end.synchronize()
                taken.append(start.elapsed_time(end) / 1e3 / len(calls))
    return [statistics.median(taken[2:]) for taken in times]


def copies(moved: int, turns: int) -> list[Callable[[], Any]]:
    """Copies that read and write `moved` bytes each, of `turns` inputs."""
    sources = [
        torch.randint(100, (moved // 8,), device="cuda", dtype=torch.int32) for _ in range(turns)
    ]
    # As an operation on elements: what a graph records for `copy_` is slower than a kernel.
    return [functools.partial(torch.add, s, 1, out=torch.empty_like(s)) for s in sources]


def decoding() -> list[dict[str, Any]]:
    rows = []
    for case in DECODING:
        moved = decode(case)[1]
        turns = max(2, min(8, (1 << 30) // moved))
        ours = [decode(case)[0] for _ in range(turns)]
        took, copy = in_turn([ours, copies(moved, turns)])
        rows.append({"case": case, "bytes": moved, "microseconds": took * 1e6})
        rows[-1] |= {"copy_microseconds": copy * 1e6, "of_copy": copy / took}
    return rows


def float32() -> list[dict[str, Any]]:
    """TFLOP/s in float32, with products that are exact and such on tensor cores."""
    rows = []
    for name, (lengths, size) in SINGLE.items():
        q, k, v, cu = packed(lengths, size, torch.float32)
        longest = max(lengths)
        flops = sum(4 * n * n * HEADS * size for n in lengths)
        dense = [t.view(len(lengths), longest, HEADS, size).transpose(1, 2) for t in (q, k, v)]
        row: dict[str, Any] = {"batch": name}
        for precision in ("ieee", "tf32", "tf32x3"):
            tiles = default(size, False, longest, 4, precision)
            call = lambda: ours(q, k, v, cu, False, tiles, precision)  # noqa: B023, E731
            row[precision] = flops / seconds(call, repeats=5) / 1e12
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            call = lambda: F.scaled_dot_product_attention(*dense)  # noqa: B023, E731
            row["sdpa_tf32" if allowed else "sdpa"] = flops / seconds(call, repeats=5) / 1e12
        torch.backends.cuda.matmul.allow_tf32 = False
        rows.append(row)
    return rows


def forward(search: bool) -> list[dict[str, Any]]:
    rows = []
    for name, (lengths, size) in BATCHES.items():
        q, k, v, cu = packed(lengths, size)
        longest, count = max(lengths), len(lengths)
        dense = [t.view(count, longest, HEADS, size).transpose(1, 2) for t in (q, k, v)]
        for causal in (False, True):
            flops = sum(4 * n * n * HEADS * size for n in lengths) / (2 if causal else 1)
            window = (-1, 0 if causal else -1)
            row: dict[str, Any] = {"batch": name, "causal": causal}
            call = lambda: varlen_attn(q, k, v, cu, cu, longest, longest, window_size=window)  # noqa: B023, E731
            row["varlen_attn"] = flops / seconds(call) / 1e12
            call = lambda: F.scaled_dot_product_attention(*dense, is_causal=causal)  # noqa: B023, E731
            row["sdpa"] = flops / seconds(call) / 1e12
            timed = {
                str((t.rows, t.keys, t.warps, t.stages, t.fixed, t.programs)): flops
                / seconds(lambda t=t: ours(q, k, v, cu, causal, t))  # noqa: B023
                / 1e12
                for t in candidates(size, causal, longest, search)
            }
            row["ours"] = next(iter(timed.values()))
            row["tiles"] = timed
            rows.append(row)
    return rows


def ragged() -> list[dict[str, Any]]:
    """Lengths from a long tail against the uniform batch of as many tokens, per useful FLOP."""
    rows = []
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(64).log_normal_(0, 1, generator=generator)
    lengths = (drawn / drawn.sum() * 32768).long().clamp_min(1).tolist()
    lengths[0] += 32768 - sum(lengths)
    for causal in (False, True):
        speeds = []
        for batch in ([512] * 64, lengths):
            q, k, v, cu = packed(batch, 128)
            flops = sum(4 * n * n * HEADS * 128 for n in batch) / (2 if causal else 1)
            took = seconds(lambda: ours(q, k, v, cu, causal, default(128, causal, max(batch))))  # noqa: B023
            speeds.append(flops / took / 1e12)
        rows.append({"causal": causal, "uniform": speeds[0], "ragged": speeds[1]})
    return rows


def errors() -> list[dict[str, Any]]:
    rows = []
    for size, causal in ((64, False), (128, True)):
        q, k, v, cu = packed([2048, 1000, 1048], size)
        window = (-1, 0 if causal else -1)
        exact, *_ = reference(
            bind(
                VARLEN_ATTN,
                (q.double(), k.double(), v.double(), cu, cu, 2048, 2048),
                {"window_size": list(window)},
            )
        )
        flash = varlen_attn(q, k, v, cu, cu, 2048, 2048, window_size=window)
        mine = ours(q, k, v, cu, causal, default(size, causal, 2048))
        found = {n: (o - exact).norm().item() for n, o in (("ours", mine), ("varlen_attn", flash))}
        rows.append({"size": size, "causal": causal, **found})
    return rows


def ones(counts: Sequence[int]) -> list[int]:
    """Key counts at which queries 0 and values 1 do not give exactly 1."""
    wrong = []
    tiles = forward_tiles(16, 2, "ieee", ("sm_90",))
    rest = ("ieee", False, True, tiles.numbers())
    query = torch.zeros(1, 1, 4, 16, device="cuda", dtype=torch.bfloat16)
    for keys in counts:
        key = torch.randn(1, 1, keys, 16, device="cuda", dtype=torch.bfloat16)
        value = torch.ones_like(key)
        out = dense_attention(query, key, value, None, False, 1.0, *rest)
        if not bool((out == 1).all()):
            wrong.append(keys)
    return wrong


def measure(search: bool) -> dict[str, Any]:
    jobs: list[tuple[Any, ...]] = [
        ("packed", size, causal, tiles)
        for size in (128, 64)
        for causal in (False, True)
        for tiles in {
            *candidates(size, causal, 0, search),
            *candidates(size, causal, LONG, search),
        }
    ]
    jobs += [("decode", case) for case in DECODING] + [("ones",)]
    jobs += [("float32", size, kind) for size in (64, 128) for kind in ("ieee", "tf32", "tf32x3")]
    with multiprocessing.get_context("spawn").Pool(min(16, len(jobs))) as pool:
        pool.map(compile_one, jobs, chunksize=1)
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "forward": forward(search)}
    result["copy"] = (1 << 31) / seconds(*copies(1 << 31, 2)) / 1e12
    result["decode"] = decoding()
    result["float32"] = float32()
    result["ragged"] = ragged()
    result["errors"] = errors()
    result["ones_wrong"] = ones(range(1, 301))
    return result


def show(result: dict[str, Any]) -> None:
    print("TFLOP/s                          ours  varlen_attn   sdpa   ours/varlen  ours/sdpa")
    for row in result["forward"]:
        name = row["batch"] + (" causal" if row["causal"] else "")
        mine, flash, sdpa = row["ours"], row["varlen_attn"], row["sdpa"]
        print(
            f"{name:30} {mine:6.0f} {flash:12.0f} {sdpa:6.0f}"
            f" {mine / flash:13.2f} {mine / sdpa:10.2f}"
        )
        if len(row["tiles"]) > 1:
            print("    " + ", ".join(f"{t} {speed:.0f}" for t, speed in row["tiles"].items()))
    for row in result["ragged"]:
        kind = "causal" if row["causal"] else "full"
        print(f"ragged, {kind}: {row['ragged']:.0f} TFLOP/s, uniform {row['uniform']:.0f}")
    for row in result["decode"]:
        speed = row["bytes"] / row["microseconds"] / 1e6
        print(
            "decode, {} sequences, {}/{} heads, {} keys, pages of {}: ".format(*row["case"])
            + f"{row['microseconds']:.1f} us, {speed:.2f} TB/s, {row['of_copy']:.0%} of a copy "
            + f"of as many bytes, {speed / result['copy']:.0%} of a large one"
        )
    for row in result["float32"]:
        print(f"float32, {row['batch']}: ", end="")
        kinds = ("ieee", "tf32", "tf32x3", "sdpa", "sdpa_tf32")
        print(", ".join(f"{kind} {row[kind]:.1f} TFLOP/s" for kind in kinds))
    for row in result["errors"]:
        print(
            f"error, heads of {row['size']}, causal {row['causal']}: "
            f"{row['ours'] / row['varlen_attn']:.2f} times that of varlen_attn"
        )
    print(f"queries 0, values 1, 1 to 300 keys: {len(result['ones_wrong'])} not exactly 1")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--search", action="store_true", help="also time other tile sizes")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.search)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
