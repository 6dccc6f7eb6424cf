"""Inputs that do not fit are one error each, which names the input and what it must be."""

import json

import pytest
import torch
from torch.masked import masked_tensor
from torch.utils import _pytree as pytree

from graftwork.backend.signature import Constant, Input, Signature, Size
from graftwork.plugins.errors import InputError
from graftwork.plugins.torch_private import FakeTensorMode
from graftwork.running.inputs import InputReader, arrange

ROWS = Size("s0", 1, 0, 2, 8)
PAIRS = Size("s1", 2, 1, 1, None)
X, HALF = torch.zeros(4, 3), torch.zeros(5)
SPEC = pytree.treespec_dumps(pytree.tree_flatten((({"x": 0, "n": 0}, 0), {"half": 0}))[1])
SIGNATURE = Signature(
    (
        Input("a_x", "float32", (ROWS, 3), "cpu", (0, 1)),
        Constant("a_n", 2),
        Input("y", "int64", (ROWS,), "cpu", (0,)),
        Input("half", "float32", (PAIRS,), "cpu", (0,)),
    ),
    (None,),
    SPEC,
    "",
)
Y = torch.zeros(4, dtype=torch.int64)


def read(a=None, y=Y, args=None, **kwargs):
    reader = InputReader("encode", SIGNATURE)
    args = ({"x": X, "n": 2} if a is None else a, y) if args is None else args
    return reader.check(reader.flatten(args, {"half": HALF, **kwargs}))


def test_inputs_that_fit_are_the_tensors_in_order():
    found = read()
    assert [tensor.data_ptr() for tensor in found] == [t.data_ptr() for t in (X, Y, HALF)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"args": (X,)}, "method encode takes 2 positional inputs, not 1"),
        ({"other": 1}, "takes the keyword inputs half; got half, other"),
        ({"a": {"x": X}}, r"takes inputs nested as \(\{'x': \*, 'n': \*\}, \*\); got"),
        ({"a": {"x": X.double(), "n": 2}}, "input a_x must be float32, not float64"),
        ({"a": {"x": [1.0], "n": 2}}, "takes inputs nested as"),
        ({"a": {"x": 1.0, "n": 2}}, "input a_x must be a tensor, not a float"),
        ({"a": {"x": X.to_sparse(), "n": 2}}, "input a_x must be a dense tensor"),
        ({"a": {"x": X.to("meta"), "n": 2}}, "input a_x must be on cpu, not on meta"),
        ({"a": {"x": X[0], "n": 2}}, "input a_x must have 2 dims, not 1"),
        ({"a": {"x": X[:, :2], "n": 2}}, "input a_x: dim 1 is 2 and must be 3"),
        ({"a": {"x": X[:1], "n": 2}}, "input a_x: dim 0 is 1 and must be from 2 to 8"),
        ({"a": {"x": torch.zeros(9, 3), "n": 2}}, "dim 0 is 9 and must be from 2 to 8"),
        ({"a": {"x": X, "n": 3}}, "input a_n is 2 in this program; got 3"),
        ({"a": {"x": X, "n": True}}, "input a_n is 2 in this program; got True"),
        ({"a": {"x": X, "n": X}}, "input a_n is 2 in this program; got a tensor"),
        ({"y": Y[:3]}, "input y: dim 0 is 3 and must be 4, to go with dim 0 of a_x"),
        ({"half": X[0, :2]}, "dim 0 is 2 and must be at least 1, 2 times a whole number plus 1"),
    ],
)
def test_what_does_not_fit_is_named(given, message):
    with pytest.raises(InputError, match=message):
        read(**given)


class Labelled(torch.Tensor):
    """A subclass with memory of its own, whose operations give what they like."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return None


def fake():
    with FakeTensorMode():
        return torch.zeros(4, 3)


def freed():
    tensor = torch.zeros(4, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


STRANGERS = [
    (fake, "must be a plain tensor, not a FakeTensor"),
    (lambda: masked_tensor(X, X == 0), "must be a plain tensor, not a MaskedTensor"),
    (freed, "has no memory of its own to read"),
    (lambda: torch.nested.nested_tensor([X, X]), "must be a dense tensor, not nested"),
]
TRANSFORMS = [
    lambda function: torch.vmap(function)(torch.zeros(2, 4, 3)),
    lambda function: torch.func.grad(function)(X),
    lambda function: torch.func.jvp(function, (X,), (X,)),
    lambda function: torch.func.functionalize(function)(X),
]


@pytest.mark.filterwarnings("ignore:The PyTorch API of")
@pytest.mark.parametrize(("make", "message"), STRANGERS)
def test_a_tensor_without_memory_of_its_own_is_refused(make, message):
    """The process ended: a compiled program reads an input's memory whatever its class."""
    with pytest.raises(InputError, match="input a_x " + message):
        read({"x": make(), "n": 2})


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("known", [True, False])
def test_functional_transforms_are_refused(transform, known):
    """The process ended on them, also for a file that does not say what it takes."""

    def call(x):
        if known:
            return read({"x": x, "n": 2})
        return InputReader("encode", Signature(None, None, "", "")).check([3, x])

    with pytest.raises(InputError, match=f"input {'a_x' if known else '1'} has no memory"):
        transform(call)


@pytest.mark.parametrize("inputs", [SIGNATURE.inputs, None])
def test_a_plain_subclass_is_taken_as_a_tensor(inputs):
    """ExecuTorch's runtime refuses any class but one: Unsupported python type."""
    reader = InputReader("encode", Signature(inputs, None, "", ""))
    found = reader.check((X.as_subclass(Labelled), 2, Y, HALF))
    assert type(found[0]) is torch.Tensor and found[0].data_ptr() == X.data_ptr()


def test_dicts_may_have_another_order_at_any_depth():
    found = read({"n": 2, "x": X})
    assert [tensor.data_ptr() for tensor in found] == [t.data_ptr() for t in (X, Y, HALF)]
    nested = {"a": [{"p": 0, "q": (1, 2)}], "b": 3}
    spec = pytree.treespec_dumps(pytree.tree_structure(((nested,), {})))
    reader = InputReader("forward", Signature(None, None, spec, ""))
    assert reader.flatten(({"b": 3, "a": [{"q": (1, 2), "p": 0}]},), {}) == [0, 1, 2, 3]
    with pytest.raises(InputError, match="takes inputs nested as"):
        reader.flatten(({"b": 3, "a": [{"q": (1, 2), "r": 0}]},), {})


def test_without_a_known_tree_the_leaves_are_counted():
    reader = InputReader("forward", Signature(SIGNATURE.inputs, (None,), "", ""))
    with pytest.raises(InputError, match=r"takes 4 inputs \(a_x, a_n, y, half\), not 2"):
        reader.check(reader.flatten((X, X), {}))


def test_sizes_that_go_together_may_differ_from_call_to_call():
    reader = InputReader("encode", SIGNATURE)
    for rows in (2, 8):
        y = torch.zeros(rows, dtype=torch.int64)
        leaves = reader.flatten(({"x": torch.zeros(rows, 3), "n": 2}, y), {"half": torch.zeros(1)})
        reader.check(leaves)


@pytest.mark.parametrize(
    "item",
    [
        Input("x", "float32", (2, 3, 4, 5), "cpu", (0, 1, 2, 3)),
        Input("x", "float32", (2, 3, 4, 5), "cpu", (0, 2, 3, 1)),
        Input("x", "float32", (2, 3, 4, 5), "cpu", (3, 1, 0, 2)),
        Input("x", "float32", (2, 3, 4, 5), "cpu", strides=(200, 60, 10, 2)),
    ],
)
def test_any_layout_is_put_into_the_one_compiled_for(item):
    values = torch.randn(2, 3, 4, 5)
    given = [
        values,
        values.to(memory_format=torch.channels_last),
        torch.cat([values, values], 3)[..., :5],
        values[:, :, :1].expand(2, 3, 4, 5),
    ]
    for tensor in given:
        found = arrange(tensor, item)
        assert torch.equal(found, tensor)
        if item.order is None:
            assert found.stride() == item.strides
        else:
            assert found.permute(item.order).is_contiguous()
        assert arrange(found, item) is found or arrange(found, item).data_ptr() == found.data_ptr()


def test_a_signature_round_trips_through_json():
    assert Signature.from_json(json.loads(json.dumps(SIGNATURE.to_json()))) == SIGNATURE
