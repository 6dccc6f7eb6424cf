"""Plugins come in by entry points alone; what does not follow the contract is listed as broken."""

import importlib.metadata
import types

import pytest

from graftwork.plugins import hookimpl, installed_plugins
from graftwork.plugins.registry import ENTRY_POINT_GROUP


def test_every_built_in_is_an_entry_point_and_sound():
    names = {
        entry.name
        for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)
        if entry.dist.name == "graftwork"
    }
    own = {p.id: p.broken for p in installed_plugins() if p.distribution == "graftwork"}
    assert own == dict.fromkeys(names, "")


def test_every_built_in_has_a_summary_properties_and_a_test_named_after_it(request):
    files = {path.name for path in (request.config.rootpath / "tests").rglob("test_*.py")}
    for plugin in installed_plugins():
        if plugin.distribution == "graftwork":
            assert plugin.info.summary, plugin.id
            assert f"test_{plugin.id.replace('-', '_')}.py" in files
            is_patch = plugin.kinds in (("compile-patch",), ("compile-options",))
            assert is_patch or plugin.call("list_properties"), plugin.id


def test_kind_follows_from_the_hooks(make_plugin):
    plugin = make_plugin("two", rewrite_graph=lambda graph: None, list_kernels=lambda: {})
    assert plugin.kind == "pass+kernel"


def test_hook_gets_only_the_arguments_it_takes(make_plugin):
    plugin = make_plugin("one", list_decompositions=lambda context: {"got": context})
    assert plugin.call("list_decompositions", options=1, context=2) == {"got": 2}


def test_own_version_goes_before_the_distributions(make_plugin):
    assert make_plugin("one", info={"version": "7"}).stamp == "one@7"
    assert make_plugin("one").stamp == "one@1.0"


@pytest.mark.parametrize(
    ("plugin_id", "spoil", "message"),
    [
        ("Not_Kebab", lambda module: None, "not kebab-case"),
        ("no-hooks", lambda module: vars(module).clear(), "implements no hook"),
        ("no-info", lambda module: delattr(module, "describe_plugin"), "must return a PluginInfo"),
        (
            "wrong-hook",
            lambda module: setattr(module, "rewrite", hookimpl(lambda: None, specname="rewrite")),
            "unknown hook 'rewrite'",
        ),
        (
            "wrong-argument",
            lambda module: setattr(
                module,
                "rewrite_graph",
                hookimpl(lambda graf: None, specname="rewrite_graph"),
            ),
            "graf",
        ),
    ],
)
def test_module_off_the_contract_is_broken_with_the_reason(plugin_id, spoil, message):
    from graftwork.plugins import PluginInfo
    from graftwork.plugins.registry import load_plugins

    module = types.ModuleType("spoiled")
    module.describe_plugin = hookimpl(
        lambda: PluginInfo(summary="spoiled"), specname="describe_plugin"
    )
    module.list_compile_options = hookimpl(lambda: {}, specname="list_compile_options")
    spoil(module)
    entry = types.SimpleNamespace(
        name=plugin_id,
        value="spoiled",
        dist=types.SimpleNamespace(name="tests", version="1"),
        load=lambda: module,
    )
    (plugin,) = load_plugins([entry])
    assert message in plugin.broken


def test_what_needs_an_nvidia_gpu_is_not_offered_on_rocm(make_plugin, monkeypatch):
    """And the gate changes nothing for CUDA, nor for what runs on both."""
    import torch

    gated = make_plugin("gated", info={"nvidia_only": True, "targets": frozenset({"cuda"})})
    both = make_plugin("both", info={"targets": frozenset({"cuda"})})
    installed = [plugin for plugin in installed_plugins() if not plugin.broken]
    on_cuda = [plugin.serves("cuda") for plugin in (gated, both, *installed)]
    assert on_cuda[:2] == [True, True]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    on_rocm = [plugin.serves("cuda") for plugin in (gated, both, *installed)]
    assert on_rocm == [False, *on_cuda[1:]]
