"""Rewards that could not be computed: each kind is reported once, and too many stop the run."""

from collections.abc import Callable, Sequence

from unslothrl.errors import WillRepeat
from unslothrl.records import FROM_THE_ENVIRONMENT, Failure, Group

MOST_REPORTED = 20  # kinds; further ones are only counted


class FailureReport:
    """Of a whole run. `note` takes a line for the user."""

    def __init__(self, note: Callable[[str], None]):
        self.note = note
        self.reported: set[tuple[str, str]] = set()

    def check(self, groups: Sequence[Group]) -> int:
        """-> how many rewards failed in `groups`. WillRepeat where one failed on more than half of
        the completions."""
        failures = [failure for group in groups for failure in group.failures]
        completions = sum(len(group.completions) for group in groups)
        for name in sorted({failure.reward for failure in failures}):
            check_share([f for f in failures if f.reward == name], completions)
        for failure in failures:
            if failure.kind not in self.reported and len(self.reported) < MOST_REPORTED:
                self.reported.add(failure.kind)
                self.note(str(failure))
        return len(failures)


def check_share(failures: Sequence[Failure], completions: int) -> None:
    """WillRepeat where a reward failed on more than half of so many completions."""
    if len(failures) > completions / 2:
        first = failures[0]
        if first.reward == FROM_THE_ENVIRONMENT:
            raise WillRepeat(
                f"the environment failed in {len(failures)} of {completions} episodes "
                f"({first.reason}): fix it"
            )
        advice = ", or set a longer --reward_timeout" if first.was_late else ""
        raise WillRepeat(
            f"reward {first.reward} failed on {len(failures)} of {completions} completions "
            f"({first.reason}), first on {first.text[:200]!r}: fix it{advice}"
        )
