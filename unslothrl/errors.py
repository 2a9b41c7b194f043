"""The errors that are reported in one line."""


class UserError(Exception):
    """Input that cannot work: one line that names the field, its value and the fix. Printed as it
    stands, with exit code 2; nothing has been started by then."""


class RunError(Exception):
    """A run that had to stop: one line that says why and what to try. The exit code is 1."""


class WillRepeat(RunError):
    """Comes from what the user wrote: the run that is resumed as it is would meet it again."""


class ProcessLost(RunError):
    """A process of the run that has died, or hangs and was given up. `name`: e.g. actor-0."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name

    def __reduce__(self):
        return type(self), (self.name, str(self))


class PeerLost(ProcessLost):
    """What a learner says of another one that it has waited for in vain."""


class HeadLost(RunError):
    """The head of the Ray cluster has gone. Its processes live for some seconds yet."""


class ResultLost(RunError):
    """What a process had computed has not arrived, although it lives: the call may be repeated."""


class AdapterDamaged(RunError):
    """What has arrived of a version is not what was published: it has to be fetched again."""


class AdapterMismatch(RunError):
    """An engine does not hold the version that was published, or does not draw under it."""

    @classmethod
    def of(cls, version: int, problem: str) -> "AdapterMismatch":
        return cls(
            f"the engine does not hold adapter v{version}: {problem}. Its rollouts would be those "
            "of another policy: start it again"
        )
