"""Passes and expansions edit a copy, stamp what they make, are counted, and are blamed by name."""

import gc

import pytest
import torch
from torch.export import Dim

from graftwork.plugins import Declined, LoweringContext, rewrite_program, select_plugins
from graftwork.plugins.errors import PluginClashError, PluginFailedError
from graftwork.plugins.stamps import stamp_of

aten = torch.ops.aten


class Negated(torch.nn.Module):
    def forward(self, x):
        return torch.neg(x) + 1, torch.neg(x)


def export(module, *inputs, **rest):
    return torch.export.export(module, inputs, strict=False, **rest)


@pytest.fixture
def rewrite(tmp_path):
    def run(program, *plugins, context=None):
        selection = select_plugins(installed=plugins, environment={}, directory=tmp_path)
        return rewrite_program(program, selection, context or LoweringContext())

    return run


def decomposition(make_plugin, op, function, plugin_id="mine", **rest):
    return make_plugin(plugin_id, list_decompositions=lambda: {op: function}, **rest)


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def test_decomposition_replaces_every_candidate_and_counts(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    plugin = decomposition(make_plugin, aten.neg.default, lambda x: torch.mul(x, -1))
    rewritten, log = rewrite(program, plugin)
    assert log.fired("mine") == 2
    assert aten.neg.default not in targets(rewritten)
    x = torch.randn(3)
    assert torch.equal(rewritten.module()(x)[0], 1 - x)


def test_program_given_is_left_as_it_was(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    before = str(program.graph)
    rewrite(program, decomposition(make_plugin, aten.neg.default, lambda x: x * -1))
    assert str(program.graph) == before


def test_new_nodes_carry_id_version_and_the_users_line(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    rewritten, _ = rewrite(program, decomposition(make_plugin, aten.neg.default, lambda x: x * -1))
    made = [node for node in rewritten.graph.nodes if node.target == aten.mul.Tensor]
    assert [stamp_of(node) for node in made] == ["mine@1.0", "mine@1.0"]
    assert all("torch.neg(x)" in node.meta["stack_trace"] for node in made)
    kept = [node for node in rewritten.graph.nodes if node.target == aten.add.Tensor]
    assert stamp_of(kept[0]) is None


def test_stamp_is_still_there_after_retracing(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    rewritten, _ = rewrite(program, decomposition(make_plugin, aten.neg.default, lambda x: x * -1))
    again = rewritten.run_decompositions()
    assert {stamp_of(n) for n in again.graph.nodes if n.target == aten.mul.Tensor} == {"mine@1.0"}


def test_declined_candidate_stays_and_the_reason_is_logged(make_plugin, rewrite):
    def decline(x):
        raise Declined("not today")

    program = export(Negated(), torch.randn(3))
    rewritten, log = rewrite(program, decomposition(make_plugin, aten.neg.default, decline))
    assert (log.fired("mine"), log.declined("mine")) == (0, 2)
    assert log.events[0].detail == "not today"
    assert "torch.neg(x)" in log.events[0].source.code
    assert targets(rewritten).count(aten.neg.default) == 2


def test_application_limit_stops_after_n(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    plugin = decomposition(make_plugin, aten.neg.default, lambda x: x * -1)
    rewritten, log = rewrite(program, plugin, context=LoweringContext(application_limit=1))
    assert (log.fired("mine"), log.declined("mine")) == (1, 1)
    assert targets(rewritten).count(aten.neg.default) == 1


def test_operators_an_expansion_brings_in_are_expanded_too(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    outer = decomposition(make_plugin, aten.neg.default, lambda x: aten.mul.Tensor(x, -1), "outer")
    inner = decomposition(make_plugin, aten.mul.Tensor, lambda x, y: torch.div(x, y), "inner")
    rewritten, log = rewrite(program, outer, inner)
    assert (log.fired("outer"), log.fired("inner")) == (2, 2)
    assert aten.mul.Tensor not in targets(rewritten)


def test_expansion_into_itself_is_an_error(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3))
    plugin = decomposition(make_plugin, aten.neg.default, lambda x: torch.neg(torch.abs(x)))
    with pytest.raises(PluginFailedError, match="'mine' .* into itself"):
        rewrite(program, plugin)


def test_two_plugins_claiming_one_operator_are_named_with_the_way_out(make_plugin, rewrite):
    first = decomposition(make_plugin, aten.neg.default, lambda x: x * -1, "first")
    second = decomposition(
        make_plugin, aten.neg.default, lambda x: 0 - x, "second", distribution="strangers"
    )
    program = export(Negated(), torch.randn(3))
    with pytest.raises(
        PluginClashError, match=r"'first' \(tests\) and by 'second' \(strangers\).*--disable"
    ):
        rewrite(program, first, second)


def test_kernel_goes_before_a_decomposition_and_only_on_a_gpu(make_plugin, rewrite):
    plain = decomposition(make_plugin, aten.neg.default, lambda x: x * -1, "plain")
    kernel = make_plugin("kernel", list_kernels=lambda: {aten.neg.default: lambda x: 0 - x})
    program = export(Negated(), torch.randn(3))
    _, log = rewrite(program, plain, kernel)
    assert (log.fired("plain"), log.fired("kernel")) == (2, 0)
    _, log = rewrite(program, plain, kernel, context=LoweringContext("cuda", "cuda"))
    assert (log.fired("plain"), log.fired("kernel")) == (0, 2)


def test_decomposition_takes_what_the_kernel_declines(make_plugin, rewrite):
    def decline(x):
        raise Declined("too odd")

    plain = decomposition(make_plugin, aten.neg.default, lambda x: x * -1, "plain")
    kernel = make_plugin("kernel", list_kernels=lambda: {aten.neg.default: decline})
    program = export(Negated(), torch.randn(3))
    _, log = rewrite(program, plain, kernel, context=LoweringContext("cuda", "cuda"))
    assert (log.fired("plain"), log.declined("kernel")) == (2, 2)


def test_plugin_for_other_targets_takes_no_part(make_plugin, rewrite):
    plugin = decomposition(
        make_plugin, aten.neg.default, lambda x: x * -1, info={"targets": frozenset({"cuda"})}
    )
    program = export(Negated(), torch.randn(3))
    assert rewrite(program, plugin)[1].fired("mine") == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda x: x.double(), "float64"),
        (lambda x: x.unsqueeze(0), "returns"),
        (lambda x: torch.cat([x, x]), "returns"),
        (lambda x: (x, x), "returns 2 values, the operator 1"),
        (lambda x: torch.tensor([1.0, 2.0, 3.0]), "constant tensor"),
        (lambda x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_wrong_expansion_is_blamed_on_its_plugin_with_the_line(
    make_plugin, rewrite, wrong, message
):
    program = export(Negated(), torch.randn(3))
    plugin = decomposition(make_plugin, aten.neg.default, wrong)
    with pytest.raises(PluginFailedError, match=message) as raised:
        rewrite(program, plugin)
    assert "'mine' (tests 1.0)" in str(raised.value)
    assert "torch.neg(x)" in str(raised.value)
    assert "--disable mine" in str(raised.value)


def test_pass_that_raises_or_breaks_the_graph_is_blamed(make_plugin, rewrite):
    def break_graph(graph):
        node = next(iter(graph.graph.find_nodes(op="call_function", target=aten.neg.default)))
        graph.claim(node, "rubbish")
        later = next(reversed(graph.graph.nodes)).prev
        node.args = (later,)

    program = export(Negated(), torch.randn(3))
    with pytest.raises(PluginFailedError, match="not sound"):
        rewrite(program, make_plugin("breaks", rewrite_graph=break_graph))

    def raise_error(graph):
        raise KeyError("lost")

    with pytest.raises(PluginFailedError, match=r"'raises' .*rewrite_graph.*lost"):
        rewrite(program, make_plugin("raises", rewrite_graph=raise_error))


def test_symbolic_sizes_stay_symbolic(make_plugin, rewrite):
    program = export(Negated(), torch.randn(3, 4), dynamic_shapes=({0: Dim("rows", min=2)},))
    plugin = decomposition(
        make_plugin, aten.neg.default, lambda x: x.new_zeros(x.shape[0], x.shape[1]) - x
    )
    rewritten, log = rewrite(program, plugin)
    assert log.fired("mine") == 2
    x = torch.randn(7, 4)
    assert torch.equal(rewritten.module()(x)[1], -x)


def test_data_dependent_size_keeps_its_symbol(make_plugin, rewrite):
    class Picked(torch.nn.Module):
        def forward(self, x):
            rows = torch.nonzero(x)
            return rows + 1, x.new_ones(rows.shape[0])

    program = export(Picked(), torch.tensor([0.0, 1.0, 2.0]))
    # An expansion may not hold its own operator, so a stand-in operator is used.
    torch.library.custom_op("graftwork_tests::nonzero_again", mutates_args=())(_nonzero_again)
    torch.library.register_fake("graftwork_tests::nonzero_again", _nonzero_fake)
    op = torch.ops.graftwork_tests.nonzero_again.default
    plugin = decomposition(make_plugin, aten.nonzero.default, lambda x: op(x), "again")
    rewritten, log = rewrite(program, plugin)
    assert log.fired("again") == 1
    ones = rewritten.module()(torch.tensor([0.0, 0.0, 5.0]))[1]
    assert ones.shape == (1,)
    again = rewritten.run_decompositions().module()
    assert again(torch.tensor([1.0, 1.0, 1.0]))[1].shape == (3,)


def _nonzero_again(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x)


def _nonzero_fake(x):
    size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(size, x.dim(), dtype=torch.int64)


def test_sub_graphs_are_rewritten_too(make_plugin, rewrite):
    class Branches(torch.nn.Module):
        def forward(self, p, x):
            return torch.cond(p, lambda y: torch.neg(y), lambda y: y + 1, (x,))

    program = export(Branches(), torch.tensor(True), torch.randn(3))
    plugin = decomposition(make_plugin, aten.neg.default, lambda x: x * -1)
    rewritten, log = rewrite(program, plugin)
    assert [event.graph for event in log.events] == ["true_graph_0"]
    x = torch.randn(3)
    assert torch.equal(rewritten.module()(torch.tensor(True), x), -x)


def test_returned_node_that_is_replaced_keeps_the_signature_right(make_plugin, rewrite):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            self.count.copy_(torch.neg(x))
            return torch.neg(x)

    program = export(Counter(), torch.ones(2))
    plugin = decomposition(make_plugin, aten.neg.default, lambda x: x * -1)
    rewritten, _ = rewrite(program, plugin)
    names = {node.name for node in rewritten.graph.nodes}
    assert all(spec.arg.name in names for spec in rewritten.graph_signature.output_specs)
    module = rewritten.module()
    assert torch.equal(module(torch.ones(2)), torch.tensor([-1.0, -1.0]))
    assert torch.equal(module.count, torch.tensor([-1.0, -1.0]))


def test_equal_candidates_are_traced_once(make_plugin, rewrite):
    calls = []

    def negate(x):
        calls.append(x.shape)
        return x * -1

    class Many(torch.nn.Module):
        def forward(self, x, y):
            for _ in range(20):
                x = torch.neg(x)
            return x, torch.neg(y)

    program = export(Many(), torch.randn(3), torch.randn(4))
    _, log = rewrite(program, decomposition(make_plugin, aten.neg.default, negate))
    assert log.fired("mine") == 21
    assert len(calls) == 2


def test_arguments_that_compare_equal_are_told_apart(make_plugin, rewrite):
    """0.0 == -0.0 and 1 == 1.0 == True, but each gives an expansion of its own."""

    class Fills(torch.nn.Module):
        def forward(self, x):
            return [torch.fill(x, value) for value in (0.0, -0.0, 1, 1.0, True, -0.0)]

    calls = []

    def filled(x, value):
        calls.append(repr(value))
        return torch.full_like(x, value)

    rewritten, _ = rewrite(
        export(Fills(), torch.ones(1)), decomposition(make_plugin, aten.fill.Scalar, filled)
    )
    assert calls == ["0.0", "-0.0", "1", "1.0", "True"]
    signs = [bool(x.signbit()) for x in rewritten.module()(torch.ones(1))]
    assert signs == [False, True, False, False, False, True]


def test_an_argument_called_like_a_builtin_keeps_its_name(make_plugin, rewrite):
    class OfInput(torch.nn.Module):
        def forward(self, input):
            return torch.neg(input)

    plugin = decomposition(make_plugin, aten.neg.default, lambda x: torch.mul(x, -1))
    rewritten, _ = rewrite(export(OfInput(), torch.ones(2)), plugin)
    assert rewritten.graph_signature.user_inputs == ("input",)
    assert torch.equal(rewritten.module()(torch.ones(2)), -torch.ones(2))


def test_garbage_collector_is_as_it_was_after_a_rewrite_and_after_a_failure(make_plugin, rewrite):
    def fail(x):
        assert not gc.isenabled()
        raise ValueError

    program = export(Negated(), torch.randn(3))
    with pytest.raises(PluginFailedError):
        rewrite(program, decomposition(make_plugin, aten.neg.default, fail))
    assert gc.isenabled()
