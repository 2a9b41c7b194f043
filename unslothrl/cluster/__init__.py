"""The processes of a run: under Ray, or all in this process. Both run the same classes on the same
arguments.
"""

import importlib.util
from pathlib import Path

from unslothrl.cluster import local
from unslothrl.cluster.handles import Builders, Cluster, Stage
from unslothrl.config.options import Config
from unslothrl.errors import UserError
from unslothrl.planning.placement import ACTOR, LEARNER
from unslothrl.system.machine import Machine


def start(
    config: Config, base: Path, machine: Machine, stage: Stage, builders: Builders | None = None
) -> Cluster:
    """The cluster that `config` asks for, its workers loaded. Raises UserError if it cannot fit.

    `builders` build other workers than a run's, to measure or to test with.
    """
    from unslothrl.cluster.build import build_actor, build_learner

    builders = builders or {ACTOR: build_actor, LEARNER: build_learner}
    if config.cluster == "local":
        return local.start(config, base, machine, stage, builders)
    from unslothrl.cluster.ray_cluster import RayCluster

    return RayCluster(config, base, machine, stage, builders)


def import_first(config: Config) -> None:
    """Imports what must be first in this process, where it will hold the learner itself.

    Raises UserError where the learner's process, on this machine, could not import it.
    """
    here = config.cluster == "local" or config.ray_address is None
    if config.backend == "unsloth" and here and importlib.util.find_spec("unsloth") is None:
        raise UserError("backend unsloth is not installed on this machine: set --backend peft")
    if config.cluster == "local" and config.backend == "unsloth":
        from unslothrl.cluster.build import import_unsloth

        import_unsloth(config)
