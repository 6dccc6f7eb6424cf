"""strip-asserts: which checks go under which policy, and that nothing else does."""

from __future__ import annotations

import importlib.util
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.export import ExportedProgram

from graftwork.passes import strip_asserts
from graftwork.plugins import (
    GraphRewrite,
    LoweringContext,
    RewriteLog,
    rewrite_program,
    select_plugins,
)
from graftwork.plugins.exportable_checks import exportable_checks
from graftwork.plugins.toolkit.graphs import sub_graphs
from graftwork.plugins.verification import verify

aten = torch.ops.aten
MASK = torch.tensor([True, True, False, False, False, False])
COUNTS = torch.tensor([1, 1, 0, 0, 0, 0])
X = torch.arange(6.0) + 1


def test_the_declared_properties_hold() -> None:
    for result in verify(["strip-asserts"], examples=10):
        assert result.passed, result.message


class Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def export(function: Callable[..., Any], *inputs: Any, **kwargs: Any) -> ExportedProgram:
    module = function if isinstance(function, torch.nn.Module) else Program(function)
    with exportable_checks():
        return torch.export.export(module, inputs, **kwargs)


def strip(
    program: ExportedProgram, policy: str = "async", target: str = "cpu", limit: int | None = None
) -> tuple[ExportedProgram, RewriteLog]:
    selection = select_plugins(
        enable=[f"strip-asserts{{policy={policy}}}"], disable=["all"], environment={}
    )
    return rewrite_program(
        program, selection, LoweringContext(target=target, application_limit=limit)
    )


def operators(program: ExportedProgram) -> list[Any]:
    return [
        node.target
        for _, module in sub_graphs(program.graph_module)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


def reasons(log: RewriteLog) -> str:
    return "\n".join(event.detail for event in log.events if not event.rewrote)


def checks_tensor(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "x is positive")
    return x * 2


def casts(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64) + 1


def checks_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m.sum().item() == 2)
    return x * 2


def bounds_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m.sum().item() <= 4)
    return x * 2


def checks_truth(x: torch.Tensor) -> torch.Tensor:
    torch._check((x > 0).all().item())
    return x * 2


def checks_count(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(x[m].numel() == 2)
    return x * 2


def reads_twice(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m[0].item() >= 1)
    torch._check(m[0].item() + m[1].item() < 5)
    return x * 2


def bounds_used_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    n = m.sum().item()
    torch._check(n <= 4)
    return x * n


def bounds_count(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = x[m]
    torch._check(y.shape[0] <= 3)
    return y * 2


def counts_nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x)


def equals_other_size(x: torch.Tensor, m: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x[m]
    torch._check(z.shape[0] == y.shape[0])
    return z + y


def checks_in_branch(p: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    def then(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        torch._check(m.sum().item() <= 4)
        return x * 2

    def otherwise(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x + 1

    return torch.cond(p, then, otherwise, (x, m))  # type: ignore[no-any-return]


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


def test_an_equality_between_sizes_still_raises_under_ranges() -> None:
    """pytorch/pytorch#192857: bounds reject inputs that would run, equalities are wanted."""
    stripped, _ = strip(export(equals_other_size, X, MASK, torch.ones(2)), "ranges")
    with pytest.raises(RuntimeError):
        stripped.module()(X, ~MASK, torch.ones(2))


def test_an_equality_of_unknown_sizes_stays_under_ranges() -> None:
    def product(x: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        one, other = x[m], x[n]
        torch._check(one.shape[0] * other.shape[0] == 2)
        return torch.cat([one, other])

    stripped, log = strip(export(product, X, MASK, X > 5), "ranges")
    assert "Eq(u0*u1, 2): no bound on an unbacked size" in reasons(log)
    with pytest.raises(RuntimeError):
        stripped.module()(X, MASK, MASK)


def test_a_dropped_bound_leaves_the_size_its_whole_range() -> None:
    """pytorch/pytorch#192857: `y = x[mask]`, a check that its size is at most 3, called with 4."""
    program = export(bounds_count, X, MASK)
    stripped, _ = strip(program, "ranges")
    assert [bounds.upper for bounds in stripped.range_constraints.values()] == [6]
    assert [bounds.upper for bounds in program.range_constraints.values()] == [3]
    torch.testing.assert_close(stripped.module()(X, ~MASK), X[~MASK] * 2)
    again = stripped.run_decompositions({})
    (maker,) = (node for node in again.graph.nodes if node.meta.get("unbacked_bindings"))
    (symbol,) = maker.meta["unbacked_bindings"]
    assert again.range_constraints[symbol].upper == 6


def sum_of_counts(x: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    one, other = x[m], x[n]
    torch._check(one.shape[0] + other.shape[0] <= 5)
    torch._check(one.shape[0] >= other.shape[0])
    return torch.cat([one, other])


def test_a_bound_on_two_sizes_gives_them_new_symbols() -> None:
    """The old symbols carry the relation, from which a compiler writes the check again."""

    def related(x: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        one, other = x[m], x[n]
        torch._check(one.shape[0] >= other.shape[0])
        return torch.cat([one, other])

    program = export(related, X, MASK, ~MASK & (X > 5))
    stripped, log = strip(program, "ranges")
    assert log.declined("strip-asserts") == 0
    assert program.range_constraints.keys().isdisjoint(stripped.range_constraints)


def test_two_picks_by_one_mask_keep_one_size() -> None:
    def picked_twice(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        one, other = x[m], (x + 1)[m]
        torch._check(one.shape[0] <= 3)
        return one * other

    stripped, log = strip(export(picked_twice, X, MASK), "ranges")
    assert log.declined("strip-asserts") == 0
    assert [bounds.upper for bounds in stripped.range_constraints.values()] == [6]
    torch.testing.assert_close(stripped.module()(X, ~MASK), X[~MASK] * (X[~MASK] + 1))
    stripped.run_decompositions({})


def test_a_count_remembered_by_a_fake_tensor_is_no_obstacle() -> None:
    program = export(bounds_count, X, MASK)
    mask = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")][1]
    with mask.fake_mode, mask.fake_mode.shape_env.ignore_fresh_unbacked_symbols():
        torch.nonzero(mask)
    _, log = strip(program, "ranges")
    assert log.fired("strip-asserts") == 2


def test_a_size_made_outside_a_branch_keeps_its_bound() -> None:
    program = export(bounds_count, X, MASK)
    inner = program.graph_module
    (maker,) = (node for node in inner.graph.nodes if node.meta.get("unbacked_bindings"))
    del maker.meta["unbacked_bindings"]
    _, log = strip(program, "ranges")
    assert log.fired("strip-asserts") == 0
    assert "the size comes from outside this graph" in reasons(log)


def test_a_remainder_is_no_bound() -> None:
    def remainder(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x[m]
        torch._check(y.shape[0] % 4 <= 2)
        return y * 2

    stripped, log = strip(export(remainder, X, MASK), "ranges")
    assert "(Mod(u0, 4)) <= 2: no bound on an unbacked size" in reasons(log)
    assert aten._assert_scalar.default in operators(stripped)


def test_a_bound_on_an_index_is_none_on_a_size() -> None:
    def picks_row(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        n = m.sum().item()
        torch._check(n >= 0)
        torch._check(n < 6)
        return x[n] + 1

    stripped, log = strip(export(picks_row, X, COUNTS), "ranges", "aoti")
    assert log.fired("strip-asserts") == 0
    assert "not on a size" in reasons(log)
    assert log.declined("strip-asserts") == operators(stripped).count(aten._assert_scalar.default)


def test_a_bound_that_a_shape_relies_on_stays() -> None:
    """`x[:n]` has n rows only where n is not greater than x has; else it has fewer."""

    def first_rows(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        n = m.sum().item()
        torch._check(n >= 0)
        torch._check(n <= x.shape[0])
        return x[:n] * 2

    stripped, log = strip(export(first_rows, X, COUNTS), "ranges", "aoti")
    assert log.fired("strip-asserts") == 0
    assert "relies on the bound" in reasons(log)
    assert operators(stripped).count(aten._assert_scalar.default) == 2


def new_rows(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    n = m.sum().item()
    torch._check(n >= 0)
    torch._check(n <= 3)
    return x.new_zeros(n) + 1


def test_a_bound_that_memory_is_planned_by_stays_where_it_is_planned() -> None:
    program = export(new_rows, X, COUNTS)
    stripped, log = strip(program, "ranges", "cpu")
    assert (log.fired("strip-asserts"), log.declined("strip-asserts")) == (0, 2)
    assert "the target plans memory by the bound" in reasons(log)
    stripped, log = strip(program, "ranges", "aoti")
    assert (log.fired("strip-asserts"), log.declined("strip-asserts")) == (2, 0)
    torch.testing.assert_close(stripped.module()(X, COUNTS * 2), torch.ones(4))


def test_a_size_that_enters_a_branch_keeps_its_bound() -> None:
    def into_branch(p: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        y = x[m]
        torch._check(y.shape[0] <= 3)
        torch._check(y.shape[0] != 0)
        return torch.cond(p, lambda t: t.sum(), lambda t: t.sum() + 1, (y,))  # type: ignore[no-any-return]

    stripped, log = strip(export(into_branch, torch.tensor(True), X, MASK), "ranges")
    assert "enters or leaves a sub-graph" in reasons(log)
    assert aten._assert_scalar.default in operators(stripped)


def test_a_declared_range_goes_under_ranges() -> None:
    def declared(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)

    program = export(declared, X)
    graph = program.graph
    size = next(node for node in graph.nodes if node.target is aten.sym_size.int)
    with graph.inserting_after(size):
        call(graph, aten.sym_constrain_range.default, None, size)
    kept, _ = strip(program, "async")
    assert aten.sym_constrain_range.default in operators(kept)
    stripped, log = strip(program, "ranges")
    assert operators(stripped) == [aten.nonzero.default]
    assert log.fired("strip-asserts") == 3


def call(graph: fx.Graph, target: Any, value: Any, *args: Any) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node


def placeholder(graph: fx.Graph, name: str, value: Any) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def run_pass(graph: fx.Graph, policy: Any = "async") -> RewriteLog:
    program = export(casts, X)
    module = fx.GraphModule(torch.nn.Module(), graph)
    log = RewriteLog()
    plugin = select_plugins(["strip-asserts"], ["all"], environment={}).enabled[0].plugin
    strip_asserts.rewrite_graph(
        GraphRewrite(module, "", program, LoweringContext(), plugin, log),
        strip_asserts.StripAssertsOptions(policy),
    )
    module.graph.lint()
    return log


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


def test_a_validating_gaussian_head_exports_and_matches_eager() -> None:
    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.nn.Linear(6, 3)
            self.scale = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tril = torch.diag_embed(torch.nn.functional.softplus(self.scale(x)) + 0.1)
            policy = torch.distributions.MultivariateNormal(
                self.mean(x), scale_tril=tril, validate_args=True
            )
            return policy.mean + policy.variance

    head = Head().eval()
    x = torch.randn(2, 6)
    stripped, log = strip(export(head, x))
    assert log.fired("strip-asserts") == 2
    assert not any("assert" in str(target) for target in operators(stripped))
    torch.testing.assert_close(stripped.module()(x), head(x))


def test_two_matmuls_around_a_check_end_in_one_delegate() -> None:
    """pytorch/executorch#8065, and the value is eager's in ExecuTorch's own runtime."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    class TwoLayers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(4, 4)
            self.two = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            y = self.one(x)
            torch._check(m.sum().item() == 2)
            torch._assert_async((y < 1e6).all(), "bounded")
            return self.two(y)

    module, x = TwoLayers().eval(), torch.randn(3, 4)
    stripped, _ = strip(export(module, x, COUNTS))
    edge = to_edge_transform_and_lower(stripped, partitioner=[XnnpackPartitioner()])
    names = [node.name for node in edge.exported_program().graph.nodes]
    assert sum(name.startswith("executorch_call_delegate") for name in names) == 1
    lowered = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    torch.testing.assert_close(lowered.execute((x, COUNTS))[0], module(x, COUNTS))


@pytest.mark.parametrize(
    ("function", "inputs", "other", "expected"),
    [
        (bounds_count, (X, MASK), (X, ~MASK), X[~MASK] * 2),
        (counts_nonzero, (X - 1,), (X,), torch.nonzero(X)),
    ],
    ids=["bounds_count", "counts_nonzero"],
)
def test_an_unbounded_count_runs_in_executorch(
    function: Any, inputs: Any, other: Any, expected: torch.Tensor
) -> None:
    """pytorch/pytorch#192857, pytorch/pytorch#112443."""
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    stripped, _ = strip(export(function, *inputs), "ranges")
    buffer = to_edge_transform_and_lower(stripped).to_executorch().buffer
    lowered = Runtime.get().load_program(buffer).load_method("forward")
    torch.testing.assert_close(lowered.execute(inputs)[0], function(*inputs))
    torch.testing.assert_close(lowered.execute(other)[0], expected)


def test_an_unbounded_count_runs_in_an_aoti_package(tmp_path: Any) -> None:
    """pytorch/pytorch#192857: the compiler must not write the dropped checks again."""
    stripped, _ = strip(export(sum_of_counts, X, MASK, ~MASK & (X > 3)), "ranges", "aoti")
    path = torch._inductor.aoti_compile_and_package(
        stripped, package_path=str(tmp_path / "counts.pt2")
    )
    lowered = torch._inductor.aoti_load_package(path)
    everything = torch.ones(6, dtype=torch.bool)
    for one in (MASK, everything):
        torch.testing.assert_close(lowered(X, one, one), torch.cat([X[one]] * 2))


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_compilable_checks_of_transformers_go() -> None:
    from transformers.utils.import_utils import torch_compilable_check

    def merged(x: torch.Tensor, m: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        torch_compilable_check(x[m].numel() == f.numel(), "features and tokens differ")
        torch_compilable_check((x > 0).all(), "positive")
        return x.masked_scatter(m, f)

    inputs = (X, MASK, torch.ones(2))
    stripped, _ = strip(export(merged, *inputs))
    assert operators(stripped) == [aten.masked_scatter.default]
    torch.testing.assert_close(stripped.module()(*inputs), merged(*inputs))


def test_ten_thousand_checks_on_one_long_sum_take_no_recursion() -> None:
    graph = fx.Graph()
    x = placeholder(graph, "x", X)
    total: Any = 0
    for _ in range(10_000):
        item = call(graph, aten.item.default, 1, x)
        total = call(graph, operator.add, 1, item, total)
        call(graph, aten._assert_scalar.default, None, total, "sum")
    graph.output((x,))
    assert run_pass(graph).applications == 10_000
    assert len(graph.nodes) == 2
