"""A kernel is compiled into a library without being launched on made-up inputs."""

from types import SimpleNamespace

import pytest

from graftwork.backend.patches import compiled_not_launched as patch
from graftwork.plugins import torch_private


def kernel(launched, *, custom=True, saved=True, configs=1):
    """What Inductor keeps of a kernel, of which every launcher notes its launches."""

    def precompile():
        for number in range(configs):

            def launcher(*args, number=number, **kwargs):
                launched.append(number)

            launcher.store_cubin, launcher.bin = saved, f"binary {number}"
            made.launchers.append(launcher)

    made = SimpleNamespace(custom_kernel=custom, launchers=[], precompile=precompile)
    return made


@pytest.fixture
def run(monkeypatch):
    """Inductor's run, cut down to compiling, saving and launching, with the patch held."""
    tuner = torch_private.inductor_triton_heuristics().CachingAutotuner
    saved = []

    def stock(self, *args, **kwargs):
        if not self.launchers:
            self.precompile()
        launcher = self.launchers[0]
        saved.append(launcher.bin)
        launcher(*args, **kwargs)

    monkeypatch.setattr(tuner, "run", stock)

    def run_patched(made):
        with patch.patch_compile():
            tuner.run(made, 1, 2, stream=0)
        assert tuner.run is stock
        return saved

    return run_patched


def test_a_kernel_with_nothing_to_tune_is_saved_and_not_launched(run):
    launched = []
    assert run(kernel(launched)) == ["binary 0"]
    assert launched == []


@pytest.mark.parametrize("other", [{"custom": False}, {"saved": False}, {"configs": 2}], ids=str)
def test_other_kernels_are_launched(run, other):
    """Inductor's own, those of a model compiled in another thread, and those to be tuned."""
    launched = []
    run(kernel(launched, **other))
    assert launched == [0]
