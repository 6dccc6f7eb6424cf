"""Options are typed, and their text form round-trips."""

import dataclasses
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.plugins.errors import OptionError
from graftwork.plugins.options import (
    build_options,
    describe_options,
    format_plugin_text,
    parse_plugin_text,
    split_plugin_list,
)


@dataclasses.dataclass(frozen=True)
class Options:
    policy: Literal["async", "ranges", "all"] = "async"
    exact: bool = False
    limit: int | None = None
    factor: float = 0.5


@given(
    st.builds(
        Options,
        st.sampled_from(["async", "ranges", "all"]),
        st.booleans(),
        st.none() | st.integers(),
        st.floats(allow_nan=False),
    )
)
def test_text_form_round_trips(options):
    name, raw = parse_plugin_text(format_plugin_text("my-pass", options))
    assert name == "my-pass"
    assert build_options("my-pass", Options, raw) == options


def test_default_options_are_left_out_of_the_text():
    assert format_plugin_text("my-pass", Options()) == "my-pass"
    assert format_plugin_text("my-pass", Options(policy="all")) == "my-pass{policy=all}"


def test_values_from_a_toml_table_need_no_text():
    options = build_options("my-pass", Options, {"exact": True, "limit": 3, "factor": 2})
    assert options == Options(exact=True, limit=3, factor=2.0)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"polcy": "all"}, "no option 'polcy'; did you mean 'policy'"),
        ({"policy": "some"}, r"policy=some does not fit; write async \| ranges \| all"),
        ({"exact": "maybe"}, r"exact=maybe does not fit; write true \| false"),
        ({"limit": "1.5"}, r"limit=1.5 does not fit; write int \| none"),
        ({"factor": True}, "factor=true does not fit; write float"),
    ],
)
def test_wrong_option_is_named_with_what_fits(raw, message):
    with pytest.raises(OptionError, match=message):
        build_options("my-pass", Options, raw)


def test_options_for_a_plugin_without_any_are_refused():
    with pytest.raises(OptionError, match="has no options, but was given: a"):
        build_options("my-pass", None, {"a": "1"})


@pytest.mark.parametrize("text", ["a{b=1", "a{b}", "a{=1}"])
def test_malformed_text_is_refused(text):
    with pytest.raises(OptionError, match="a{"):
        parse_plugin_text(text)


def test_commas_inside_braces_do_not_split_a_list():
    assert split_plugin_list("a{x=1,y=2}, b ,,c") == ["a{x=1,y=2}", "b", "c"]


def test_options_are_described_with_type_and_default():
    described = describe_options(Options)
    assert described["policy"] == {"type": "async | ranges | all", "default": "async"}
    assert described["limit"] == {"type": "int | none", "default": "none"}
