"""`nn.GRUCell` and `nn.LSTMCell`: one step of a recurrent policy, lowered for CUDA.

On a GPU eager runs each step as one fused kernel (`_thnn_fused_gru_cell`), which has no trace, no
kernel by Inductor and none in ExecuTorch's runtime. Written out it is two matrix products and an
elementwise kernel that Inductor fuses. `nn.GRU` and `nn.LSTM` need no plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.export import Dim
from torch.nn.functional import linear

from graftwork.plugins import Case, PluginInfo, Property, Tolerance, hookimpl
from graftwork.plugins.toolkit.float_cases import HALVES, WIDE

aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="GRUCell and LSTMCell as matrix products and elementwise operators")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The composite forms that export keeps."""
    return {aten.gru_cell.default: gru_cell, aten.lstm_cell.default: lstm_cell}


def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """The next hidden state (N, H) of `input` (N, I) and `hx` (N, H).

    `w_ih` (3H, I), `w_hh` (3H, H) and the biases (3H) hold the reset, update and new gates:
    h' = n + z (h - n), n = tanh(i_n + r h_n). Source: torch.nn.GRUCell.
    """
    i_reset, i_update, i_new = linear(input, w_ih, b_ih).chunk(3, 1)
    h_reset, h_update, h_new = linear(hx, w_hh, b_hh).chunk(3, 1)
    reset, update = (h_reset + i_reset).sigmoid(), (h_update + i_update).sigmoid()
    new = (i_new + h_new * reset).tanh()
    return (hx - new) * update + new


def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next hidden and cell states (N, H) of `input` (N, I) and `hx`, the two before.

    `w_ih` (4H, I), `w_hh` (4H, H) and the biases (4H) hold the input, forget, cell and output
    gates: c' = f c + i g, h' = o tanh(c'). Source: torch.nn.LSTMCell.
    """
    hidden, cell = hx
    gates = linear(hidden, w_hh, b_hh) + linear(input, w_ih, b_ih)
    enter, forget, candidate, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor | None) -> Tensor:
    return torch.gru_cell(x, h, *weights)  # type: ignore[arg-type]  # the stub takes no None


def _lstm(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.lstm_cell(x, (h, c), *weights)  # type: ignore[arg-type]  # the stub takes no None


def _rnn(x: Tensor, h: Tensor, c: Tensor, *weights: Tensor | None) -> Tensor:
    return torch.rnn_tanh_cell(x, h, *weights)  # type: ignore[arg-type]  # the stub takes no None


@hookimpl
def list_properties() -> Sequence[Property]:
    """Both cells, with and without biases, NaN and infinities in states, empty batches."""
    return [
        Property("cells-equal-eager", _cases(WIDE), Tolerance(relative=1e-5, absolute=1e-6)),
        Property("halves-equal-eager", _cases(HALVES), Tolerance(relative=2**-6, absolute=2**-6)),
        Property("a-plain-cell-is-left-alone", _others()),
    ]


_GATES = {_gru: 3, _lstm: 4, _rnn: 1}


def _case(
    draw: st.DrawFn,
    program: Callable[..., object],
    fires: int,
    dtypes: Sequence[torch.dtype] = WIDE,
) -> Case:
    dtype = draw(st.sampled_from(dtypes))
    batch, ins, outs = draw(st.integers(0, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    gates = _GATES[program] * outs
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    shapes = [(batch, ins), (batch, outs), (batch, outs), (gates, ins), (gates, outs)]
    tensors = [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]
    if batch:
        special = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf, 1e30, 0.0]))
        tensors[draw(st.integers(0, 2))][0, 0] = special
    if draw(st.booleans()):
        tensors[0] = tensors[0].t().contiguous().t()
    bias = draw(st.booleans())
    biases = [torch.randn(gates, generator=generator, dtype=dtype) if bias else None] * 2
    rows = {0: Dim("batch", min=1, max=64)}
    dynamic = batch > 1 and draw(st.booleans())
    shapes_of = ((rows, rows, rows, None, None, None, None),) if dynamic else None
    return Case(program, (*tensors, *biases), fires=fires, dynamic_shapes=shapes_of)


@st.composite
def _cases(draw: st.DrawFn, dtypes: Sequence[torch.dtype]) -> Case:
    return _case(draw, draw(st.sampled_from((_gru, _lstm))), fires=1, dtypes=dtypes)


@st.composite
def _others(draw: st.DrawFn) -> Case:
    return _case(draw, _rnn, fires=0)
