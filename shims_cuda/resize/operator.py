"""The resize operator: from image and sizes to launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from graftwork.plugins import Declined
from graftwork.plugins.toolkit import kernels as launching
from graftwork.plugins.toolkit.kernels import at_least_one, cdiv, kernel_op, launch
from graftwork.plugins.toolkit.resample import (
    LARGEST_SCALE,
    Axis,
    Filter,
    count_taps,
    uses_factor,
)
from graftwork.plugins.toolkit.symbolic import Size, known
from graftwork.plugins.torch_private import suggest_memory_format

from . import byte_kernels, kernels, shrink_kernels, window_kernels

# Programs of the kernel that shrinks that an H200 holds at once, by their warps: 132
# multiprocessors, and (in float32) 252, 184 and 168 registers.
AT_ONCE = {1: 132 * 8, 2: 132 * 5, 4: 132 * 3}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the work is cut.

    Attributes:
        unroll: input rows loaded before the first is used.
        read: input elements of a row.
        write: output elements of a row.
        warps: of a program.
    """

    unroll: int
    read: int
    write: int
    warps: int


def resize(
    image: torch.Tensor,
    output_size: Sequence[Size],
    filter: Filter,
    align_corners: bool,
    factors: Sequence[float | None],
) -> torch.Tensor:
    """Resize the last two dims of `image` (N, C, H, W) to `output_size`, antialiased.

    float16 and bfloat16 are computed in float32 and rounded once; float64 in float64. The memory
    format of `image` is kept.

    Raises:
        Declined: another dtype, which ATen does not resize either; an image that is known to grow.
    """
    if image.dtype not in DTYPES:
        raise Declined(f"ATen does not resize {image.dtype}")
    channels_last = suggest_memory_format(image) == torch.channels_last
    if channels_last:
        image = image.contiguous(memory_format=torch.channels_last)
    elif image.dtype == torch.uint8 or not known(image.stride(3) == 1):
        image = image.contiguous()
    axes = [
        Axis(image.shape[dim], output_size[dim - 2], align_corners, factors[dim - 2])
        for dim in (2, 3)
    ]
    if launching.is_traced(image) and known(
        axes[0].target * axes[1].target > axes[0].size * axes[1].size
    ):
        raise Declined("an image that grows is left to fused loops, which are faster")
    result: torch.Tensor = antialiased_resize(
        image,
        [axis.target for axis in axes],
        [_taps(axis, filter.radius) for axis in axes],
        [_given_scale(axis) for axis in axes],
        align_corners,
        filter.radius == 2,
        channels_last,
    )
    return result


def _taps(axis: Axis, radius: int) -> Size:
    return 1 if known(axis.size == axis.target) else count_taps(axis, radius)


def _given_scale(axis: Axis) -> float:
    """The scale that a factor gives; 0 where the sizes give it."""
    if not uses_factor(axis):
        return 0.0
    assert axis.factor is not None
    return min(1 / axis.factor, LARGEST_SCALE)


@kernel_op("graftwork::antialiased_resize")
def antialiased_resize(
    image: torch.Tensor,
    size: Sequence[int],
    taps: Sequence[int],
    scales: Sequence[float],
    align_corners: bool,
    cubic: bool,
    channels_last: bool,
) -> torch.Tensor:
    """The last two dims of `image` (N, C, H, W) resized to `size`, contiguous or channels last.

    `image` is channels last, or has a contiguous last dimension. `taps` bound the lengths of the
    windows, height and width; `scales` are input elements an output element, 0 for what the
    sizes give. An axis that keeps its size is left alone.
    """
    if image.dtype == torch.uint8:
        windows = _windows(
            image, torch.int64, size, (*taps, taps[1]), scales, align_corners, cubic
        )
        return _resize_bytes(image, size, taps, windows, channels_last)
    if not cubic and not channels_last and known(2 * size[0] <= image.shape[2]):
        strips = _strips(image, size[1], taps[1], scales[1] == 0 and not align_corners)
        if strips is not None:
            return _shrink(image, size, taps, scales, align_corners, strips)
    batch, channels, _, width = image.shape
    target_h, target_w = size
    computed = torch.promote_types(image.dtype, torch.float32)
    lanes = 1 if channels_last else 4
    pitch = cdiv(taps[1] + lanes - 1, 16) * 16
    windows = _windows(image, computed, size, (*taps, pitch), scales, align_corners, cubic, lanes)
    strides = (image.stride(0), image.stride(1), image.stride(2))
    if channels_last:
        step, planes, channels = channels, batch, 1
        out = image.new_empty(batch, target_h, target_w, step).permute(0, 3, 1, 2)
    else:
        step, planes = 1, batch * channels
        out = image.new_empty(batch, channels, target_h, target_w)
    vector = 16 // image.element_size()
    vector = vector if known(width * step % vector == 0) else 1
    tiles = _tiles(image, width, target_w, taps[1], step)
    most = _columns(tiles, width, target_w, (taps[1] + 1) * step + vector)
    column_blocks = cdiv(target_w * step, most)
    columns = cdiv(target_w * step, column_blocks)
    row_blocks = cdiv(target_h, 4)
    # Multiples of 16, which is what the compiler sees of a size.
    middle_row = cdiv(width * step, 16) * 16
    middle = image.new_empty(planes * row_blocks * 4 * middle_row, dtype=computed)
    launch(
        kernels.resize_kernel,
        (planes * row_blocks * column_blocks,),
        *(image, middle, out, *windows),
        *(planes, channels, target_h, target_w, *taps, step),
        *(row_blocks, column_blocks, columns),
        *(*strides, middle_row, pitch, out.stride(0), out.stride(1), out.stride(2)),
        **{"UNROLL": tiles.unroll, "READ": tiles.read, "WRITE": tiles.write},
        **{"VECTOR": vector, "LANES": lanes},
        num_warps=tiles.warps,
    )
    return out


@dataclasses.dataclass(frozen=True)
class Strips:
    """How the columns are cut where an image is shrunk.

    Attributes:
        read: input elements of a strip, at most.
        write: output elements, at most; a power of two.
        vector: elements at once that rows are whole numbers of.
        blocks: strips of a row.
        columns: output elements of a strip.
    """

    read: int
    write: int
    vector: int
    blocks: Size
    columns: Size


def _strips(image: torch.Tensor, target: Size, taps: Size, plain: bool) -> Strips | None:
    """Strips that hold the windows of their outputs; None where none is known to.

    `plain` says that the sizes give the scale; else windows begin half their length apart.
    """
    width = image.shape[3]
    # Four at once, since what is written is float32 (float64: two).
    vector = min(16 // image.element_size(), 4)
    sizes = (width, *image.stride()[:3])
    vector = vector if all(known(size % vector == 0) for size in sizes) else 1
    overlap = taps + 10
    above, below = (width, target) if plain else (taps, 2)
    read, write = 1024, 128
    need = at_least_one(above) * write // below + overlap
    if isinstance(need, int):
        read = min(max(_power_of_two(need), 128), read)
    if not known(at_least_one(above) + overlap * below <= read * below):
        return None
    columns = (read - overlap) * below // at_least_one(above)
    if isinstance(columns, int):
        columns = min(columns, write)
    else:
        columns = torch.sym_min(columns, write)  # type: ignore[no-untyped-call]  # untyped
    blocks = cdiv(target, columns)
    return Strips(read, write, vector, blocks, cdiv(target, blocks))


def _shrink(
    image: torch.Tensor,
    size: Sequence[Size],
    taps: Sequence[Size],
    scales: Sequence[float],
    align_corners: bool,
    strips: Strips,
) -> torch.Tensor:
    """An image, its last dimension contiguous, whose height is at least halved, bilinear."""
    batch, channels, height, width = image.shape
    target_h, target_w = size
    computed = torch.promote_types(image.dtype, torch.float32)
    out = image.new_empty(batch, channels, target_h, target_w)
    planes = batch * channels
    warps = strips.read // 256 or 1
    rows = _rows(target_h, planes * strips.blocks, AT_ONCE[warps])
    row_blocks = cdiv(target_h, rows)
    chunks = cdiv(taps[1] + 3, 4)
    together = chunks if isinstance(chunks, int) and chunks <= 8 else 2
    chunks = cdiv(chunks, together) * together
    programs = planes * row_blocks * strips.blocks
    launch(
        shrink_kernels.shrink_kernel,
        (programs,),
        *(image, image.new_empty(programs * 8 * strips.read, dtype=computed), out),
        *(planes, channels, height, width, target_h, target_w, *taps),
        *(row_blocks, rows, strips.blocks, strips.columns, chunks),
        *(stride // strips.vector for stride in image.stride()[:3]),
        *out.stride()[:3],
        **{"SCALE_H": scales[0], "SCALE_W": scales[1], "ALIGN": align_corners},
        **{"UNROLL": _rows_ahead(height, target_h), "READ": strips.read, "WRITE": strips.write},
        **{"VECTOR": strips.vector, "CHUNKS": together},
        num_warps=warps,
    )
    return out


def _resize_bytes(
    image: torch.Tensor,
    size: Sequence[int],
    taps: Sequence[int],
    windows: Sequence[torch.Tensor],
    channels_last: bool,
) -> torch.Tensor:
    """The width, rounded to bytes, then the height, as ATen's CPU kernel does."""
    weights = (windows[2], windows[5])
    bits = image.new_empty(2, dtype=torch.int32)
    counts = [weight.shape[0] for weight in weights]
    launch(
        byte_kernels.fix_kernel,
        (2,),
        *(weights[0], counts[0], weights[1], counts[1], bits),
        BLOCK=1024,
        num_warps=4,
    )
    batch, channels, height, width = image.shape
    step, planes = (channels, batch) if channels_last else (1, batch * channels)
    target_h, target_w = size
    for outer, old, new, inner, axis in (
        (planes * height, width, target_w, step, 1),
        (planes, height, target_h, target_w * step, 0),
    ):
        total = outer * new * inner
        result = image.new_empty(total)
        launch(
            byte_kernels.bytes_kernel,
            (cdiv(total, 1024),),
            *(image, result, *windows[3 * axis : 3 * axis + 3], bits[axis:]),
            *(total, old, new, inner, taps[axis]),
            BLOCK=1024,
            num_warps=4,
        )
        image = result
    if channels_last:
        return image.view(batch, target_h, target_w, channels).permute(0, 3, 1, 2)
    return image.view(batch, channels, target_h, target_w)


def _windows(
    image: torch.Tensor,
    dtype: torch.dtype,
    size: Sequence[Size],
    taps: Sequence[Size],
    scales: Sequence[float],
    align_corners: bool,
    cubic: bool,
    lanes: int = 1,
) -> list[torch.Tensor]:
    """start (out,), count (out,) and weight (out, pitch) of the height and of the width.

    `taps` are the longest windows of both, and the pitch of the width's weights, which is one of
    `lanes` elements at once; the height's is its longest window.
    """
    found = []
    for target, pitch in ((size[0], taps[0]), (size[1], taps[2])):
        found += [image.new_empty(target, dtype=torch.int32) for _ in range(2)]
        found.append(image.new_empty(target * pitch, dtype=dtype))
    block = 32
    launch(
        window_kernels.windows_kernel,
        (cdiv(size[0] + size[1], block), 2),
        *(*found[:3], image.shape[2], size[0], taps[0]),
        *(*found[3:], image.shape[3], size[1], taps[1], taps[2]),
        **{"SCALE_H": scales[0], "SCALE_W": scales[1], "ALIGN": align_corners, "CUBIC": cubic},
        **{"LANES": lanes, "BLOCK": block, "TAPS": 32},
        num_warps=4,
    )
    return found


def _tiles(image: torch.Tensor, width: Size, target: Size, taps: Size, step: Size) -> Tiles:
    """Tiles that read about what they write for, where the sizes are known."""
    if launching.is_interpreted(image):  # few and large programs: the interpreter pays by the step
        return Tiles(1, 512, 256, 4)
    if known(width < target):
        return Tiles(4, 128, 256, 4)
    need = 64 * width // target + (taps + 1) * step + 8
    read = min(max(_power_of_two(need), 128), 512) if isinstance(need, int) else 512
    return Tiles(3, read, 64, 4)


def _rows(target: Size, strips: Size, at_once: int) -> int:
    """Output rows of a program that shrinks `strips` strips, so that they are done first.

    A program takes as long as its rows and one and a half more, `at_once` of them together.
    """
    if not (isinstance(target, int) and isinstance(strips, int)):
        return 16
    turns = {rows: -(-strips * -(-target // rows) // at_once) for rows in range(4, 65)}
    return min(turns, key=lambda rows: turns[rows] * (2 * rows + 3))


def _rows_ahead(height: Size, target: Size) -> int:
    """Input rows from the end of one window to the end of the next, at most 6 (2 at least)."""
    if not (isinstance(height, int) and isinstance(target, int)):
        return 5
    return min(max(-(-height // target), 2), 6)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _columns(tiles: Tiles, width: Size, target: Size, overlap: Size) -> Size:
    """Output elements of a program: as many as one read holds the windows of."""
    most = at_least_one((tiles.read - overlap) * target // width)
    if isinstance(most, int):
        return min(most, tiles.write)
    fewer: Size = torch.sym_min(most, tiles.write)  # type: ignore[no-untyped-call]  # untyped
    return fewer
