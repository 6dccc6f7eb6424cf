# torch.distributions and torch._check are untyped
# mypy: disable-error-code="no-untyped-call"
"""What strip-asserts promises: the programs that check, and how many checks go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical, MultivariateNormal, Normal, StudentT

from graftwork.plugins import Case, Property, Refusal, hookimpl


def gaussian_head(mean: Tensor, spread: Tensor) -> Tensor:
    """A policy head that validates its mean, its scale and the action it scores."""
    tril = torch.diag_embed(torch.nn.functional.softplus(spread) + 0.1)
    policy = MultivariateNormal(mean, scale_tril=tril, validate_args=True)
    score: Tensor = policy.log_prob(mean + 1)
    return score


def normal_head(mean: Tensor, spread: Tensor) -> Tensor:
    """Three checks: both parameters and the value."""
    score: Tensor = Normal(mean, spread.exp(), validate_args=True).log_prob(mean + 1)
    return score


def student_head(mean: Tensor, spread: Tensor) -> Tensor:
    """Three checks of parameters; a fourth, inside, where torch has not turned its default off.

    The first use of dynamo in a process sets `Distribution.set_default_validate_args(False)`.
    """
    return StudentT(spread.exp() + 1.5, mean, spread.exp(), validate_args=True).variance


def categorical_head(mean: Tensor, spread: Tensor) -> Tensor:
    """One check, on the probabilities."""
    entropy: Tensor = Categorical(probs=(mean + spread).exp(), validate_args=True).entropy()
    return entropy


def plain_assert(mean: Tensor, spread: Tensor) -> Tensor:
    """An `assert` and an `if ...: raise` on tensors."""
    assert (spread == spread).all(), "spread holds NaN"
    if (mean == 7).any():
        raise ValueError("mean holds seven")
    return mean + spread


HEADS: dict[Callable[[Tensor, Tensor], Tensor], int | None] = {
    gaussian_head: 3,
    normal_head: 3,
    student_head: None,
    categorical_head: 1,
    plain_assert: 2,
}


def bounded_value(x: Tensor, counts: Tensor) -> Tensor:
    """The read of a value that nothing but its check needs."""
    torch._check(counts.sum().item() <= 100)
    return x * 2


def two_values(x: Tensor, counts: Tensor) -> Tensor:
    """One check on two reads of one tensor, one of them checked again."""
    torch._check(counts[0].item() + counts[-1].item() <= 100)
    torch._check(counts[0].item() >= 0)
    return x - 1


def value_in_branch(x: Tensor, counts: Tensor) -> Tensor:
    """A check inside a branch of `torch.cond`."""

    def checked(x: Tensor, counts: Tensor) -> Tensor:
        torch._check(counts.sum().item() <= 100)
        return x * 2

    def unchecked(x: Tensor, counts: Tensor) -> Tensor:
        return x + 1

    result: Tensor = torch.cond(counts[0] > 1, checked, unchecked, (x, counts))
    return result


def value_used_twice(x: Tensor, counts: Tensor) -> Tensor:
    """A checked value that the output needs too: read and check stay."""
    n = counts.sum().item()
    torch._check(n <= 100)
    return x * n


VALUES = {bounded_value: 1, two_values: 2, value_in_branch: 1, value_used_twice: 0}


def bounded_count(x: Tensor, mask: Tensor) -> Tensor:
    """A count that the user bounds below what the mask may pick (pytorch/pytorch#192857)."""
    picks = x[mask]
    torch._check(picks.shape[0] <= 3)
    return picks * 2


def picked_twice(x: Tensor, mask: Tensor) -> Tensor:
    """What `bounded_count` gives where nothing bounds the count."""
    return x[mask] * 2


@hookimpl
def list_properties() -> Sequence[Property]:
    """Heads that validate, values that are checked, counts that are bounded."""
    return [
        Property(
            "validating-heads-equal-eager",
            _heads(),
            refused=[
                Refusal(
                    "a scale that is not positive",
                    Case(_bad_scale, (torch.randn(2, 3), torch.zeros(2, 3))),
                    ValueError,
                    "to satisfy the constraint",
                )
            ],
        ),
        Property("checks-on-values-go-with-their-reads", _values()),
        Property(
            "counts-run-past-a-dropped-bound",
            _counts(),
            reference=picked_twice,
            reference_reason="eager raises where the bound does not hold",
        ),
    ]


def _bad_scale(mean: Tensor, spread: Tensor) -> Tensor:
    return Normal(mean, spread, validate_args=True).mean


@st.composite
def _heads(draw: Callable[..., Any]) -> Case:
    head, fires = draw(st.sampled_from(list(HEADS.items())))
    rows, columns, others = draw(st.tuples(*[st.integers(2, 5)] * 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def inputs(rows: int) -> tuple[Tensor, Tensor]:
        shape = (rows, columns)
        return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)

    dynamic = draw(st.booleans())
    return Case(
        head,
        inputs(rows),
        fires=fires,
        dynamic_shapes=(({0: torch.export.Dim.DYNAMIC},) * 2,) if dynamic else None,
        more_inputs=(inputs(others),) if dynamic else (),
    )


@st.composite
def _values(draw: Callable[..., Any]) -> Case:
    program, fires = draw(st.sampled_from(list(VALUES.items())))
    elements = st.floats(width=32, allow_nan=True, allow_infinity=True)
    x = torch.tensor(draw(st.lists(elements, min_size=1, max_size=6)), dtype=torch.float32)
    counts = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=2, max_size=5)))
    return Case(program, (x, counts), fires=fires)


@st.composite
def _counts(draw: Callable[..., Any]) -> Case:
    length = draw(st.integers(2, 9))
    masks = st.lists(st.booleans(), min_size=length, max_size=length).map(torch.tensor)
    x = torch.arange(float(length))
    return Case(
        bounded_count,
        (x, draw(masks)),
        fires=2,
        more_inputs=tuple((x, mask) for mask in draw(st.lists(masks, max_size=2))),
        options={"policy": "ranges"},
    )
