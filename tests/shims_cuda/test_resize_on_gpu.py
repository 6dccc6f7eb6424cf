"""On a GPU: the resize kernels against ATen's CPU kernels, and in a captured graph."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from graftwork.plugins.toolkit.resample import BICUBIC, BILINEAR
from graftwork.shims_cuda.resize.operator import resize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

FILTERS = {"bilinear": BILINEAR, "bicubic": BICUBIC}
SIZES = {
    "1080p": ((1, 3, 1080, 1920), (224, 224)),
    "4k": ((1, 1, 2160, 3840), (512, 512)),
    "odd": ((2, 3, 301, 333), (57, 61)),
    "strong": ((1, 2, 941, 941), (10, 10)),
    "grow": ((1, 3, 60, 70), (224, 301)),
    "one-axis": ((1, 3, 200, 120), (200, 31)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("mode", FILTERS)
@pytest.mark.parametrize("name", SIZES)
def test_kernels_equal_aten_on_the_cpu(
    name: str, mode: str, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    shape, size = SIZES[name]
    x = torch.rand(shape)
    if dtype == torch.uint8:
        x = x * 256
    else:
        x[0, 0, 11, 5] = math.nan
        if mode == "bilinear":
            x[-1, -1, 20, 20] = math.inf
    x = x.to(dtype).to(memory_format=layout)
    exact = x if dtype == torch.uint8 else x.float()
    expected = F.interpolate(exact, size, mode=mode, antialias=True)
    for _ in range(3):  # a race would change its mind
        result = resize(x.cuda(), size, FILTERS[mode], False, (None, None)).cpu()
        assert result.dtype == dtype and result.stride() == expected.stride()
        if dtype == torch.uint8:
            assert torch.equal(result, expected)
            continue
        tolerance = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(
            result.float(), expected, rtol=tolerance, atol=2e-5, equal_nan=True
        )


def test_a_captured_graph_replays_on_fresh_images() -> None:
    x = torch.rand(2, 3, 301, 333, device="cuda")
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        resize(x, (57, 61), BILINEAR, False, (None, None))
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            result = resize(x, (57, 61), BILINEAR, False, (None, None))
    for _ in range(3):
        x.uniform_()
        graph.replay()
        torch.cuda.synchronize()
        expected = F.interpolate(x.cpu(), (57, 61), mode="bilinear", antialias=True)
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_more_than_two_to_the_31_elements(layout: torch.memory_format) -> None:
    """A picture that repeats itself, shrunk by a whole factor, does so too: its last rows and
    columns, past 2^31 elements, equal the first, but for the borders."""
    tile = torch.rand(1, 2, 64, 64, device="cuda", dtype=torch.float16)
    x = tile.repeat(1, 1, 540, 540).contiguous(memory_format=layout)
    assert x.numel() > 2**31
    small = resize(x, (2160, 2160), BILINEAR, False, (None, None))
    torch.testing.assert_close(small[..., -8:-4, -8:-4], small[..., 4:8, 4:8])
    expected = F.interpolate(
        tile.repeat(1, 1, 3, 3).float(), (12, 12), mode="bilinear", antialias=True
    )
    torch.testing.assert_close(
        small[..., 4:8, 4:8].float(), expected[..., 4:8, 4:8], atol=1e-3, rtol=0
    )
    del x
    grown = resize(small[..., :2120, :2120], (33920, 33920), BILINEAR, False, (None, None))
    assert grown.numel() > 2**31
    torch.testing.assert_close(grown[..., -128:-64, -128:-64], grown[..., 64:128, 64:128])
