"""What a .pte itself says of its inputs, for programs that carry no signature."""

from __future__ import annotations

import torch

from graftwork.backend.program_file import Plan
from graftwork.backend.signature import Constant, Input, Signature, Size

__all__ = ["DTYPES", "signature_of_plan"]

# ExecuTorch's schema/scalar_type.fbs, which numbers them as torch does.
DTYPES = {
    0: torch.uint8,
    1: torch.int8,
    2: torch.int16,
    3: torch.int32,
    4: torch.int64,
    5: torch.float16,
    6: torch.float32,
    7: torch.float64,
    11: torch.bool,
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
    25: torch.float8_e5m2fnuz,
    26: torch.float8_e4m3fnuz,
    27: torch.uint16,
    28: torch.uint32,
    29: torch.uint64,
}


def signature_of_plan(plan: Plan, device: str) -> Signature:
    """Counts, dtypes, ranks, fixed sizes and upper bounds; inputs are called by their number.

    A size of a dynamic tensor is known by its upper bound alone, whether it is fixed or not.
    """
    inputs: list[Input | Constant] = []
    for number, place in enumerate(plan.inputs):
        value = plan.values[place]
        if value.kind != "tensor":
            inputs.append(Constant(str(number), value.scalar))
            continue
        shape = tuple(Size("", 1, 0, 0, n) if value.dynamic else n for n in value.sizes)
        dtype = str(DTYPES.get(value.dtype, value.dtype)).removeprefix("torch.")
        order, written = value.dim_order or None, place in plan.written_inputs
        inputs.append(Input(str(number), dtype, shape, device, order, written=written))
    outputs = [
        None if plan.values[place].kind == "tensor" else Constant("", plan.values[place].scalar)
        for place in plan.outputs[len(plan.written_inputs) :]
    ]
    return Signature(tuple(inputs), tuple(outputs), plan.in_spec, plan.out_spec)
