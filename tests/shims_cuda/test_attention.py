"""The attention kernels, interpreted on the CPU and compiled for every supported GPU."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from graftwork.plugins import Declined, LoweringContext, rewrite_program, select_plugins
from graftwork.plugins.toolkit.packed import VARLEN_ATTN, bind, reference
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.attention import dense as dense_module
from graftwork.shims_cuda.attention import launch
from graftwork.shims_cuda.attention import packed as packed_module
from graftwork.shims_cuda.attention.checks import rows_near
from graftwork.shims_cuda.attention.dense import attend_dense, dense_attention
from graftwork.shims_cuda.attention.packed import attend_packed, varlen_attention
from graftwork.shims_cuda.attention.plan_kernels import plan_kernel
from graftwork.shims_cuda.attention.properties import attend_reference

dense = functools.partial(attend_dense, archs=("sm_80",), precision="ieee")
packed = functools.partial(attend_packed, archs=("sm_80",), precision="ieee", flash2=True)


def offsets(*ends: int) -> torch.Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-5)


def test_properties_and_refusals_hold(examples: int) -> None:
    assert_verified("attention", examples=examples)


@pytest.mark.parametrize("keys", [1, 2, 33, 63, 64, 65, 80, 127, 128, 200, 300])
def test_queries_of_zero_and_values_of_one_give_exactly_one(keys: int) -> None:
    """The reference backend's released kernel gives 0.031, 0.516 and 0.625 at 1, 33 and 80."""
    query, key = torch.zeros(1, 1, 3, 16), torch.randn(1, 1, keys, 16)
    assert torch.equal(dense(query, key, torch.ones_like(key)), torch.ones(1, 1, 3, 16))
    rows = query[0].transpose(0, 1), key[0].transpose(0, 1), torch.ones(keys, 1, 16)
    out, *_ = packed(*rows, offsets(3), offsets(keys), 3, keys)
    assert torch.equal(out, torch.ones(3, 1, 16))


MAGNITUDES = {
    # Not 1e37: the sum of 70 weighted values may be infinite, which ATen's kernel says as well.
    "huge values": (1.0, 1.0, 1e36),
    "tiny values": (1.0, 1.0, 1e-37),
    "huge queries": (1e37, 1e-37, 1.0),
    "huge keys": (1e-37, 1e37, 1.0),
    "largest keys": (1e-38, 3.4e38, 1.0),
}


@pytest.fixture(params=["sm_90", "gfx942"])
def arch(request: pytest.FixtureRequest) -> str:
    """One for which float32 operands are cut into bfloat16 numbers, and one where they are not."""
    return str(request.param)


@pytest.mark.parametrize("name", MAGNITUDES)
def test_float32_is_right_at_every_magnitude(name: str, arch: str) -> None:
    """Operands cut into bfloat16 numbers leave their range there; IEEE products take over."""
    query, key, value = (torch.rand(1, 2, 70, 33) * factor for factor in MAGNITUDES[name])
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double())
    error = (dense(query, key, value, archs=(arch,)) - exact).abs().max() / exact.abs().max()
    assert error < 1e-6


def test_a_sum_of_weighted_values_past_float32_is_infinite_as_in_aten(arch: str) -> None:
    query = torch.zeros(1, 1, 70, 16)
    value = torch.full_like(query, 1e37)
    theirs = F.scaled_dot_product_attention(query, query, value)
    out = dense(query, query, value, archs=(arch,))
    assert torch.equal(out, theirs) and out.isposinf().all()


def test_infinity_and_nan_go_where_ieee_products_take_them(arch: str) -> None:
    query, key, value = (torch.randn(1, 3, 70, 16) for _ in range(3))
    value[0, 0, 3, 0], value[0, 0, 4, 1] = math.inf, math.nan
    key[0, 1, 3, 0], query[0, 2, 5, 5] = math.inf, math.nan
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double()).float()
    out = dense(query, key, value, archs=(arch,))
    assert 0 < (~exact.isfinite()).sum() < exact.numel()
    torch.testing.assert_close(out, exact, equal_nan=True, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("max_q", [3, 200])
def test_nan_stays_in_its_sequence_and_padding_reaches_none(max_q: int) -> None:
    """`max_q` picks the kernel: few rows go chunk by chunk, many tile by tile."""
    clean = [torch.randn(9, 2, 16) for _ in range(3)]
    ends = torch.tensor([1, 4, 7], dtype=torch.int32)
    expected, lse, _ = packed(*clean, ends, ends, max_q, 2000)
    for tensor in clean:
        tensor[0], tensor[5], tensor[7:] = math.nan, math.nan, math.nan
    out, lse_now, _ = packed(*clean, ends, ends, max_q, 2000)
    assert torch.equal(out[1:4], expected[1:4]) and torch.equal(lse_now[:, 1:4], lse[:, 1:4])
    assert out[4:7].isnan().all()
    for padding in (out[0], out[7:]):
        assert torch.equal(padding, torch.zeros_like(padding))
    assert lse_now[:, [0, 7, 8]].eq(math.inf).all()


def test_scores_of_a_million_give_weights_that_add_up_to_one() -> None:
    full = torch.full((9, 2, 16), 1024.0)
    out, *_ = packed(full, full, torch.ones_like(full), offsets(4, 9), offsets(4, 9), 200, 5)
    assert torch.equal(out, torch.ones_like(full))


def test_offsets_past_the_buffers_touch_nothing_outside() -> None:
    query = torch.randn(4, 1, 16)
    wild = torch.tensor([-3, 2, 99], dtype=torch.int32)
    tame = torch.tensor([0, 2, 4], dtype=torch.int32)
    out, *_ = packed(query, query, query, wild, wild, 200, 200)
    expected, *_ = packed(query, query, query, tame, tame, 200, 200)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("ends", [(0, 1000, 0, 1000, 0, 1000), (5, 3, 70, -9, 64, 2**30)], ids=str)
def test_offsets_that_do_not_ascend_stay_inside_the_plan(ends: tuple[int, ...]) -> None:
    """They ask for 48 tiles of a plan with room for 22."""
    tokens, sequences, rows, room = 1000, len(ends) - 1, 64, 1000 // 64 + len(ends) + 1
    cu = torch.tensor(ends, dtype=torch.int32)
    plan = torch.full((8 + 64 * room,), -7, dtype=torch.int32)
    tables = (cu, cu, cu, plan, sequences, tokens, tokens)
    sizes = {"BLOCK_M": rows, "SLOTS": launch.SLOTS, "WIDE": 32}
    launch.launch(plan_kernel, (1,), *tables, **sizes, USED=False, PAGED=False)
    assert 0 <= plan[0] <= room and plan[8 + 8 * room :].eq(-7).all()
    starts, counts = plan[8 : 8 + 8 * int(plan[0])].view(-1, 8)[:, 2:4].unbind(1)
    assert starts.ge(0).all() and counts.ge(0).all() and (starts + counts).le(tokens).all()


def columns(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers with others between them."""
    return torch.stack([tensor, tensor + 100], -1)[..., 0]


@pytest.mark.parametrize("max_q", [4, 200], ids=["chunks", "tiles"])
@pytest.mark.parametrize("name", ["cu_seq_q", "cu_seq_k", "seqused_k", "expanded", "block_table"])
def test_offsets_are_read_by_their_strides(name: str, max_q: int) -> None:
    if name not in ("cu_seq_q", "cu_seq_k"):
        needed = "block_table" if name == "block_table" else "seqused_k"
        if needed not in {argument.name for argument in VARLEN_ATTN._schema.arguments}:
            pytest.skip(f"varlen_attn of this PyTorch takes no {needed}")
    query, key = torch.randn(9, 2, 16), torch.randn(9, 2, 16)
    cu_q, cu_k, given = offsets(2, 5, 9), offsets(2, 5, 9), {}
    if name == "cu_seq_q":
        cu_q = columns(cu_q)
    elif name == "cu_seq_k":
        cu_k = columns(cu_k)
    elif name == "seqused_k":
        given = {"seqused_k": columns(torch.tensor([1, 2, 3], dtype=torch.int32))}
    elif name == "expanded":
        given = {"seqused_k": torch.tensor([2], dtype=torch.int32).expand(3)}
    else:
        key = torch.randn(6, 4, 2, 16)
        table = torch.tensor([[0, 1, 2], [3, 5, 4]], dtype=torch.int32).t()
        given = {"seqused_k": torch.tensor([7, 8, 5], dtype=torch.int32), "block_table": table}
    arguments = (query, key, key, cu_q, cu_k, max_q, 2000)
    out, lse, _ = packed(*arguments, **given)
    exact, exact_lse, _ = reference(bind(VARLEN_ATTN, arguments, given))
    close(out, exact)
    close(lse, exact_lse)


@pytest.mark.parametrize("window", [[1, -1], [5, -1], [-1, 4], [5, 1], [2, 5]], ids=str)
def test_disputed_windows_follow_the_option(window: list[int]) -> None:
    """A query sequence longer than max_k + 1: version 2 takes max_k for an open side, and drops
    a bound of max_k or more; `exact` does neither."""
    query, key = torch.randn(9, 1, 16), torch.randn(3, 1, 16)
    arguments = (query, key, key, offsets(9), offsets(3), 9, 3)
    call = bind(VARLEN_ATTN, arguments, {"window_size": window})
    flash2, *_ = packed(*arguments, window_size=window)
    close(flash2, reference(call)[0])
    exact, *_ = packed(*arguments, window_size=window, flash2=False)
    close(exact, reference(dataclasses.replace(call, max_k=99))[0])


def test_chunked_keys_equal_keys_in_one_sweep() -> None:
    """4500 keys are more chunks than are merged at once."""
    query, key, value = torch.randn(2, 2, 16), torch.randn(5000, 1, 16), torch.randn(5000, 1, 16)
    arguments = (query, key, value, offsets(1, 2), offsets(4500, 5000))
    for window in ([-1, -1], [-1, 0], [1500, 0]):
        chunked, lse, _ = packed(*arguments, 1, 4500, window_size=window)
        swept, swept_lse, _ = packed(*arguments, 999, 4500, window_size=window)
        close(chunked, swept)
        close(lse, swept_lse)


@pytest.mark.skipif(
    "block_table" not in {argument.name for argument in VARLEN_ATTN._schema.arguments},
    reason="varlen_attn of this PyTorch takes no pages",
)
@pytest.mark.parametrize("max_q", [2, 200], ids=["chunks", "tiles"])
@pytest.mark.parametrize("page", [16, 24, 64])
def test_pages_hold_whole_tiles_or_parts_of_them(page: int, max_q: int) -> None:
    """Table entries past the end of a sequence name a page of NaN, which nothing may read."""
    used = [1500, 513, 1, 0]
    width = -(-1536 // page)
    nan = width * len(used)
    key, value = (torch.randn(nan + 1, page, 2, 16) for _ in range(2))
    key[nan], value[nan] = math.nan, math.nan
    table = torch.randperm(nan).view(len(used), width).int()
    for row, count in zip(table, used, strict=True):
        row[-(-count // page) :] = nan
    query, cu = torch.randn(7, 4, 16), offsets(2, 3, 5, 7)
    counts = torch.tensor(used, dtype=torch.int32)
    for window in ([-1, -1], [-1, 0], [700, 0], [900, 5]):
        given = {"seqused_k": counts, "block_table": table, "window_size": window}
        arguments = (query, key, value, cu, None, max_q, width * page)
        call = bind(VARLEN_ATTN, arguments, given | {"enable_gqa": True})
        out, lse, _ = packed(*arguments, **given, enable_gqa=True)
        exact, exact_lse, _ = reference(call)
        close(out, exact)
        close(lse, exact_lse)


FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "matrices": ((5, 16), (7, 16), (7, 16), {}),
    "three-dimensions": ((2, 5, 16), (2, 7, 16), (2, 7, 16), {}),
    "five-dimensions": ((2, 1, 2, 5, 16), (2, 1, 2, 7, 16), (2, 1, 2, 7, 16), {}),
    "broadcast-batch": ((2, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 16), {}),
    "multi-query": ((2, 4, 5, 16), (2, 1, 7, 16), (2, 1, 7, 16), {}),
    "grouped": ((2, 4, 5, 16), (2, 2, 7, 16), (2, 2, 7, 16), {"enable_gqa": True}),
    "wider-values": ((1, 2, 5, 16), (1, 2, 7, 16), (1, 2, 7, 40), {}),
    "causal-more-queries": ((1, 1, 9, 16), (1, 1, 4, 16), (1, 1, 4, 16), {"is_causal": True}),
    "one-query-many-keys": ((1, 2, 1, 16), (1, 2, 1500, 16), (1, 2, 1500, 16), {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_argument_forms_of_scaled_dot_product_attention(form: str) -> None:
    *shapes, options = FORMS[form]
    query, key, value = (torch.randn(shape) for shape in shapes)
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    close(dense(query, key, value, **options), expected)


@pytest.mark.parametrize("shape", [(1, 1, 1, 7), (2, 1, 5, 7), (5, 1), (1, 2, 1, 1)])
@pytest.mark.parametrize("boolean", [True, False])
def test_masks_broadcast(shape: tuple[int, ...], boolean: bool) -> None:
    query, key, value = (
        torch.randn(2, 2, 5, 16),
        torch.randn(2, 2, 7, 16),
        torch.randn(2, 2, 7, 16),
    )
    mask = torch.randn(shape)
    mask = mask > 0 if boolean else mask
    expected = attend_reference(query, key, value, mask)
    close(dense(query, key, value, mask).transpose(1, 2).flatten(2), expected)


def test_rows_that_are_masked_out_give_zero() -> None:
    query, key = torch.randn(1, 1, 3, 16), torch.randn(1, 1, 5, 16)
    mask = torch.tensor([[True], [False], [True]])
    for given in (mask, torch.zeros(3, 1).masked_fill(~mask, -math.inf)):
        out = dense(query, key, key, given)
        assert torch.equal(out[0, 0, 1], torch.zeros(16)) and out.isfinite().all()


def test_strided_operands() -> None:
    """Query, key and value as slices of one projection, tokens outside heads."""
    projection = torch.randn(2, 5, 3, 2, 16)
    query, key, value = (projection[:, :, n].transpose(1, 2) for n in range(3))
    close(dense(query, key, value), F.scaled_dot_product_attention(query, key, value))
    wide = torch.randn(2, 2, 16, 5).transpose(2, 3)
    close(dense(wide, wide, wide), F.scaled_dot_product_attention(wide, wide, wide))


@pytest.mark.parametrize("far", range(3), ids=["query", "key", "value"])
@pytest.mark.parametrize("form", ["dense", "packed", "pages"])
def test_tokens_that_lie_far_apart_are_brought_together(
    form: str, far: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a tile of rows the kernels count elements in 32 bits."""
    seen: list[launch.Problem] = []
    for module in (dense_module, packed_module):
        monkeypatch.setattr(module, "run_forward", lambda problem, *rest: seen.append(problem))
    tensors = [torch.randn(64, 16).half() for _ in range(3)]
    if form == "pages":
        tensors[1:] = [torch.randn(2, 32, 16).half() for _ in range(2)]
    # Memory that is never touched is none.
    apart = 2**24
    memory = torch.empty(63 * apart + 16, dtype=torch.float16)
    spread = memory.as_strided((64, 16), (apart, 1)).view_as(tensors[far])
    tensors[far] = spread.copy_(tensors[far])
    if form == "dense":
        dense(*(t[None, None] for t in tensors))
    else:
        table = torch.tensor([[0, 1]], dtype=torch.int32)
        given = {"seqused_k": offsets(64)[1:], "block_table": table} if form == "pages" else {}
        query, key, value = (t.unsqueeze(-2) for t in tensors)
        packed(query, key, value, offsets(64), offsets(64), 200, 64, **given)
    problem = seen[-1]
    strides = (problem.strides_q[1], problem.strides_k[1], problem.strides_v[1])
    assert max(map(int, strides)) < apart
    found = (problem.query, problem.key, problem.value)[far]
    assert torch.equal(found.flatten(), tensors[far].flatten())


def test_one_token_and_tokens_next_to_each_other_are_not_copied() -> None:
    """One token has no neighbour, and what is not known to be far is left."""
    x = torch.empty(2, 1, 1, 4).as_strided((1, 1, 1, 4), (1, 1, 2**24, 1))
    assert rows_near(x, tokens=2) is x
    near = torch.empty(3, 2, 4)
    assert rows_near(near, tokens=-3) is near


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-40, -1e-40])
def test_a_scale_of_zero_is_left_to_the_portable_form(scale: float) -> None:
    """A masked score is -inf, which times 0 is NaN; all keys that are seen weigh the same."""
    x = torch.randn(1, 2, 33, 16)
    with pytest.raises(Declined, match="no scale as close to 0"):
        dense(x, x, x, scale=scale)
    tokens = x[0].transpose(0, 1)
    arguments = (tokens, tokens, tokens, offsets(9, 33), offsets(9, 33), 33, 33)
    with pytest.raises(Declined, match="no scale as close to 0"):
        packed(*arguments, scale=scale)

    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, cu: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tokens = x[0].transpose(0, 1)
            out = F.scaled_dot_product_attention(x, x, x, scale=scale)
            return out, varlen_attn(tokens, tokens, tokens, cu, cu, 33, 33, scale=scale)

    inputs = (x, offsets(9, 33))
    selection = select_plugins(disable=["all"], enable=["attention", "varlen-attention"])
    rewritten, log = rewrite_program(
        torch.export.export(Both(), inputs), selection, LoweringContext("cuda", "cuda")
    )
    assert log.declined("attention") == 2 and log.fired("varlen-attention") == 1
    whole, parts = rewritten.module()(*inputs)
    close(whole, x.mean(2, keepdim=True).expand_as(x))
    close(parts, torch.cat([part.mean(0).expand_as(part) for part in (tokens[:9], tokens[9:])]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dropout_p": 0.5}, "dropout"),
        ({"dtype": torch.float64}, "float64"),
        ({"size": 264}, "head sizes 1 to 256, not 264"),
    ],
)
def test_what_the_kernel_cannot_do_is_declined(change: dict[str, Any], reason: str) -> None:
    x = torch.zeros(1, 1, 2, change.pop("size", 16), dtype=change.pop("dtype", torch.float32))
    with pytest.raises(Declined, match=reason):
        dense(x, x, x, **change)


def test_packed_operands_of_sizes_that_are_not_known_are_taken() -> None:
    """Tokens of keys and of values are compared only where both are known; no guard joins them."""

    class Model(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return varlen_attn(*tensors, 200, 200)

    names = ("queries", "keys", "values", "cu_q", "cu_k")
    shapes = (tuple({0: torch.export.Dim(name, max=512)} for name in names),)
    query, key = torch.randn(6, 2, 16), torch.randn(8, 2, 16)
    exported = torch.export.export(
        Model(), (query, key, key.clone(), offsets(2, 6), offsets(3, 8)), dynamic_shapes=shapes
    )
    selection = select_plugins(disable=["all"], enable=["attention"])
    rewritten, log = rewrite_program(exported, selection, LoweringContext("cuda", "cuda"))
    assert log.fired("attention") == 1
    inputs = rewritten.graph.find_nodes(op="placeholder")
    assert len({str(node.meta["val"].shape[0]) for node in inputs}) == len(names)
    arguments = (torch.randn(5, 2, 16), *[torch.randn(7, 2, 16)] * 2, offsets(5), offsets(7))
    exact, *_ = reference(bind(VARLEN_ATTN, (*arguments, 200, 200), {}))
    close(rewritten.module()(*arguments), exact)


def test_declined_attention_stays_in_the_program_with_a_reason() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x)

    module = torch.nn.Module()
    module.forward = program  # type: ignore[method-assign]
    exported = torch.export.export(module, (torch.zeros(1, 1, 2, 16, dtype=torch.float64),))
    selection = select_plugins(disable=["all"], enable=["attention"])
    program_after, log = rewrite_program(exported, selection, LoweringContext("cuda", "cuda"))
    assert log.declined("attention") == 1 and "float64" in log.events[0].detail
    target = torch.ops.aten.scaled_dot_product_attention.default
    assert program_after.graph.find_nodes(op="call_function", target=target)


class Views(torch.nn.Module):
    """Model code views the result in the layout that eager's kernel gave it at export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.unflatten(-1, (2, 16)).transpose(1, 2)
        out = F.scaled_dot_product_attention(heads, heads, heads)
        return out.transpose(1, 2).view(x.shape)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_behind_attention_hold(dynamic: bool) -> None:
    tokens = torch.export.Dim("tokens", min=2, max=512)
    shapes = ({1: tokens},) if dynamic else None
    x = torch.randn(2, 6, 32)
    exported = torch.export.export(Views(), (x,), dynamic_shapes=shapes)
    selection = select_plugins(disable=["all"], enable=["attention"])
    rewritten, log = rewrite_program(exported, selection, LoweringContext("cuda", "cuda"))
    assert log.fired("attention") == 1
    inputs = (x, torch.randn(2, 70, 32)) if dynamic else (x,)
    for each in inputs:
        close(rewritten.module()(each), Views()(each))


def test_only_outputs_are_written() -> None:
    """An AOT compiler copies every tensor that a kernel may write; it must see that only
    outputs and scratch are."""
    query = torch.randn(4, 1, 16)
    torch.library.opcheck(
        varlen_attention.op,
        (
            *(query, query, query, offsets(4), offsets(4), None, None),
            *(4, [-1, -1], 0.25, True, "ieee", False, [64, 64, 4, 3, 1]),
        ),
        test_utils=("test_schema", "test_faketensor"),
    )
    four = query[None].transpose(1, 2)
    torch.library.opcheck(
        dense_attention.op,
        (four, four, four, None, False, 0.25, "ieee", False, True, [64, 64, 4, 3, 1]),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize(
    ("dtype", "precision", "sizes"),
    [
        (torch.float16, "ieee", (64, 64, 32)),
        (torch.float32, "ieee", (64, 64, 32)),
        (torch.float32, "tf32", (16, 16, 16)),
    ],
)
def test_keys_and_values_are_laid_out_as_one(
    dtype: torch.dtype,
    precision: str,
    sizes: tuple[int, ...],
    compile_everywhere: Callable[..., set[str]],
) -> None:
    """Else ptxas forgets an address: the machine code reads registers that nothing has written."""
    tensors = [torch.zeros(1, 2, 80, size, dtype=dtype) for size in sizes]
    sm_90 = functools.partial(attend_dense, archs=("sm_90",), precision=precision)
    assert compile_everywhere(lambda: sm_90(*tensors), backend="cuda")


@pytest.mark.parametrize("precision", ["tf32", "tf32x3"])
def test_narrow_heads_on_tensor_cores(precision: str) -> None:
    query, key, value = (
        torch.randn(1, 2, 70, 16),
        torch.randn(1, 2, 80, 16),
        torch.randn(1, 2, 80, 5),
    )
    ours = attend_dense(query, key, value, archs=("sm_90",), precision=precision)
    expected = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(ours, expected, rtol=1e-2, atol=1e-2)


def test_what_is_absent_is_not_the_query_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor copies a computed tensor for each pointer that it is, if it is only read."""
    counts = []

    def count(kernel: object, grid: object, *args: object, **options: object) -> None:
        counts.append(sum(arg is query for arg in args))

    monkeypatch.setattr(launch, "launch", count)
    for keys, length in ((80, 5), (2000, 1)):
        query, key = torch.randn(1, 2, length, 16), torch.randn(1, 2, keys, 16)
        for arch in ("sm_90", "gfx942"):
            dense(query, key, key, archs=(arch,))
        query = query[0].transpose(0, 1).contiguous()
        key = key[0].transpose(0, 1)
        packed(query, key, key, offsets(length), offsets(keys), length, keys)
    assert max(counts) == 1


def test_a_mask_is_handed_over_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled program holds what is expanded before the kernel in full, for every head."""
    seen: list[launch.Problem] = []
    monkeypatch.setattr(dense_module, "run_forward", lambda problem, *rest: seen.append(problem))
    query, key = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16)
    for shape, kept, read in (
        ((5, 7), (1, 1, 5, 7), (False, False, True, True)),
        ((2, 1, 1, 7), (2, 1, 1, 7), (True, False, False, True)),
        ((4, 5, 1), (1, 4, 5, 1), (False, True, True, False)),
    ):
        dense(query, key, key, torch.zeros(shape))
        assert seen[-1].mask is not None and seen[-1].mask.shape == kept
        assert tuple(stride != 0 for stride in seen[-1].strides_m) == read


@pytest.mark.parametrize(
    "shape", [(5, 7), (2, 5, 7), (3, 1, 5, 1), (2, 3, 2, 5, 7), (2, 1, 1, 1, 7)]
)
def test_masks_of_batches_of_batches(shape: tuple[int, ...]) -> None:
    query, key = torch.randn(2, 3, 2, 5, 16), torch.randn(2, 3, 2, 7, 16)
    mask = torch.randn(shape)
    close(dense(query, key, key, mask), F.scaled_dot_product_attention(query, key, key, mask))


def test_a_mask_of_another_shape_is_refused() -> None:
    query, key = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 7, 16)
    with pytest.raises(RuntimeError, match="expand"):
        dense(query, key, key, torch.zeros(3, 7))


CALLS: dict[str, Callable[..., Any]] = {
    "packed": lambda dtype, **gpu: packed(
        *[torch.zeros(8, 2, 64, dtype=dtype)] * 3,
        offsets(8),
        offsets(8),
        200,
        200,
        is_causal=True,
        **gpu,
    ),
    "packed-window-odd-size": lambda dtype, **gpu: packed(
        *[torch.zeros(8, 2, 33, dtype=dtype)] * 3,
        offsets(8),
        offsets(8),
        200,
        200,
        window_size=[4, 2],
        **gpu,
    ),
    "wide-heads": lambda dtype, **gpu: dense(*[torch.zeros(1, 1, 8, 256, dtype=dtype)] * 3, **gpu),
    "float-mask": lambda dtype, **gpu: dense(
        *[torch.zeros(1, 2, 80, 128, dtype=dtype)] * 3, torch.zeros(80, 80, dtype=dtype), **gpu
    ),
    "narrow-values": lambda dtype, **gpu: dense(
        *[torch.zeros(1, 2, 80, 48, dtype=dtype)] * 2,
        torch.zeros(1, 2, 80, 24, dtype=dtype),
        **gpu,
    ),
    "bool-mask-one-query": lambda dtype, **gpu: dense(
        torch.zeros(1, 4, 1, 64, dtype=dtype),
        *[torch.zeros(1, 1, 2000, 64, dtype=dtype)] * 2,
        torch.ones(1, 1, 1, 2000, dtype=torch.bool),
        **gpu,
    ),
}


def test_kernels_compile_for_every_gpu(compile_everywhere: Callable[..., set[str]]) -> None:
    names = compile_everywhere(lambda: CALLS["packed"](torch.bfloat16))
    assert names == {"plan_kernel", "forward_kernel"}


@pytest.mark.parametrize("name", CALLS)
def test_every_form_compiles_for_every_gpu(
    name: str, arch: str, deep: None, compile_everywhere: Callable[..., set[str]]
) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert compile_everywhere(lambda dtype=dtype: CALLS[name](dtype, archs=(arch,)))
