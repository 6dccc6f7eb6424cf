"""strip-asserts: bounds and equalities of sizes, under the policy `ranges`."""

from __future__ import annotations

import pytest
import torch
from checked_programs import (
    COUNTS,
    MASK,
    X,
    bounds_count,
    call,
    equals_other_size,
    export,
    operators,
    reasons,
    strip,
)

aten = torch.ops.aten


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
