"""`graftwork.load`: artifacts run as the model did, keep their state, and fail without a trace."""

import copy
import gc
import zipfile
from pathlib import Path

import pytest
import torch

import graftwork
from graftwork.plugins import torch_private
from graftwork.plugins.errors import InputError
from graftwork.running.library import CompiledLibrary

TARGETS = ["cpu", "aoti"]
X, Y = torch.randn(5, 6), torch.ones(5, 2, dtype=torch.int64)


def frame(x=X, y=Y):
    return {"x": x, "rows": [y]}


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_takes_and_gives_what_the_model_did_and_keeps_its_state(artifacts, target):
    model = copy.deepcopy(artifacts.models["nested"])
    program = graftwork.load(artifacts["nested", target])
    for _ in range(3):
        expected = model(frame(), None, times=2)
        found = program(frame(), None, times=2)
        assert found.keys() == expected.keys() and len(found["rest"]) == 2
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_each_load_has_a_state_of_its_own(artifacts, target):
    first, second = (graftwork.load(artifacts["nested", target]) for _ in range(2))
    first(frame(), None, times=2)
    assert first.forward(frame(), None, times=2)["rest"][1].item() == 2
    assert second.methods["forward"](frame(), None, times=2)["rest"][1].item() == 1


def mapped_libraries():
    """The files of this process's libraries, also where they are deleted."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in maps if "aotinductor/model" in line}


def test_a_library_is_in_memory_once_however_often_it_is_loaded(artifacts):
    before = mapped_libraries()
    programs = [graftwork.load(artifacts["nested", "aoti"]) for _ in range(3)]
    programs.append(graftwork.load(artifacts["nested", "aoti"]))
    assert len(mapped_libraries() - before) <= 1


def test_weights_that_a_library_reads_from_its_file_are_there_for_every_load(tmp_path):
    """As those of more than 2 GB; the first load's file is gone when the second is made."""
    with torch_private.inductor_config().patch({"aot_inductor.force_mmap_weights": True}):
        artifact = graftwork.lower(
            CountsInto(), (X,), target="aoti", directory=tmp_path, verify=False
        ).artifact
    first = graftwork.load(artifact)
    assert [first(X).item() for _ in range(2)] == [8, 9]
    del first
    gc.collect()
    second = graftwork.load(artifact)
    assert second(X).item() == 8


class CountsInto(torch.nn.Module):
    """Holds a weight, which is read from the file, and a buffer that it writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.full((6,), 7.0))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return (x * 0 + self.table).mean() + self.count


@pytest.mark.parametrize("target", TARGETS)
def test_results_of_one_call_stand_when_the_next_is_made(artifacts, target):
    program = graftwork.load(artifacts["nested", target])
    first = program(frame(), None, times=2)
    kept = copy.deepcopy(first)
    program(frame(X + 1), None, times=2)
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_in_another_layout_and_one_with_gradients_give_the_same(artifacts, target):
    program, other = (graftwork.load(artifacts["nested", target]) for _ in range(2))
    expected = program(frame(), None, times=2)
    by_columns = X.t().contiguous().t().requires_grad_()
    torch.testing.assert_close(other(frame(by_columns), None, times=2), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_written_input_is_the_callers(artifacts, target, layout):
    program = graftwork.load(artifacts["writes", target])
    x = torch.randn(1, 2, 3, 5).to(memory_format=layout)
    before = x.clone()
    doubled, pairs = program(x, torch.ones(6))
    torch.testing.assert_close(x, before + 1)
    torch.testing.assert_close(doubled, (before + 1) * 2)
    assert pairs.tolist() == [2, 2, 2]


def test_several_methods_are_called_by_name(tmp_path):
    class Scale(torch.nn.Module):
        def __init__(self, by):
            super().__init__()
            self.by = by

        def forward(self, x):
            return x * self.by

    exported = {
        name: torch.export.export(Scale(by), (X,)) for name, by in (("double", 2), ("triple", 3))
    }
    artifact = graftwork.lower(exported, directory=tmp_path, name="scales").artifact
    program = graftwork.load(artifact)
    assert list(program) == ["double", "triple"]
    assert torch.equal(program.double(X), X * 2) and torch.equal(program.triple(X), X * 3)
    with pytest.raises(AttributeError, match="no method 'halve'"):
        program.halve(X)
    with pytest.raises(InputError, match="no method 'forward'; it has double, triple"):
        program(X)


def test_a_method_says_that_it_runs_without_a_graph(artifacts):
    path = artifacts["nested", "aoti"]
    assert graftwork.load(path).forward.graph == "off"
    with pytest.raises(InputError, match="runs on the CPU; CUDA graphs are for programs on CUDA"):
        graftwork.load(path, cuda_graphs=True)
    with pytest.raises(InputError, match="has no method 'encode'; it has forward"):
        graftwork.load(path, cuda_graphs=["encode"])
    with pytest.raises(TypeError, match="not one string"):
        graftwork.load(path, cuda_graphs="forward")


def test_a_buffer_that_is_returned_is_a_copy_that_outlives_the_program(tmp_path):
    class Holds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, x):
            return x + self.table, self.table

    artifact = graftwork.lower(
        Holds(), (torch.ones(4),), target="aoti", directory=tmp_path
    ).artifact
    program = graftwork.load(artifact)
    table = program(torch.ones(4))[1]
    assert table.untyped_storage().resizable()  # its own, not the library's
    table.zero_()
    assert program(torch.ones(4))[0].tolist() == [1, 2, 3, 4]
    del program
    gc.collect()
    assert table.tolist() == [0, 0, 0, 0]


def test_a_wrong_number_of_tensors_does_not_end_the_process(artifacts, tmp_path):
    with zipfile.ZipFile(artifacts["nested", "aoti"]) as package:
        name = next(name for name in package.namelist() if name.endswith(".so"))
        path = Path(package.extract(name, tmp_path))
    library = CompiledLibrary(path, "net", "cpu")
    with pytest.raises(RuntimeError, match="takes 2 tensors, not 1"):
        library.run([X])


def stripped(artifact, folder):
    """The package as another writer leaves it: without graftwork's record."""
    path = folder / "foreign.pt2"
    with zipfile.ZipFile(artifact) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            if not name.endswith("graftwork.json"):
                new.writestr(name, old.read(name))
    return path


def test_a_package_of_another_writer_runs_with_the_checks_it_allows(artifacts, tmp_path):
    program = graftwork.load(stripped(artifacts["nested", "aoti"], tmp_path))
    found = program(frame(), None, times=2)
    assert found["rest"][1].item() == 1
    with pytest.raises(InputError, match="takes inputs nested as"):
        program({"x": X}, None, times=2)


def test_a_program_of_another_writer_is_checked_by_what_executorch_records(tmp_path):
    from executorch.exir import to_edge

    class Add(torch.nn.Module):
        def forward(self, x, y):
            return x + y, 3

    exported = torch.export.export(
        Add(), (X, X), dynamic_shapes=({0: torch.export.Dim.AUTO(max=9)},) * 2
    )
    path = tmp_path / "foreign.pte"
    path.write_bytes(to_edge(exported).to_executorch().buffer)
    program = graftwork.load(path)
    total, three = program(X, X)
    assert torch.equal(total, X + X) and three == 3
    with pytest.raises(InputError, match=r"input 1 must be float32, not float64"):
        program(X, X.double())
    with pytest.raises(InputError, match=r"input 0: dim 0 is 10 and must be from 0 to 9"):
        program(torch.ones(10, 6), torch.ones(10, 6))


def test_operators_without_a_c_function_run_through_torchs_own_loader(tmp_path, temporary):
    class Inverse(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[1]

    artifact = graftwork.lower(Inverse(), (X,), target="aoti", directory=tmp_path).artifact
    before = {path.name for path in temporary.iterdir()}
    program = graftwork.load(artifact)
    assert {path.name for path in temporary.iterdir()} == before
    torch.testing.assert_close(program(X), torch.linalg.qr(X)[1])


def test_a_data_file_that_is_missing_is_one_error(artifacts, tmp_path):
    with pytest.raises(InputError, match=r"no file .*nope.ptd"):
        graftwork.load(artifacts["nested", "cpu"], data=tmp_path / "nope.ptd")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pte", None, "no file .*missing.pte"),
        ("a.txt", b"x", "neither a .pte nor a .pt2"),
        ("a.pte", b"", "is empty"),
        ("a.pte", b"rubbish", "not a readable ExecuTorch program"),
        ("a.pt2", b"rubbish", "not a readable package"),
    ],
)
def test_what_cannot_be_read_is_one_error(tmp_path, temporary, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        graftwork.load(tmp_path / name)
    assert not list(temporary.iterdir())


def rewritten(artifact, folder, change):
    """The package with some files changed: `change(name, content)` gives the new content."""
    path = folder / "changed.pt2"
    with zipfile.ZipFile(artifact) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("suffix", "content", "message"),
    [
        # A library that is cut short ends the process where it is loaded.
        (".so", lambda data: data[: len(data) // 2], "its compiled library is damaged"),
        (".so", lambda data: b"rubbish", "its compiled library is damaged"),
        (
            ".so",
            lambda data: data.replace(b"ModelContainerRun", b"ModelContainerRum"),
            "cannot be loaded in torch",
        ),
        (".so", lambda data: None, "cannot be loaded"),
        ("wrapper_metadata.json", lambda data: data.replace(b'"cpu"', b'"mps"'), "runs on mps"),
        ("metadata.json", lambda data: None, "does not name the device"),
    ],
)
def test_a_package_that_does_not_load_leaves_nothing_behind(
    artifacts, tmp_path, temporary, suffix, content, message
):
    path = rewritten(
        artifacts["nested", "aoti"],
        tmp_path,
        lambda name, data: content(data) if name.endswith(suffix) else data,
    )
    with pytest.raises(InputError, match=message):
        graftwork.load(path)
    assert not list(temporary.iterdir())


def test_torchs_own_loader_leaves_nothing_behind_either(tmp_path, temporary):
    class Inverse(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.qr(x)[1]

    artifact = graftwork.lower(Inverse(), (X,), target="aoti", directory=tmp_path / "o").artifact
    before = {path.name for path in temporary.iterdir()}
    path = rewritten(artifact, tmp_path, lambda n, d: b"{" if n.endswith("wrapper.json") else d)
    with pytest.raises(InputError, match="cannot be loaded in torch"):
        graftwork.load(path)
    assert {path.name for path in temporary.iterdir()} == before


def test_the_unpacked_files_are_gone_when_a_program_on_the_cpu_is_loaded(artifacts, temporary):
    """A process that is ended by a signal leaves nothing behind."""
    program = graftwork.load(artifacts["nested", "aoti"])
    assert not list(temporary.iterdir())
    assert program(frame(), None, times=2)["rest"][1].item() == 1


def test_a_cuda_program_says_what_is_missing_here(tmp_path, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")

    class Scale(torch.nn.Module):
        def forward(self, x):
            return x * 2

    lowered = graftwork.lower(
        Scale(), (X,), target="cuda", archs=["sm_90"], directory=tmp_path, verify=False
    )
    with pytest.raises(InputError, match="runs on CUDA, and this machine has no GPU"):
        graftwork.load(lowered.artifact)
