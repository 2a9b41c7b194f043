"""`unslothrl bundle`: the archive of a run for a bug report."""

import sys
from pathlib import Path
from typing import TextIO

from unslothrl import bundle as bundles
from unslothrl.doctor import examine
from unslothrl.errors import UserError
from unslothrl.files import exists, expanded, is_file, is_folder
from unslothrl.tracking.run_folder import CONFIG, METRICS
from unslothrl.untrusted import for_terminal, plain

ENDINGS = (".tar.gz", ".tgz", ".zip")


def bundle(
    run: str, output: str | None = None, rollouts: int = 0, out: TextIO | None = None
) -> None:
    """See the command's help. UserError."""
    out = out or sys.stdout
    folder = expanded(run)
    if not is_folder(folder) or not any(is_file(folder / name) for name in (CONFIG, METRICS)):
        raise UserError(f"bundle {plain(run)} is no run's folder: give one, e.g. runs/<run>")
    name = f"{bundles.safe(folder.resolve().name)}-bundle"
    path = expanded(output) if output is not None else Path(f"{name}.tar.gz")
    if not path.name.endswith(ENDINGS):
        raise UserError(
            f"output must end in {', '.join(ENDINGS)}, got {plain(str(path))}: set --output "
            f"{name}.zip"
        )
    if output is not None and exists(str(path)):
        raise UserError(f"output {plain(str(path))} exists already: remove it, or set another")
    members = bundles.texts(folder, examine(self_test=False), rollouts)
    try:
        bundles.write(path, name, members)
    except OSError as error:
        raise UserError(
            f"output {plain(str(path))} cannot be written ({error.strerror}): set --output "
            "FOLDER/FILE.tar.gz"
        ) from None
    print(for_terminal(f"{path}, {path.stat().st_size / 1024:.0f} KB:"), file=out)
    for member, text in members.items():
        print(f"  {member:<32} {len(text.encode()):>9,} bytes", file=out)
    held = f"the last {rollouts} completions" if rollouts else "no prompts or completions"
    print(f"It holds {held}; known secrets are hidden. Look through it before you pass it on.",
          file=out)  # fmt: skip
