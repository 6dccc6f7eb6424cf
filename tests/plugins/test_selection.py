"""Defaults < pyproject.toml < environment < keyword; every mistake is one clear error."""

import dataclasses

import pytest

from graftwork.plugins import select_plugins
from graftwork.plugins.errors import (
    BrokenPluginError,
    ConfigurationError,
    OptionError,
    PluginClashError,
    PluginCycleError,
    UnknownPluginError,
)


@dataclasses.dataclass(frozen=True)
class Level:
    level: int = 0


@pytest.fixture
def select(make_plugin, tmp_path):
    plugins = [
        make_plugin("alpha", info={"options": Level}),
        make_plugin("beta", info={"enabled_by_default": False}),
        make_plugin("gamma"),
    ]

    def run(enable=(), disable=(), options=None, environment=None, toml=None, extra=()):
        if toml is not None:
            (tmp_path / "pyproject.toml").write_text(toml)
        return select_plugins(
            enable,
            disable,
            options,
            installed=[*plugins, *extra],
            environment=environment or {},
            directory=tmp_path,
        )

    return run


def ids(selection):
    return [choice.plugin.id for choice in selection.enabled]


def test_defaults_hold_where_nobody_asks(select):
    assert ids(select()) == ["alpha", "gamma"]
    assert select().find("beta").reason == "default"


def test_pyproject_overrides_the_defaults(select):
    selection = select(toml='[tool.graftwork]\nenable = ["beta"]\ndisable = ["gamma"]')
    assert ids(selection) == ["alpha", "beta"]
    assert "pyproject.toml" in selection.find("gamma").reason


def test_environment_overrides_pyproject(select):
    selection = select(
        toml='[tool.graftwork]\ndisable = ["gamma"]',
        environment={"GRAFTWORK_ENABLE": "gamma", "GRAFTWORK_DISABLE": "alpha"},
    )
    assert ids(selection) == ["gamma"]
    assert "GRAFTWORK" in selection.find("alpha").reason


def test_keyword_overrides_the_environment(select):
    selection = select(enable=["alpha"], environment={"GRAFTWORK_DISABLE": "all"})
    assert ids(selection) == ["alpha"]


def test_disable_is_read_before_enable_within_a_layer(select):
    assert ids(select(enable=["beta"], disable=["all"])) == ["beta"]


def test_options_of_later_layers_win(select):
    toml = "[tool.graftwork.options.alpha]\nlevel = 1"
    assert select(toml=toml).find("alpha").options == Level(1)
    environment = {"GRAFTWORK_ENABLE": "alpha{level=2}"}
    assert select(toml=toml, environment=environment).find("alpha").options == Level(2)
    last = select(toml=toml, environment=environment, options={"alpha": {"level": 3}})
    assert last.find("alpha").options == Level(3)
    assert last.find("alpha").text == "alpha{level=3}"


def test_pyproject_is_found_going_up(select, make_plugin, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.graftwork]\ndisable = ["alpha"]')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    selection = select_plugins(installed=[make_plugin("alpha")], environment={}, directory=below)
    assert ids(selection) == []


@pytest.mark.parametrize("layer", ["enable", "disable", "options"])
def test_unknown_id_is_an_error_with_the_nearest(select, layer):
    wish = {"alpa": {}} if layer == "options" else ["alpa"]
    with pytest.raises(UnknownPluginError, match=r"no plugin 'alpa'.*did you mean alpha"):
        select(**{layer: wish})


def test_unknown_id_far_from_all_lists_the_known(select):
    with pytest.raises(UnknownPluginError, match="known: alpha, beta, gamma"):
        select(disable=["zzz"])


def test_plain_string_is_a_type_error(select):
    with pytest.raises(TypeError, match="sequence of ids, not the string 'alpha'"):
        select(enable="alpha")


def test_wrong_option_value_is_an_error(select):
    with pytest.raises(OptionError, match="level=x"):
        select(enable=["alpha{level=x}"])


def test_broken_plugin_fails_only_who_enables_it(select, make_plugin):
    broken = make_plugin("delta", distribution="strangers", error=ImportError("no numpy"))
    assert ids(select(extra=[broken])) == ["alpha", "gamma"]
    assert "no numpy" in select(extra=[broken]).find("delta").reason
    assert ids(select(extra=[broken], enable=["all"])) == ["alpha", "beta", "gamma"]
    with pytest.raises(BrokenPluginError, match=r"'delta' of strangers.*no numpy"):
        select(extra=[broken], enable=["delta"])


def test_one_id_from_two_distributions_is_an_error_that_names_both(select, make_plugin):
    twin = make_plugin("alpha", distribution="strangers")
    with pytest.raises(PluginClashError, match=r"tests and strangers.*'strangers/alpha'"):
        select(extra=[twin])


def test_clash_is_settled_by_the_qualified_id(select, make_plugin):
    twin = make_plugin("alpha", distribution="strangers")
    selection = select(extra=[twin], disable=["tests/alpha"])
    assert [c.plugin.distribution for c in selection.enabled] == ["strangers", "tests"]


def test_before_and_after_order_the_plugins(make_plugin, tmp_path):
    plugins = [
        make_plugin("a", info={"after": ("c",)}),
        make_plugin("b"),
        make_plugin("c", info={"before": ("b", "not-installed")}),
    ]
    selection = select_plugins(installed=plugins, environment={}, directory=tmp_path)
    assert ids(selection) == ["c", "a", "b"]


def test_cycle_is_an_error_that_prints_it(make_plugin, tmp_path):
    plugins = [
        make_plugin("a", info={"before": ("b",)}),
        make_plugin("b", info={"before": ("c",)}),
        make_plugin("c", info={"before": ("a",)}),
        make_plugin("free"),
    ]
    with pytest.raises(
        PluginCycleError, match="a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c"
    ):
        select_plugins(installed=plugins, environment={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[tool.graftwork", "cannot be read"),
        ("[tool.graftwork]\nenabled = []", "unknown entry enabled"),
        ('[tool.graftwork]\nenable = "alpha"', "enable must be a list"),
        ("[tool.graftwork]\noptions = 3", "options must be tables"),
        ("[tool]\ngraftwork = 3", "must be a table, not 3"),
        ("[tool]\ngraftwork = ['a']", "must be a table"),
    ],
)
def test_unreadable_configuration_names_the_file(select, toml, message):
    with pytest.raises(ConfigurationError, match=message):
        select(toml=toml)


def test_a_pyproject_whose_tool_is_no_table_asks_for_nothing(select):
    assert ids(select(toml="tool = 3")) == ["alpha", "gamma"]


def test_an_option_error_names_who_gave_the_options(select):
    toml = "[tool.graftwork.options.alpha]\nlevel = 'high'"
    with pytest.raises(OptionError, match=r"level=high does not fit.*\(given by .*pyproject.toml"):
        select(toml=toml)
    assert select(enable=["alpha{level=3}"], toml=toml).find("alpha").options.level == 3
    with pytest.raises(OptionError, match=r"\(given by this call\)"):
        select(enable=["alpha{level=high}"], toml="")
