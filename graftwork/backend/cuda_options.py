"""What one CUDA lowering was asked for, as it travels in a compile spec of the delegate.

The plugin set and the target's settings reach the backend's compile, which ExecuTorch calls,
as one JSON text under the key `graftwork`; a stock runtime ignores it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from graftwork.backend.data_names import check_data_name, one_data_name
from graftwork.backend.runtime_exports import installed_release, release
from graftwork.plugins import LoweringContext, Selection, select_plugins
from graftwork.plugins.errors import InputError

__all__ = ["DATA_NAME_KEY", "SPEC_KEY", "CudaOptions"]

SPEC_KEY = "graftwork"
DATA_NAME_KEY = "data_name"


@dataclasses.dataclass(frozen=True)
class CudaOptions:
    """The settings of one lowering.

    Attributes:
        plugins: the enabled plugins, each as `id{option=value}`.
        arch: the GPU to compile for without having one, `sm_90`; empty for this machine's.
        runtime: the ExecuTorch release the program is to run on, "1.5"; empty for the installed.
        extra_symbols: functions that this runtime exports beyond the stock ones.
        ptx: embed PTX, which newer GPUs can compile when they load the program.
    """

    plugins: tuple[str, ...] = ()
    arch: str = ""
    runtime: str = ""
    extra_symbols: tuple[str, ...] = ()
    ptx: bool = False

    def selection(self) -> Selection:
        """The plugin set, resolved anew from its text."""
        return select_plugins(disable=["all"], enable=list(self.plugins))

    def context(self) -> LoweringContext:
        """The facts that hooks are told."""
        archs = (self.arch,) if self.arch else ()
        return LoweringContext(target="cuda", device="cuda", archs=archs)

    @property
    def release(self) -> str:
        """The release to audit against, "1.5"."""
        return (release(self.runtime) if self.runtime else installed_release()).name

    def to_spec(self) -> Any:
        """The compile spec that carries these options."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        return CompileSpec(SPEC_KEY, json.dumps(dataclasses.asdict(self)).encode("utf-8"))

    @classmethod
    def from_specs(cls, specs: Iterable[Any]) -> CudaOptions | None:
        """The options among a method's compile specs; None where there are none.

        Raises InputError where their text cannot be read.
        """
        for spec in specs:
            if spec.key != SPEC_KEY:
                continue
            try:
                record: dict[str, Any] = json.loads(bytes(spec.value))
                texts: dict[str, Any] = {
                    key: tuple(v) if isinstance(v, list) else v for key, v in record.items()
                }
                return dataclasses.replace(cls(), **texts)
            except (ValueError, TypeError, AttributeError) as error:
                raise InputError(
                    f"the compile spec '{SPEC_KEY}' cannot be read: {error}"
                ) from error
        return None


def data_name_spec(name: str) -> Any:
    """A compile spec that names the program's weights file; InputError for a bad name."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    return CompileSpec(DATA_NAME_KEY, check_data_name(name).encode("ascii"))


def data_name_of(all_specs: Iterable[Iterable[Any]]) -> str:
    """The weights file's name that all methods' compile specs agree on."""
    names = []
    for specs in all_specs:
        for spec in specs:
            if spec.key == DATA_NAME_KEY:
                names.append(bytes(spec.value).decode("utf-8", "replace"))
    return one_data_name(names)
