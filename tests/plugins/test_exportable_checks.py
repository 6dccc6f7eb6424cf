"""Argument checks export as asserts; any other branch on a tensor's value is refused as before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, StudentT

from graftwork.plugins.exportable_checks import exportable_checks

X = torch.rand(3) + 0.5


class Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def export(function: Callable[..., Any], *inputs: Any) -> torch.export.ExportedProgram:
    with exportable_checks():
        return torch.export.export(Program(function), inputs)


def checks(program: torch.export.ExportedProgram) -> list[str]:
    assert_async = torch.ops.aten._assert_async.msg
    return [str(n.args[1]) for n in program.graph.nodes if n.target is assert_async]


def if_not(x: Tensor) -> Tensor:
    if not (x > 0).all():
        raise ValueError(f"not positive: {x}")
    return x * 2


def either(x: Tensor) -> Tensor:
    if (x < 0).any() or (x > 5).any():
        raise ValueError("out of range")
    return x * 2


def asserted(x: Tensor) -> Tensor:
    assert (x > 0).all(), "positive"
    return x * 2


def both(x: Tensor) -> Tensor:
    if not ((x > 0).all() and (x < 5).all()):
        raise ValueError("out of range")
    return x * 2


def inside_with(x: Tensor) -> Tensor:
    with contextlib.nullcontext():
        if (x < 0).any():
            raise ValueError("negative")
    return x * 2


@pytest.mark.parametrize(
    ("function", "count"),
    [(if_not, 1), (either, 2), (asserted, 1), (both, 2), (inside_with, 1)],
)
def test_a_branch_that_only_raises_becomes_a_check(function: Any, count: int) -> None:
    program = export(function, X)
    assert len(checks(program)) == count
    torch.testing.assert_close(program.module()(X), X * 2)
    with pytest.raises(RuntimeError):
        program.module()(-X)


def both_must_hold(x: Tensor) -> Tensor:
    if (x < 0).any() and (x > 5).any():
        raise ValueError("both")
    return x * 2


def two_results(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x


def caught_here(x: Tensor) -> Tensor:
    try:
        if (x < 0).any():
            raise ValueError("negative")
        return x * 2
    except ValueError:
        return x


def caught_outside(x: Tensor) -> Tensor:
    try:
        return if_not(x)
    except ValueError:
        return x


def caught_around_with(x: Tensor) -> Tensor:
    try:
        with contextlib.nullcontext():
            if (x < 0).any():
                raise ValueError("negative")
        return x * 2
    except ValueError:
        return x


def truth_kept(x: Tensor) -> Tensor:
    positive = bool((x > 0).all())
    if not positive:
        raise ValueError("not positive")
    return x * 2


@pytest.mark.parametrize(
    "function",
    [both_must_hold, two_results, caught_here, caught_outside, caught_around_with, truth_kept],
)
def test_a_branch_with_a_choice_is_refused_as_before(function: Any) -> None:
    with pytest.raises(Exception, match="data-dependent"):
        export(function, X)


def test_distributions_export_with_their_argument_checks() -> None:
    """huggingface/transformers#43631: StudentT(df=3, loc=0, scale=1).mean over 3."""

    def mean(df: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
        return StudentT(df, loc, scale, validate_args=True).mean

    inputs = (torch.full((3,), 3.0), torch.zeros(3), torch.ones(3))
    program = export(mean, *inputs)
    assert any(text.startswith("scale of StudentT is valid, test_") for text in checks(program))
    torch.testing.assert_close(program.module()(*inputs), torch.zeros(3))


def test_constraints_that_return_early_export() -> None:
    def covariance(mean: Tensor, covariance: Tensor) -> Tensor:
        return MultivariateNormal(mean, covariance, validate_args=True).mean

    program = export(covariance, torch.zeros(3), torch.eye(3))
    assert len(checks(program)) == 4


def test_a_constraint_asked_outside_validation_is_refused_as_before() -> None:
    def positive_definite(x: Tensor) -> Tensor:
        return torch.distributions.constraints.positive_definite.check(x)

    with pytest.raises(Exception, match="data-dependent"):
        export(positive_definite, torch.eye(3))


def test_eager_code_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # The test runner's own handlers would make the check one that may be caught.
    monkeypatch.setattr("graftwork.plugins.exportable_checks._may_be_caught", lambda frame: False)
    with exportable_checks(), pytest.raises(ValueError, match="not positive"):
        if_not(-X)


def test_checks_inside_a_branch_of_cond_trace() -> None:
    def branch(p: Tensor, x: Tensor) -> Tensor:
        return torch.cond(p, lambda x: x * 2, lambda x: x + 1, (x,))  # type: ignore[no-any-return]

    program = export(branch, torch.tensor(True), X)
    torch.testing.assert_close(program.module()(torch.tensor(False), X), X + 1)


def test_no_path_of_the_machine_is_written() -> None:
    (text,) = checks(export(if_not, X))
    assert text.startswith("test_exportable_checks.py:")
