"""What is left is reported with a way out that works."""

from graftwork.backend.unlowered import UnloweredReport
from graftwork.plugins import LoweringContext, select_plugins


def test_the_plugin_to_write_is_not_called_as_one_installed():
    """`graftwork new decomposition sort` beside the built-in `sort` made every command fail."""
    report = UnloweredReport(select_plugins(), LoweringContext(target="cpu"))
    report.add("aten::sort.stable", "it has no kernel")
    report.add("aten::histc", "it has no kernel")
    remedies = {entry.op: entry.remedy for entry in report.entries}
    assert remedies["aten::sort.stable"].endswith("graftwork new decomposition my-sort")
    assert remedies["aten::histc"].endswith("graftwork new decomposition histc")
