"""The attention kernel for Hopper GPUs: which calls take it, and that programs can hold it.

What it computes is tested on such a GPU: test_hopper_attention_on_gpu.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
from torch._higher_order_ops import triton_kernel_wrap as analysis
from triton.backends.compiler import GPUTarget

from graftwork.plugins.toolkit import gluon, kernels
from graftwork.shims_cuda.attention import choice, launch, stand_in_kernels, tiles
from graftwork.shims_cuda.attention.dense import attend_dense
from graftwork.shims_cuda.attention.packed import attend_packed

pytestmark = pytest.mark.skipif(
    not gluon.available(), reason=f"Gluon of Triton {triton.__version__} was not checked"
)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that calls launch, which do not run; plans apart."""
    launched: list[str] = []

    def note(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
        launched.append(kernel.fn.__name__)

    monkeypatch.setattr(launch, "launch", note)
    monkeypatch.setattr(kernels, "is_interpreted", lambda tensor: False)
    monkeypatch.setattr(
        launch, "_plan", lambda problem, out, tiles: out.new_empty(0, dtype=torch.int32)
    )
    return launched


def packed(
    size: int = 128,
    dtype: torch.dtype = torch.bfloat16,
    archs: tuple[str, ...] = ("sm_90",),
    max_k: int = 4096,
    query: torch.Tensor | None = None,
    **options: Any,
) -> Any:
    key = torch.zeros(8, 2, size, dtype=dtype)
    cu = torch.tensor([0, 8], dtype=torch.int32)
    query = key if query is None else query
    call = functools.partial(attend_packed, archs=archs, precision="ieee", flash2=True)
    return call(query, key, key, cu, cu, 200, max_k, **options)


def dense(*shape: int, archs: tuple[str, ...] = ("sm_90",), **options: Any) -> Any:
    x = torch.zeros(shape, dtype=torch.float16)
    return attend_dense(x, x, x, archs=archs, precision="ieee", **options)


def test_calls_that_take_it(taken: list[str]) -> None:
    packed()
    packed(dtype=torch.float16)
    packed(is_causal=True)
    packed(query=torch.zeros(8, 6, 128, dtype=torch.bfloat16))
    packed(size=64)
    dense(2, 4, 200, 64)
    dense(2, 4, 200, 128)
    dense(2, 4, 200, 128, is_causal=True)
    projection = torch.zeros(2, 200, 3, 4, 128, dtype=torch.float16)
    parts = [projection[:, :, n].transpose(1, 2) for n in range(3)]
    attend_dense(*parts, archs=("sm_90",), precision="ieee")
    assert taken == ["hopper_stand_in"] * 9


@pytest.mark.parametrize(
    "call",
    [
        lambda: packed(archs=("sm_80",)),
        lambda: packed(archs=("sm_80", "sm_90")),
        lambda: packed(archs=("sm_100",)),
        lambda: packed(size=32),
        lambda: packed(size=96),
        lambda: packed(size=256),
        lambda: packed(dtype=torch.float32),
        lambda: packed(scale=-1.0),
        lambda: packed(window_size=[3, 0]),
        lambda: packed(window_size=[-1, 3]),
        lambda: packed(query=torch.zeros(8, 2, 132, dtype=torch.bfloat16)[:, :, 2:130]),
        lambda: packed(
            query=torch.zeros(8 * 258, dtype=torch.bfloat16).view(8, 2, 129)[..., :128]
        ),
        lambda: dense(2, 4, 200, 128, attn_mask=torch.zeros(200, dtype=torch.bool)),
        lambda: dense(2, 4, 200, 128, scale=-1.0),
    ],
)
def test_calls_that_do_not(call: Callable[[], Any], taken: list[str]) -> None:
    """Other GPUs, head sizes and dtypes; negative scales, windows, masks; rows off 16 bytes."""
    call()
    assert set(taken) == {"forward_kernel"}


def test_a_release_of_triton_that_was_not_checked_gets_the_other_kernel(
    taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "__version__", "99.1.0")
    packed()
    assert set(taken) == {"forward_kernel"}


def test_in_the_interpreter_the_other_kernel_runs() -> None:
    query, key, value = (torch.randn(1, 2, 70, 128).half() for _ in range(3))
    ours = attend_dense(query, key, value, archs=("sm_90",), precision="ieee")
    expected = F.scaled_dot_product_attention(query.float(), key.float(), value.float())
    torch.testing.assert_close(ours.float(), expected, rtol=1e-2, atol=2e-3)


def test_the_stand_in_has_its_parameters_and_writes_what_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in = stand_in_kernels.hopper_stand_in
    behind = gluon.kernel_behind(stand_in)
    assert behind is not None
    for one, other in zip(stand_in.params, behind.params, strict=True):
        assert (one.name, one.is_constexpr, one.do_not_specialize) == (
            *(other.name, other.is_constexpr),
            other.do_not_specialize,
        )
    target = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))
    monkeypatch.setattr(triton.runtime.driver, "_active", target)
    given: dict[str, Any] = {p.name: True if p.is_constexpr else 7 for p in stand_in.params}
    given |= {name: torch.zeros(2).half() for name in ("query", "key", "value", "out")}
    given |= {"lse": torch.zeros(2), "plan": torch.zeros(2, dtype=torch.int32), "scale": 0.5}
    if hasattr(analysis, "identify_accessed_tensors"):  # torch 2.13
        accesses = analysis.identify_accessed_tensors(stand_in, given, {}).read_writes
        assert {read.name for read in accesses.reads} >= {"query", "key", "value", "plan"}
        written = {write.name for write in accesses.writes}
    else:
        written = set(analysis.identify_mutated_tensors(stand_in, given, {}))
    assert written == {"out", "lse", "plan"}


def test_it_fits_shared_memory() -> None:
    for size in (64, 128):
        t = tiles.hopper_tiles(size, size, 2, ("sm_90",), 16)
        assert t is not None
        assert 2 * size * (2 * t.rows + 2 * t.stages * t.keys) + 4096 <= 227 * 1024


@pytest.mark.parametrize(
    ("max_k", "causal", "short"),
    [(512, True, 1), (513, True, 0), (512, False, 0)],
)
def test_causal_batches_of_short_sequences_take_one_loop(
    max_k: int, causal: bool, short: int
) -> None:
    call = choice.Call(
        200, max_k, 128, 128, 2, "ieee", ("sm_90",), 1, 1, 1, 4 if causal else 0, True, True, True
    )
    assert choice.choose(call)[1].short == short


def test_it_compiles(compile_everywhere: Callable[..., set[str]]) -> None:
    assert compile_everywhere(lambda: packed(), backend="cuda") == {
        "plan_kernel",
        "hopper_stand_in",
    }


FORMS: dict[str, Callable[[], Any]] = {
    "packed-float16": lambda: packed(dtype=torch.float16),
    "packed-causal": lambda: packed(is_causal=True, dtype=torch.float16),
    "packed-short": lambda: packed(is_causal=True, dtype=torch.float16, max_k=512),
    "packed-64": lambda: packed(size=64, is_causal=True),
    "dense": lambda: dense(2, 4, 200, 128),
    "dense-causal": lambda: dense(1, 1, 200, 128, is_causal=True),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_compiles(
    form: str, deep: None, compile_everywhere: Callable[..., set[str]]
) -> None:
    assert "hopper_stand_in" in compile_everywhere(FORMS[form], every=True, backend="cuda")


def test_the_stand_in_itself_does_not_assemble() -> None:
    """Where the patch `gluon-kernels` is disabled no wrong program is made."""
    stand_in = stand_in_kernels.hopper_stand_in
    pointers = {name: "*fp16" for name in ("query", "key", "value", "out")}
    signature = {
        p.name: pointers.get(p.name, "constexpr" if p.is_constexpr else "i32")
        for p in stand_in.params
    } | {"lse": "*fp32", "plan": "*i32", "scale": "fp32"}
    constants = {p.name: True for p in stand_in.params if p.is_constexpr}
    source = triton.compiler.ASTSource(stand_in, signature, constants)
    with pytest.raises(Exception, match="lower_with_the_plugin_gluon_kernels"):
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
