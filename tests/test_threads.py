"""Threads that lower at once do not meet (pytorch/pytorch#168042)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from graftwork import lower

MASKED = "masked-copy-to-where"
DETACH = "detach-copy"


class MaskedCopy(nn.Module):
    """Keeps the positive elements, scaled; `factor` tells the models apart."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        out = torch.zeros_like(x)
        mask = x > 0
        out[mask] = x[mask]
        return out.detach() * self.factor


SETS = [
    {},
    {"disable": [MASKED]},
    {"disable": [DETACH]},
    {"disable": ["all"]},
    {"disable": ["all"], "enable": [MASKED]},
    {"disable": ["all"], "enable": [DETACH]},
    {"disable": ["all"], "enable": [MASKED, DETACH]},
    {"disable": ["strip-asserts"]},
]
# Which of the two plugins fires under each set.
FIRED = [(1, 1), (0, 1), (1, 0), (0, 0), (1, 0), (0, 1), (1, 1), (1, 1)]


@pytest.mark.filterwarnings("ignore")
def test_eight_threads_with_eight_plugin_sets_each_get_their_own_result(tmp_path):
    start = threading.Barrier(len(SETS))

    def work(number):
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(number + 1, 3, generator=generator)
        start.wait()
        lowered = lower(
            MaskedCopy(number + 2.0), (x,), directory=tmp_path / str(number), **SETS[number]
        )
        return lowered, x

    with ThreadPoolExecutor(len(SETS)) as pool:
        results = list(pool.map(work, range(len(SETS))))
    for number, (lowered, x) in enumerate(results):
        fired = {plugin.id: plugin.fired for plugin in lowered.report.plugins}
        assert (fired[MASKED], fired[DETACH]) == FIRED[number]
        (ours,) = lowered(x)
        torch.testing.assert_close(ours, x.relu() * (number + 2.0))
        assert lowered.artifact == tmp_path / str(number) / "masked_copy.pte"
