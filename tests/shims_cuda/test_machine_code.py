"""The reader of machine code finds what it is there to find."""

from __future__ import annotations

import pytest
from machine_code import shared_layouts, unwritten_in

HEAD = """
        Function : kernel
        /*0000*/                   ULDC.64 UR8, c[0x0][0x208] ;
        /*0010*/                   USGXT.U32 UR6, UR8, 0xe ;
"""
PRODUCT = "        /*0060*/     HGMMA.64x32x16.F32.BF16 R24, R96, gdesc[UR4].tnspB, R24 ;\n"
END = "        /*0070*/                   EXIT ;\n"


def test_a_register_that_nothing_writes_is_found() -> None:
    lost = "        /*0020*/                   UIADD3 UR7, UP0, UR25, 0x40, URZ ;\n"
    found = unwritten_in(HEAD + lost + PRODUCT + END)
    assert found == ["0020 UIADD3 UR7, UP0, UR25, 0x40, URZ"]


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("        /*0020*/                   UMOV UR7, 0x80000020 ;\n", 0),
        ("        /*0020*/              @!P0 BRA 0x60 ;\n", 1),  # UR7 on no path
        (
            "        /*0020*/              @!P0 BRA 0x60 ;\n"
            "        /*0030*/                   UMOV UR7, 0x80000020 ;\n",
            0,  # on one
        ),
        (
            "        /*0020*/                   BRA 0x60 ;\n"
            "        /*0030*/                   UMOV UR7, 0x80000020 ;\n",
            1,  # the write is not on the way
        ),
        ("        /*0020*/              @!UP0 UMOV UR7, 0x80000020 ;\n", 0),
        ("        /*0020*/                   UIADD3.64 UR6, UR8, 0x4, URZ ;\n", 0),
    ],
)
def test_paths_and_pairs_of_registers_are_followed(code: str, wrong: int) -> None:
    assert len(unwritten_in(HEAD + code + PRODUCT + END)) == wrong


def test_text_that_is_no_machine_code_is_not_taken_for_right() -> None:
    with pytest.raises(AssertionError, match="no instruction"):
        unwritten_in("Function : kernel\n MOV R1, R2\n")


def test_layouts_are_the_upper_halves_of_constants() -> None:
    lines = [
        "or.b64 \t%rd1, %rd2, 4611686293305294848;",
        "or.b64 \t%rd3, %rd2, 4611686293322072064;",  # another offset, the same layout
        "or.b64 \t%rd4, %rd2, -9223371899415822336;",
        "or.b64 \t%rd5, %rd2, 64;",
    ]
    assert shared_layouts("\n".join(lines[:2])) == {"0x40000040"}
    assert shared_layouts("\n".join(lines)) == {"0x40000040", "0x80000020"}
