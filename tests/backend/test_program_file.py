"""Program and data files are read as ExecuTorch reads them, and damaged ones are one error."""

import random

import pytest
import torch

import graftwork
from graftwork.backend.program_file import read_data_file, read_program_file
from graftwork.plugins.errors import InputError


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, times):
        self.count.add_(1)
        x.add_(1)
        return self.linear(x) * self.count * times, 7


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    shapes = ({0: torch.export.Dim("rows", max=8)}, None)
    return graftwork.lower(
        Model(),
        (torch.ones(2, 6), 2.5),
        dynamic_shapes=shapes,
        directory=tmp_path_factory.mktemp("program"),
    ).artifact


def test_a_program_is_read_as_executorch_reads_it(artifact):
    from executorch.exir._serialize._program import deserialize_pte_binary

    theirs = deserialize_pte_binary(artifact.read_bytes())
    ours = read_program_file(artifact)
    (plan,), (expected,) = ours.plans, theirs.program.execution_plan
    assert plan.name == expected.name
    assert list(plan.inputs) == expected.inputs and list(plan.outputs) == expected.outputs
    assert plan.in_spec == expected.container_meta_type.encoded_inp_str
    assert plan.out_spec == expected.container_meta_type.encoded_out_str
    assert len(plan.values) == len(expected.values)
    for mine, value in zip(plan.values, (item.val for item in expected.values), strict=True):
        if mine.kind == "tensor":
            assert list(mine.sizes) == value.sizes and list(mine.dim_order) == value.dim_order
            assert mine.dtype == value.scalar_type and mine.dynamic == bool(value.shape_dynamism)
        elif mine.kind in ("int", "bool", "float", "str"):
            assert mine.scalar == next(iter(vars(value).values()))
    calls = [item.instr_args for item in expected.chains[0].instructions]
    kernels = [call for call in calls if hasattr(call, "op_index")]
    assert [list(args) for _, args in plan.kernel_calls] == [call.args for call in kernels]
    delegates = [call for call in calls if hasattr(call, "delegate_index")]
    assert [list(args) for _, args in plan.delegate_calls] == [call.args for call in delegates]
    assert [d.id for d in plan.delegates] == [d.id for d in expected.delegates]
    entries = theirs.named_data.pte_data
    assert ours.named_data.keys() == entries.keys()
    for key, entry in entries.items():
        assert bytes(ours.named_data[key]) == theirs.named_data.buffers[entry.buffer_index]


def test_the_inputs_that_a_method_writes_are_known(artifact):
    (plan,) = read_program_file(artifact).plans
    assert plan.written_inputs == (plan.inputs[0],)


def test_a_file_cut_short_anywhere_is_one_error(artifact, tmp_path):
    data = artifact.read_bytes()
    path = tmp_path / "cut.pte"
    for end in [*range(0, 200), *range(200, len(data), max(1, len(data) // 60))]:
        path.write_bytes(data[:end])
        with pytest.raises(InputError, match="cut.pte"):
            read_program_file(path)


def test_changed_bytes_are_read_or_one_error(artifact, tmp_path):
    data, draw = artifact.read_bytes(), random.Random(0)
    path = tmp_path / "changed.pte"
    for _ in range(300):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(min(len(data), 4000))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            read_program_file(path)
        except InputError:
            continue


@pytest.mark.parametrize("content", [b"", b"x", b"0000FT01", b"\xff" * 64])
def test_what_is_no_data_file_is_one_error(tmp_path, content):
    path = tmp_path / "a.ptd"
    path.write_bytes(content)
    with pytest.raises(InputError, match="a.ptd"):
        read_data_file(path)
