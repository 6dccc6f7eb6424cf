"""FlatBuffers tables are read by field number, and what points outside the file is an error."""

import struct

import pytest

from graftwork.backend.flatbuffer import root


def buffer(back=6, length=3, content=b"abc"):
    """A root table whose field 0 is a number and field 1 a vector of bytes."""
    vtable = struct.pack("<HHHH", 8, 12, 4, 8)
    table = struct.pack("<iiI", back, -7, 4)
    vector = struct.pack("<I", length) + content
    return memoryview(struct.pack("<I", 4 + len(vtable)) + vtable + table + vector)


def test_fields_are_read_and_absent_ones_give_their_default():
    table = root(buffer(back=8))
    assert table.number(0) == -7
    assert bytes(table.bytes(1)) == b"abc" and table.text(1) == "abc"
    assert table.numbers(1, "B") == (97, 98, 99)
    assert table.number(2, default=5) == 5 and table.text(9) == ""
    assert table.table(2) is None and table.tables(3, str) == []


def test_a_vector_longer_than_the_file_is_an_error():
    with pytest.raises(ValueError, match="a vector points outside the file"):
        root(buffer(back=8, length=4)).bytes(1)


@pytest.mark.parametrize("back", [100, -100])
def test_a_table_whose_fields_lie_outside_the_file_is_an_error(back):
    # Before the first byte, Python would read from the end.
    with pytest.raises(ValueError, match="a table points outside the file"):
        root(buffer(back=back))
