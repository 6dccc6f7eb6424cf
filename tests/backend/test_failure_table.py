"""What the stock CUDA delegate cannot do: said aloud, or lowered without a word and then caught.

Each row is a public op, how the stock delegate fails on it, and the symbol or kernel name that
shows it. The audit must catch every silent row; our target must refuse each with its source
line, or lower it clean where a plugin that provides it is installed.
"""

import re

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_library
from graftwork.backend.deviceless import deviceless
from graftwork.lowering import lower
from graftwork.plugins import installed_plugins
from graftwork.plugins.errors import NotLowerableError

X = torch.randn(64)
I = torch.randint(0, 64, (100,))  # noqa: E741
V = torch.randn(100)
SILENT, LOUD = "silent", "loud"

# name: (function, inputs, how, what shows it, the plugin that provides it, architecture)
TABLE = {
    "scatter_reduce amax": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
        (X, I, V),
        SILENT,
        "aoti_torch_cuda_scatter_reduce_two_out",
        "scatter-reduce",
        "sm_90",
    ),
    "scatter_reduce mean": (
        lambda x, i, v: x.scatter_reduce(0, i, v, "mean"),
        (X, I, V),
        SILENT,
        "aoti_torch_cuda_scatter_reduce_two_out",
        "scatter-reduce",
        "sm_90",
    ),
    "scatter of int64": (
        lambda x, i, v: x.scatter(0, i, v),
        (torch.arange(64), I, torch.arange(100)),
        SILENT,
        "aoti_torch_cuda_scatter_src_out",
        "scatter",
        "sm_90",
    ),
    "scatter_add of int64": (
        lambda x, i, v: x.scatter_add(0, i, v),
        (torch.arange(64), I, torch.arange(100)),
        SILENT,
        "aoti_torch_cuda_scatter_reduce_two_out",
        "scatter-reduce",
        "sm_90",
    ),
    "bfloat16 accumulating index_put": (
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        (X.bfloat16(), I, V.bfloat16()),
        SILENT,
        "aoti_torch_index_put_out",
        "index-put",
        "sm_80",
    ),
    "float64": (lambda x: x + 1, (X.double(),), SILENT, "aoti_torch_dtype_float64", None, "sm_90"),
    "float .item()": (
        lambda x, t: x * t.item(),
        (X, torch.tensor(1.5)),
        SILENT,
        "aoti_torch_item_float32",
        "runtime-calls",
        "sm_90",
    ),
    "antialiased resize": (
        lambda x: nn.functional.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
        (torch.randn(1, 1, 9, 9),),
        LOUD,
        "_upsample_bilinear2d_aa",
        "antialiased-resize",
        "sm_90",
    ),
    "mask index": (
        lambda x: x[x > 0],
        (X,),
        LOUD,
        "Pending unbacked symbols",
        "index-put",
        "sm_90",
    ),
    "topk of a long row": (
        lambda x: torch.topk(x, 3).values,
        (torch.randn(5000),),
        LOUD,
        "topk",
        "sort",
        "sm_90",
    ),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (X,), LOUD, "_fft_r2c", None, "sm_90"),
    "median": (lambda x: torch.median(x), (X,), LOUD, "median", "sort", "sm_90"),
    "cdist": (torch.cdist, (torch.randn(4, 3), torch.randn(5, 3)), LOUD, "_cdist", None, "sm_90"),
    "histc": (lambda x: torch.histc(x, 8, 0.0, 1.0), (X,), LOUD, "histc", None, "sm_90"),
    "linalg.inv": (torch.linalg.inv, (torch.eye(4),), LOUD, "linalg_inv_ex", None, "sm_90"),
    "multinomial": (
        lambda x: torch.multinomial(x, 2),
        (torch.rand(8),),
        LOUD,
        "multinomial",
        None,
        "sm_90",
    ),
}
DEFAULT = ("scatter_reduce amax", "antialiased resize")


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def stock_libraries(function, inputs, arch):
    """The libraries that the stock delegate compiles, or the error that it raises."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    program = torch.export.export(Model(function), inputs)
    spec = CudaBackend.generate_method_name_compile_spec("forward")
    with deviceless(arch):
        edge = to_edge_transform_and_lower(
            program,
            partitioner=[CudaPartitioner([spec])],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
    buffers = edge._named_data_store.get_named_data_store_output().buffers
    return [bytes(buffer) for buffer in buffers if bytes(buffer[:4]) == b"\x7fELF"]


def check_stock(name):
    function, inputs, how, shows, _plugin, arch = TABLE[name]
    if how == LOUD:
        with pytest.raises(RuntimeError, match=f"missing fallback kernels(?s:.*){shows}|^{shows}"):
            stock_libraries(function, inputs, arch)
        return
    (library,) = stock_libraries(function, inputs, arch)
    findings = audit_library(library, runtime="1.5", archs=[arch]).findings
    assert shows in {finding.name for finding in findings}


def check_ours(name, folder):
    function, inputs, _how, shows, plugin, arch = TABLE[name]
    arguments = {"target": "cuda", "archs": [arch], "directory": folder, "verify": False}
    if plugin in {p.id for p in installed_plugins() if not p.broken}:
        lower(Model(function), inputs, **arguments)  # audits, and raises on any miss
        return
    with pytest.raises(NotLowerableError) as caught:
        lower(Model(function), inputs, **arguments)
    message = str(caught.value)
    assert shows.removeprefix("aoti_torch_") in message
    assert re.search(r"test_failure_table\.py:\d+", message)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", DEFAULT)
def test_the_stock_delegate_fails_and_ours_says_so(name, tmp_path):
    check_stock(name)
    check_ours(name, tmp_path)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in DEFAULT])
def test_the_whole_table(name, tmp_path, deep):
    check_stock(name)
    check_ours(name, tmp_path)
