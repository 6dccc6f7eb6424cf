"""Errors a user can act on. Each message names the thing and the way out.

The command line prints the message of a `GraftworkError` in one line, without a traceback, and
leaves with its `exit_code`: 1 when the answer is no (this program cannot be lowered, this plugin
differs from eager), 2 when the request was wrong (an unknown id, a missing file).
"""


class GraftworkError(Exception):
    """Base of every error raised for a user's mistake or a plugin's."""

    exit_code = 2


class UnknownPluginError(GraftworkError):
    """A selection names an id that no installed distribution provides."""


class PluginClashError(GraftworkError):
    """Two distributions provide one id, or two enabled plugins claim one operator."""


class PluginCycleError(GraftworkError):
    """The declared `before` and `after` of the enabled plugins form a cycle."""


class BrokenPluginError(GraftworkError):
    """An enabled plugin could not be imported, or does not follow the contract."""


class OptionError(GraftworkError):
    """An option's text has an unknown key or a value of the wrong type."""


class ConfigurationError(GraftworkError):
    """A `[tool.graftwork]` table or an environment variable cannot be read."""


class InputError(GraftworkError):
    """A file, an attribute, a module or its inputs do not fit the request."""


class PluginFailedError(GraftworkError):
    """A plugin raised while it rewrote a program."""

    exit_code = 1


class NotLowerableError(GraftworkError):
    """Operators are left that the target cannot take."""

    exit_code = 1


class VerificationError(GraftworkError):
    """A lowered program's outputs differ from eager's."""

    exit_code = 1


class RunError(GraftworkError):
    """A lowered program reported an error while it ran."""

    exit_code = 1
