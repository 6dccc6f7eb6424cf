"""Composes plugins into ExecuTorch's CUDA backend, which compiles when ExecuTorch says so.

`install` wraps the hooks of `CudaBackend` once a process. They do nothing but what they did,
except for a program whose compile specs carry `CudaOptions`: that one compiles with the enabled
compile options and patches, on a GPU or without one, under a name of its own for the weights,
and each finished library is audited before anything is written.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import fx

from graftwork.backend.audit import Finding, LibraryAudit, audit_library
from graftwork.backend.branches import inline_branch_constants
from graftwork.backend.cuda_options import CudaOptions, data_name_of
from graftwork.backend.data_names import DEFAULT_DATA_NAME
from graftwork.backend.delegate_report import raise_refusals
from graftwork.backend.deviceless import Decisions, deviceless
from graftwork.backend.host import portable_host, portable_host_options
from graftwork.backend.patching import Patches
from graftwork.backend.refusals import refusal_of
from graftwork.backend.request import BuildRequest
from graftwork.plugins import torch_private
from graftwork.plugins.errors import GraftworkError, NotLowerableError

__all__ = ["Outcome", "collecting", "install"]


@dataclasses.dataclass
class Outcome:
    """What a lowering left for its report: each library's audit, and what was decided blind.

    The compiler's own files go to `workspace`, or to Inductor's cache where there is none.
    """

    workspace: Path | None = None
    audits: list[LibraryAudit] = dataclasses.field(default_factory=list)
    decisions: list[Decisions] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Compile:
    """One delegate being compiled."""

    options: CudaOptions
    method: str
    program: Any
    missing: set[str] = dataclasses.field(default_factory=set)
    findings: tuple[Finding, ...] = ()


class _State(threading.local):
    compile: _Compile | None = None
    outcome: Outcome | None = None


_state = _State()


@contextmanager
def collecting(workspace: Path | None = None) -> Iterator[Outcome]:
    """Collect the outcome of the lowerings that this thread does inside the block."""
    before, outcome = _state.outcome, Outcome(workspace)
    _state.outcome = outcome
    try:
        yield outcome
    finally:
        _state.outcome = before


@functools.cache
def install() -> None:
    """Wrap the hooks of ExecuTorch's CudaBackend, once a process."""
    from executorch.backends.cuda.cuda_backend import CudaBackend

    def wrap(name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        stock = getattr(CudaBackend, name).__func__
        setattr(CudaBackend, name, classmethod(functools.wraps(stock)(make(stock))))

    wrap("preprocess_multimethod", _preprocess_multimethod)
    wrap("_preprocess_with_weight_collector", _preprocess_one)
    wrap("collect_unsupported_fallback_kernels", _collect_fallbacks)
    wrap("materialize_weights_blob", _materialize)
    wrap("get_custom_passes", _custom_passes)
    wrap("get_aoti_compile_options", _compile_options)
    wrap("get_extra_aoti_compile_context_manager", _compile_context)
    wrap("move_program_to_device", _move_program)


def _preprocess_multimethod(stock: Any) -> Callable[..., Any]:
    def preprocess_multimethod(cls: Any, edge_programs: Any, compile_specs: Any) -> Any:
        all_specs = [specs for per_method in compile_specs.values() for specs in per_method]
        options = next(filter(None, map(CudaOptions.from_specs, all_specs)), None)
        if options is None:
            return stock(cls, edge_programs, compile_specs)
        data_name = data_name_of(all_specs)
        with _device(options) as decisions:
            results = stock(cls, edge_programs, compile_specs)
        if _state.outcome is not None and decisions is not None:
            _state.outcome.decisions.append(decisions)
        _rename_data(results, data_name)
        return results

    return preprocess_multimethod


def _device(options: CudaOptions) -> Any:
    """Stand in for the GPU asked for, unless this machine has it or is in a deviceless block."""
    if not options.arch or _has_gpu(options.arch):
        return nullcontext()
    return deviceless(options.arch, ptx=options.ptx)


def _has_gpu(arch: str) -> bool:
    if not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return arch == f"sm_{major}{minor}"


def _rename_data(results: Mapping[str, Any], name: str) -> None:
    if name == DEFAULT_DATA_NAME:
        return
    for per_method in results.values():
        for result in per_method:
            external = result.data_store_output.external_data
            if DEFAULT_DATA_NAME in external:
                external[name] = external.pop(DEFAULT_DATA_NAME)


def _preprocess_one(stock: Any) -> Callable[..., Any]:
    def preprocess(cls: Any, edge_program: Any, compile_specs: Any, *args: Any) -> Any:
        options = CudaOptions.from_specs(compile_specs)
        if options is None:
            return stock(cls, edge_program, compile_specs, *args)
        method = cls.method_name_from_compile_specs(compile_specs)
        before, _state.compile = _state.compile, _Compile(options, method, edge_program)
        compiling = _state.compile
        try:
            result = stock(cls, edge_program, compile_specs, *args)
        except GraftworkError:
            raise
        except Exception as error:
            _raise_report(compiling)
            raise NotLowerableError(
                f"method {method}: the CUDA delegate refused the program: {refusal_of(error)}"
            ) from error
        finally:
            _state.compile = before
        _raise_report(compiling)
        return result

    return preprocess


def _collect_fallbacks(stock: Any) -> Callable[..., Any]:
    @contextmanager
    def collect(cls: Any, missing_fallback_kernels: set[str]) -> Iterator[None]:
        if _state.compile is not None:
            _state.compile.missing = missing_fallback_kernels
        with stock(cls, missing_fallback_kernels):
            yield

    return collect


def _materialize(stock: Any) -> Callable[..., Any]:
    def materialize_weights_blob(cls: Any, paths: Any, compile_specs: Any) -> Any:
        compiling = _state.compile
        if compiling is not None:
            for path in paths if isinstance(paths, list) else [paths]:
                if str(path).endswith(".so"):
                    _strip(path)
                    _audit(compiling, Path(path).read_bytes())
        return stock(cls, paths, compile_specs)

    return materialize_weights_blob


def _strip(path: str) -> None:
    """Drop the debug information, three quarters of a small library, where `strip` is there.

    `strip` replaces the file when it is through; where it fails the library is whole, as it was.
    """
    tool = shutil.which("strip")
    if tool is not None:
        subprocess.run([tool, "--strip-debug", path], check=False, capture_output=True)


def _audit(compiling: _Compile, library: bytes) -> None:
    options = compiling.options
    audit = audit_library(
        library,
        runtime=options.release,
        archs=(options.arch,) if options.arch else (),
        extra_symbols=options.extra_symbols,
        method=compiling.method,
    )
    compiling.findings = audit.findings
    if _state.outcome is not None:
        _state.outcome.audits.append(audit)


def _custom_passes(stock: Any) -> Callable[..., Any]:
    def get_custom_passes(cls: Any, compile_specs: Any) -> list[Any]:
        passes = list(stock(cls, compile_specs))
        asked = any(spec.key == "triton_kernel_mode" for spec in compile_specs)
        if asked or CudaOptions.from_specs(compile_specs) is None:
            return passes
        return [_without_attention(item) for item in passes]

    return get_custom_passes


def _without_attention(item: Any) -> Any:
    """The stock replacement pass, leaving attention alone.

    Its attention kernel takes bfloat16 only, and counts keys past the end of the last tile into
    the softmax; a plugin's kernel or Inductor's decomposition takes its place.
    """
    from executorch.backends.cuda.triton.replacement_pass import ReplaceEdgeOpWithTritonOpPass
    from executorch.exir.dialects._ops import ops

    if not isinstance(item, ReplaceEdgeOpWithTritonOpPass):
        return item
    attention = ops.edge.aten.scaled_dot_product_attention.default

    class WithoutAttention(ReplaceEdgeOpWithTritonOpPass):  # type: ignore[misc]  # untyped
        def _should_replace_node(self, node: fx.Node) -> bool:
            return node.target != attention and bool(super()._should_replace_node(node))

    return WithoutAttention()


def _compile_options(stock: Any) -> Callable[..., Any]:
    def get_aoti_compile_options(cls: Any, compile_specs: Any) -> dict[str, Any]:
        merged = dict(stock(cls, compile_specs))
        options = CudaOptions.from_specs(compile_specs)
        if options is None:
            return merged
        merged |= portable_host_options()
        if not options.ptx:
            merged["aot_inductor.emit_multi_arch_kernel"] = False
        if _state.outcome is not None and _state.outcome.workspace is not None:
            folder = tempfile.mkdtemp(dir=_state.outcome.workspace)
            merged["aot_inductor.output_path"] = folder
        return merged | _request(options).compile_options()

    return get_aoti_compile_options


def _compile_context(stock: Any) -> Callable[..., Any]:
    def get_extra_aoti_compile_context_manager(cls: Any, compile_specs: Any = None) -> Any:
        options = CudaOptions.from_specs(compile_specs or ())
        if options is None:
            return stock(cls, compile_specs)

        @contextmanager
        def both() -> Iterator[None]:
            with ExitStack() as stack:
                stack.enter_context(stock(cls, compile_specs))
                stack.enter_context(portable_host())
                if _state.outcome is not None and _state.outcome.workspace is not None:
                    # g++ leaves its temporary files where it is killed.
                    patches = Patches()
                    stack.callback(patches.undo)
                    patches.environment("TMPDIR", str(_state.outcome.workspace))
                if _state.compile is not None:
                    _forget_pending_symbols(_state.compile.program)
                stack.enter_context(_request(options).compile_patches())
                yield

        return both()

    return get_extra_aoti_compile_context_manager


def _forget_pending_symbols(program: Any) -> None:
    """Let the compile start clean: ExecuTorch's passes run nodes again and drop what they make.

    Each run of `nonzero` or `.item()` makes a new symbol, and the compiler's trace takes those
    left over for its own.
    """
    values = [node.meta.get("val") for node in program.graph_module.graph.nodes]
    torch_private.forget_pending_symbols(torch_private.fake_mode_of(values))


def _move_program(stock: Any) -> Callable[..., Any]:
    def move_program_to_device(cls: Any, program: Any, device: str, compile_specs: Any) -> Any:
        if CudaOptions.from_specs(compile_specs) is not None:
            inline_branch_constants(program.graph_module, device)
        return stock(cls, program, device, compile_specs)

    return move_program_to_device


def _request(options: CudaOptions) -> BuildRequest:
    return BuildRequest({}, "", Path(), options.context(), options.selection(), "")


def _raise_report(compiling: _Compile) -> None:
    raise_refusals(compiling.options, compiling.program, compiling.missing, compiling.findings)
