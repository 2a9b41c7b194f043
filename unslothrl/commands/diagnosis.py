"""The flags of the two commands for when something is wrong: `doctor` and `bundle`."""

import typer


def doctor(
    self_test: bool = typer.Option(
        True, "--self_test/--no_self_test", help="Also train a step, at most 30 s."
    ),
    json: bool = typer.Option(False, "--json", help="Print one JSON object instead of text."),
) -> int:
    """Check this machine: cards, versions, disks, limits, sandbox; train one step.

    One line for each check, with what to do. The exit code is 1 where there is a problem.
    """
    from unslothrl.commands.doctor import doctor as run

    return run(self_test, json)


def bundle(
    run: str = typer.Argument(help="A run's folder."),
    output: str = typer.Option(
        None, help="Archive to write, .tar.gz or .zip; default: <run>-bundle.tar.gz here."
    ),
    with_rollouts: int = typer.Option(
        0,
        "--with_rollouts",
        min=0,
        max=10_000,
        help="Also the last so many completions, with their prompts.",
    ),
) -> int:
    """Make an archive of a run for a bug report: without secrets, prompts and completions."""
    from unslothrl.commands.bundle import bundle as write

    write(run, output, with_rollouts)
    return 0
