"""Launches of kernels that go through an index: a lane for each entry, or strips of columns.

Each such kernel takes its own operands first, then N, M and how many columns there are.
"""

from __future__ import annotations

from typing import Any

from graftwork.plugins.toolkit.kernels import Kernel, cdiv, launch
from graftwork.plugins.toolkit.symbolic import Size

from .problem import Problem

ENTRIES = 512  # of a program


def over_entries(
    kernel: Kernel, problem: Problem, groups: Size, width: Size, *operands: Any, **options: Any
) -> None:
    """A lane for each entry of an index of (groups, N, width); how many those are comes last."""
    _, count, rows, _ = problem.sizes
    total = groups * count * width
    launch(
        kernel,
        (cdiv(total, ENTRIES),),
        *operands,
        count,
        rows,
        width,
        total,
        WRAP=problem.wraps,
        WIDE=problem.is_wide,
        BLOCK=ENTRIES,
        num_warps=4,
        **options,
    )


def over_strips(
    kernel: Kernel,
    problem: Problem,
    groups: Size,
    width: Size,
    *operands: Any,
    columns: int,
    rows: int,
    chunk: int,
    **options: Any,
) -> None:
    """A program for each strip of `columns` and `chunk` positions, tiles of `rows` of them.

    How many strips and chunks there are comes last; `strip_of` finds a program's own.
    """
    _, count, height, _ = problem.sizes
    strips, parts = cdiv(width, columns), cdiv(count, chunk)
    launch(
        kernel,
        (groups * strips * parts,),
        *operands,
        count,
        height,
        width,
        strips,
        parts,
        WRAP=problem.wraps,
        CHUNK=chunk,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=4,
        **options,
    )
