"""`unslothrl setup`: install a lock into the environment of the Python that runs this.

    python tools/setup_here.py [--set gpu|cpu] [--check]

The project is there already, from its wheel or from a clone; setup_env.py makes a clone's .venv
from nothing. The standard library is enough, as pip replaces packages meanwhile. The wheel holds
this file, setup_env.py, machine.py and the locks.
"""

import importlib.metadata
import importlib.util
import re
import sys
import time

import setup_env as setup

OF_CUDA = ("cuda-", "nvidia-", "triton")  # what torch's release on PyPI needs


def difference(kind, here):
    """(packages of a set that `here`, name -> version, lacks, those of the other set alone that it
    has). vLLM's builds overwrite each other's files, and libraries take Triton for a GPU."""
    pins = {name: setup.read_pins(lock.read_text()) for name, lock in setup.LOCKS.items()}
    ours = pins.pop(kind)
    others = {name for other in pins.values() for name in other}
    releases = {name: version.partition("+")[0] for name, version in ours.items()}
    missing = [name for name in ours if here.get(name) not in (ours[name], releases[name])]
    if here.get("torch") == releases["torch"] != ours["torch"]:  # see `setup_env.install_builds`
        others = {name for name in others if not name.startswith(OF_CUDA)}
    return missing, sorted((others - set(ours)) & set(here))


def installed():
    """Name, as the locks write it, -> version."""
    found = [(each.metadata["Name"], each.version) for each in importlib.metadata.distributions()]
    return {re.sub("[-_.]+", "-", name).lower(): version for name, version in found if name}


def install(kind, cards):
    """What may not be found comes before anything is removed."""
    if importlib.util.find_spec("pip") is None:  # in an environment that uv made
        setup.run_quietly(sys.executable, "-m", "ensurepip")
    setup.install_builds(sys.executable, setup.LOCKS[kind])
    _, others = difference(kind, installed())
    if others:
        setup.run_quietly(sys.executable, "-m", "pip", "uninstall", "-y", *others)
    setup.install_pins(sys.executable, setup.LOCKS[kind])
    setup.first_import(sys.executable, kind, cards)
    if setup.is_within(sys.prefix, setup.VENV):
        setup.finish(setup.VENV, kind)


def run(kind, cards, trouble, only_check):
    setup.describe(kind, cards, trouble)
    missing, others = difference(kind, installed()) if kind in setup.LOCKS else ([], [])
    if not missing and not others:
        setup.say(f"{sys.prefix} has all of it")
        return 0
    setup.say(f"{sys.prefix} lacks {len(missing)} of them")
    if others:
        setup.say(f"to be removed, as they are of another set: {' '.join(others)}")
    faults = setup.machine_faults(kind, cards, sys.prefix, sys.executable)
    if faults or only_check:
        return setup.refuse(faults)
    started = time.time()
    install(kind, cards)
    setup.say(f"done in {time.time() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(setup.main(run, __doc__))
