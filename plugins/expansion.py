"""Replaces operators by what decompositions and kernels give for them, node by node.

Each candidate is traced alone on its own fake tensors and spliced in, so the cost grows with the
number of candidates, not with the program; equal candidates share one trace. Operators that an
expansion brings in are candidates too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .blame import blamed_on
from .context import LoweringContext
from .errors import PluginClashError, PluginFailedError
from .log import Declined, RewriteLog
from .registry import Plugin
from .selection import Choice
from .stamps import stamp
from .toolkit.graphs import sub_graphs
from .torch_private import (
    FakeTensor,
    fake_mode_of,
    rename_symbols,
    symbolic_expression,
    trace_functional,
    unbacked_bindings,
)

Function = Callable[..., Any]
Table = dict[torch._ops.OpOverload, tuple[Plugin, Function]]
LENT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")


@dataclass(frozen=True)
class _Trace:
    """One candidate traced: the graph of its expansion, or why it was declined.

    With neither, the node was no candidate: the function answered NotImplemented.
    """

    graph: fx.Graph | None
    modules: dict[str, Any]
    declined: str = ""


class _NoCandidate(Exception):
    """The function answered NotImplemented."""


def operator_tables(choices: Sequence[Choice], context: LoweringContext) -> list[Table]:
    """The tables to try in order: kernels (only on a GPU), then decompositions.

    Raises:
        PluginClashError: two plugins of one table claim one operator.
    """
    hooks = ("list_kernels", "list_decompositions")
    return [
        _table(hook, choices, context)
        for hook in hooks
        if hook != "list_kernels" or context.device == "cuda"
    ]


def expand_operators(
    program: ExportedProgram, choices: Sequence[Choice], context: LoweringContext, log: RewriteLog
) -> None:
    """Expand every operator that an enabled plugin handles, in all graphs, in place."""
    tables = operator_tables(choices, context)
    if not any(tables):
        return
    traces: dict[Any, _Trace] = {}
    for path, module in sub_graphs(program.graph_module):
        changed = False
        queue = deque((node, frozenset[Any]()) for node in module.graph.nodes)
        while queue:
            node, ancestors = queue.popleft()
            for table in tables:
                if node.target not in table:
                    continue
                plugin, function = table[node.target]
                with log.timed(plugin):
                    new = _expand(module, path, node, plugin, function, ancestors, traces, log)
                if new is not None:
                    changed = True
                    queue.extendleft((n, ancestors | {node.target}) for n in reversed(new))
                    break
        if changed:
            module.graph.lint()


def _table(hook: str, choices: Sequence[Choice], context: LoweringContext) -> Table:
    table: Table = {}
    for choice in choices:
        plugin = choice.plugin
        if not plugin.implements(hook):
            continue
        with blamed_on(plugin, hook):
            functions = plugin.call(hook, options=choice.options, context=context)
        for op, function in functions.items():
            other = table.setdefault(op, (plugin, function))[0]
            if other is not plugin:
                raise PluginClashError(
                    f"{op} is claimed by '{other.id}' ({other.distribution}) and by '{plugin.id}' "
                    f"({plugin.distribution}); disable one: --disable {other.id} or "
                    f"--disable {plugin.id}"
                )
    return table


def _expand(
    module: fx.GraphModule,
    path: str,
    node: fx.Node,
    plugin: Plugin,
    function: Function,
    ancestors: frozenset[Any],
    traces: dict[Any, _Trace],
    log: RewriteLog,
) -> list[fx.Node] | None:
    """Replace one node; the new nodes, or None where it stays."""
    with blamed_on(plugin, "an expansion", node):
        inputs = list(node.all_input_nodes)
        key = _key(plugin, node, inputs)
        trace = traces.get(key) if key is not None else None
        if trace is None:
            trace = _trace(function, node, inputs)
            makes_symbols = trace.graph and any(map(unbacked_bindings, trace.graph.nodes))
            if key is not None and not makes_symbols:
                traces[key] = trace
        if trace.graph is None:
            if trace.declined:
                log.decline(plugin, node, trace.declined, path)
            return None
        if node.target in ancestors:
            raise PluginFailedError(
                f"plugin '{plugin.id}' ({plugin.distribution}) expands {node.target} into itself; "
                f"disable it with --disable {plugin.id}"
            )
        fresh = sum(len(unbacked_bindings(n)) for n in trace.graph.nodes)
        if fresh and not unbacked_bindings(node):
            log.decline(plugin, node, "its data-dependent size is an earlier operator's", path)
            return None
        body = [n for n in trace.graph.nodes if n.op not in ("placeholder", "output")]
        if not log.claim(plugin, node, _summary(body), path):
            return None
        return _splice(module, node, inputs, trace, plugin)


def _trace(function: Function, node: fx.Node, inputs: list[fx.Node]) -> _Trace:
    def call(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), known.__getitem__)
        result = function(*args, **kwargs)
        if result is NotImplemented:
            raise _NoCandidate
        return result

    try:
        traced = trace_functional(call, [source.meta["val"] for source in inputs])
    except Declined as reason:
        return _Trace(None, {}, str(reason))
    except _NoCandidate:
        return _Trace(None, {})
    traced.graph.eliminate_dead_code()
    modules = {}
    for constant in traced.graph.find_nodes(op="get_attr"):
        value = getattr(traced, str(constant.target))
        if not isinstance(value, fx.GraphModule):
            raise TypeError(
                "the expansion holds a constant tensor; build it from operators "
                "such as torch.full or torch.arange"
            )
        modules[str(constant.target)] = value
    _check_outputs(node.meta["val"], traced.graph.output_node().args[0])
    return _Trace(traced.graph, modules)


def _check_outputs(expected: Any, returned: Any) -> None:
    """Refuse an expansion whose outputs have another count, dtype or rank than the operator's."""
    wanted = list(expected) if isinstance(expected, (list, tuple)) else [expected]
    given = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    if len(wanted) != len(given):
        raise TypeError(f"the expansion returns {len(given)} values, the operator {len(wanted)}")
    for want, give in zip(wanted, given, strict=True):
        value = give.meta["val"] if isinstance(give, fx.Node) else give
        if not isinstance(want, FakeTensor) or value is None:
            continue
        if not isinstance(value, FakeTensor) or (value.dtype, value.dim()) != (
            want.dtype,
            want.dim(),
        ):
            raise TypeError(f"the expansion returns {value}, the operator {want}")
        for ours, theirs in zip(value.shape, want.shape, strict=True):
            if isinstance(ours, int) and isinstance(theirs, int) and ours != theirs:
                raise TypeError(f"the expansion returns {value}, the operator {want}")


def _splice(
    module: fx.GraphModule, node: fx.Node, inputs: list[fx.Node], trace: _Trace, plugin: Plugin
) -> list[fx.Node]:
    assert trace.graph is not None
    names = {old: _add_module(module, old, value) for old, value in trace.modules.items()}
    rename = _renamed_symbols(node, trace.graph)
    environment = dict(zip(trace.graph.find_nodes(op="placeholder"), inputs, strict=True))
    new: list[fx.Node] = []
    with module.graph.inserting_before(node):
        for old in trace.graph.nodes:
            if old.op in ("placeholder", "output"):
                continue
            copied = module.graph.node_copy(old, environment.__getitem__)
            if old.op == "get_attr":
                copied.target = names[str(old.target)]
            copied.meta = {key: node.meta[key] for key in LENT_META if key in node.meta}
            copied.meta |= {k: old.meta[k] for k in ("val", "unbacked_bindings") if k in old.meta}
            copied.meta["custom"] = dict(node.meta.get("custom", {}))
            rename(copied)
            stamp(copied, plugin)
            environment[old] = copied
            new.append(copied)
    returned: Any = fx.node.map_arg(trace.graph.output_node().args[0], environment.__getitem__)
    if not isinstance(returned, (list, tuple)):
        node.replace_all_uses_with(returned)
    else:
        for user in list(node.users):
            index: Any = user.args[1]
            user.replace_all_uses_with(returned[index])
            module.graph.erase_node(user)
    module.graph.erase_node(node)
    return new


def _renamed_symbols(node: fx.Node, traced: fx.Graph) -> Callable[[fx.Node], None]:
    """A function that gives a copied node the unbacked symbols of the node it replaces.

    An operator with a data-dependent size makes a fresh symbol each time it is traced, but the
    rest of the program knows the size by the replaced node's symbol.
    """
    old = list(unbacked_bindings(node))
    fresh = [symbol for n in traced.nodes for symbol in unbacked_bindings(n)]
    if not fresh:
        return lambda copied: None
    if len(old) != len(fresh):
        raise TypeError(
            f"the expansion makes {len(fresh)} data-dependent sizes, the operator {len(old)}"
        )
    names = dict(zip(fresh, old, strict=True))
    mode = fake_mode_of(node.meta["val"])
    assert mode is not None

    def rename(copied: fx.Node) -> None:
        if "val" in copied.meta:  # an assertion has none
            copied.meta["val"] = rename_symbols(copied.meta["val"], names, mode)
        if bindings := unbacked_bindings(copied):
            copied.meta["unbacked_bindings"] = {names[s]: path for s, path in bindings.items()}

    return rename


def _add_module(module: fx.GraphModule, name: str, value: fx.GraphModule) -> str:
    number = len(module._modules)
    while hasattr(module, f"{name}_graftwork_{number}"):
        number += 1
    module.add_submodule(f"{name}_graftwork_{number}", value)
    return f"{name}_graftwork_{number}"


def _summary(body: Sequence[fx.Node]) -> str:
    if not body:
        return "its input"
    names = list(dict.fromkeys(str(n.target) for n in body))
    shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return f"{len(body)} nodes: {shown}" if len(body) > 1 else names[0]


def _key(plugin: Plugin, node: fx.Node, inputs: Sequence[fx.Node]) -> Any:
    """What decides a candidate's expansion; None where that cannot be hashed."""
    places = {source: position for position, source in enumerate(inputs)}
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    shape = tuple(
        ("node", places[leaf]) if isinstance(leaf, fx.Node) else (type(leaf), _exactly(leaf))
        for leaf in leaves
    )
    key = (plugin.id, node.target, spec, shape, tuple(_describe(n.meta["val"]) for n in inputs))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _exactly(leaf: Any) -> Any:
    """An argument as what tells it from all others: 0.0 equals -0.0."""
    return repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _describe(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return type(value), symbolic_expression(value)
    sizes = tuple(map(symbolic_expression, (*value.shape, *value.stride())))
    return value.dtype, value.device, sizes, symbolic_expression(value.storage_offset())
