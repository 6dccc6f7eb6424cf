"""Every hook is documented, with its signature, in the contract's page."""

import inspect
import re

from graftwork.plugins import hookspecs


def hooks():
    return {
        name: value
        for name, value in vars(hookspecs).items()
        if inspect.isfunction(value) and value.__module__ == hookspecs.__name__
    }


def test_every_hook_has_a_docstring_and_a_verb_phrase_name():
    for name, function in hooks().items():
        assert function.__doc__, name
        assert re.match(r"(describe|rewrite|list|patch)_[a-z_]+$", name), name


def test_every_hook_has_a_heading_with_its_signature_in_the_documentation(request):
    page = (request.config.rootpath / "docs" / "plugins.md").read_text()
    headings = set(re.findall(r"^### `(.+)`$", page, re.MULTILINE))
    expected = {
        f"{name}({', '.join(inspect.signature(f).parameters)})" for name, f in hooks().items()
    }
    assert headings == expected
