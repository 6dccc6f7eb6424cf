"""varlen_attn in plain ATen operators equals attention sequence by sequence."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch.nn.attention.varlen import varlen_attn

from graftwork.decompositions.varlen_attention import varlen_attention
from graftwork.plugins import Case, LoweringContext, RewriteLog, rewrite_program, select_plugins
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.toolkit.packed import (
    VARLEN_ATTN,
    bind,
    flash2_window,
    reference,
    reference_of,
)
from graftwork.plugins.toolkit.packed_cases import attend_packed
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.attention.packed import attend_packed as kernel_form

SELECTION = select_plugins(disable=["all"], enable=["varlen-attention"])


def rewritten(case: Case) -> tuple[torch.nn.Module, RewriteLog]:
    program = torch.export.export(
        case.module(), case.inputs, dynamic_shapes=case.dynamic_shapes, strict=False
    )
    program, log = rewrite_program(program, SELECTION, LoweringContext())
    assert not program.graph.find_nodes(op="call_function", target=VARLEN_ATTN)
    return program.module(), log


def attend(*inputs: torch.Tensor, **constants: Any) -> tuple[torch.Tensor, torch.Tensor]:
    module, log = rewritten(Case(attend_packed, inputs, constants))
    assert log.fired("varlen-attention") == 1
    return module(*inputs)


def test_properties_and_refusals_hold() -> None:
    assert_verified("varlen-attention", examples=3)


def offsets(*ends: int) -> torch.Tensor:
    return torch.tensor([0, *ends], dtype=torch.int32)


def test_scores_of_a_million_give_weights_that_add_up_to_one() -> None:
    full = torch.full((9, 2, 16), 1024.0)
    out, _ = attend(full, full, torch.ones_like(full), offsets(4, 9), offsets(4, 9))
    assert torch.equal(out, torch.ones(9, 32))


def test_nan_in_one_sequence_reaches_no_other() -> None:
    tensors = [torch.randn(9, 2, 4) for _ in range(3)]
    clean, clean_lse = attend(*tensors, offsets(4, 9), offsets(4, 9))
    for tensor in tensors:
        tensor[6] = math.nan
    out, lse = attend(*tensors, offsets(4, 9), offsets(4, 9))
    assert torch.equal(out[:4], clean[:4]) and torch.equal(lse[:, :4], clean_lse[:, :4])
    assert out[4:].isnan().all()


def test_nan_padding_changes_nothing() -> None:
    tensors = [torch.randn(9, 2, 4) for _ in range(3)]
    inside = torch.tensor([2, 4, 6], dtype=torch.int32)
    zeros = [t.clone() for t in tensors]
    for bad, zero in zip(tensors, zeros, strict=True):
        bad[:2], bad[6:] = math.nan, math.nan
        zero[:2], zero[6:] = 0.0, 0.0
    out, lse = attend(*tensors, inside, inside)
    expected, expected_lse = attend(*zeros, inside, inside)
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


def test_tokens_of_no_sequence_and_rows_without_keys_give_zero() -> None:
    q, k = torch.randn(5, 1, 4), torch.randn(3, 1, 4)
    out, lse = attend(q, k, k, offsets(2, 4), offsets(0, 3))
    assert torch.equal(out[[0, 1, 4]], torch.zeros(3, 4))
    assert lse[0, [0, 1, 4]].eq(math.inf).all() and lse[0, 2:4].isfinite().all()


def test_no_key_token_at_all() -> None:
    q, k = torch.randn(4, 2, 4), torch.randn(0, 2, 4)
    out, lse = attend(q, k, k, offsets(4), offsets(0))
    assert torch.equal(out, torch.zeros(4, 8)) and lse.eq(math.inf).all()


def test_output_can_be_viewed_as_tokens_by_features() -> None:
    """The result is contiguous, so a view before the output projection holds."""

    def program(q: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        return varlen_attn(q, q, q, cu, cu, 4, 4).view(-1, 8)

    inputs = torch.randn(6, 2, 4), offsets(4, 6)
    module, _ = rewritten(Case(program, inputs))
    assert module(*inputs).shape == (6, 8)


def test_window_is_known_to_be_safe_where_both_lengths_are_one_symbol() -> None:
    def program(q: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        return varlen_attn(q, q, q, cu, cu, q.shape[0], q.shape[0], window_size=(4, 2))

    tokens = torch.export.Dim("tokens", max=64)
    shapes = (({0: tokens}, None),)
    inputs = torch.randn(6, 2, 4), offsets(4, 6)
    _, log = rewritten(Case(program, inputs, dynamic_shapes=shapes))
    assert log.fired("varlen-attention") == 1


def test_window_is_refused_where_the_lengths_are_not_known_to_fit() -> None:
    def program(q: torch.Tensor, k: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        return varlen_attn(q, k, k, cu, cu, q.shape[0], k.shape[0], window_size=(4, 2))

    queries, keys = torch.export.Dim("queries", max=64), torch.export.Dim("keys", max=64)
    shapes = (({0: queries}, {0: keys}, None),)
    inputs = torch.randn(6, 2, 4), torch.randn(8, 2, 4), offsets(4, 6)
    with pytest.raises(NotLowerableError, match=r"window \(4, 2\), max_q=s.* and max_k=s"):
        rewritten(Case(program, inputs, dynamic_shapes=shapes))


def test_windows_on_which_versions_agree_lower_for_any_lengths() -> None:
    q, k = torch.randn(9, 1, 4), torch.randn(3, 1, 4)
    for window in ((-1, -1), (-1, 0), (1, 0)):
        out, _ = attend(q, k, k, offsets(9), offsets(3), window=window, max_q=9, max_k=3)
        call = (q, k, k, offsets(9), offsets(3), 9, 3)
        expected, *_ = reference(bind(VARLEN_ATTN, call, {"window_size": window}))
        torch.testing.assert_close(out, expected.flatten(1))


def test_number_of_sequences_is_not_fixed_at_the_example() -> None:
    def program(q: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        return varlen_attn(q, q, q, cu, cu, 4, 4)

    count = torch.export.Dim("count", max=64)
    q = torch.randn(9, 1, 4)
    module, _ = rewritten(Case(program, (q, offsets(4)), dynamic_shapes=((None, {0: count}),)))
    for cu in (offsets(4), offsets(2, 3, 7)):
        expected, *_ = reference(bind(VARLEN_ATTN, (q, q, q, cu, cu, 4, 4), {}))
        torch.testing.assert_close(module(q, cu), expected)


def test_it_is_rewritten_inside_a_branch() -> None:
    def program(q: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
        def packed(q: torch.Tensor, cu: torch.Tensor) -> torch.Tensor:
            return varlen_attn(q, q, q, cu, cu, 4, 4) + 0.0

        return torch.cond(cu[1] > 2, packed, lambda q, cu: q + 1.0, (q, cu))

    inputs = torch.randn(6, 2, 4), offsets(4, 6)
    module, log = rewritten(Case(program, inputs))
    assert log.fired("varlen-attention") == 1
    q, cu = inputs
    expected, *_ = reference(bind(VARLEN_ATTN, (q, q, q, cu, cu, 4, 4), {}))
    torch.testing.assert_close(module(*inputs), expected)


def test_segments_of_a_nested_tensor_export_through_varlen_attn() -> None:
    """pytorch/pytorch#149605: values (5, 8) with offsets [0, 2, 5], attention per segment."""
    values = torch.randn(5, 1, 8)
    out, _ = attend(values, values, values, offsets(2, 5), offsets(2, 5))
    for begin, end in ((0, 2), (2, 5)):
        q = values[begin:end].transpose(0, 1)
        expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.testing.assert_close(out[begin:end], expected[0])


def test_flash2_window_takes_max_k_for_the_open_side() -> None:
    assert flash2_window(-1, -1, 5) == (-1, -1)
    assert flash2_window(-1, 0, 5) == (5, 0)
    assert flash2_window(3, -1, 5) == (3, 5)
    assert flash2_window(7, 2, 5) == (5, 2)
    assert flash2_window(5, 5, 5) == (-1, -1)


def test_query_heads_must_be_a_multiple_of_key_heads() -> None:
    q, k = torch.zeros(4, 3, 4), torch.zeros(4, 2, 4)
    with pytest.raises(ValueError, match="3 and 2"):
        bind(VARLEN_ATTN, (q, k, k, offsets(4), offsets(4), 4, 4), {})


Q, CU = torch.zeros(6, 4, 16), offsets(2, 4, 6)
PAGES, TABLE = torch.zeros(6, 4, 2, 16), torch.zeros(3, 2, dtype=torch.int32)
PAGED = {"seqused_k": offsets(2, 4), "block_table": TABLE}
MISFITS: dict[str, tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]] = {
    "a batch of queries": ("query", (Q[None], Q, Q, CU, CU), {}),
    "keys of another size": ("key", (Q, Q[..., :8], Q, CU, CU), {}),
    "pages without a table": ("key", (Q, PAGES, PAGES, CU, CU), {}),
    "a table without pages": ("key", (Q, Q, Q, CU, CU), PAGED),
    "values of fewer heads": ("value", (Q, Q, Q[:, :2], CU, CU), {}),
    "values of fewer tokens": ("value", (Q, Q, Q[:3], CU, CU), {}),
    "pages of fewer values": ("value", (Q, PAGES, PAGES[:, :3], CU, CU), PAGED),
    "a table of offsets": ("cu_seq_q", (Q, Q, Q, CU[None], CU), {}),
    "fewer sequences of keys": ("cu_seq_k", (Q, Q, Q, CU, CU[:2]), {}),
    "fewer used": ("seqused_k", (Q, Q, Q, CU, CU), {"seqused_k": CU[:2]}),
    "a table of fewer rows": (
        "block_table",
        (Q, PAGES, PAGES, CU, CU),
        {**PAGED, "block_table": TABLE[:2]},
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_operands_that_do_not_fit_are_refused_by_name(name: str) -> None:
    """A kernel would read past their end; both forms of the operator and the reference ask."""
    operand, tensors, given = MISFITS[name]
    known = {argument.name for argument in VARLEN_ATTN._schema.arguments}
    if not given.keys() <= known:
        pytest.skip(f"varlen_attn of this PyTorch takes no {', '.join(given.keys() - known)}")
    kernel = functools.partial(kernel_form, archs=(), precision="ieee", flash2=True)
    for form in (kernel, varlen_attention, reference_of):
        with pytest.raises(ValueError, match=f"needs {operand} of shape"):
            form(*tensors, 6, 6, **given)


def test_a_huge_value_behind_a_weight_that_underflows_adds_nothing() -> None:
    """The weight of the second key is e^-1000; times 3e30 that is 0."""
    query = torch.tensor([[[1.0, 0.0]]])
    key = torch.tensor([[[500.0, 0.0]], [[-500.0, 0.0]]])
    value = torch.tensor([[[1.0, 2.0]], [[3e30, -2e33]]])
    out, *_ = varlen_attention(query, key, value, offsets(1), offsets(2), 1, 2, scale=1.0)
    assert torch.equal(out, value[:1])


def test_infinity_behind_a_weight_that_underflows_is_reached() -> None:
    query = torch.tensor([[[1.0, 0.0]]])
    key = torch.tensor([[[500.0, 0.0]], [[-500.0, 0.0]]])
    value = torch.tensor([[[1.0, 2.0]], [[math.inf, math.nan]]])
    out, *_ = varlen_attention(query, key, value, offsets(1), offsets(2), 1, 2, scale=1.0)
    assert out[0, 0, 0] == math.inf and out[0, 0, 1].isnan()
