"""masked-copy-to-where: what it leaves as it is, and the reason it gives."""

import pytest
import torch
from masked_copies import ID, MASK, SRC, FakeValues, Rewritten, View, X, copy
from torch.export import Dim, export
from torch.fx.experimental.proxy_tensor import make_fx

from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.toolkit.values import ValueNumbers

aten = torch.ops.aten


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
