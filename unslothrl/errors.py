"""The errors that are reported in one line."""


class UserError(Exception):
    """Input that cannot work: one line that names the field, its value and the fix.

    The command prints it as it stands and exits with code 2; nothing has been started by then.
    """


class RunError(Exception):
    """A run that had to stop: one line that says why and what to try. The exit code is 1."""
