"""conv1d-to-conv2d: the same numbers from a two-dimensional convolution, and only then."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from graftwork.plugins.verification import assert_verified

ID = "conv1d-to-conv2d"
aten = torch.ops.aten


@pytest.fixture
def rewritten(rewrite):
    return functools.partial(rewrite, ID)


def ranks(program):
    """The rank of every convolution's input."""
    return [
        node.args[0].meta["val"].dim()
        for node in program.program.graph.nodes
        if node.target == aten.convolution.default
    ]


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
        torch.nn.Conv1d(4, 6, 1, bias=False),
        torch.nn.Conv1d(4, 4, 4, padding="same"),
        torch.nn.Conv1d(4, 4, 3, padding="same", dilation=2),
        torch.nn.Conv1d(4, 4, 3, padding="valid"),
        torch.nn.ConvTranspose1d(4, 2, 3, stride=3, padding=1, output_padding=2),
        torch.nn.ConvTranspose1d(4, 6, 2, groups=2, dilation=3, bias=False),
    ],
    ids=str,
)
def test_layers_equal_eager(rewritten, layer, decompose):
    x = torch.randn(2, 4, 17)
    program = rewritten(layer, x, dims=({2: Dim("l", min=9, max=99)},), decompose=decompose)
    assert program.fired == 1
    assert ranks(program) == [4]
    for lengths in (x, torch.randn(2, 4, 40)):
        torch.testing.assert_close(program(lengths), layer(lengths))


def test_unbatched_input(rewritten):
    x, weight = torch.randn(4, 9), torch.randn(2, 4, 3)
    program = rewritten(F.conv1d, x, weight)
    assert ranks(program) == [4]
    torch.testing.assert_close(program(x, weight), F.conv1d(x, weight))


def test_convolutions_in_a_branch(rewritten):
    weight = torch.randn(2, 4, 3)

    def branched(x, weight, flag):
        return torch.cond(
            flag,
            lambda x, w: F.conv1d(x, w).sum(-1),
            lambda x, w: F.conv1d(x, -w).sum(-1),
            (x, weight),
        )

    x = torch.randn(2, 4, 9)
    program = rewritten(branched, x, weight, torch.tensor(True))
    assert program.fired == 2
    for flag, signed in ((True, weight), (False, -weight)):
        result = program(x, weight, torch.tensor(flag))
        torch.testing.assert_close(result, F.conv1d(x, signed).sum(-1))


@pytest.mark.parametrize("decompose", [False, True])
def test_planes_and_volumes_are_left_alone_without_a_word(rewritten, decompose):
    def both(x):
        plane = F.conv2d(x, torch.ones(1, 1, 2, 2))
        return plane, F.conv3d(x[None], torch.ones(1, 1, 1, 2, 2))

    program = rewritten(both, torch.randn(1, 1, 5, 5), decompose=decompose)
    assert program.fired == 0
    assert program.declined == []


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=3, groups=2),
        torch.nn.Conv1d(4, 6, 4, padding="same", dilation=2),
        torch.nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1),
        torch.nn.ConvTranspose1d(4, 6, 4, stride=3, dilation=2, groups=2),
    ],
    ids=str,
)
def test_for_cuda_what_is_left_are_convolutions_with_a_template(layer, decompose, rewritten):
    """Inductor has none with a dilation or a transposition. Every length equals eager."""
    length = Dim("length", min=8, max=64)
    example = torch.randn(2, 4, 17)
    program = rewritten(
        lambda x: layer(x), example, dims=({2: length},), decompose=decompose, target="cuda"
    )
    assert program.fired == 1
    left = program.program.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert left
    for node in left:
        *_, dilation, transposed, _output_padding, _groups = node.args
        assert set(dilation) == {1}
        assert not transposed
    for size in (17, 8, 40):
        x = torch.randn(2, 4, size)
        torch.testing.assert_close(program(x), layer(x).detach())
