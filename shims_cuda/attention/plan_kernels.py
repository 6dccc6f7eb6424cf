# mypy: ignore-errors
"""Where sequences begin and end, and a plan that deals their query tiles out.

Offsets and lengths are read on the device, and kept inside the buffers whatever they hold. Numbers
of pages are not: they are taken as they are, as eager's kernel takes them.
"""

import triton
import triton.language as tl


# Helpers that the address of a store depends on take values, not pointers: Inductor would take
# what is behind every pointer given to them for written.
@triton.jit
def sequence_bounds(begin, end, tokens):
    """Begin and end of a sequence, inside [0, tokens] whatever the offsets are."""
    begin = tl.minimum(tl.maximum(begin.to(tl.int32), 0), tokens)
    return begin, tl.minimum(tl.maximum(end.to(tl.int32), begin), tokens)


@triton.jit
def keys_of(
    cu_k, used_k, table, sequence, tokens_k, stride_table,
    USED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """First key and number of keys of a sequence, and its row of the page table."""
    if PAGE == 0:
        key_begin, key_end = sequence_bounds(
            tl.load(cu_k + sequence), tl.load(cu_k + sequence + 1), tokens_k
        )
        keys = key_end - key_begin
    else:
        key_begin = sequence * 0
        keys = tokens_k
        table += sequence.to(tl.int64) * stride_table
    if USED:
        keys = tl.minimum(tl.maximum(tl.load(used_k + sequence).to(tl.int32), 0), keys)
    return key_begin, keys, table


@triton.jit
def slot_keys(
    real, begin, end, used, tokens_k, USED: tl.constexpr, PAGED: tl.constexpr
):  # fmt: skip
    """First key and number of keys of each slot; none for the two that are no sequences."""
    if PAGED:
        begin = tl.where(real, 0, 0)
        keys = tl.where(real, tokens_k, 0)
    else:
        begin, end = sequence_bounds(begin, end, tokens_k)
        keys = end - begin
    if USED:
        keys = tl.minimum(tl.maximum(used.to(tl.int32), 0), keys)
    return begin, keys


@triton.jit(do_not_specialize=["sequences", "tokens_q", "tokens_k"])
def plan_kernel(
    cu_q, cu_k, used_k, plan, sequences, tokens_q, tokens_k,
    BLOCK_M: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, USED: tl.constexpr,
    PAGED: tl.constexpr,
):  # fmt: skip
    """Deal the query tiles of all sequences out, those with the most keys first.

    plan[0] is the number of tiles, plan[1] a counter for who deals them out, set to 0; tile t has
    the eight numbers from plan[8 + 8 t]: first tile and number of tiles of its slot, first row,
    rows, first key, keys, sequence. Each program places SLOTS slots by counting the tiles of all
    slots that come before them. Offsets that do not ascend may ask for more tiles than the plan
    has room for, which are left out.
    """
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    slots = sequences + 2
    # Slot 0 is what lies before the first sequence, slot sequences + 1 what lies past the last.
    real = (slot > 0) & (slot <= sequences)
    before = tl.load(cu_q + slot - 1, mask=real | (slot == sequences + 1), other=0)
    after = tl.load(cu_q + slot, mask=slot <= sequences, other=2147483647)
    begin, end = sequence_bounds(before, tl.minimum(after, 2147483647), tokens_q)
    tiles = tl.where(slot < slots, tl.cdiv(end - begin, BLOCK_M), 0)
    used = before
    if not PAGED:
        before = tl.load(cu_k + slot - 1, mask=real, other=0)
        after = tl.load(cu_k + slot, mask=real, other=0)
    if USED:
        used = tl.load(used_k + slot - 1, mask=real, other=0)
    key_begin, keys = slot_keys(real, before, after, used, tokens_k, USED, PAGED)
    first = tl.zeros([SLOTS], tl.int32)
    total = 0
    for start in range(0, slots, SLOTS):
        other = start + tl.arange(0, SLOTS)
        real = (other > 0) & (other <= sequences)
        before = tl.load(cu_q + other - 1, mask=real | (other == sequences + 1), other=0)
        after = tl.load(cu_q + other, mask=other <= sequences, other=2147483647)
        other_begin, other_end = sequence_bounds(before, tl.minimum(after, 2147483647), tokens_q)
        other_tiles = tl.where(other < slots, tl.cdiv(other_end - other_begin, BLOCK_M), 0)
        used = before
        if not PAGED:
            before = tl.load(cu_k + other - 1, mask=real, other=0)
            after = tl.load(cu_k + other, mask=real, other=0)
        if USED:
            used = tl.load(used_k + other - 1, mask=real, other=0)
        _, other_keys = slot_keys(real, before, after, used, tokens_k, USED, PAGED)
        earlier = (other_keys[None, :] > keys[:, None]) | (
            (other_keys[None, :] == keys[:, None]) & (other[None, :] < slot[:, None])
        )
        first += tl.sum(tl.where(earlier, other_tiles[None, :], 0), 1)
        total += tl.sum(other_tiles, 0)
    room = tokens_q // BLOCK_M + sequences + 2
    if tl.program_id(0) == 0:
        tl.store(plan, tl.minimum(total, room))
        tl.store(plan + 1, 0)
    for start in range(0, tl.max(tiles, 0), WIDE):
        tile = start + tl.arange(0, WIDE)
        place = first[:, None] + tile[None, :]
        inside = (tile[None, :] < tiles[:, None]) & (place >= 0) & (place < room)
        record = plan + 8 + 8 * place
        tl.store(record, tl.broadcast_to(first[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 1, tl.broadcast_to(tiles[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 2, tl.broadcast_to(begin[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 3, tl.broadcast_to((end - begin)[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 4, tl.broadcast_to(key_begin[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 5, tl.broadcast_to(keys[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 6, tl.broadcast_to((slot - 1)[:, None], [SLOTS, WIDE]), mask=inside)
