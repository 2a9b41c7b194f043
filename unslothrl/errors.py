"""The one error that is the user's to mend."""


class UserError(Exception):
    """Input that cannot work: one line that names the field, its value and the mend.

    The command prints it as it stands and exits with code 2; nothing has been started by then.
    """
