"""What the attention kernels cannot do, said as a reason."""

from __future__ import annotations

import torch

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.symbolic import known

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 256
# Times the 2^-16 of operands that are cut, the smallest float32 that no GPU takes for 0.
LEAST_SCALE = 2.0**-110
# Within a tile, of up to 128 rows, the kernels count elements in 32 bits.
FAR = 1 << 24


def check_operands(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Raise `Declined` for dtypes and head sizes without a kernel."""
    dtypes = {query.dtype, key.dtype, value.dtype}
    if len(dtypes) != 1 or query.dtype not in DTYPES:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise Declined(f"the attention kernel takes float32, float16 or bfloat16, not {names}")
    for size in (query.shape[-1], value.shape[-1]):
        if not isinstance(size, int) or not 1 <= size <= LARGEST:
            raise Declined(f"the attention kernel takes head sizes 1 to {LARGEST}, not {size}")
    for heads in (query.shape[1], key.shape[-2] if query.dim() == 3 else key.shape[1]):
        if not isinstance(heads, int) or heads < 1:
            raise Declined(f"the attention kernel takes a fixed number of heads, not {heads}")


def check_scale(scale: float | None) -> None:
    """Raise `Declined` for a scale that is not known, or 0: a masked score times 0 is NaN."""
    if scale is None:
        return
    if not isinstance(scale, (float, int)):
        raise Declined("the attention kernel takes a scale known at export")
    if abs(scale) < LEAST_SCALE:
        raise Declined(f"the attention kernel takes no scale as close to 0 as {scale}")


def rows_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a contiguous last dimension; a copy where it has none."""
    return tensor if known(tensor.stride(-1) == 1) else tensor.contiguous()


def rows_near(tensor: torch.Tensor, tokens: int) -> torch.Tensor:
    """`rows_contiguous` with less than `FAR` elements from a token (dimension `tokens`) to the
    next, where that is known; a copy where they lie farther apart."""
    tensor = rows_contiguous(tensor)
    if not known(tensor.stride(tokens) >= FAR) or known(tensor.shape[tokens] <= 1):
        return tensor
    return tensor.movedim(tokens, -2).contiguous().movedim(-2, tokens)


def rows_aligned(*tensors: torch.Tensor, tokens: int) -> bool:
    """Whether every row begins at 16 bytes, and the distance between tokens (dimension `tokens`)
    is known."""
    return all(
        isinstance(tensor.stride(tokens), int)
        and tensor.stride(tokens) < 1 << 20
        and all(
            known(number * tensor.element_size() % 16 == 0)
            for number in (tensor.storage_offset(), *tensor.stride()[:-1])
        )
        for tensor in tensors
    )
