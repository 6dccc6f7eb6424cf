"""The kit finds what is wrong, shrinks it, and writes a script that reproduces it alone."""

import subprocess
import sys

import pytest
import torch
from hypothesis import strategies as st

from graftwork.plugins import Case, Declined, Property, Refusal, Tolerance
from graftwork.plugins.checking import Mismatch, check_case, check_refusal
from graftwork.plugins.comparing import compare
from graftwork.plugins.reproduction import tensor, write_script
from graftwork.plugins.verification import list_promises, verify, verify_property

aten = torch.ops.aten


def negated(x):
    return torch.neg(x)


CASES = st.integers(1, 50).map(lambda n: Case(negated, (torch.arange(1.0, n + 1),)))


def negating(make_plugin, function):
    return make_plugin("negating", list_decompositions=lambda: {aten.neg.default: function})


def test_equal_plugin_passes(make_plugin):
    plugin = negating(make_plugin, lambda x: x * -1)
    result = verify_property(plugin, Property("p", CASES), examples=5)
    assert result.passed and result.examples == 5 and result.fired == 5


def test_wrong_plugin_is_found_and_the_example_shrunk(make_plugin):
    plugin = negating(make_plugin, lambda x: torch.where(x > 7, x, x * -1))
    result = verify_property(plugin, Property("p", CASES), examples=100)
    assert not result.passed
    assert "1 of 8 elements differ" in result.message
    assert "tensor(torch.float32, (8,), (1,)" in result.script


def test_wrong_strides_are_found(make_plugin):
    plugin = negating(make_plugin, lambda x: (x * -1).t().contiguous().t())
    case = Case(negated, (torch.randn(2, 3),))
    with pytest.raises(Mismatch, match="strides"):
        check_case(plugin, Property("p", CASES), case)
    check_case(plugin, Property("p", CASES, Tolerance(bits=True, strides=False)), case)


def test_plugin_that_does_not_fire_where_it_must_is_found(make_plugin):
    def decline(x):
        raise Declined("too small")

    with pytest.raises(Mismatch, match="fired 0 times.*says 1; it declined: too small"):
        check_case(
            negating(make_plugin, decline), Property("p", CASES), Case(negated, (torch.ones(2),))
        )


def test_plugin_that_fires_where_it_must_not_is_found(make_plugin):
    case = Case(negated, (torch.ones(2),), fires=0)
    with pytest.raises(Mismatch, match="fired 1 times, the property says 0"):
        check_case(negating(make_plugin, lambda x: x * -1), Property("p", CASES), case)


def test_changed_input_is_found(make_plugin):
    plugin = make_plugin(
        "writing", list_kernels=lambda: {aten.neg.default: lambda x: x.mul_(-1).clone()}
    )
    promise = Property("p", CASES, road="direct")
    with pytest.raises(Mismatch, match="output 1"):
        check_case(plugin, promise, Case(negated, (torch.ones(2),)))


def test_direct_road_runs_kernels_without_an_export(make_plugin):
    plugin = make_plugin("kernel", list_kernels=lambda: {aten.neg.default: lambda x: x * -1})
    promise = Property("p", CASES, road="direct")
    assert verify_property(plugin, promise, examples=3).passed


def test_more_inputs_go_through_the_same_program(make_plugin):
    from torch.export import Dim

    plugin = negating(make_plugin, lambda x: torch.where(torch.arange(x.shape[0]) < 4, x * -1, x))
    case = Case(
        negated,
        (torch.ones(3),),
        dynamic_shapes=(({0: Dim("n", min=2)},),),
        more_inputs=((torch.ones(6),),),
    )
    with pytest.raises(Mismatch, match="2 of 6 elements differ"):
        check_case(plugin, Property("p", CASES), case)


def test_reference_stands_in_where_it_is_given(make_plugin):
    promise = Property("p", CASES, reference=lambda x: x * 0, reference_reason="a test")
    with pytest.raises(Mismatch):
        check_case(
            negating(make_plugin, lambda x: x * -1), promise, Case(negated, (torch.ones(2),))
        )
    checked = check_case(
        negating(make_plugin, lambda x: x * 0), promise, Case(negated, (torch.zeros(2),))
    )
    assert checked.references == ("a test",)


def refuse(x):
    raise ValueError("integers only")


def test_refusal_holds_only_for_the_error_and_message_named(make_plugin):
    case = Case(negated, (torch.ones(2),))
    plugin = negating(make_plugin, refuse)
    promise = Property("p", CASES)
    check_refusal(plugin, promise, Refusal("r", case, ValueError, "integers only"))
    with pytest.raises(Mismatch, match="must refuse 'r' with KeyError"):
        check_refusal(plugin, promise, Refusal("r", case, KeyError, ""))
    with pytest.raises(Mismatch, match="but it raised nothing"):
        check_refusal(
            negating(make_plugin, lambda x: x * -1),
            promise,
            Refusal("r", case, ValueError, ""),
        )


def test_properties_of_an_unknown_plugin_are_refused():
    with pytest.raises(TypeError, match="not the string"):
        list_promises("detach-copy")


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 4).t(),
        torch.randn(1, 3).expand(4, 3),
        torch.randn(6)[::2],
        torch.tensor(float("nan")),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.randn(2, 2).bfloat16(),
        torch.tensor([1, 2], dtype=torch.uint8),
    ],
)
def test_tensors_in_a_script_are_rebuilt_bit_for_bit(value):
    from graftwork.plugins.reproduction import _literal

    again = eval(_literal(value), {"tensor": tensor, "torch": torch})
    assert again.stride() == value.stride()
    assert not compare(again, value, Tolerance(bits=True)).why


def test_script_reproduces_the_failure_alone(tmp_path):
    from graftwork.decompositions import detach_copy

    case = Case(detach_copy.detached, (torch.ones(2, 3),), {"copy": True}, fires=5)
    script = tmp_path / "again.py"
    script.write_text(write_script("detach-copy", "detached-equals-input", case))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 1
    assert "fired 1 times, the property says 5" in run.stderr
    script.write_text(script.read_text().replace("fires=5", "fires=1"))
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0 and "the case holds" in run.stdout


def test_verify_counts_only_the_plugins_named():
    results = verify(["detach-copy"], examples=2)
    assert {result.plugin for result in results} == {"detach-copy"}


@pytest.mark.parametrize(
    ("ours", "reference", "tolerance", "why"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), Tolerance(bits=True), "1 of 1"),
        (torch.tensor([0.0]), torch.tensor([-0.0]), Tolerance(), ""),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), Tolerance(), ""),
        (torch.tensor([float("inf")]), torch.tensor([1e30]), Tolerance(relative=1), "1 of 1"),
        (torch.tensor([1.1]), torch.tensor([1.0]), Tolerance(absolute=0.2), ""),
        (torch.tensor([1.1]), torch.tensor([1.0]), Tolerance(absolute=0.05), "1 of 1"),
        (torch.tensor([1]), torch.tensor([1.0]), Tolerance(), "int64"),
        (torch.tensor([2**62 + 1]), torch.tensor([2**62]), Tolerance(), "1 of 1"),
        (torch.tensor([1, 2]), torch.tensor([1]), Tolerance(), "(2,)"),
        (float("nan"), float("nan"), Tolerance(), ""),
        (3, 4, Tolerance(), "got 3"),
    ],
)
def test_comparison(ours, reference, tolerance, why):
    found = compare(ours, reference, tolerance).why
    assert (why in found) if why else not found
