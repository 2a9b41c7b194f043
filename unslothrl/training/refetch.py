"""Versions that have arrived damaged: the learner publishes them once more."""

from collections import Counter
from collections.abc import Callable

from unslothrl.cluster.base import Cluster
from unslothrl.cluster.handles import Call
from unslothrl.errors import AdapterDamaged, ProcessLost
from unslothrl.policy_version import Adapter
from unslothrl.training.members import Member

MOST = 3  # that one process may find damaged before it is given up: its own memory may be bad


class Refetch:
    """Of a whole run."""

    def __init__(self, cluster: Cluster, note: Callable[[str], None]):
        self.cluster, self.note = cluster, note
        self.damaged: Counter[Member] = Counter()

    def again(self, member: Member, error: AdapterDamaged) -> Call[Adapter]:
        """The newest version, which has reached `member` damaged. Raises ProcessLost, of `member`,
        where that has happened too often."""
        self.damaged[member] += 1
        if self.damaged[member] > MOST:
            text = f"{member.name}: {error}, as {MOST} before it"
            raise ProcessLost(member.name, text)
        self.note(f"{member.name}: {error}: it is fetched again")
        return self.cluster.learners[0].publish_again()
