"""The strides ATen gives the result of a pointwise operator, also for symbolic sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .symbolic import Size, known


def known_equal(ones: Sequence[Size], others: Sequence[Size]) -> bool:
    """Whether two shapes (or stride tuples) are of equal length and surely equal everywhere."""
    return len(ones) == len(others) and all(
        known(one == other) for one, other in zip(ones, others, strict=True)
    )


def pointwise_strides(
    shape: Sequence[Size], operands: Sequence[tuple[Sequence[Size], Sequence[Size]]]
) -> tuple[Size, ...] | None:
    """The strides of a new pointwise result, or None where symbolic sizes leave them open.

    `operands` gives (shape, strides) in the operator's argument order, broadcast to `shape`.
    Follows `TensorIterator::reorder_dimensions`: dims are sorted by the first operand whose two
    strides differ and are not 0; equal strides put the longer dim outside; the result is dense in
    that order. A symbolic dim is taken to be longer than 1: the stride of a dim of one element
    says nothing about the layout.
    """
    rank = len(shape)
    strides = [_broadcast_strides(shape, *operand) for operand in operands]
    inner_first = list(reversed(range(rank)))
    for position in range(1, rank):
        moving = position
        for below in reversed(range(position)):
            order = _compare(shape, strides, inner_first[below], inner_first[moving])
            if order is None:
                return None
            if order < 0:
                break
            if order > 0:
                inner_first[below], inner_first[moving] = inner_first[moving], inner_first[below]
                moving = below
    result: list[Size] = [0] * rank
    step: Size = 1
    for dim in inner_first:
        result[dim] = step
        step = step * _at_least_one(shape[dim])
    return tuple(result)


def _broadcast_strides(
    shape: Sequence[Size], own_shape: Sequence[Size], own_strides: Sequence[Size]
) -> list[Size]:
    missing = len(shape) - len(own_shape)
    strides: list[Size] = [0] * missing
    for size, own_size, stride in zip(shape[missing:], own_shape, own_strides, strict=True):
        strides.append(0 if known(own_size == 1) and not known(size == 1) else stride)
    return strides


def _compare(
    shape: Sequence[Size], strides: Sequence[Sequence[Size]], inner: int, outer: int
) -> int | None:
    """1: swap the two dims; -1: their order stands; 0: no operand decides; None: not known."""
    for operand in strides:
        one, other = operand[inner], operand[outer]
        if known(one == 0) or known(other == 0):
            continue
        if known(one == other):
            if known(shape[inner] > shape[outer]):
                return 1
            if not known(shape[inner] <= shape[outer]):
                return None
        elif known(one <= other):
            return -1
        elif known(one >= other):
            return 1
        else:
            return None
    return 0


def _at_least_one(size: Size) -> Size:
    return torch.sym_max(size, 1)  # type: ignore[no-any-return,no-untyped-call]
