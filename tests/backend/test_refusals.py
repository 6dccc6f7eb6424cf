"""An exception of Inductor is told in two lines, with the operator and the source line."""

from graftwork.backend.refusals import refusal_of

TEXT = """NoValidChoicesError: No choices to select.
  target: aten.addmm.default
  args[0]: TensorBox(StorageBox(
    ConstantBuffer(name='bias')
  ))
Found from :\x20
 File "model.py", line 12, in forward
    return self.head(x)
"""


def test_the_operator_and_its_line_are_named():
    assert refusal_of(ValueError(TEXT)) == (
        "ValueError: NoValidChoicesError: No choices to select.\n"
        "  aten.addmm.default\n"
        "    at model.py:12: return self.head(x)"
    )


def test_an_operator_without_a_line_and_an_error_without_an_operator():
    assert refusal_of(ValueError(TEXT.split("Found")[0])).endswith("\n  aten.addmm.default")
    assert refusal_of(ValueError("no\nmore")) == "ValueError: no"
    assert refusal_of(ValueError()) == "ValueError: ValueError"
