"""The callable that `graftwork.load` gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.outputs import model_outputs
from graftwork.backend.signature import Constant, Signature
from graftwork.plugins.errors import InputError

from .graphs import Capture, GraphedRun, Run
from .inputs import InputReader, is_tuple_of_leaves, load_spec
from .runtimes import RunnableMethod

__all__ = ["Method", "Program"]


class Method:
    """One method of a loaded program: takes and gives what the exported model did.

    Buffers that it writes keep their values from call to call. Calls from several threads take
    turns.
    """

    def __init__(self, name: str, runnable: RunnableMethod, capture: Capture | None) -> None:
        self.name = name
        self.device = runnable.device
        self.signature: Signature = runnable.signature
        self._keeps = runnable
        self._gpu = torch.cuda.current_device() if self.device == "cuda" else None
        self._reader = InputReader(name, runnable.signature, self._gpu)
        self._out_spec = load_spec(runnable.signature.out_spec)
        self._tuple_of_leaves = is_tuple_of_leaves(runnable.signature.out_spec)
        self._written = any(
            not isinstance(item, Constant) and item.written
            for item in runnable.signature.inputs or ()
        )
        self._lock = threading.Lock()
        self._graph: GraphedRun | None = None
        run: Run = runnable.run
        if capture is not None:
            names = [
                item.name
                for item in runnable.signature.inputs or ()
                if not isinstance(item, Constant)
            ]
            self._graph = GraphedRun(run, capture, name, names, runnable.no_graph)
            run = self._graph
        self._run = run

    @property
    def graph(self) -> str:
        """`off`, `warming up`, `captured`, or why it runs without the graph asked for."""
        if self._graph is None:
            return "off"
        return self._graph.why_not or ("captured" if self._graph.captured else "warming up")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one call.

        Raises:
            InputError: an input does not fit; names it, what it is and what it must be.
            RuntimeError: the program itself reports an error.
        """
        leaves = self._reader.flatten(args, kwargs)
        tensors = self._reader.check(leaves)
        with self._lock, torch.no_grad(), self._on_gpu():
            found = self._run(tensors)
            if self._written:
                self._write_back(leaves, tensors)
        outputs = model_outputs(self.signature, found)
        if self._out_spec is None or self._out_spec.num_leaves != len(outputs):
            return outputs
        if self._tuple_of_leaves:
            return tuple(outputs)
        return pytree.tree_unflatten(outputs, self._out_spec)

    def _on_gpu(self) -> AbstractContextManager[object]:
        return nullcontext() if self._gpu is None else torch.cuda.device(self._gpu)

    def _write_back(self, leaves: list[Any], tensors: list[torch.Tensor]) -> None:
        """Give a caller's tensor what the method wrote into a copy laid out otherwise."""
        theirs = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        items = (i for i in self.signature.inputs or () if not isinstance(i, Constant))
        for item, given, used in zip(items, theirs, tensors, strict=False):
            if item.written and given.data_ptr() != used.data_ptr():
                given.copy_(used)


class Program:
    """A loaded artifact; call it, or one of its methods by name.

    Attributes:
        artifact: the file it came from.
        methods: the methods by name.
    """

    def __init__(self, artifact: Path, methods: Mapping[str, Method]) -> None:
        self.artifact = artifact
        self.methods = dict(methods)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, or the only method there is."""
        return self.method()(*args, **kwargs)

    def method(self, name: str = "") -> Method:
        """A method by name; without one, `forward`, or the only one.

        Raises:
            InputError: no such method; lists those there are.
        """
        known = self.methods
        if not name:
            name = next(iter(known)) if len(known) == 1 else "forward"
        if name not in known:
            raise InputError(
                f"{self.artifact} has no method '{name}'; it has {', '.join(sorted(known))}"
            )
        return known[name]

    def __getattr__(self, name: str) -> Method:
        methods = self.__dict__.get("methods", {})
        if name not in methods:
            raise AttributeError(f"the program has no method '{name}'")
        found: Method = methods[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.methods)

    def __repr__(self) -> str:
        return f"Program({str(self.artifact)!r}, methods={sorted(self.methods)})"
