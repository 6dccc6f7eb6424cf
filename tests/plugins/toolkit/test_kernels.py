"""The launch helper runs one kernel on the CPU, records it while tracing, and keeps order maps."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import (
    cdiv,
    from_ordered_key,
    is_interpreted,
    kernel_op,
    launch,
    ordered_key,
)
from graftwork.plugins.torch_private import FakeTensorMode, TorchDispatchMode

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
PATCHED = ("load", "store", "arange", "reduce", "associative_scan")


def patched() -> list[object]:
    """What interpreting a kernel replaces in Triton."""
    replaced = [getattr(tl.core, name) for name in PATCHED]
    builder = interpreter.InterpreterBuilder
    replaced += [builder.create_dot, builder.binary_op]
    return [*replaced, JITFunction.__call__, interpreter._convert_float]


UNPATCHED = patched()  # read while tests are collected, before any kernel ran
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


@triton.jit
def round_trip(x, key, back, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    k = ordered_key(tl.load(x + o, mask=o < n))
    tl.store(key + o, k.to(tl.int64), mask=o < n)
    tl.store(back + o, from_ordered_key(k.to(tl.int64), x.dtype.element_ty), mask=o < n)


@triton.jit
def prefix(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.cumsum(tl.load(x + o, mask=o < n, other=0), 0), mask=o < n)


def keys(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    key, back = torch.empty(x.shape, dtype=torch.int64), torch.empty_like(x)
    launch(round_trip, (1,), x, key, back, x.numel(), BLOCK=16)
    return key, back


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_keys_keep_the_order_and_come_back(dtype: torch.dtype) -> None:
    inf = float("inf")
    x = torch.tensor([-inf, -2.5, -6e-8, -0.0, 0.0, 6e-8, 3, inf], dtype=dtype)
    key, back = keys(x)
    assert torch.equal(key, key.sort().values) and key.unique().numel() == x.numel()
    assert torch.equal(back, x) and torch.equal(back.signbit(), x.signbit())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_nan_is_the_one_greatest_key(dtype: torch.dtype) -> None:
    nan = torch.tensor([float("nan"), float("inf")], dtype=dtype)
    key, back = keys(torch.stack([nan[0].abs(), -nan[0].abs(), nan[1]]))
    assert key[0] == key[1] and key[0] > key[2]
    assert back[:2].isnan().all()


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_keys_are_the_integers(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    x = torch.tensor([limits.min, 0, 1, limits.max], dtype=dtype)
    key, back = keys(x)
    assert torch.equal(back, x)
    assert torch.equal(key, x.long())


def test_functions_of_triton_itself_are_interpreted_too() -> None:
    x = torch.arange(5)
    out = torch.empty_like(x)
    launch(prefix, (1,), x, out, 5, BLOCK=8)
    assert out.tolist() == [0, 1, 3, 6, 10]


@triton.jit
def narrow(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n).to(out.dtype.element_ty), mask=o < n)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_interpreter_rounds_to_nearest(dtype):
    x = torch.randn(60) * torch.logspace(-4, 4, 60)
    x[:3] = torch.tensor([float("nan"), float("inf"), 1 + 2**-9])
    out = torch.empty(60, dtype=dtype)
    launch(narrow, (1,), x, out, 60, BLOCK=64)
    assert torch.equal(out.nan_to_num(7), x.to(dtype).nan_to_num(7))


@triton.jit
def arithmetic(x, y, product, difference, smaller, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    a, b = tl.load(x + place), tl.load(y + place)
    tl.store(product + place, tl.dot(a, b))
    tl.store(difference + place, a - b)
    tl.store(smaller + place, a < b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_interpreter_computes_with_numbers_not_bits(dtype):
    x, y = torch.randn(16, 16).to(dtype), torch.randn(16, 16).to(dtype)
    product, difference, smaller = torch.empty(16, 16), torch.empty_like(x), x > 0
    launch(arithmetic, (1,), x, y, product, difference, smaller, BLOCK=16)
    torch.testing.assert_close(product, x.float() @ y.float())
    assert torch.equal(difference, x - y) and torch.equal(smaller, x < y)


@triton.jit
def count_programs(x, out):
    tl.store(out, tl.num_programs(0))


def test_an_empty_grid_runs_nothing_and_an_empty_later_dim_counts_as_one() -> None:
    """CUDA refuses a grid without programs, and an empty tensor has no memory to touch."""
    out = torch.zeros(1, dtype=torch.int64)
    launch(count_programs, (0, 3), out, out)
    assert out.item() == 0
    launch(count_programs, (2, 0), out, out)
    assert out.item() == 2


def test_tracing_keeps_symbolic_shapes() -> None:
    @kernel_op("graftwork_test::prefix")
    def op(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        launch(prefix, (cdiv(x.numel(), 8),), x, out, x.numel(), BLOCK=8)
        return out

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return op(x)

    dynamic = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Model(), (torch.arange(5),), dynamic_shapes=dynamic)
    target = torch.ops.graftwork_test.prefix.default
    assert program.graph.find_nodes(op="call_function", target=target)
    assert program.module()(torch.arange(3)).tolist() == [0, 1, 3]
    assert program.module()(torch.arange(7))[-1] == 21


@kernel_op("graftwork_test::total")
def total(xs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([x.detach() for x in xs]).sum(0)


class Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_operators_are_called_past_the_dispatcher(monkeypatch) -> None:
    monkeypatch.setattr(total, "op", None)
    assert total([torch.ones(2), torch.ones(2)]).tolist() == [2, 2]


def test_whoever_watches_operators_sees_them() -> None:
    with Watch() as watch:
        total([torch.ones(2)])
    assert torch.ops.graftwork_test.total.default in watch.seen


def test_what_stands_for_data_goes_through_the_operator(monkeypatch) -> None:
    fake = FakeTensorMode().from_tensor(torch.ones(2))
    monkeypatch.setattr(total, "op", lambda xs: "dispatched")
    assert total([fake]) == "dispatched"


def test_what_is_to_be_negated_or_conjugated_still_goes_through_the_operator(monkeypatch) -> None:
    """The dispatcher does it; memory holds the number without its sign."""
    turned = torch.complex(torch.ones(2), torch.ones(2)).conj()
    assert total([turned.imag]).tolist() == [-1, -1]
    monkeypatch.setattr(total, "op", lambda xs: "dispatched")
    assert total([turned.imag]) == "dispatched" and total([turned]) == "dispatched"


def test_a_gradient_through_an_operator_is_refused() -> None:
    """Past the dispatcher the result would be one that needs none."""
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="autograd"):
        total([x, x]).sum().backward()


def test_operators_are_compiled_as_such() -> None:
    seen = []

    def backend(graph, inputs):
        seen.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    x = torch.ones(2)
    assert torch.compile(lambda x: total([x]), backend=backend)(x).tolist() == [1, 1]
    assert torch.ops.graftwork_test.total.default in seen


def test_the_interpreter_leaves_triton_as_it_was() -> None:
    test_functions_of_triton_itself_are_interpreted_too()
    assert patched() == UNPATCHED


def test_threads_that_interpret_at_once_leave_triton_as_it_was() -> None:
    x = torch.arange(8)

    def run(_: int) -> list[int]:
        out = torch.empty_like(x)
        launch(prefix, (1,), x, out, 8, BLOCK=8)
        return out.tolist()

    with ThreadPoolExecutor(8) as pool:
        assert set(map(tuple, pool.map(run, range(200)))) == {tuple(x.cumsum(0).tolist())}
    assert patched() == UNPATCHED


def test_a_device_without_kernels_is_refused() -> None:
    x = torch.empty(4, dtype=torch.int64, device="meta")
    with pytest.raises(RuntimeError, match="not on meta"):
        launch(prefix, (1,), x, x, 4, BLOCK=8)


def test_a_kernel_runs_on_the_device_of_its_tensors(monkeypatch) -> None:
    """Triton launches on the current one, where their addresses mean something else."""
    current, ran, entered = [0], [], []

    @contextmanager
    def device(index):
        entered.append(index)
        before, current[0] = current[0], index
        yield
        current[0] = before

    class Kernel:
        fn = count_programs

        def __getitem__(self, grid):
            return lambda *args, **options: ran.append((current[0], grid, args))

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    for index in (0, 1, 0):
        kernels._launch_on(index, Kernel(), (3,), (index,), {"BLOCK": 8})
    assert ran == [(0, (3,), (0,)), (1, (3,), (1,)), (0, (3,), (0,))]
    assert entered == [1] and current == [0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_a_kernel_runs_on_another_gpu_than_the_current_one() -> None:
    x = torch.arange(5, device="cuda:1")
    out = torch.empty_like(x)
    with torch.cuda.device(0):
        launch(prefix, (1,), x, out, 5, BLOCK=8)
    torch.cuda.synchronize(1)
    assert out.tolist() == [0, 1, 3, 6, 10]


def test_a_traced_tensor_is_not_taken_for_one_that_is_interpreted():
    """A program for a GPU is traced with tensors on the CPU; it must not get small tiles."""
    real = torch.empty(3)
    assert is_interpreted(real)
    with FakeTensorMode() as mode:
        assert not is_interpreted(mode.from_tensor(real))
