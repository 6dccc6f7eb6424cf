"""strip-asserts: which checks go under which policy, and that nothing else does."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from checked_programs import (
    COUNTS,
    MASK,
    X,
    bounds_count,
    bounds_used_value,
    bounds_value,
    call,
    casts,
    checks_count,
    checks_in_branch,
    checks_tensor,
    checks_truth,
    checks_value,
    counts_nonzero,
    equals_other_size,
    export,
    operators,
    placeholder,
    reads_twice,
    reasons,
    run_pass,
    strip,
)
from torch import fx

from graftwork.plugins.verification import verify

aten = torch.ops.aten


def test_the_declared_properties_hold() -> None:
    for result in verify(["strip-asserts"], examples=10):
        assert result.passed, result.message


FIRES = [
    # program, inputs, applications under async, ranges, all; under async on aoti
    (checks_tensor, (X,), 1, 1, 1, 1),
    (casts, (X,), 1, 1, 1, 1),
    (checks_value, (X, COUNTS), 3, 3, 3, 0),
    (bounds_value, (X, COUNTS), 1, 1, 1, 0),
    (checks_truth, (X,), 3, 3, 3, 0),
    (checks_count, (X, MASK), 3, 3, 3, 0),
    (reads_twice, (X, COUNTS), 2, 2, 2, 0),
    (bounds_used_value, (X, COUNTS), 0, 0, 1, 0),
    (bounds_count, (X, MASK), 0, 2, 2, 0),
    (counts_nonzero, (X,), 0, 2, 2, 0),
    (equals_other_size, (X, MASK, torch.ones(2)), 0, 0, 3, 0),
    (checks_in_branch, (torch.tensor(True), X, COUNTS), 1, 1, 1, 0),
]


@pytest.mark.parametrize(
    ("function", "inputs", "under_async", "under_ranges", "under_all", "on_aoti"),
    FIRES,
    ids=[row[0].__name__ for row in FIRES],
)
def test_each_policy_drops_its_checks_and_no_others(
    function: Any, inputs: Any, under_async: int, under_ranges: int, under_all: int, on_aoti: int
) -> None:
    program = export(function, *inputs)
    for policy, target, count in [
        ("async", "cpu", under_async),
        ("ranges", "cpu", under_ranges),
        ("all", "cpu", under_all),
        ("async", "aoti", on_aoti),
    ]:
        stripped, log = strip(program, policy, target)
        assert log.fired("strip-asserts") == count, (policy, target, log.events)
        torch.testing.assert_close(stripped.module()(*inputs), function(*inputs))


@pytest.mark.parametrize(
    "function",
    [checks_tensor, checks_truth, checks_value, bounds_value, checks_count, reads_twice],
)
def test_the_math_that_only_fed_a_check_goes_with_it(function: Any) -> None:
    inputs = (X,) if function in (checks_tensor, checks_truth) else (X, MASK)
    if function in (checks_value, bounds_value, reads_twice):
        inputs = (X, COUNTS)
    stripped, _ = strip(export(function, *inputs))
    assert operators(stripped) == [aten.mul.Tensor]
    assert all(bounds.is_singleton() for bounds in stripped.range_constraints.values())


def test_a_value_that_feeds_the_output_stays_with_its_check() -> None:
    stripped, log = strip(export(bounds_used_value, X, COUNTS), "ranges")
    assert aten._assert_scalar.default in operators(stripped)
    assert aten.item.default in operators(stripped)
    assert "a bound on a value, not on a size" in reasons(log)


def test_math_with_another_reader_stays() -> None:
    def shared(x: torch.Tensor) -> Any:
        positive = x > 0
        torch._assert_async(positive.all(), "positive")
        return positive

    stripped, _ = strip(export(shared, X))
    assert operators(stripped) == [aten.gt.Scalar]


def test_a_random_draw_that_fed_a_check_stays() -> None:
    """Dropping a draw would change every draw after it."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((torch.rand(3) < 2).all(), "below two")
        return x + torch.rand(6)

    stripped, log = strip(export(drawn, X))
    assert log.fired("strip-asserts") == 1
    assert operators(stripped).count(aten.rand.default) == 2


def test_a_write_that_fed_a_check_stays() -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            torch._assert_async(self.count > 0, "counted")
            return x * 2

    stripped, log = strip(export(Counter(), X))
    assert log.fired("strip-asserts") == 1
    module = stripped.module()
    module(X)
    module(X)
    assert dict(module.named_buffers())["count"] == 2


def test_an_operator_that_prints_stays() -> None:
    """Custom operators registered with an effect are no pure math."""
    with torch.library._scoped_library("strip_asserts_test", "DEF") as library:
        library.define("logged(Tensor x) -> Tensor")
        library.impl("logged", lambda x: x.clone(), "CompositeExplicitAutograd")
        torch.library.register_fake("strip_asserts_test::logged", torch.clone, lib=library)
        torch.library._register_effectful_op(
            "strip_asserts_test::logged", torch.library.EffectType.ORDERED
        )
        graph = fx.Graph()
        x = placeholder(graph, "x", X)
        logged = call(graph, torch.ops.strip_asserts_test.logged.default, X, x)
        good = call(graph, aten.all.default, torch.tensor(True), logged)
        call(graph, aten._assert_async.msg, None, good, "good")
        graph.output((x,))
        assert run_pass(graph).applications == 1
        assert [n.name for n in graph.nodes] == ["x", "logged_default", "output"]


def test_an_index_by_numbers_is_no_read_of_values() -> None:
    """Only a mask's count is known at run time alone; the size of `x[[0, 1]]` is a shape."""
    for index, fires in ((torch.arange(2), 0), (MASK, 1)):
        graph = fx.Graph()
        x, i = placeholder(graph, "x", X), placeholder(graph, "i", index)
        size = call(graph, aten.sym_size.int, 2, call(graph, aten.index.Tensor, X[:2], x, [i]), 0)
        call(graph, aten._assert_scalar.default, None, call(graph, operator.le, True, size, 8), "")
        graph.output((x,))
        assert run_pass(graph).applications == fires


def test_values_are_kept_where_the_target_can_keep_their_checks() -> None:
    stripped, log = strip(export(checks_value, X, COUNTS), target="aoti")
    assert "which aoti keeps" in reasons(log)
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        stripped.module()(X, COUNTS + 1)


def test_functional_checks_hand_their_token_on() -> None:
    graph = fx.Graph()
    x = placeholder(graph, "x", X)
    token = call(graph, aten._make_dep_token.default, torch.empty(0))
    for _ in range(2):
        good = call(graph, aten.all.default, torch.tensor(True), x)
        token = call(graph, aten._functional_assert_async.msg, torch.empty(0), good, "all", token)
    graph.output((x, token))
    assert run_pass(graph).applications == 2
    assert [node.name for node in graph.nodes] == ["x", "_make_dep_token_default", "output"]
    assert graph.output_node().args[0][1].name == "_make_dep_token_default"  # type: ignore[index,union-attr]


def test_checks_run_with_effects_hand_their_token_on() -> None:
    graph = fx.Graph()
    token = first = placeholder(graph, "token", torch.empty(0))
    x = placeholder(graph, "x", X)
    with_effects = torch.ops.higher_order.with_effects
    for _ in range(2):
        good = call(graph, aten.all.default, torch.tensor(True), x)
        pair = call(graph, with_effects, None, token, aten._assert_async.msg, good, "all")
        token = call(graph, operator.getitem, torch.empty(0), pair, 0)
    graph.output((token, x))
    assert run_pass(graph).applications == 2
    assert [node.name for node in graph.nodes] == ["token", "x", "output"]
    assert graph.output_node().args[0] == (first, x)


def test_a_check_whose_result_is_read_stays() -> None:
    graph = fx.Graph()
    x = placeholder(graph, "x", torch.tensor(True))
    checked = call(graph, aten._assert_async.msg, None, x, "x")
    graph.output((checked,))
    log = run_pass(graph)
    assert log.applications == 0
    assert "something reads the check's result" in reasons(log)


def test_past_the_application_limit_a_check_and_its_read_stay() -> None:
    stripped, log = strip(export(reads_twice, X, COUNTS), limit=1)
    assert log.fired("strip-asserts") == 1
    assert operators(stripped).count(aten._assert_scalar.default) == 1
    assert operators(stripped).count(aten.item.default) == 2
    torch.testing.assert_close(stripped.module()(X, COUNTS), X * 2)


def test_the_log_names_the_expression_and_the_users_line() -> None:
    class Bounded(torch.nn.Module):
        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            torch._check(m.sum().item() <= 4)
            return x * 2

    _, log = strip(export(Bounded(), X, COUNTS))
    (event,) = log.events
    assert event.detail == "dropped the check u0 <= 4 with the read it alone needs"
    assert event.source is not None
    assert event.source.file == __file__
    assert "m.sum().item()" in event.source.code


def test_the_program_given_is_left_as_it_was() -> None:
    program = export(bounds_count, X, MASK)
    before, constraints = program.graph_module.code, dict(program.range_constraints)
    values = [str(node.meta.get("val")) for node in program.graph.nodes]
    strip(program, "all")
    assert program.graph_module.code == before
    assert program.range_constraints == constraints
    assert [str(node.meta.get("val")) for node in program.graph.nodes] == values
