"""Writes a failing case as a script that reproduces it alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.export import Dim

from .properties import Case


def tensor(
    dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], data: str
) -> torch.Tensor:
    """Rebuild a tensor from the hexadecimal bytes of its storage, strides and all."""
    storage = (
        torch.frombuffer(bytearray.fromhex(data), dtype=dtype)
        if data
        else torch.empty(0, dtype=dtype)
    )
    return storage.as_strided(size, stride)


def write_script(plugin_id: str, property_name: str, case: Case) -> str:
    """A Python script that runs `case` and fails as it failed here."""
    program = case.program
    home, name = program.__module__, program.__qualname__
    lines = [
        f'"""Reproduces a failure of plugin {plugin_id}, property {property_name}."""',
        "",
        "import torch",
        "from torch.export import Dim",
        "",
        "from graftwork.plugins import Case",
        "from graftwork.plugins.reproduction import tensor",
        "from graftwork.plugins.verification import check_again",
        f"from {home} import {name.split('.')[0]}",
        "",
        "case = Case(",
        f"    program={name},",
        f"    inputs={_literal(case.inputs)},",
        f"    settings={_literal(dict(case.settings))},",
        f"    fires={case.fires!r},",
        f"    dynamic_shapes={_literal(case.dynamic_shapes)},",
        f"    more_inputs={_literal(case.more_inputs)},",
        f"    options={_literal(dict(case.options))},",
        ")",
        f"check_again({plugin_id!r}, {property_name!r}, case)",
        "",
    ]
    return "\n".join(lines)


def _literal(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _tensor_literal(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(k)}: {_literal(v)}' for k, v in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, Dim):
        return f"Dim({value.__name__!r}, min={value.min}, max={value.max})"
    if type(value) is type(Dim.DYNAMIC):
        return f"Dim.{value.type.name}"
    return repr(value)


def _tensor_literal(value: torch.Tensor) -> str:
    value = value.detach().cpu()
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    flat = value.as_strided((reach if value.numel() else 0,), (1,)).contiguous()
    data = bytes(flat.view(torch.uint8).numpy()).hex() if flat.numel() else ""
    return f"tensor({value.dtype}, {tuple(value.shape)}, {value.stride()}, {data!r})"
