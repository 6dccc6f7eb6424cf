# mypy: ignore-errors
"""What programs record a launch of the kernel for Hopper GPUs as; see the toolkit's gluon.py."""

import triton
import triton.language as tl

COUNTS = ["heads", "group", "batches", "tokens_q", "tokens_k", "stride_lse"]


@triton.jit(do_not_specialize=COUNTS)
def hopper_stand_in(
    query, key, value, out, lse, plan,
    scale, heads, group, batches, tokens_q, tokens_k,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
    stride_ob, stride_ot, stride_oh, stride_lse,
    D: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr, SWEEP: tl.constexpr,
    VARLEN: tl.constexpr, CAUSAL: tl.constexpr, LSE: tl.constexpr, SHORT: tl.constexpr,
    STRIDE_Q: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
):  # fmt: skip
    """Read and write the tensors that the kernel reads and writes; never to be run.

    Gluon: graftwork.shims_cuda.attention.hopper_kernels:hopper_kernel
    """
    # Where nothing puts the kernel in this one's place, the assembler refuses this.
    name: tl.constexpr = "lower_with_the_plugin_gluon_kernels $0, $1;"
    count = tl.inline_asm_elementwise(name, "=r,r", [tl.load(plan)], tl.int32, True, 1)
    tl.store(plan + 1, count)
    read = tl.load(query) + tl.load(key) + tl.load(value)
    tl.store(out, read)
    if LSE:
        tl.store(lse, read.to(tl.float32))
