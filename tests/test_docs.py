"""Every Python example of the README and the documentation runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda page: page.name)
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "example"}
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), namespace)


def test_every_plugin_is_named_in_the_documentation():
    from graftwork.plugins import installed_plugins

    text = "\n".join(page.read_text() for page in PAGES)
    missing = [
        p.id for p in installed_plugins() if p.distribution == "graftwork" and p.id not in text
    ]
    assert not missing
