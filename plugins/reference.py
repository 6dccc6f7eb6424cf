"""Runs a program in eager mode, the reference for every comparison.

Where eager has no kernel for an operator on this machine, the function that a plugin's
`list_references` gives for it stands in, and the operator is named in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .log import Declined
from .registry import Plugin
from .torch_private import TorchDispatchMode


class SubstituteOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, calls functions in place of the operators they are given for.

    A function that raises `Declined` or answers NotImplemented leaves the call to the operator
    itself. `used` holds the operators that were replaced, each once, in order; `count` says how
    many calls were, and `declined` holds the reasons given.
    """

    def __init__(self, functions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._functions = functions
        self.used: dict[Any, None] = {}
        self.count = 0
        self.declined: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the substitute for `func`, or `func` itself."""
        substitute = self._functions.get(func)
        if substitute is None:
            return func(*args, **(kwargs or {}))
        try:
            result = substitute(*args, **(kwargs or {}))
        except Declined as reason:
            self.declined.append(str(reason))
            return func(*args, **(kwargs or {}))
        if result is NotImplemented:
            return func(*args, **(kwargs or {}))
        self.used[func] = None
        self.count += 1
        return result


def run_eager(
    module: Callable[..., Any],
    inputs: tuple[Any, ...],
    plugins: Iterable[Plugin],
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[Any, list[str]]:
    """Run `module` without gradients; outputs, and operators that a reference stood in for.

    Raises:
        Exception: whatever the module itself raises.
    """
    with torch.no_grad():
        try:
            return module(*inputs, **(kwargs or {})), []
        except NotImplementedError:
            functions: dict[Any, Callable[..., Any]] = {}
            for plugin in plugins:
                if plugin.implements("list_references"):
                    functions |= plugin.call("list_references")
            if not functions:
                raise
            with SubstituteOperators(functions) as mode:
                outputs = module(*inputs, **(kwargs or {}))
            return outputs, list(map(str, mode.used))
