"""Models that no one here wrote lower on the CPU and equal eager, with the plugins they need.

A handful runs by default, the rest in the deep profile.
"""

import importlib.util
from pathlib import Path

import pytest

from graftwork import lower
from graftwork.plugins.errors import NotLowerableError

MISSING = [name for name in ("transformers", "timm") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"the optional extra 'models' is not installed: no {MISSING}"
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "models.py"

# What each model needs, beside strip-asserts: the plugins that fire, and how often.
DEFAULT = {
    "SmolVLMVision": {"bucketize": 2},
    "Mixtral": {},
    "Detr": {},
    "ViT": {"antialiased-resize": 1},
    "ConvNeXt": {},
    "WhisperEncoder": {"conv1d-to-conv2d": 2},
}
DEEP = {
    "Swin": {},
    "Mamba": {"conv1d-to-conv2d": 1},
    "Clip": {},
    "T5Encoder": {},
}


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("library_models", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(model, expected, directory):
    lowered = lower(model(), model.example_inputs(), directory=directory)
    fired = {plugin.id: plugin.fired for plugin in lowered.report.plugins if plugin.fired}
    fired.pop("strip-asserts", None)
    assert fired == expected
    assert lowered.report.outputs and all(output.equal for output in lowered.report.outputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEFAULT)
def test_lowers_and_equals_eager(models, name, tmp_path):
    check(getattr(models, name), DEFAULT[name], tmp_path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DEEP)
def test_lowers_and_equals_eager_in_the_deep_profile(models, name, tmp_path, deep):
    check(getattr(models, name), DEEP[name], tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_what_executorch_cannot_plan_is_one_clear_error(models, tmp_path, deep):
    """SmolVLM drops padded images by a mask: how many are left is known only at run time."""
    with pytest.raises(NotLowerableError, match="ExecuTorch refused .* data-dependent"):
        lower(models.SmolVLM(), models.SmolVLM.example_inputs(), directory=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore")
def test_it_lowers_to_a_package_that_equals_eager(models, tmp_path, deep):
    """Wrong by 0.5 without the patch unbacked-convolution."""
    model = models.SmolVLM
    lowered = lower(model(), model.example_inputs(), target="aoti", directory=tmp_path)
    assert lowered.report.outputs and all(output.equal for output in lowered.report.outputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*DEFAULT, *DEEP, "SmolVLM"])
def test_lowers_to_cuda_with_a_clean_audit(models, name, tmp_path, deep):
    """Stock: a convolution over a length, DETR's queries, attention, a mask, top-k cannot."""
    model = getattr(models, name)
    settings = {"target": "cuda", "archs": ["sm_90"], "verify": False}
    lowered = lower(model(), model.example_inputs(), directory=tmp_path, **settings)
    assert any(file.suffix == ".pte" for file in lowered.report.files)
