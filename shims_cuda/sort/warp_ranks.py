"""Sorting a tile by eight bits, and counting them, in PTX, for NVIDIA GPUs.

Triton has no shared memory that a program may write where it likes, nor votes among the lanes of
a warp. With both, an element's place among those of its digit costs eight votes and a counter:

1. each warp takes 32 elements at a time, in order. Eight votes, one a bit, tell a lane which other
   lanes hold its digit; a counter of the warp's own says how many its earlier elements held.
2. The counters of all warps are added up, by digit and then by warp.
3. Each element goes where its digit's counter and its rank in the warp say, in shared memory.

Both functions below are pure, in that their results are a function of their arguments; the shared
memory is their own. A program has `WARPS` warps of 32 threads and hands each thread `items`
elements. Which element a thread is handed does not matter: each comes with its place. The text is
one line, as Inductor writes it into a Python string between quotes.
"""

from __future__ import annotations

from collections.abc import Iterator

WARPS = 8  # so that there is a thread for each of the 256 digits


def order(items: int) -> str:
    """Words (a digit from bit 16 up, a place below) and places to the words at these places.

    Words are in the order of digit, then place. Operands: the `items` results, as many words, as
    many places; see :func:`constraints`.
    """
    return " ".join(_order(items))


def count(items: int) -> str:
    """Digits and places to ``how many hold the digit | how many hold a smaller one << 16``.

    That is for the digit that a place numbers; places from 256 up get 0. A digit of 256 or more
    counts for nothing. Operands as for :func:`order`.
    """
    return " ".join(_count(items))


def constraints(items: int) -> str:
    """The operands of either, as Triton takes them: results, then two arguments."""
    return ",".join(["=&r"] * items + ["r"] * (2 * items))


def _order(items: int) -> Iterator[str]:
    words, places = range(items, 2 * items), range(2 * items, 3 * items)
    yield "{"
    yield f".shared .align 16 .b32 counters[{WARPS * 256}];"
    yield f".shared .align 16 .b32 tile[{WARPS * 32 * items}];"
    yield f".shared .align 16 .b32 sums[{WARPS}];"
    yield ".reg .pred bit, first;"
    yield ".reg .b32 lane, lower, own, cells, mine, digit, same, vote, at, before, many;"
    yield f".reg .b32 word<{items}>, rank<{items}>;"
    yield from _who_am_i()
    yield "mov.u32 lower, %lanemask_lt;"
    yield "mov.u32 own, counters; mad.lo.u32 own, warp, 1024, own;"
    yield "mov.u32 cells, tile;"
    yield f"mad.lo.u32 mine, warp, {128 * items}, cells; mad.lo.u32 mine, lane, 4, mine;"
    yield "mad.lo.u32 at, lane, 4, own;"
    for step in range(8):
        yield f"st.shared.u32 [at+{128 * step}], 0;"
    for word in words:
        yield f"and.b32 at, ${word}, 65535; mad.lo.u32 at, at, 4, cells;"
        yield f"st.shared.u32 [at], ${word};"
    yield "bar.sync 0;"
    for item in range(items):
        yield f"ld.shared.u32 word{item}, [mine+{128 * item}];"
    for item in range(items):
        yield f"shr.u32 digit, word{item}, 16; mov.b32 same, -1;"
        for bit in range(8):
            yield f"and.b32 at, digit, {1 << bit}; setp.ne.u32 bit, at, 0;"
            yield "vote.sync.ballot.b32 vote, bit, -1; @!bit not.b32 vote, vote;"
            yield "and.b32 same, same, vote;"
        yield "and.b32 before, same, lower; popc.b32 before, before; popc.b32 many, same;"
        yield "setp.eq.u32 first, before, 0; mad.lo.u32 at, digit, 4, own;"
        yield f"ld.shared.u32 rank{item}, [at]; bar.warp.sync -1;"
        yield f"add.u32 many, many, rank{item}; @first st.shared.u32 [at], many;"
        yield f"bar.warp.sync -1; add.u32 rank{item}, rank{item}, before;"
    yield "bar.sync 0;"
    yield from _add_up()
    for item in range(items):
        yield f"shr.u32 digit, word{item}, 16; mad.lo.u32 at, digit, 4, own;"
        yield f"ld.shared.u32 at, [at]; add.u32 at, at, rank{item};"
        yield f"mad.lo.u32 at, at, 4, cells; st.shared.u32 [at], word{item};"
    yield "bar.sync 0;"
    for result, place in enumerate(places):
        yield f"mad.lo.u32 at, ${place}, 4, cells; ld.shared.u32 ${result}, [at];"
    yield "}"


def _add_up() -> Iterator[str]:
    """Counters of (warp, digit) to their sums over smaller digits, and over warps before."""
    yield ".reg .b32 here, part<8>;"
    yield "mov.u32 at, counters; mad.lo.u32 at, thread, 4, at; mov.u32 here, 0;"
    for warp in range(WARPS):
        yield f"ld.shared.u32 part{warp}, [at+{1024 * warp}]; add.u32 here, here, part{warp};"
    yield from _sum_of_smaller("here")
    for warp in range(WARPS):
        yield f"st.shared.u32 [at+{1024 * warp}], smaller; add.u32 smaller, smaller, part{warp};"
    yield "bar.sync 0;"


def _count(items: int) -> Iterator[str]:
    digits, places = range(items, 2 * items), range(2 * items, 3 * items)
    yield "{"
    yield ".shared .align 16 .b32 counters[256];"
    yield f".shared .align 16 .b32 sums[{WARPS}];"
    yield ".reg .pred in;"
    yield ".reg .b32 lane, cells, at, mine, here;"
    yield from _who_am_i()
    yield "mov.u32 cells, counters; mad.lo.u32 mine, thread, 4, cells;"
    yield "bar.sync 0; st.shared.u32 [mine], 0; bar.sync 0;"  # others may still read the last ones
    for digit in digits:
        yield f"setp.lt.u32 in, ${digit}, 256; mad.lo.u32 at, ${digit}, 4, cells;"
        yield "@in red.shared.add.u32 [at], 1;"
    yield "bar.sync 0; ld.shared.u32 here, [mine];"
    yield from _sum_of_smaller("here")
    yield "shl.b32 smaller, smaller, 16; or.b32 here, here, smaller;"
    yield "st.shared.u32 [mine], here; bar.sync 0;"
    for result, place in enumerate(places):
        yield f"setp.lt.u32 in, ${place}, 256; mad.lo.u32 at, ${place}, 4, cells;"
        yield f"mov.u32 ${result}, 0; @in ld.shared.u32 ${result}, [at];"
    yield "}"


def _who_am_i() -> Iterator[str]:
    yield ".reg .b32 thread, warp;"
    yield "mov.u32 thread, %tid.x; and.b32 lane, thread, 31; shr.u32 warp, thread, 5;"


def _sum_of_smaller(count: str) -> Iterator[str]:
    """`smaller`: the sum of the register `count` over the threads before; there are 256."""
    yield ".reg .pred add; .reg .b32 smaller, from, total;"
    yield f"mov.u32 smaller, {count};"
    for step in (1, 2, 4, 8, 16):
        yield f"shfl.sync.up.b32 from|add, smaller, {step}, 0, -1;"
        yield "@add add.u32 smaller, smaller, from;"
    yield "setp.eq.u32 add, lane, 31; mov.u32 total, sums; mad.lo.u32 from, warp, 4, total;"
    yield "@add st.shared.u32 [from], smaller; bar.sync 0;"
    yield f"sub.u32 smaller, smaller, {count};"
    for warp in range(WARPS - 1):
        yield f"ld.shared.u32 from, [total+{4 * warp}]; setp.gt.u32 add, warp, {warp};"
        yield "@add add.u32 smaller, smaller, from;"
