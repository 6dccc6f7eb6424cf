"""The example policy lowers through the plugins and equals eager."""

import importlib.util
from pathlib import Path

import pytest
import torch

from graftwork import lower

EXAMPLE = Path(__file__).parents[2] / "examples" / "robot_policy.py"
FIRED = {
    "antialiased-resize": 2,
    "bucketize": 2,
    "masked-copy-to-where": 1,
    "varlen-attention": 1,
}


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("robot_policy", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def lowered(example, tmp_path_factory):
    return lower(
        example.RobotPolicy(), example.example_inputs(), directory=tmp_path_factory.mktemp("cpu")
    )


def fired(lowered):
    return {plugin.id: plugin.fired for plugin in lowered.report.plugins}


def test_every_plugin_the_policy_needs_fires(lowered):
    counts = fired(lowered)
    assert {name: counts[name] for name in FIRED} == FIRED
    assert counts["strip-asserts"] > 0


def test_every_output_equals_eager_with_the_reference_for_attention_named(lowered):
    assert [output.shape for output in lowered.report.outputs] == [(2, 6), (2, 6), (2,)]
    assert all(output.equal for output in lowered.report.outputs)
    assert max(output.max_abs_diff for output in lowered.report.outputs) < 1e-5
    assert lowered.report.references == ["torch_attn._varlen_attn.default"]


def test_the_checks_that_went_are_in_the_report(lowered):
    (stripped,) = (p for p in lowered.report.plugins if p.id == "strip-asserts")
    details = " ".join(event.detail for event in stripped.events)
    assert "loc of MultivariateNormal is valid" in details
    assert "scale_tril of MultivariateNormal is valid" in details
    assert "Eq(u0, 2)" in details


def test_a_camera_that_is_absent_changes_nothing(example, lowered):
    front, wrist, present, joints, noise = example.example_inputs()
    other = front.clone()
    other[1] = 0.5
    for ours, same in zip(
        lowered(front, wrist, present, joints, noise),
        lowered(other, wrist, present, joints, noise),
        strict=True,
    ):
        assert torch.equal(ours, same)


def test_equal_requests_give_equal_bytes(example, lowered, tmp_path):
    again = lower(
        example.RobotPolicy(), example.example_inputs(), directory=tmp_path, verify=False
    )
    assert again.artifact.read_bytes() == lowered.artifact.read_bytes()


def test_without_the_pass_the_mask_index_stays_and_the_report_says_so(example, tmp_path):
    kept = lower(
        example.RobotPolicy(),
        example.example_inputs(),
        directory=tmp_path,
        disable=["masked-copy-to-where"],
    )
    (plugin,) = (p for p in kept.report.plugins if p.id == "masked-copy-to-where")
    assert (plugin.enabled, plugin.fired) == (False, 0)
    assert plugin.reason == "disabled by this call"
    assert b"aten::index_put" in kept.artifact.read_bytes()
    assert all(output.equal for output in kept.report.outputs)


def test_it_lowers_to_an_aotinductor_package(example, tmp_path, deep):
    package = lower(
        example.RobotPolicy(), example.example_inputs(), target="aoti", directory=tmp_path
    )
    assert all(output.equal for output in package.report.outputs)
    counts = fired(package)
    assert counts["masked-copy-to-where"] == 1
    assert counts["bucketize"] == 0, "Inductor has its own"
