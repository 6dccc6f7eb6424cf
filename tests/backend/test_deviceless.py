"""Lowering without a GPU: what it refuses, what it puts back, how it chooses."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from graftwork.backend import deviceless as package
from graftwork.backend.deviceless import DevicelessError, deviceless, gpu, kernels
from graftwork.backend.deviceless.gemm_cost import GemmShape, Tile, estimate_us, fits
from graftwork.backend.deviceless.padding import should_pad
from graftwork.plugins import torch_private

WATCHED = (
    "torch",
    "torch.cuda",
    "torch._C",
    "torch.version",
    "torch._dynamo.device_interface",
    "torch._inductor",
    "torch._subclasses",
    "torch.utils.cpp_extension",
    "triton.runtime",
    "triton.compiler",
    "executorch.backends.cuda",
)


def snapshot():
    """Every attribute, and every attribute of a class, of the modules that are substituted in."""
    found = {}
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith(WATCHED):
            continue
        for key, value in list(vars(module).items()):
            found[name, key] = id(value)
            if isinstance(value, type) and value.__module__ == name:
                for inner, member in list(vars(value).items()):
                    found[name, key, inner] = id(member)
    return found


def enter(arch="sm_90"):
    with deviceless(arch):
        pass


@pytest.mark.parametrize("leave", ["normally", "with an error", "interrupted"])
def test_everything_is_put_back(leave):
    enter()  # whatever is imported on first use is imported now
    before, environment = snapshot(), dict(os.environ)
    error = {"normally": None, "with an error": ValueError, "interrupted": KeyboardInterrupt}[
        leave
    ]
    try:
        with deviceless("sm_80") as decisions:
            assert torch.cuda.is_available()
            assert torch.cuda.get_device_capability() == (8, 0)
            assert decisions.arch == "sm_80"
            assert snapshot() != before
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    after = snapshot()
    changed = {key for key in before | after if before.get(key) != after.get(key)}
    # Memos that torch keeps of its own accord are no substitution.
    assert not {key for key in changed if key in before and key[-1] != "__cached__"}, changed
    assert dict(os.environ) == environment
    assert torch.cuda.is_available() == torch.cuda.is_initialized() or not changed


def test_an_entry_that_fails_leaves_nothing(monkeypatch):
    enter()
    before = snapshot()
    monkeypatch.setattr(package.padding, "apply", lambda patches, session: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        enter()
    assert snapshot() == before | {
        key: value for key, value in snapshot().items() if key not in before
    }
    monkeypatch.undo()
    enter()


def test_a_torch_that_was_not_checked_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(DevicelessError, match=r"2\.99"):
        enter()


def test_an_unknown_gpu_is_refused_with_the_known_ones():
    with pytest.raises(DevicelessError, match="sm_90"):
        enter("sm_12345")


def test_a_block_inside_a_block_is_refused():
    with deviceless("sm_90"), pytest.raises(DevicelessError, match="already"):
        enter("sm_80")
    enter()


def test_a_machine_without_the_toolkit_is_told_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(package.stubs.shutil, "which", lambda name: None)
    monkeypatch.setattr(package.stubs.Path, "is_file", lambda path: False)
    with pytest.raises(DevicelessError, match="CUDA_HOME"):
        enter()


def test_a_second_thread_waits_its_turn():
    seen = []

    def other():
        with deviceless("sm_80"):
            seen.append(torch.cuda.get_device_capability())

    with deviceless("sm_90"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        assert not seen and torch.cuda.get_device_capability() == (9, 0)
    thread.join(30)
    assert seen == [(8, 0)]


def test_an_operator_that_would_have_to_run_on_the_gpu_is_named():
    """aten.gru_cell: its fused kernel has no fake implementation."""
    with deviceless("sm_90"), torch_private.FakeTensorMode():
        state = torch.zeros(3, 4, device="cuda")
        weight, bias = torch.zeros(12, 4, device="cuda"), torch.zeros(12, device="cuda")
        with pytest.raises(NotImplementedError, match="_thnn_fused_gru_cell"):
            torch.gru_cell(state, state, weight, weight, bias, bias)


def test_memos_of_the_machine_do_not_outlive_the_block():
    utils = torch_private.inductor_utils()
    with deviceless("sm_90"):
        assert utils.get_max_num_sms() == gpu("sm_90").sms
    with deviceless("sm_87"):
        assert utils.get_max_num_sms() == gpu("sm_87").sms
    assert utils.get_max_num_sms.cache_info().currsize == 0


TILES = [
    Tile(m, n, k, stages, warps)
    for m, n, k, stages, warps in [
        (16, 16, 16, 2, 2),
        (32, 32, 32, 3, 4),
        (64, 64, 32, 3, 4),
        (128, 64, 64, 4, 4),
        (128, 128, 64, 3, 8),
        (128, 256, 64, 3, 8),
    ]
]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_cost_model_grows_with_the_work_and_never_picks_what_does_not_fit(arch, dtype):
    card = gpu(arch)
    small, large = GemmShape(512, 512, 512, 1, dtype), GemmShape(4096, 4096, 4096, 1, dtype)
    for tile in TILES:
        assert 0 < estimate_us(small, tile, card) < estimate_us(large, tile, card)
    assert not fits(small, Tile(256, 256, 128, 5, 8), card)


def test_a_small_product_takes_a_small_tile_and_a_large_one_a_large_tile():
    card = gpu("sm_90")

    def best(shape):
        return min(TILES, key=lambda tile: estimate_us(shape, tile, card))

    tiny = best(GemmShape(64, 64, 256, 1, "bfloat16"))
    huge = best(GemmShape(8192, 8192, 4096, 1, "bfloat16"))
    assert tiny.m * tiny.n < huge.m * huge.n


def test_a_large_unaligned_product_is_padded_and_a_small_or_aligned_one_is_not():
    card = gpu("sm_90")
    assert should_pad(GemmShape(8192, 4097, 4097, 1, "bfloat16"), 8, card)[0]
    assert not should_pad(GemmShape(64, 33, 65, 1, "bfloat16"), 8, card)[0]
    assert not should_pad(GemmShape(8192, 4096, 4096, 1, "bfloat16"), 8, card)[0]


class Node:
    """What the scheduler's question looks at."""

    def __init__(self, name, sizes=None):
        layout = SimpleNamespace(size=sizes)
        self.template = None if sizes is None else SimpleNamespace(get_layout=lambda: layout)
        self.name = name

    def is_template(self):
        return self.template is not None

    def get_template_node(self):
        return self.template

    def get_nodes(self):
        return [self]

    def get_name(self):
        return self.name


class Scheduler:
    """Compiles what it is given to a kernel that spills so much."""

    def __init__(self, spills):
        self.spills, self.compiled = spills, 0

    def compile_kernel(self, nodes):
        self.compiled += 1
        launcher = SimpleNamespace(n_regs=255, n_spills=self.spills)
        kernel = SimpleNamespace(precompile=lambda: None, launchers=[launcher])
        return None, SimpleNamespace(triton_=kernel)


@pytest.mark.parametrize("spills", [0, 12])
def test_what_follows_a_convolution_is_fused_only_where_nothing_spills(spills):
    convolution, after = Node("op1", sizes=(8, 64, 24, 24)), Node("op2")
    scheduler = Scheduler(spills)
    stock = torch_private.inductor_scheduler().speedup_by_fusion
    with deviceless("sm_90") as decisions:
        asked = torch_private.inductor_scheduler().speedup_by_fusion
        for _ in range(3):
            assert asked(scheduler, convolution, after).should_fuse == (spills == 0)
    assert scheduler.compiled == 1, "asked again, it compiles again"
    (choice,) = decisions.fusions
    assert (choice.template, choice.epilogue, choice.spilled) == ("op1", "op2", spills)
    assert torch_private.inductor_scheduler().speedup_by_fusion is stock


def test_what_follows_a_matrix_product_is_fused_without_a_question():
    scheduler = Scheduler(12)
    with deviceless("sm_90") as decisions:
        asked = torch_private.inductor_scheduler().speedup_by_fusion
        assert asked(scheduler, Node("op1", sizes=(64, 64)), Node("op2")).should_fuse
    assert not scheduler.compiled and not decisions.fusions


def test_a_convolution_is_priced_as_the_product_it_is(monkeypatch):
    """Its window is in the description alone on torch 2.11."""
    monkeypatch.setattr(torch_private, "inductor_size_hint", int)
    sizes = [(4, 6, 8, 8), (10, 3, 3, 5)]
    choice = SimpleNamespace(
        input_nodes=[SimpleNamespace(get_size=lambda size=size: size) for size in sizes],
        layout=SimpleNamespace(size=(4, 10, 7, 6), dtype=torch.bfloat16),
        log_info={"allow_tf32": "False"},
        description="ALLOW_TF32=False, BLOCK_K=32, GROUPS=2, KERNEL_H=3, KERNEL_W=5, num_warps=4",
    )
    shape = kernels._gemm_shape("convolution", choice)
    assert (shape.m, shape.n, shape.k, shape.batch) == (4 * 7 * 6, 5, 3 * 15, 2)
    assert shape.gathered


def test_a_padded_product_is_asked_about_without_a_guard():
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        torch.nn.ReLU(), (torch.zeros(7, 3),), dynamic_shapes=({0: rows},)
    )
    (value,) = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"]
    assert [torch_private.size_hint(size) for size in value.shape] == [7, 3]
    assert not value.shape[0].node.shape_env.guards


CHANNELS_LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format


@pytest.mark.parametrize(
    ("device", "dtype", "images", "expected"),
    [
        ("cuda", torch.bfloat16, CHANNELS_LAST, CHANNELS_LAST),
        ("cuda", torch.float32, CHANNELS_LAST, CHANNELS_LAST),
        ("cuda", torch.float32, CONTIGUOUS, CONTIGUOUS),
        ("cuda", torch.float64, CHANNELS_LAST, CONTIGUOUS),
        ("cpu", torch.float64, CHANNELS_LAST, CHANNELS_LAST),
    ],
)
def test_a_convolution_answers_in_the_layout_that_it_has_where_cudnn_is(
    device, dtype, images, expected
):
    """Else a kernel that turns the result follows it, and a norm and an activation fuse less."""
    with deviceless("sm_90"), torch_private.FakeTensorMode():
        x = torch.empty(8, 16, 20, 20, dtype=dtype, device=device).to(memory_format=images)
        weight = torch.empty(32, 16, 3, 3, dtype=dtype, device=device)
        result = torch.nn.functional.conv2d(x, weight)
        assert result.is_contiguous(memory_format=expected)
