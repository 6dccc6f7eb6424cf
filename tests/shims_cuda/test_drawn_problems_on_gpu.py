"""On a GPU: the kernels against eager on the problems that their properties draw.

`--deep` draws a thousand for each promise. The CPU is the reference where CUDA eager keeps no
order, refuses a dtype, or sorts signed NaN elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from promises_on_gpu import PLUGINS, assert_holds, promises_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


PROMISES = [(plugin, name) for plugin in PLUGINS for name in promises_of(plugin)]


@pytest.mark.parametrize(("plugin", "name"), PROMISES)
def test_problems_as_drawn_everywhere(
    plugin: str, name: str, examples: int, one_kernel_a_dtype: None
) -> None:
    assert_holds(plugin, replace(promises_of(plugin)[name], refused=()), 5 * examples, 99)


@pytest.mark.parametrize(("plugin", "name"), PROMISES)
def test_kernels_compiled_for_their_sizes(plugin: str, name: str) -> None:
    assert_holds(plugin, replace(promises_of(plugin)[name], refused=()), 10, 7)
