"""The `cuda` target: composed, audited, named, and gone without a trace when it fails."""

import json

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_program
from graftwork.backend.cuda_options import CudaOptions, data_name_of, data_name_spec
from graftwork.backend.payload import read_program
from graftwork.inspecting import inspect_artifact
from graftwork.lowering import lower
from graftwork.plugins.errors import InputError


class Net(nn.Module):
    """An unaligned product, a buffer that steers a branch, numbers in the branches."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(65, 33)
        self.register_buffer("flag", torch.tensor([True]), persistent=False)

    def forward(self, x):
        y = self.linear(x)
        return torch.cond(self.flag, lambda y: y + 1, lambda y: y * 2, (y,))


class Counter(nn.Module):
    """A written buffer, and a branch on a computed predicate."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x + self.count,))


@pytest.fixture(scope="module")
def lowered(tmp_path_factory):
    """One program of two methods, lowered for two architectures."""
    folder = tmp_path_factory.mktemp("lowered")
    methods = {
        "forward": torch.export.export(Net(), (torch.randn(40, 65),)),
        "count": torch.export.export(Counter(), (torch.randn(8),)),
    }
    settings = {"data_name": "weights", "ptx": True}
    result = lower(
        methods,
        target="cuda",
        archs=["sm_80", "sm_90"],
        directory=folder,
        name="net",
        settings=settings,
        verify=False,
    )
    return folder, result.report


def test_each_architecture_gets_its_files_and_nothing_else_is_left(lowered):
    folder, report = lowered
    names = {"net_sm_80.pte", "net_sm_90.pte", "weights_sm_80.ptd", "weights_sm_90.ptd"}
    assert {path.name for path in folder.iterdir()} == names
    assert {path.name for path in report.files} == names


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_method_is_audited_clean_and_carries_ptx(lowered, arch):
    folder, _ = lowered
    pte, ptd = folder / f"net_{arch}.pte", folder / f"weights_{arch}.ptd"
    report = audit_program(pte, ptd, archs=[arch])
    assert report.ok, report.findings
    assert {library.method for library in report.libraries} == {"forward", "count"}
    number = arch.removeprefix("sm_")
    for library in report.libraries:
        # No kernel here needs instructions of one architecture, so the PTX runs on later ones.
        assert f"compute_{number}" in library.archs
        assert library.kernels
    newer = audit_program(pte, ptd, archs=["sm_100"])
    assert newer.ok, newer.findings


def test_the_program_runs_on_stock_runtimes_and_the_specs_travel(lowered):
    folder, _ = lowered
    for delegate in read_program(folder / "net_sm_90.pte", folder / "weights_sm_90.ptd"):
        assert delegate.format == "ETCUDAFQN3"
        assert not delegate.missing
        options = json.loads(delegate.compile_specs["graftwork"])
        assert "keep-written-buffers" in options["plugins"]
        assert str(folder) not in str(delegate.compile_specs)  # no path of this machine
        assert len(delegate.library) < 1_000_000  # debug information is a megabyte more
        assert delegate.compile_specs["target_device"] == b"cuda:0"
    record = inspect_artifact(folder / "net_sm_90.pte")
    assert record["delegates"] == ["CudaBackend"]
    assert record["made_by"]["archs"] == ["sm_90"]
    assert record["made_by"]["runtime"] == {"executorch": "1.5", "payload": "ETCUDAFQN3"}


def test_a_predicate_buffer_stays_on_the_host_and_weights_are_on_the_gpu(lowered):
    folder, _ = lowered
    delegates = read_program(folder / "net_sm_90.pte", folder / "weights_sm_90.ptd")
    devices = {w.fqn: w.device for delegate in delegates for w in delegate.weights}
    assert devices.get("flag", "cpu") == "cpu"  # a single number is written into the code
    assert devices["linear.weight"] == devices["count"] == "cuda"


def test_the_report_lists_every_choice_made_without_a_benchmark(lowered):
    _, report = lowered
    for arch in ("sm_80", "sm_90"):
        (decisions,) = report.details[arch]["decisions"]
        assert decisions["arch"] == arch
        assert [(t["m"], t["n"], t["k"]) for t in decisions["templates"]] == [(40, 33, 65)]
        assert decisions["kernels"]
    json.dumps(report.to_json())


def test_the_audit_asks_for_the_architecture_and_the_release(lowered):
    folder, _ = lowered
    pte, ptd = folder / "net_sm_80.pte", folder / "weights_sm_80.ptd"
    assert not audit_program(pte, ptd, archs=["sm_75"]).ok
    older = audit_program(pte, ptd, runtime="1.4")
    assert {finding.kind for finding in older.findings} == {"payload"}
    other = audit_program(pte, folder / "weights_sm_90.ptd")
    assert other.ok  # the same weights
    assert audit_program(pte).ok  # without its data file, only the library is looked at


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"archs": ["sm_1"]}, "sm_90"),
        ({"archs": ["sm_90", "sm_90"]}, "twice"),
        ({"archs": ["sm_90"], "settings": {"data_name": "../x"}}, "weights file"),
        ({"archs": ["sm_90"], "settings": {"colour": "red"}}, "colour"),
        ({"archs": ["sm_90"], "settings": {"runtime": "0.1"}}, r"1\.5"),
        ({}, "--arch"),
    ],
)
def test_a_wrong_request_is_refused_before_any_work(arguments, message, tmp_path):
    if not arguments and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    from graftwork.plugins.errors import GraftworkError

    with pytest.raises(GraftworkError, match=message):
        lower(Net(), (torch.randn(2, 65),), target="cuda", directory=tmp_path / "o", **arguments)
    assert not (tmp_path / "o").exists()


def test_a_hand_written_name_cannot_leave_the_output_folder():
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    assert data_name_of([[data_name_spec("a")], [data_name_spec("a")]]) == "a"
    with pytest.raises(InputError):
        data_name_of([[CompileSpec("data_name", b"../../etc/x")]])


def test_options_survive_the_compile_spec():
    options = CudaOptions(("float-scalars",), "sm_90", "1.5", ("aoti_torch_x",), True)
    assert CudaOptions.from_specs([options.to_spec()]) == options
    assert CudaOptions.from_specs([]) is None


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_compile_that_is_cut_short_leaves_nothing(failure, tmp_path, monkeypatch):
    """An interrupt, and a disk that fills up, where the compiler starts."""
    from graftwork.backend import executorch_api

    output, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    def stop(programs, partitioners):
        (workspace,) = output.glob(".graftwork-*/compile")
        (workspace / "half.so").write_text("half")
        raise failure

    monkeypatch.setattr(executorch_api, "lower_with", stop)
    with pytest.raises((KeyboardInterrupt, InputError)):
        lower(Net(), (torch.randn(2, 65),), target="cuda", archs=["sm_90"], directory=output)
    assert not output.exists()
    assert not list(temporary.iterdir())


def test_the_partitioner_refuses_a_road_on_which_it_cannot_rewrite():
    from graftwork.backend.cuda_partitioner import CudaPartitioner

    program = torch.export.export(Counter(), (torch.randn(8),))
    with pytest.raises(InputError, match="to_edge_transform_and_lower"):
        CudaPartitioner([]).partition(program)
