"""A CUDA .pte as far as a machine without a GPU can go: its files, its order, its errors."""

import shutil

import pytest
import torch

import graftwork
from graftwork.backend.payload import read_program
from graftwork.backend.program_file import read_data_file, read_program_file
from graftwork.plugins.errors import InputError
from graftwork.running import delegate, library


class Swaps(torch.nn.Module):
    """Writes its first input, gives its outputs in another order than it makes them."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x, y):
        x.add_(1)
        total = self.linear(x) + y
        return {"sum": total, "echo": (y * 2, x * 3)}


INPUTS = (torch.zeros(4, 64), torch.ones(4, 64))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("delegate")
    return graftwork.lower(
        Swaps(), INPUTS, target="cuda", archs=["sm_90"], directory=folder, verify=False
    ).report.files


class Stands:
    """In place of a compiled library: takes and gives tensors in the delegate's order."""

    inputs, outputs = 2, 4

    def run(self, inputs):
        x, y = inputs
        return [y * 10, y * 2, (x + 1) * 3, x + 1]


def test_inputs_and_outputs_are_put_into_the_programs_order(files):
    (plan,) = read_program_file(files[0]).plans
    run = delegate._in_plan_order("net", plan, Stands())
    x, y = torch.zeros(4, 64), torch.ones(4, 64)
    outputs = run([x, y])
    assert torch.equal(x, torch.ones(4, 64))  # written
    assert [out[0, 0].item() for out in outputs] == [10, 2, 3]


def test_weights_are_read_from_the_data_file(files):
    (entry,) = read_program(*files)
    stored = read_data_file(files[1])
    assert entry.library and {weight.key for weight in entry.weights} <= stored.keys()
    weight = next(weight for weight in entry.weights if weight.fqn == "linear.weight")
    assert weight.sizes == (64, 64) and len(entry.weight_bytes(weight)) == 64 * 64 * 4


@pytest.fixture
def on_sm_90(monkeypatch):
    """As if this machine had the GPU; loading then stops where a library would be loaded."""

    def reached(*arguments):
        raise InputError("the library would be loaded")

    monkeypatch.setattr(delegate, "this_gpu", lambda: "sm_90")
    monkeypatch.setattr(delegate, "CompiledLibrary", reached)
    monkeypatch.setattr(delegate, "_tensor", lambda weight, stored: torch.empty(0))


def test_the_data_file_beside_the_program_is_found_and_one_that_lacks_is_named(
    files, tmp_path, on_sm_90
):
    with pytest.raises(InputError, match="the library would be loaded"):
        graftwork.load(files[0])
    alone = shutil.copy(files[0], tmp_path / "swaps.pte")
    with pytest.raises(InputError, match=r"its weights are in aoti_cuda_blob.ptd, which is not"):
        graftwork.load(alone)
    with pytest.raises(InputError, match="the library would be loaded"):
        graftwork.load(alone, data=files[1])
    with pytest.raises(InputError, match="no file .*other.ptd"):
        graftwork.load(alone, data=tmp_path / "other.ptd")


def test_a_load_that_fails_leaves_nothing_behind(files, temporary, on_sm_90):
    with pytest.raises(InputError, match="the library would be loaded"):
        graftwork.load(files[0])
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_another_gpu_is_named_before_the_library_is_loaded(files, tmp_path, monkeypatch, arch):
    (entry,) = read_program(*files)
    (tmp_path / "library.so").write_bytes(entry.library)
    monkeypatch.setattr(library, "this_gpu", lambda: arch)
    with pytest.raises(InputError, match=f"net is compiled for sm_90a?, .* GPU is {arch}"):
        library.check_library(tmp_path / "library.so", "net", "cuda")
    monkeypatch.setattr(library, "this_gpu", lambda: "sm_90")
    library.check_library(tmp_path / "library.so", "net", "cuda")


def test_a_program_with_more_than_its_delegate_is_left_to_executorch(files, monkeypatch, on_sm_90):
    import dataclasses

    program = read_program_file(files[0])
    (plan,) = program.plans
    extra = dataclasses.replace(plan, kernel_calls=(*plan.kernel_calls, ("aten::add.out", (0, 1))))
    with pytest.raises(InputError, match="net: it runs aten::add.out outside its delegate"):
        delegate._in_plan_order("net", extra, Stands())
    split = dataclasses.replace(plan, delegates=plan.delegates * 2)
    two = dataclasses.replace(program, plans=(split,))
    with pytest.raises(InputError, match="method forward has 2 delegates"):
        delegate.load_delegates(files[0], None, two, {})
