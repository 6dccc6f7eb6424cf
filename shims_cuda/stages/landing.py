"""Where the entries of an index land: device functions of the elementwise kernels.

They take values, not pointers. Inductor follows what a store's address is made of; it passes over
loads, but not over calls, and would take any tensor that a call is given for one that the kernel
writes.
"""

from __future__ import annotations

import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit


@jit
def block_positions(pid, total, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Flat positions of a block, and which exist; 64-bit where `WIDE`."""
    if WIDE:
        pid = pid.to(tl.int64)
    p = pid * BLOCK + tl.arange(0, BLOCK)
    return p, p < total


@jit
def unfold(p, count, inner):  # type: ignore[no-untyped-def]
    """o, k, i of flat positions over (O, count, inner)."""
    line = p // inner
    return line // count, line % count, p % inner


@jit
def landing(entry, o, i, inside, rows, inner, WRAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """For entries of the index: the flat target in (O, rows, inner); is it in range."""
    row, lands = settle_row(entry, inside, rows, WRAP)
    return (o * rows + row.to(o.dtype)) * inner + i, lands


@jit
def settle_row(row, inside, rows, WRAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """An index value as a row number, and whether it is one.

    A caller asserts what it must once, after its loop: an assert holds a barrier, which keeps
    loads from overlapping.
    """
    if WRAP:
        row = tl.where(row < 0, row + rows, row)
    return row, inside & (row >= 0) & (row < rows)


@jit
def strip_of(  # type: ignore[no-untyped-def]
    pid, count, inner, strips, parts, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """A program's strip of columns and part of the positions: o, i, lane's row, first, end.

    A tile is ROWS positions of COLUMNS neighbouring columns; the last part comes first.
    """
    lane = tl.arange(0, ROWS * COLUMNS)
    i = (pid // parts % strips) * COLUMNS + lane % COLUMNS
    end = count - (pid % parts) * chunk
    return pid // parts // strips, i, lane // COLUMNS, tl.maximum(end - chunk, 0), end
