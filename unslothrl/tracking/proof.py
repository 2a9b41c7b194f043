"""What a run proves of itself, by what its folder has recorded: a line for each check, with its
figure. The report lists them, and `unslothrl report --proof` prints them."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, deserialize

from unslothrl.files import newest_numbered, read_object
from unslothrl.tracking import origin
from unslothrl.tracking.report.history import RunHistory
from unslothrl.tracking.run_folder import ADAPTERS, DATA_FILE
from unslothrl.weights.adapter import WEIGHTS_FILE
from unslothrl.weights.starting_adapter import START

LEAST_CHANGED = 4  # of a canary's 8 completions
GAP, NOISE = "train/sampler_gap", 0.1  # nats per token; above it two policies are compared
MOST_NOTES = 3  # of notes.jsonl
NOTHING = "nothing to learn from"  # in those of skipped steps, of which there may be many
HASH = 12  # letters of one that is shown


class Check(NamedTuple):
    name: str
    passed: bool | None  # None: nothing was recorded, or it is for information
    figure: str

    @property
    def line(self) -> str:
        said = {True: "ok", False: "FAILED", None: "-"}[self.passed]
        return f"{said:<6} {self.name}: {self.figure}"


def checks(run: RunHistory) -> list[Check]:
    return [Check(name, *check(run)) for name, check in ALL.items()]


Found = tuple[bool | None, str]
UNKNOWN: Found = (None, "not recorded")


def adapter_acts(run: RunHistory) -> Found:
    """Of the canaries at every start of a process that generates."""
    changed = [row["changed_by_adapter"] for row in run.starts if row.get("changed_by_adapter")]
    if not changed:
        return UNKNOWN
    least = min(changed)
    said = f"at {len(changed)} starts of engines a random adapter changed at least {least} of 8"
    return least >= LEAST_CHANGED, f"{said} completions, and each version was read back"


def one_base(run: RunHistory) -> Found:
    held = {row["base"] for row in run.starts if row.get("base")}
    parts = ", ".join(f"{name} {value[:HASH]}" for name, value in run.begun.base.items())
    if not held:
        return (None, parts) if parts else UNKNOWN
    return len(held) == 1, f"every process holds {', '.join(sorted(held))} ({parts})"


def sampler_gap(run: RunHistory) -> Found:
    """The engine's log-probabilities are those of what is trained."""
    names = sorted({name for row in run.rows for name in row if name.startswith(f"{GAP}/")})
    by_name = {name: values for name in (names or [GAP]) if (values := run.values(name))}
    if not by_name:
        return UNKNOWN
    said = ", ".join(
        f"{name.removeprefix(GAP).lstrip('/') or 'all'} {statistics.fmean(values):.4f} "
        f"(at most {max(values):.4f})"
        for name, values in by_name.items()
    )
    return max(map(max, by_name.values())) < NOISE, f"{said} nats per token"


def all_is_trained(run: RunHistory) -> Found:
    """A LoRA's B begins at 0, or as in the starting adapter, and stays so without a gradient."""
    folder = run.folder.path
    newest = newest_numbered(folder / ADAPTERS, "v")
    if newest is None or not (newest / WEIGHTS_FILE).is_file():
        return UNKNOWN
    if run.values("reward/mean") and not run.values("train/loss"):
        return None, "no step had anything to learn from"
    try:
        tensors, start = tensors_of(newest), folder / START
        first = tensors_of(start) if start.is_dir() else {}
    except SafetensorError as error:
        return False, f"the weights of {newest.name} or of the starting adapter: {error}"
    pairs = [name for name in tensors if "lora_B" in name]
    moved = [
        name for name in pairs if tensors[name].strip(b"\0") != first.get(name, b"").strip(b"\0")
    ]
    said = f"{len(moved)} of {len(pairs)} pairs of matrices in {newest.name} have moved"
    return len(moved) == len(pairs), said


def tensors_of(adapter: Path) -> dict[str, bytes]:
    """The tensors of an adapter by name, in the bytes of whatever type."""
    content = (adapter / WEIGHTS_FILE).read_bytes()
    return {name: tensor["data"] for name, tensor in deserialize(content)}


def first_batch(run: RunHistory) -> Found:
    """One gradient at once, alone and in shares, for every tensor: a run stops where it is not."""
    rows = [row for row in run.checks if "first_batch" in row]
    if not rows:
        return UNKNOWN
    row = rows[-1]
    apart = max(each["apart"] for each in rows)
    return True, (
        f"the gradients of {row['first_batch']} sequences at once and of each alone are "
        f"{apart:.2g} of their norm apart, {row['still']} tensors have none"
    )


def failures(run: RunHistory) -> Found:
    """Processes that were started again, what rewards raised, updates that changed nothing."""
    again = Counter(row["process"] for row in run.starts)
    restarts = sum(count - 1 for count in again.values()) - len(run.begun.resumes) * len(again)
    failed, skipped = sum(run.values("reward/failed")), sum(run.values("train/skipped_updates"))
    said = f"{max(0, restarts)} processes started again, {failed:.0f} rewards failed"
    return None, f"{said}, {skipped:.0f} updates skipped"


def notes(run: RunHistory) -> Found:
    """The newest of what the terminal said, which may be why something was started again."""
    told = [row for row in run.notes if NOTHING not in str(row.get("note"))][-MOST_NOTES:]
    said = [f"after step {row.get('step')}: {row.get('note')}" for row in told]
    return None, "; ".join(said) or "none"


def grader(run: RunHistory) -> Found:
    """What decided which completions are right, other code of the user's, and if it has changed."""
    rewards = run.options.get("reward") or []
    version = run.begun.versions.get("answercheck")
    said = [", ".join(rewards), *([f"answercheck {version}"] if version else [])]
    now = {file: origin.hash_of(Path(file)) for file in run.begun.code if Path(file).is_file()}
    changed = [Path(file).name for file in now if now[file] != run.begun.code[file]]
    said += [f"{Path(file).name} {value[:HASH]}" for file, value in run.begun.code.items()]
    said += [f"{name} has changed since" for name in changed]
    return None, "; ".join(filter(None, said))


def data(run: RunHistory) -> Found:
    file = run.folder.path / DATA_FILE
    if not file.is_file():
        return UNKNOWN
    prints: Mapping[str, str] = read_object(file)
    return None, ", ".join(f"{name} {value}" for name, value in prints.items())


def resumes(run: RunHistory) -> Found:
    said = [
        f"after step {each.step} on {each.date}" + "".join(f", {change}" for change in each.changes)
        for each in run.begun.resumes
    ]
    return None, "; ".join(said) or "none"


def exports(run: RunHistory) -> Found:
    """Their logits, from the adapter's and from the base's; a copy of the base is not written."""
    said = [
        f"{row['kind']}: logits {row['from_adapter']:.2g} from the adapter's, "
        f"{row['from_base']:.2g} from the base's"
        for row in run.checks
        if "export" in row
    ]
    return (True, "; ".join(said)) if said else (None, "none yet")


ALL: dict[str, Callable[[RunHistory], Found]] = {
    "the adapter acts": adapter_acts,
    "sampler and learner agree": sampler_gap,
    "everything is trained": all_is_trained,
    "first batch": first_batch,
    "one base": one_base,
    "data": data,
    "rewards and code": grader,
    "failures": failures,
    "notes": notes,
    "resumes": resumes,
    "exports": exports,
}
