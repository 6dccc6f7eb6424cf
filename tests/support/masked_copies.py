"""Programs with masked copies: rewritten by the pass, with what it said of them."""

import operator

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx

from graftwork.passes import masked_copy_to_where
from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.toolkit.graphs import sub_graphs

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
