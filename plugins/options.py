"""Typed plugin options and their text form, which round-trips: `strip-asserts{policy=ranges}`."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from .errors import OptionError


def parse_plugin_text(text: str) -> tuple[str, dict[str, str]]:
    """Split `id{key=value,key=value}` into the id and its raw options.

    Raises:
        OptionError: the braces or an assignment are malformed.
    """
    name, brace, rest = text.strip().partition("{")
    if not brace:
        return name.strip(), {}
    if not rest.endswith("}"):
        raise OptionError(f"'{text}': the options have no closing brace; write ID{{KEY=VALUE}}")
    raw: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in rest[:-1].split(","))):
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise OptionError(f"'{text}': '{item}' is not KEY=VALUE")
        raw[key.strip()] = value.strip()
    return name.strip(), raw


def split_plugin_list(text: str) -> list[str]:
    """Split a comma-separated list of plugin texts, leaving commas inside braces alone."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def build_options(plugin_id: str, options: type | None, raw: Mapping[str, Any]) -> Any:
    """Make the plugin's options from raw values (text, or already typed as in a TOML table).

    Returns None for a plugin without options.

    Raises:
        OptionError: an unknown key (the known ones are listed) or a value that does not fit.
    """
    if options is None:
        if raw:
            raise OptionError(
                f"plugin '{plugin_id}' has no options, but was given: {', '.join(raw)}"
            )
        return None
    hints = typing.get_type_hints(options)
    known = {field.name: hints[field.name] for field in dataclasses.fields(options)}
    values = {}
    for key, value in raw.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise OptionError(
                f"plugin '{plugin_id}' has no option '{key}'{hint} (known: {', '.join(known)})"
            )
        values[key] = _convert(plugin_id, key, known[key], value)
    return options(**values)


def format_plugin_text(plugin_id: str, options: Any) -> str:
    """Write id and options as text; options that hold their default are left out."""
    if options is None:
        return plugin_id
    default = type(options)()
    changed = [
        f"{field.name}={_format(getattr(options, field.name))}"
        for field in dataclasses.fields(options)
        if getattr(options, field.name) != getattr(default, field.name)
    ]
    return f"{plugin_id}{{{','.join(changed)}}}" if changed else plugin_id


def describe_options(options: type | None) -> dict[str, dict[str, str]]:
    """Each option's type and default as text, for listings."""
    if options is None:
        return {}
    hints = typing.get_type_hints(options)
    default = options()
    return {
        field.name: {
            "type": describe_type(hints[field.name]),
            "default": _format(getattr(default, field.name)),
        }
        for field in dataclasses.fields(options)
    }


def describe_type(hint: Any) -> str:
    """Name an option's type for a message: `async | ranges | all`, `int`, `true | false`."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(_format(choice) for choice in typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(describe_type(part) for part in typing.get_args(hint))
    if hint is bool:
        return "true | false"
    return "none" if hint is type(None) else getattr(hint, "__name__", str(hint))


def _format(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _convert(plugin_id: str, key: str, hint: Any, value: Any) -> Any:
    for candidate in _alternatives(hint):
        found, converted = _try(candidate, value)
        if found:
            return converted
    raise OptionError(
        f"plugin '{plugin_id}': option {key}={_format(value)} does not fit; "
        f"write {describe_type(hint)}"
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _try(hint: Any, value: Any) -> tuple[bool, Any]:
    """Whether `value`, typed or as text, is of `hint`, and the typed value."""
    text = _format(value)
    if typing.get_origin(hint) is typing.Literal:
        return next(
            ((True, c) for c in typing.get_args(hint) if _format(c) == text), (False, None)
        )
    if hint is type(None):
        return text == "none", None
    if hint is bool:
        return text in ("true", "false"), text == "true"
    if hint in (int, float) and not isinstance(value, bool):
        try:
            return True, hint(text)
        except ValueError:
            return False, None
    return (hint is str and isinstance(value, str)), value
