"""Torch's private names are where they were: a release that moves one fails here, by its name."""

import inspect

import pytest
import torch

from graftwork.plugins import torch_private

FINDS = [
    name
    for name in torch_private.__all__
    if name.startswith(("inductor_", "dynamo_"))
    or name in ("fake_tensor_module", "meta_tensor_describer", "no_dispatch", "untraced")
    if not inspect.signature(getattr(torch_private, name)).parameters
]


@pytest.mark.parametrize("name", FINDS)
def test_what_is_looked_up_is_there(name):
    assert getattr(torch_private, name)() is not None


def test_everything_is_listed_once():
    functions = {name for name, value in vars(torch_private).items() if inspect.isfunction(value)}
    assert functions <= set(torch_private.__all__)
    assert sorted(set(torch_private.__all__)) == sorted(torch_private.__all__)


def test_tensors_go_through_handles_and_back():
    tensors = [torch.arange(3), torch.ones(2, 2)]
    for before, after in zip(
        tensors,
        torch_private.free_tensor_handles(torch_private.tensor_handles(tensors)),
        strict=True,
    ):
        assert torch.equal(before, after) and before.data_ptr() == after.data_ptr()


def test_no_handle_is_no_tensor():
    (handle,) = torch_private.tensor_handles([torch.arange(3)])
    nothing, tensor = torch_private.free_tensor_handles([None, handle])
    assert nothing is None and tensor.tolist() == [0, 1, 2]
