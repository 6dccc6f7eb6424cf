"""What the pass promises: masked copies equal eager bit for bit, and the others stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Benchmark, Case, Property, Refusal

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def copy(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`out[mask] = src[mask]`."""
    out = x.clone()
    out[mask] = src[mask]
    return out


def copy_recomputed(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask computed anew for the pick and for the put."""
    out = x.clone()
    out[mask.logical_not()] = src[mask.logical_not()]
    return out


def copy_in_branch(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A masked copy inside a `torch.cond` branch."""
    return torch.cond(mask.any(), copy, _keep, (x, src, mask))  # type: ignore[no-any-return]


def _keep(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.clone()


def scatter_picks(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`masked_scatter` of the mask's own picks."""
    wide = mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())).expand_as(x)
    return x.masked_scatter(wide, src[mask])


def scale(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`x[mask] *= 2`."""
    out = x.clone()
    out[mask] *= 2
    return out


def combine(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`out[mask] = f(src[mask], 2, x[mask], total)`, where `total` is no pick."""
    out = x.clone()
    out[mask] = torch.where(src[mask] > 0, x[mask] * 2, src[mask] - x.sum())
    return out


def accumulate(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Adds to what is there: no copy."""
    return torch.index_put(x, (mask,), src[mask], accumulate=True)


def copy_reversed(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The picked values change places."""
    out = x.clone()
    out[mask] = src[mask].flip(0)
    return out


def copy_through_another_mask(
    x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """As many picks as places, but not the same ones."""
    out = x.clone()
    out[mask] = src[mask.flip(0)]
    return out


def fill(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mask fill picks nothing."""
    out = x.clone()
    out[mask] = 3
    return out


@st.composite
def tensors(
    draw: st.DrawFn, shape: Sequence[int], dtype: torch.dtype, special: bool
) -> torch.Tensor:
    """A tensor in a drawn layout; with `special`, of any bits (NaN payloads, -0.0, infinities)."""
    layout = draw(st.sampled_from(["contiguous", "permuted", "sliced", "expanded"]))
    order = list(range(len(shape)))
    if layout == "permuted":
        order = draw(st.permutations(order))
    step = 2 if layout == "sliced" else 1
    sizes = [shape[dim] * step for dim in order]
    if layout == "expanded":
        sizes[draw(st.integers(0, len(shape) - 1))] = 1
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    if dtype is torch.bool:
        base = torch.rand(sizes, generator=generator) < draw(st.sampled_from([0.0, 0.5, 1.0]))
    elif special:
        width = dtype.itemsize // (2 if dtype.is_complex else 1)
        drawn = torch.randint(-(2**31), 2**31, (*sizes, max(width, 8) // 4), generator=generator)
        packed = drawn.to(torch.int32).view(dtype)
        base = packed.reshape(*sizes, -1)[..., 0]
    else:
        base = (torch.randn(sizes, generator=generator) * 10).to(dtype)
    placed = base.permute([order.index(dim) for dim in range(len(shape))])
    return placed[tuple(slice(None, None, step) for _ in shape)].expand(shape)


@st.composite
def masked_cases(draw: st.DrawFn, programs: Sequence[Program], fires: bool) -> Case:
    """One program on tensors of drawn shapes, layouts, dtypes, static or with dynamic sizes."""
    program = draw(st.sampled_from(programs))
    arithmetic = program in (scale, combine)
    dtype = draw(st.sampled_from(DTYPES[:6] if arithmetic else DTYPES))
    shape = draw(st.lists(st.integers(2, 4), min_size=1, max_size=4))
    covered = draw(st.integers(1, len(shape)))
    dynamic = draw(st.booleans()) and program is not copy_in_branch

    def inputs(shape: Sequence[int]) -> tuple[torch.Tensor, ...]:
        x = draw(tensors(shape, dtype, special=not arithmetic))
        src = draw(tensors(shape, dtype, special=not arithmetic))
        return x, src, draw(tensors(shape[:covered], torch.bool, special=False))

    given = inputs(shape)
    dynamic_shapes = None
    more: list[tuple[torch.Tensor, ...]] = []
    if dynamic:
        # Strides are part of an exported program: dynamic sizes come with contiguous inputs.
        given = tuple(value.contiguous() for value in given)
        dim = torch.export.Dim("rows", min=1, max=64)
        dynamic_shapes = {"inputs": ({0: dim},) * 3}
        rows = draw(st.integers(1, 9))
        more = [tuple(value.contiguous() for value in inputs([rows, *shape[1:]]))]
    return Case(
        program,
        given,
        fires=int(_keeps_strides(program, *given)) if fires else 0,
        dynamic_shapes=dynamic_shapes,
        more_inputs=tuple(more),
    )


def _keeps_strides(
    program: Program, x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor
) -> bool:
    """Whether eager's `where` lays its result out as the put does; the pass must fire then."""
    if program is scale:
        src = x.clone() * 2
    elif program is combine:
        src = torch.where(src > 0, x * 2, src - x.sum())
    if program is copy_recomputed:
        mask = mask.logical_not()
    out = x.clone(memory_format=torch.contiguous_format) if program is scatter_picks else x.clone()
    where = torch.where(
        mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())),
        src,
        x if program is scatter_picks else out,
    )
    return where.stride() == out.stride()


def _position_ids(device: str) -> Case:
    """Position ids of a vision tower, filled through the mask of real patches."""
    mask = torch.rand(8, 4096, device=device) > 0.3
    ids = torch.arange(4096, device=device).expand(8, 4096).contiguous()
    return Case(copy, (torch.zeros_like(ids), ids, mask))


def _hidden_states(device: str) -> Case:
    """Rows of hidden states replaced where a token is special."""
    x, src = torch.randn(2, 8, 2048, 1024, device=device).unbind()
    return Case(scatter_picks, (x, src, torch.rand(8, 2048, device=device) > 0.5))


PROPERTIES = (
    Property(
        "masked-copies-equal-eager",
        masked_cases(
            (copy, copy_recomputed, copy_in_branch, scatter_picks, scale, combine), fires=True
        ),
        EXACT,
        refused=(
            Refusal(
                "a mask of another shape",
                Case(copy, (torch.zeros(2, 3), torch.ones(2, 3), torch.ones(3, 2) > 0)),
                IndexError,
                "shape of the mask",
            ),
        ),
        benchmarks=(
            Benchmark("position-ids-8x4096", _position_ids),
            Benchmark("hidden-states-8x2048x1024", _hidden_states),
        ),
    ),
    Property(
        "other-masked-puts-stay",
        masked_cases((accumulate, copy_reversed, copy_through_another_mask, fill), fires=False),
        EXACT,
    ),
)
