"""Compares one result with its reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from .properties import Tolerance


@dataclass(frozen=True)
class Difference:
    """How two tensors differ.

    `max_abs_diff` is the largest |ours - reference| over elements finite in both; `why` says what
    is wrong, empty where the tolerance holds.
    """

    max_abs_diff: float
    why: str


def compare(ours: object, reference: object, tolerance: Tolerance) -> Difference:
    """Compare two outputs: tensors by the tolerance, anything else by equality."""
    if not isinstance(ours, torch.Tensor) or not isinstance(reference, torch.Tensor):
        equal = ours == reference or (_is_nan(ours) and _is_nan(reference))
        return Difference(0.0, "" if equal else f"got {ours}, the reference is {reference}")
    if ours.dtype != reference.dtype or ours.shape != reference.shape:
        return Difference(
            math.inf,
            f"got {ours.dtype} {tuple(ours.shape)}, "
            f"the reference is {reference.dtype} {tuple(reference.shape)}",
        )
    if tolerance.strides and _laid_out(ours) != _laid_out(reference):
        return Difference(
            0.0, f"got strides {ours.stride()}, the reference has {reference.stride()}"
        )
    ours, reference = ours.detach().cpu(), reference.detach().cpu()
    largest = largest_difference(ours, reference)
    wrong = _wrong(ours, reference, tolerance)
    count = int(wrong.sum())
    if not count:
        return Difference(largest, "")
    place = tuple(int(i) for i in wrong.nonzero()[0])
    got, want = ours[place].item(), reference[place].item()
    return Difference(
        largest,
        f"{count} of {ours.numel()} elements differ, largest difference {largest:g}; "
        f"first at {list(place)}: got {got!r}, the reference is {want!r}",
    )


def largest_difference(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest |ours - reference| over elements that are finite in both; 0.0 where none is."""
    wide = torch.complex128 if ours.dtype.is_complex else torch.float64
    if not ours.dtype.is_floating_point and not ours.dtype.is_complex:
        distinct = ours != reference
        if not distinct.any():
            return 0.0
    left, right = ours.to(wide), reference.to(wide)
    finite = torch.isfinite(left) & torch.isfinite(right)
    gaps = (left - right).abs()[finite]
    return float(gaps.max()) if gaps.numel() else 0.0


def _wrong(ours: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    floating = ours.dtype.is_floating_point or ours.dtype.is_complex
    if tolerance.bits or not floating:
        if floating:
            ours, reference = _bits(ours), _bits(reference)
        return ours != reference
    return ~torch.isclose(
        ours, reference, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor)
        return (_bits(tensor)).sum(-1)
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(width[tensor.element_size()])


def _laid_out(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides where they mean something: of dimensions longer than one, of non-empty tensors."""
    if not tensor.numel():
        return ()
    return tuple(s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
