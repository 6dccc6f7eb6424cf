"""masked-copy-to-where: `out[mask] = f(src[mask])` becomes `where`, and nothing else does."""

import operator
import time

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

from graftwork.passes import masked_copy_to_where
from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.toolkit.graphs import sub_graphs
from graftwork.plugins.toolkit.values import ValueNumbers
from graftwork.plugins.verification import assert_verified

aten = torch.ops.aten
ID = "masked-copy-to-where"


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Rewritten:
    """A program after the pass, with what the pass said of it."""

    def __init__(self, function, *inputs, dims=None, decompose=False):
        dynamic = None if dims is None else {"inputs": dims}
        module = function if isinstance(function, torch.nn.Module) else Function(function)
        program = export(module, inputs, dynamic_shapes=dynamic, strict=False)
        if decompose:
            program = program.run_decompositions({})
        selection = select_plugin_alone(find_plugin(ID))
        self.program, log = rewrite_program(program, selection, LoweringContext())
        self.events = log.events
        self.fired = log.fired(ID)
        self.declined = [event.detail for event in log.events if not event.rewrote]
        self.ops = [
            node.target
            for _, module in sub_graphs(self.program.graph_module)
            for node in module.graph.nodes
            if node.op == "call_function"
        ]
        expected, got = function(*inputs), self.program.module()(*inputs)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == expected.stride()

    def has(self, *targets):
        return any(op in targets for op in self.ops)

    def copies_without_count(self):
        kept = (aten.index.Tensor, aten.masked_select.default, aten.sym_size.int)
        return self.fired and not self.has(*kept, aten._assert_scalar.default)


class FakeValues(fx.Interpreter):
    """Gives every node a fake value of one mode, as an exported program has them."""

    def run(self, *inputs):
        self.mode = FakeTensorMode()
        return super().run(*(value.clone() for value in inputs))

    def run_node(self, node):
        value = super().run_node(node)
        if isinstance(value, torch.Tensor):
            node.meta["val"] = self.mode.from_tensor(value)
        return value


class View:
    """One traced graph offered to the pass, outside of any exported program."""

    def __init__(self, function, *inputs):
        module = make_fx(function)(*inputs)
        expected = FakeValues(module).run(*inputs)
        self.rewrite(module)
        torch.testing.assert_close(module(*inputs), expected, rtol=0, atol=0)

    @classmethod
    def of(cls, module):
        view = cls.__new__(cls)
        view.rewrite(module)
        return view

    def rewrite(self, module):
        self.module, self.fired, self.declined = module, 0, []
        masked_copy_to_where.rewrite_graph(graph=self)
        self.graph.lint()
        module.recompile()

    @property
    def graph(self):
        return self.module.graph

    def claim(self, node, what):
        self.fired += 1
        return True

    def decline(self, node, reason):
        self.declined.append(reason)


def copy(x, src, mask):
    out = x.clone()
    out[mask] = src[mask]
    return out


X = torch.linspace(-1, 1, 12).reshape(3, 4)
SRC = torch.arange(12.0).reshape(3, 4)
MASK = X > 0.2


def test_the_plugin_is_listed():
    assert find_plugin(ID).kinds


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


# What fires


def test_a_masked_copy_becomes_where_and_reads_no_count():
    """vllm-project/vllm-omni#4562: a mask index is illegal while a CUDA graph is captured."""

    def program(x, src):
        mask = x >= 0.5
        x = x.clone()
        x[mask] = src[mask]
        return x

    done = Rewritten(program, X, SRC)
    assert done.fired == 1
    assert not done.declined
    assert sorted(map(str, done.ops)) == [
        "aten.clone.default",
        "aten.ge.Scalar",
        "aten.where.self",
    ]


def test_after_export_and_after_decomposition():
    for decompose in (False, True):
        assert Rewritten(copy, X, SRC, MASK, decompose=decompose).copies_without_count()


def test_a_functional_program_that_export_did_not_decompose():
    def program(x, src, mask):
        wide = mask[:, None].expand_as(x)
        return x.masked_scatter(wide, src[mask].to(torch.float64).to(torch.float32))

    assert Rewritten(program, X, SRC, MASK[:, 0]).copies_without_count()


@pytest.mark.parametrize(
    "mask", [torch.zeros(3, 4) > 1, torch.zeros(3, 4) < 1, MASK], ids=["none", "all", "some"]
)
def test_any_number_of_picks(mask):
    assert Rewritten(copy, X, SRC, mask).copies_without_count()


def test_special_values_keep_their_bits():
    bits = torch.tensor([0x7FC12345, -0x3FEDCC, -0x80000000, 0x7F800000], dtype=torch.int32)
    src = bits.view(torch.float32).expand(3, 4)
    got = Rewritten(copy, X, src.contiguous(), MASK).program.module()(X, src, MASK)
    assert torch.equal(got.view(torch.int32), copy(X, src, MASK).view(torch.int32))


def test_a_mask_over_leading_dims():
    assert Rewritten(copy, X, SRC, MASK[:, 2]).copies_without_count()


def test_a_mask_over_inner_dims():
    def program(x, src, mask):
        out = x.clone()
        out[:, mask] = src[:, mask] * 2
        return out

    assert Rewritten(
        program, torch.randn(2, 3, 4), torch.randn(2, 3, 4), MASK
    ).copies_without_count()
    assert Rewritten(program, X, SRC, MASK[0]).copies_without_count()


def test_a_uint8_mask_is_a_mask():
    """Export itself refuses a uint8 index; a traced graph can hold one. Any non-zero picks."""

    def program(x, src, mask):
        return aten.index_put(x, [mask], aten.index(src, [mask]))

    done = View(program, X, SRC, torch.tensor([[0, 1, 2, 255]] * 3, dtype=torch.uint8))
    assert done.fired == 1
    (where,) = done.graph.find_nodes(op="call_function", target=aten.where.self)
    assert where.args[0].meta["val"].dtype is torch.bool


def test_masks_computed_twice_are_one_mask():
    def program(x, src):
        out = x.clone()
        out[x.abs() > 0.5] = src[x.abs() > 0.5]
        return out

    assert Rewritten(program, X, SRC).copies_without_count()


def test_pointwise_functions_of_the_picks():
    def program(x, src, row):
        mask = x[:, 0] > -0.9
        out = x.clone()
        out[mask] = torch.where(src[mask] > 3, src[mask].exp() * 0.5, x[mask]) + row
        return out

    assert Rewritten(program, X, SRC, torch.ones(4)).copies_without_count()


def test_updates_in_place():
    def scale(x, c, mask):
        x = x.clone()
        x[mask] *= 2
        return x

    def add(x, c, mask):
        x = x.clone()
        x[mask] += c
        return x

    assert Rewritten(scale, X, SRC, MASK).copies_without_count()
    assert Rewritten(add, X, torch.ones(4), MASK[:, 0]).copies_without_count()


def test_counts_of_equal_masks_are_checked_for_equality_and_may_go():
    def program(x, a, b):
        out = x.clone()
        out[x > 0.5] = a[x > 0.5] + b[x > 0.5]
        return out

    exported = export(Function(program), (X, SRC, SRC + 1)).graph
    assert any(node.target is operator.eq for node in exported.nodes)
    assert Rewritten(program, X, SRC, SRC + 1).copies_without_count()


def test_masked_select_picks_too():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = torch.masked_select(src, mask).to(torch.float64).to(torch.float32)
        return out

    assert Rewritten(program, X, SRC, MASK).copies_without_count()


@pytest.mark.parametrize(
    "widen",
    [
        lambda m: m.unsqueeze(-1).expand(3, 4),
        lambda m: m[:, None],
        lambda m: m.view(3, 1).expand(3, 4),
    ],
)
def test_masked_scatter_of_the_masks_own_picks(widen):
    def program(x, src, mask):
        return x.masked_scatter(widen(mask), src[mask] + 1)

    assert Rewritten(program, X, SRC, MASK[:, 2]).copies_without_count()


def test_inside_cond_branches():
    def program(x, src, mask):
        return torch.cond(x.sum() > 0, copy, lambda x, src, mask: x * 2, (x, src, mask))

    done = Rewritten(program, X, SRC, MASK)
    assert done.copies_without_count()
    assert done.events[0].graph


def test_dynamic_sizes():
    def program(x, src):
        out = x.clone()
        out[x > 0] = src[x > 0] * 2
        return out

    rows, columns = Dim("rows", min=1, max=64), Dim("columns", min=1, max=64)
    done = Rewritten(program, X, SRC, dims=({0: rows, 1: columns},) * 2)
    assert done.copies_without_count()
    for shape in [(1, 1), (5, 2), (64, 64)]:
        x, src = torch.randn(shape), torch.randn(shape)
        assert torch.equal(done.program.module()(x, src), program(x, src))


def test_dynamic_sizes_with_a_mask_over_leading_dims():
    rows, columns = Dim("rows", max=64), Dim("columns", max=64)
    dims = ({0: rows, 1: columns}, {0: rows, 1: columns}, {0: rows})
    done = Rewritten(copy, X, SRC, MASK[:, 0], dims=dims)
    assert done.copies_without_count()
    x, src, mask = torch.randn(7, 9), torch.randn(7, 9), torch.arange(7) > 3
    assert torch.equal(done.program.module()(x, src, mask), copy(x, src, mask))


def test_a_copy_from_the_result_of_a_copy():
    def program(x, src, mask):
        return copy(src, copy(x, src, mask) * 3, mask)

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()


def test_a_mask_that_is_itself_made_by_a_masked_copy():
    def program(x, src, mask):
        both = copy(mask, x > 0, src > 5)
        return copy(x, src, both)

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()


def test_picks_that_several_puts_use_are_made_once():
    def program(x, src, mask):
        picks = src[mask].exp()
        a, b = x.clone(), x + 1
        a[mask] = picks
        b[mask] = picks * 2
        return a + b

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()
    assert done.ops.count(aten.exp.default) == 1


def test_what_was_rewritten_lowers_on():
    done = Rewritten(copy, X, SRC, MASK)
    again = done.program.run_decompositions()
    assert torch.equal(again.module()(X, SRC, MASK), copy(X, SRC, MASK))
    assert not any("index" in str(node.target) for node in again.graph.nodes)


def test_a_whole_channels_last_program():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert Rewritten(copy, x, x * 2, x > 0).copies_without_count()


# What stays


def stays(reason, function, *inputs, **options):
    done = Rewritten(function, *inputs, **options)
    assert done.fired == 0
    assert any(reason in declined for declined in done.declined), done.declined
    assert done.has(aten.index_put.default, aten.masked_scatter.default)
    return done


def test_sums_in_no_fixed_order_make_two_masks():
    """A GPU's scatter_add of floats may differ from run to run, and so may a mask made of it."""

    def program(x, src):
        index = torch.zeros(3, 4, dtype=torch.int64)
        out = x.clone()
        out[x.scatter_add(0, index, src) > 0] = src[x.scatter_add(0, index, src) > 0]
        return out

    stays("another mask", program, X, SRC)


def test_two_random_draws_are_two_masks():
    """The masks pick alike, all or nothing, so eager can run them; the pass must not know."""

    def program(x, src):
        out = x.clone()
        out[torch.rand_like(x) < 2] = src[torch.rand_like(x) < 2]
        return out

    done = stays("another mask", program, X, SRC)
    assert done.ops.count(aten.rand_like.default) == 2


def test_two_calls_of_a_custom_operator_are_two_masks():
    calls = []

    @torch.library.custom_op("graftwork_test::stateful_mask", mutates_args=())
    def stateful_mask(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x > 0

    @stateful_mask.register_fake
    def _(x):
        return torch.empty_like(x, dtype=torch.bool)

    def program(x, src):
        out = x.clone()
        out[stateful_mask(x)] = src[stateful_mask(x)]
        return out

    stays("another mask", program, X, SRC)


def test_uninitialised_memory_is_no_mask_twice():
    def program(x, src):
        out = x.clone()
        out[torch.empty_like(x) == torch.inf] = src[torch.empty_like(x) == torch.inf]
        return out

    module = make_fx(program)(X, SRC)
    numbers = ValueNumbers(module.graph)
    one, other = module.graph.find_nodes(op="call_function", target=aten.empty_like.default)
    assert not numbers.same(one, other)


def test_reads_of_a_buffer_written_in_between_are_two_masks():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3, 4))

        def forward(self, x, src):
            picks = src[self.count > 0.5]
            self.count.add_(x)
            out = x.clone()
            out[self.count > 0.5] = picks
            return out

    module = Counter()
    program = export(module, (torch.full((3, 4), 0.25), SRC)).run_decompositions({})
    _, log = rewrite_program(program, select_plugin_alone(find_plugin(ID)), LoweringContext())
    assert log.fired(ID) == 0
    assert "another mask" in log.events[0].detail


@pytest.mark.parametrize("written", ["src", "mask"])
def test_a_write_between_pick_and_put_keeps_the_put(written):
    def program(x, src, mask):
        src, mask = src.clone(), mask.clone()
        picks = aten.index(src, [mask])
        if written == "src":
            src.view(-1).zero_()
        else:
            mask.view(-1).copy_(mask.flip(0).view(-1))
        return aten.index_put(x, [mask], picks)

    done = View(program, X, SRC, torch.tensor([[False, True] * 2] * 3))
    assert done.fired == 0
    assert "written in place" in done.declined[0]


def test_a_mask_computed_before_and_after_a_write_is_two_masks():
    def program(x, src, mask):
        mask = mask.clone()
        first = mask.logical_not()
        mask.view(-1).copy_(mask.flip(0).view(-1))
        second = mask.logical_not()
        return aten.index_put(x, [second], aten.index(src, [first]))

    done = View(program, X, SRC, torch.tensor([[False, True] * 2] * 2 + [[True, False] * 2]))
    assert done.fired == 0
    assert "another mask" in done.declined[0]


def test_constants_that_only_look_equal_make_two_masks():
    def signed(x, src):
        out = x.clone()
        out[aten.copysign.Scalar(x, 0.0) != 5] = src[aten.copysign.Scalar(x, -0.0) != 5]
        return out

    def typed(x, src):
        out = x.clone()
        out[aten.full([3, 4], True) > 0] = src[aten.full([3, 4], 1) > 0]
        return out

    stays("another mask", signed, X, SRC)
    stays("another mask", typed, X, SRC)


def test_another_mask():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = src[mask.flip(0)]
        return out

    stays("another mask, flip", program, X, SRC, MASK)


def test_the_same_mask_over_other_dims():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = src[:, mask].T
        return out

    square = torch.randn(3, 3)
    stays("not pointwise", program, square, square + 1, MASK[:, 2])

    def leading(x, src, mask):
        return aten.index_put(x, [None, mask], aten.index(src, [mask]))

    full = torch.ones(3, dtype=torch.bool)
    stays("another mask", leading, square, square + 1, full)


def test_accumulation():
    def program(x, src, mask):
        return torch.index_put(x, (mask,), src[mask], accumulate=True)

    stays("accumulates", program, X, SRC, MASK)


def test_a_mask_beside_another_index():
    def program(x, src, mask, index):
        return aten.index_put(x, [mask, index], aten.index(src, [mask, index]))

    done = View(program, X, SRC, torch.tensor([True, False, True]), torch.tensor([0, 3]))
    assert done.fired == 0
    assert "only index" in done.declined[0]


def test_integer_indices_are_no_candidates():
    def program(x, src, index):
        out = x.clone()
        out[index] = src[index]
        return out

    for dtype in (torch.int64, torch.int32):
        done = Rewritten(program, X, SRC, torch.tensor([2, 0], dtype=dtype))
        assert not done.events


def test_mask_fills():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = 3
        return out

    stays("not picked through a mask", program, X, SRC, MASK)


def test_another_dtype():
    def program(x, src, mask):
        return aten.masked_scatter(x, mask, aten.index(src, [mask]))

    module = make_fx(program)(X, SRC, MASK)
    FakeValues(module).run(X, SRC, MASK)
    _, src, _ = module.graph.find_nodes(op="placeholder")
    src.meta["val"] = src.meta["val"].double()
    assert "torch.float64" in View.of(module).declined[0]


def test_a_mask_on_another_device():
    """Indexing takes a mask in host memory; `where` does not."""

    def program(x, src, mask):
        return aten.index_put(x, [mask], aten.index(src, [mask]))

    module = make_fx(program)(X, SRC, MASK)
    FakeValues(module).run(X, SRC, MASK)
    x, src, _ = module.graph.find_nodes(op="placeholder")
    with x.meta["val"].fake_mode:
        x.meta["val"] = src.meta["val"] = torch.empty(3, 4, device="cuda")
    assert "one device" in View.of(module).declined[0]


def test_a_function_that_the_whole_tensor_refuses():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = src[mask].contiguous(memory_format=torch.channels_last)
        return out

    x = torch.randn(2, 3, 2, 2, 2)
    stays("cannot be traced on the whole tensor", program, x, x + 1, torch.ones(2, 3) > 0)


def test_masked_select_that_broadcasts_its_mask():
    def program(x, src, mask):
        return aten.masked_scatter(x, mask, aten.masked_select(src, mask))

    done = View(program, X, SRC, MASK[:, 2:3])
    assert done.fired == 0


def test_another_shape():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = src[mask]
        return out

    stays("has shape (3, 1)", program, X, SRC[:, :1].contiguous(), MASK[:, 0])


def test_sizes_that_are_not_known_to_be_equal():
    dims = ({1: Dim.DYNAMIC}, {1: Dim.DYNAMIC}, None)
    stays("has shape", copy, X, SRC, MASK[:, 0], dims=dims)


def test_where_would_lay_the_result_out_another_way():
    """The put keeps the destination's layout; `view(-1)` of it must go on working."""
    x = torch.randn(2, 3, 4, 5)
    channels_last = (x * 2).to(memory_format=torch.channels_last)
    stays("where would give", copy, x, x * 2, channels_last > 0)
    # A mask over the first dim leaves the order of the others to the source.
    stays("where would give", copy, x, channels_last, x[:, 0, 0, 0] > 0)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda p: p.cumsum(0), "cumsum (aten.cumsum.default) is not pointwise"),
        (lambda p: p.flip(0), "not pointwise"),
        (lambda p: p - p.sort(0).values, "not pointwise"),
        (lambda p: torch.rand_like(p) * 0 + p, "not pointwise"),
        (lambda p: p + torch.arange(p.shape[0])[:, None], "not pointwise"),
        (lambda p: (p + torch.ones(1, 1, 1))[0], "adds a dim"),
        (lambda p: torch.mvlgamma(p + 9, 2), "may fail"),
        (lambda p: torch.special.chebyshev_polynomial_t(p, 3), "may fail"),
    ],
)
def test_functions_that_are_not_pointwise_or_may_fail(function, reason):
    def program(x, src, mask):
        torch.manual_seed(0)
        out = x.clone()
        out[mask] = function(src[mask])
        return out

    stays(reason, program, X, SRC, MASK[:, 2])


def test_a_custom_operator_is_not_trusted_to_be_pointwise():
    @torch.library.custom_op(
        "graftwork_test::tagged", mutates_args=(), tags=(torch.Tag.pointwise,)
    )
    def tagged(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @tagged.register_fake
    def _(x):
        return torch.empty_like(x)

    def program(x, src, mask):
        out = x.clone()
        out[mask] = tagged(src[mask])
        return out

    stays("not pointwise", program, X, SRC, MASK)


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integer_division_may_fail_on_unpicked_elements(divide):
    """Eager never divides by the zeros that the mask leaves out."""
    x, divisors = torch.arange(12).reshape(3, 4), torch.tensor([0, 1, 2, 3]).expand(3, 4)

    def program(x, divisors):
        mask = divisors > 0
        out = x.clone()
        out[mask] = divide(x[mask], divisors[mask])
        return out

    def by(constant):
        def program(x, divisors):
            mask = divisors > 0
            out = x.clone()
            out[mask] = divide(x[mask], constant)
            return out

        return program

    def floating(x, divisors):
        return program(x.double(), divisors.double())

    stays("may fail", program, x, divisors)
    stays("may fail", by(-1), x, divisors)
    assert Rewritten(by(3), x, divisors).copies_without_count()
    assert Rewritten(floating, x, divisors).copies_without_count()


def test_picks_of_two_masks_do_not_mix():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = src[mask] + x[mask.flip(0)]
        return out

    stays("different masks", program, X, SRC, torch.tensor([[True] * 4, [False] * 4, [True] * 4]))


def test_picks_of_other_ranks_do_not_mix():
    def program(x, src, mask):
        return aten.index_put(x, [mask], aten.index(src, [mask]) + aten.index(x[:, 0], [mask]))

    square = torch.randn(4, 4)
    done = View(program, square, square + 1, torch.ones(4) > 0)
    assert done.fired == 0
    assert "different ranks" in done.declined[0]


def test_an_operand_with_a_value_for_each_pick():
    def program(x, src, mask, each):
        return aten.index_put(x, [mask], aten.index(src, [mask]) * each)

    square, mask = torch.randn(4, 4), torch.ones(4) > 0
    for each in (torch.randn(4, 1), torch.randn(4, 4)):
        done = View(program, square, square + 1, mask, each)
        assert done.fired == 0
        assert "one value for each pick" in done.declined[0]
    row = View(program, square, square + 1, mask, torch.randn(1, 4))
    assert row.fired == 1


def test_an_operand_beside_a_mask_over_inner_dims():
    """Dims before the picked one keep their places only where the mask has one dim."""

    def program(x, src, mask, beside):
        return aten.index_put(x, [None, mask], aten.index(src, [None, mask]) * beside)

    x = torch.randn(3, 3, 4, 5)
    done = View(program, x, x + 1, torch.ones(3, 4) > 0, torch.randn(3, 1, 5))
    assert done.fired == 0
    assert "one value for each pick" in done.declined[0]
    done = View(program, x, x + 1, torch.tensor([True, False, True]), torch.randn(3, 1, 1, 5))
    assert done.fired == 1


@pytest.mark.parametrize(
    "widen",
    [
        lambda m: m.expand(3, 3),
        lambda m: m[None],
        lambda m: m,
        lambda m: m[:, None].logical_not(),
    ],
)
def test_masked_scatter_through_a_mask_that_is_not_the_picks_own(widen):
    """A mask that masked_scatter stretches over the first dim takes the picks in another order."""

    def program(x, src, mask):
        return x.masked_scatter(widen(mask), src[mask])

    mask = torch.tensor([True, False, True])
    stays("another mask", program, torch.randn(3, 3), SRC[:, :3].contiguous(), mask)


# The index and its checks


def keeps_index(reason, function, *inputs):
    done = Rewritten(function, *inputs)
    assert done.fired == 1
    assert done.has(aten.index.Tensor)
    assert any(reason in declined for declined in done.declined), done.declined
    return done


def test_a_users_check_that_a_mask_can_fail_keeps_index_and_check():
    def at_least_one(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] >= 1)
        out = x.clone()
        out[mask] = picks
        return out

    def exactly(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] == 5)
        out = x.clone()
        out[mask] = picks
        return out

    for program in (at_least_one, exactly):
        done = keeps_index("checks its count", program, X, SRC, MASK)
        assert done.has(aten._assert_scalar.default)
        with pytest.raises(RuntimeError, match="Runtime assertion"):
            done.program.module()(X, SRC, MASK & False)


def test_a_users_check_that_every_mask_passes_goes():
    def program(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] <= 12)
        torch._check(picks.shape[0] * 1 >= 0)
        out = x.clone()
        out[mask] = picks
        return out

    assert Rewritten(program, X, SRC, MASK).copies_without_count()


def test_a_check_that_reads_another_size_too_keeps_the_index():
    def program(x, src, mask, other):
        picks = src[mask]
        torch._check(picks.shape[0] <= other.nonzero().shape[0])
        out = x.clone()
        out[mask] = picks
        return out

    keeps_index("checks its count", program, X, SRC, MASK, torch.ones(20))


def test_a_check_against_the_count_of_another_mask_keeps_both():
    def program(x, src, mask, other):
        picks = src[mask]
        torch._check(picks.shape[0] == src[other].shape[0])
        out = x.clone()
        out[mask] = picks
        return out

    keeps_index("checks its count", program, X, SRC, MASK, MASK.flip(0).flip(1) & True)


@pytest.mark.parametrize("check", ["metadata", "tail", "half", "exactly"])
def test_checks_that_are_not_of_the_count_or_not_of_any_mask_keep_the_index(check):
    module = make_graph(copies=1, history=1, rank=2)
    (picks,) = module.graph.find_nodes(op="call_function", target=aten.index.Tensor)
    (put,) = module.graph.find_nodes(op="call_function", target=aten.index_put.default)

    def call(target, *arguments, value=None):
        node = module.graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    with module.graph.inserting_before(put):
        if check == "metadata":
            call(aten._assert_tensor_metadata.default, picks, [3, 8])
        else:
            size = call(aten.sym_size.int, picks, 1 if check == "tail" else 0, value=8)
            if check == "half":
                size = call(operator.floordiv, size, 2, value=4)
            compare = operator.eq if check == "exactly" else operator.le
            holds = call(compare, size, 64, value=True)
            call(aten._assert_scalar.default, holds, "at most 64")
    view = View.of(module)
    assert view.fired == 1
    assert "checks its count" in view.declined[0]


def test_another_reader_of_the_picks_keeps_the_index():
    def program(x, src, mask):
        picks = src[mask]
        out = x.clone()
        out[mask] = picks - picks.mean()
        return out

    keeps_index("mean reads it", program, X, SRC, MASK)


def test_a_reader_of_the_count_keeps_the_index():
    def program(x, src, mask):
        picks = src[mask]
        out = x * picks.shape[0]
        out[mask] = picks
        return out

    keeps_index("reads it", program, X, SRC, MASK)


def test_a_decline_names_the_users_line():
    class Fill(torch.nn.Module):
        def forward(self, x, src, mask):
            out = x.clone()
            out[mask] = 3
            return out

    (event,) = Rewritten(Fill(), X, SRC, MASK).events
    assert event.source is not None
    assert event.source.code == "out[mask] = 3"


# Size


def make_graph(copies, history, chain=1, rank=1):
    """Masked copies in a row, with masks (each computed twice) and functions of those lengths."""
    graph = fx.Graph()
    with FakeTensorMode():
        floats = torch.empty((8,) * (rank + 1))
        flags, picked = torch.empty(8, 8) > 0, torch.empty(3, *(8,) * (rank - 1))

    def call(target, *arguments, value=floats):
        node = graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    def mask(x):
        for _ in range(history):
            x = call(aten.add.Tensor, x, 1.5)
        return call(aten.gt.Scalar, x, 0.5, value=flags)

    x = graph.placeholder("x")
    x.meta["val"] = floats
    out = x
    for _ in range(copies):
        picks = call(aten.index.Tensor, out, [mask(x)], value=picked)
        count = call(aten.sym_size.int, picks, 0, value=3)
        holds = call(operator.ge, count, 0, value=True)
        call(aten._assert_scalar.default, holds, "count >= 0", value=None)
        for _ in range(chain):
            picks = call(aten.mul.Tensor, picks, 2, value=picked)
        out = call(aten.index_put.default, out, [mask(x)], picks)
    graph.output(out)
    return fx.GraphModule(torch.nn.Module(), graph)


def test_masks_with_long_histories_need_no_recursion():
    view = View.of(make_graph(copies=1, history=5000))
    assert view.fired == 1
    assert not view.graph.find_nodes(op="call_function", target=aten.index.Tensor)


def test_long_chains_between_pick_and_put_need_no_recursion():
    assert View.of(make_graph(copies=1, history=1, chain=5000)).fired == 1


def test_time_grows_with_the_graph_and_not_faster():
    """Comparing each pair of masks anew would take a hundred times the time."""

    def seconds(copies, history):
        module = make_graph(copies, history)
        start = time.process_time()
        View.of(module)
        return time.process_time() - start

    seconds(2, 10)
    assert seconds(200, 10) < 30 * seconds(20, 10)
    assert seconds(2, 2000) < 30 * seconds(2, 200)
