"""`graftwork.lower`: artifacts that equal eager, and nothing left behind where there is none."""

import errno
import threading
from pathlib import Path

import pytest
import torch
from torch.export import Dim

import graftwork
from graftwork import lowering
from graftwork.backend.targets.cpu import CpuTarget
from graftwork.inspecting import inspect_artifact
from graftwork.plugins.errors import (
    InputError,
    NotLowerableError,
    RunError,
    VerificationError,
)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).detach() * 2


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


class Affine(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


class Locked(Affine):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


X = torch.arange(12.0).reshape(3, 4)


def left_behind(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_artifact_runs_and_carries_its_plugin_set(target, tmp_path):
    torch.manual_seed(0)
    model = Tiny()
    lowered = graftwork.lower(model, (X,), target=target, directory=tmp_path)
    assert left_behind(tmp_path) == [lowered.artifact]
    (output,) = lowered(X + 1)
    torch.testing.assert_close(output, model(X + 1))
    made = inspect_artifact(lowered.artifact)["made_by"]
    assert made["target"] == target and made["torch"] == torch.__version__
    assert {"detach-copy": 1}.items() <= {p["id"]: p["fired"] for p in made["plugins"]}.items()


def test_two_lowerings_give_equal_bytes(tmp_path):
    torch.manual_seed(0)
    model = Tiny()
    first = graftwork.lower(model, (X,), directory=tmp_path / "a").artifact.read_bytes()
    second = graftwork.lower(model, (X,), directory=tmp_path / "b").artifact.read_bytes()
    assert first == second


def test_dynamic_shapes_reach_the_artifact(tmp_path):
    shapes = ({0: Dim("rows", min=1, max=8)},)
    model = Tiny()
    lowered = graftwork.lower(model, (X,), dynamic_shapes=shapes, directory=tmp_path)
    other = torch.randn(7, 4)
    torch.testing.assert_close(lowered(other)[0], model(other))


def test_written_buffer_is_compared_from_the_state_it_was_exported_in(tmp_path):
    model = Counter()
    lowered = graftwork.lower(model, (X,), directory=tmp_path)
    assert lowered.report.outputs[0].max_abs_diff == 0
    assert model.count.item() == 0


def test_several_methods_make_one_program(tmp_path):
    programs = {
        "forward": torch.export.export(Tiny(), (X,)),
        "count": torch.export.export(Counter(), (X,)),
    }
    lowered = graftwork.lower(programs, directory=tmp_path, name="two")
    assert inspect_artifact(lowered.artifact)["methods"] == ["count", "forward"]
    assert torch.equal(lowered(X, method="count")[0], X + 1)
    with pytest.raises(InputError, match="has no method 'other'; it has count, forward"):
        lowered(X, method="other")


def test_exported_program_brings_its_own_inputs(tmp_path):
    lowered = graftwork.lower(torch.export.export(Tiny(), (X,)), directory=tmp_path)
    assert lowered.report.outputs[0].equal


def test_drop_in_for_a_script_of_ones_own():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    program = graftwork.rewrite(torch.export.export(Tiny(), (X,)))
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    assert "detach" not in str(edge.exported_program().graph)


def test_application_limit_reaches_the_plugins(tmp_path):
    report = graftwork.lower(Tiny(), (X,), directory=tmp_path, application_limit=0).report
    assert sum(plugin.fired for plugin in report.plugins) == 0


def test_wrong_result_is_an_error_and_nothing_is_written(tmp_path, monkeypatch):
    run = lowering._run
    monkeypatch.setattr(lowering, "_run", lambda *a: [o + 1 for o in run(*a)])
    with pytest.raises(VerificationError, match=r"forward output 0: 6 of 6 elements differ"):
        graftwork.lower(Tiny(), (X,), directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unequal_infinities_and_nan_are_differences(tmp_path, monkeypatch):
    monkeypatch.setattr(lowering, "_run", lambda *a: [torch.full((3, 2), float("nan"))])
    with pytest.raises(VerificationError):
        graftwork.lower(Tiny(), (X,), directory=tmp_path / "out")


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        KeyboardInterrupt(),
        NotLowerableError("x"),
    ],
)
def test_full_disk_interruption_and_failure_leave_nothing(tmp_path, monkeypatch, failure):
    def fail(self, request):
        (request.directory / "half.pte").write_bytes(b"half")
        raise failure

    monkeypatch.setattr(CpuTarget, "build", fail)
    expected = InputError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected):
        graftwork.lower(Tiny(), (X,), directory=tmp_path / "new" / "out")
    assert list(tmp_path.iterdir()) == []


def test_artifact_that_stands_is_kept_when_a_lowering_fails(tmp_path, monkeypatch):
    artifact = graftwork.lower(Tiny(), (X,), directory=tmp_path).artifact
    before = artifact.read_bytes()
    monkeypatch.setattr(lowering, "_run", lambda *a: [torch.zeros(3, 2)])
    with pytest.raises(VerificationError):
        graftwork.lower(Tiny(), (X,), directory=tmp_path)
    assert artifact.read_bytes() == before
    assert left_behind(tmp_path) == [artifact]


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        ("not a module", (X,), "a str cannot be lowered"),
        (Tiny(), (torch.ones(3, 5),), "does not run in eager mode on the inputs given"),
        (Tiny(), (X.double(),), "does not run in eager mode on the inputs given"),
        (Tiny(), (), "does not run in eager mode on the inputs given"),
        (Tiny(), X, r"inputs must be a tuple, not a Tensor; write \(x,\)"),
        ({}, (X,), "the mapping of methods is empty"),
        (Locked(), (X,), "Locked cannot be copied"),
    ],
)
def test_inputs_that_do_not_fit_are_one_error(tmp_path, model, inputs, message):
    with pytest.raises(InputError, match=message):
        graftwork.lower(model, inputs, directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("target", "example"),
    [
        ("aoti", torch.randn(6, 6)[1:5, 1:4]),
        ("aoti", torch.randn(1, 3).expand(4, 3)),
        ("cpu", torch.randn(3, 4).t()),
    ],
    ids=["crop", "expanded", "transposed"],
)
def test_an_examples_layout_is_not_asked_of_other_inputs(tmp_path, target, example):
    rows = Dim("rows", min=2, max=16)
    lowered = graftwork.lower(
        Affine(), (example,), dynamic_shapes=({0: rows},), target=target, directory=tmp_path
    )
    for x in (torch.randn(5, 3), torch.randn(3, 5).t(), torch.randn(5, 6)[:, ::2]):
        assert torch.equal(lowered(x)[0], x * 2 + 1)
    with pytest.raises(InputError, match="must be float32, not float64"):
        lowered(torch.randn(5, 3).double())
    with pytest.raises(InputError, match="dim 0 is 1 and must be from 2 to 16"):
        lowered(torch.randn(1, 3))


@pytest.mark.parametrize("example", [torch.randn(6, 4)[:, ::2], torch.randn(2).expand(6, 2)])
def test_a_program_exported_for_a_layout_that_no_input_has_is_refused(tmp_path, example):
    program = torch.export.export(
        Affine(), (example,), dynamic_shapes=({0: Dim("rows", max=16)},), strict=False
    )
    with pytest.raises(InputError, match=r"input x: .* export it with x.contiguous\(\)"):
        graftwork.lower(program, target="aoti", directory=tmp_path)


def test_a_size_without_a_bound_is_refused_where_memory_is_planned(tmp_path):
    shapes = ({0: Dim.DYNAMIC},)
    with pytest.raises(InputError, match=r"input x: dim 0 has no upper bound.*Dim\(..., max"):
        graftwork.lower(Affine(), (X,), dynamic_shapes=shapes, directory=tmp_path)


def test_a_program_given_stays_as_it_was(tmp_path):
    model = Counter()
    program = torch.export.export(model, (X,))
    for name in ("first", "second"):
        graftwork.lower(program, directory=tmp_path, name=name)
    assert model.count.item() == 0
    assert all(not value.any() for value in program.state_dict.values())


def test_a_model_in_training_mode_is_named_where_it_fails(tmp_path):
    model = torch.nn.BatchNorm1d(4)
    with pytest.raises(NotLowerableError, match=r"in training mode: call model.eval\(\)"):
        graftwork.lower(model, (X,), directory=tmp_path)
    assert graftwork.lower(model.eval(), (X,), directory=tmp_path).report.outputs[0].equal


def test_a_program_that_reports_an_error_is_one_error(tmp_path):
    z = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(RunError, match="does not run on the example inputs, nothing was written"):
        graftwork.lower(Affine(), (z,), directory=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_inputs_may_come_from_autograd(tmp_path):
    x = torch.ones(2, requires_grad=True) * 3
    assert graftwork.lower(Affine(), (x,), directory=tmp_path).report.outputs[0].equal


def test_a_float_is_compared_as_an_element_is(tmp_path, monkeypatch):
    class Total(torch.nn.Module):
        def forward(self, x):
            return x + 1, x.sum().item()

    run = lowering._run

    def off_by(difference):
        def run_off(*arguments):
            tensor, number = run(*arguments)
            return [tensor, number + difference]

        return run_off

    monkeypatch.setattr(lowering, "_run", off_by(1e-3))
    assert graftwork.lower(Total(), (X,), directory=tmp_path).report.outputs[1].equal
    monkeypatch.setattr(lowering, "_run", off_by(1.0))
    with pytest.raises(VerificationError, match="forward output 1"):
        graftwork.lower(Total(), (X,), directory=tmp_path / "other")


def test_an_artifact_is_named_as_asked(tmp_path):
    for name in ("MyModel", "my.model-2", "m.pte"):
        lowered = graftwork.lower(Affine(), (X,), directory=tmp_path, name=name)
        assert lowered.artifact.name == name.removesuffix(".pte") + ".pte"
    with pytest.raises(InputError, match=r"'a/b' is no file name; .*--name"):
        graftwork.lower(Affine(), (X,), directory=tmp_path, name="a/b")


def test_export_that_fails_is_one_error(tmp_path):
    class Branch(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match=r"torch.export refused Branch"):
        graftwork.lower(Branch(), (X,), directory=tmp_path)


def test_disabled_provider_is_named_for_what_cannot_lower(tmp_path):
    class Resized(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.interpolate(
                x[None, None], size=(2, 2), mode="bicubic", antialias=True
            )

    with pytest.raises(
        NotLowerableError, match=r"_upsample_bicubic2d_aa.*--enable antialiased-resize"
    ):
        graftwork.lower(Resized(), (X,), directory=tmp_path, disable=["antialiased-resize"])


def test_aoti_takes_one_method(tmp_path):
    programs = {name: torch.export.export(Tiny(), (X,)) for name in ("a", "b")}
    with pytest.raises(InputError, match="takes one method, not 2"):
        graftwork.lower(programs, target="aoti", directory=tmp_path)


def test_public_names_are_the_documented_ones():
    for name in graftwork.__all__:
        assert callable(getattr(graftwork, name)), name
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        _ = graftwork.missing
    assert Path(graftwork.__file__).parent.joinpath("py.typed").exists()
