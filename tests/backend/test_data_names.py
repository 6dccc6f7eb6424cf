"""The weights file's name is safe on every machine that the program is copied to."""

import pytest

from graftwork.backend.data_names import DEFAULT_DATA_NAME, check_data_name, one_data_name
from graftwork.plugins.errors import InputError

BAD = ["", "a" * 201, "a b", "a/b", "../a", "a\\b", "ü", "a\n", ".a", "-a", "a.ptd", "a.PTD", "a."]
DEVICES = ["NUL", "nul", "con.txt", "COM1", "lpt9.x", "Aux", "prn"]


@pytest.mark.parametrize("name", [*BAD, *DEVICES])
def test_an_unsafe_name_is_refused(name):
    with pytest.raises(InputError):
        check_data_name(name)


@pytest.mark.parametrize("name", ["encoder", "a", "A-1_b.c", "console", "com10", "x" * 200])
def test_a_safe_name_is_taken(name):
    assert check_data_name(name) == name


def test_methods_share_one_name():
    assert one_data_name([]) == DEFAULT_DATA_NAME
    assert one_data_name(["a", "a"]) == "a"
    with pytest.raises(InputError, match="a, b"):
        one_data_name(["b", "a"])
