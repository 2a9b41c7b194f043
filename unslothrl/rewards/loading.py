"""Deadlines of calls that may load something, such as a reward model."""

from dataclasses import dataclass, field

from unslothrl.rewards.calls import Call

START_S = 60.0  # for a process to start and to import a function's module
LOADING_FACTOR = 12.0  # deadlines that a first call may take which loads something


@dataclass
class Loading:
    """How long the first call of a function in a process has taken: it may load a model, which no
    deadline of a call could allow for.

    When such a call misses its deadline and the function has never answered, it is tried once more
    with `LOADING_FACTOR` times as long. If that succeeds, first calls may take as long from then
    on.
    """

    seconds: dict[str, float] = field(default_factory=dict)  # function -> its slowest first call
    silent: set[str] = field(default_factory=set)  # functions that have not answered even then

    def allowed_s(self, call: Call, deadline_s: float, is_retry: bool) -> float:
        """The deadline of the first call of a function in a process."""
        if is_retry and self.may_retry(call):
            return min(START_S, LOADING_FACTOR * deadline_s)
        return deadline_s + (2 * self.seconds.get(call.function, 0.0) if call.may_load else 0.0)

    def may_retry(self, call: Call) -> bool:
        known = call.function in self.seconds or call.function in self.silent
        return call.may_load and not known

    def record(self, function: str, seconds: float) -> None:
        self.silent.discard(function)
        self.seconds[function] = max(seconds, self.seconds.get(function, 0.0))
