"""Completion in bash, zsh and fish: of commands, options, and what an option may be.

A shell's script calls this program with the words before the cursor as its arguments and the
shell's name in `VARIABLE`; what may follow comes back, one a line. Where nothing is known to follow
the shell completes files. Nothing of torch is imported.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from unslothrl import files
from unslothrl.config.options import OPTIONS
from unslothrl.config.reading import RECIPES
from unslothrl.config.values import choices_of
from unslothrl.embedded import EMBEDDED
from unslothrl.errors import UserError
from unslothrl.files import is_file, write_whole
from unslothrl.untrusted import plain

VARIABLE = "_UNSLOTHRL_COMPLETE"
INSTALL, SHOW = FLAGS = "--install_completion", "--show_completion"
INSTALL_HELP = "Install TAB completion for bash, zsh or fish; default: your shell."
MOST_RUNS = 50  # folders of runs that are offered, the newest

BASH = """\
_unslothrl() {
    local IFS=$'\\n'
    COMPREPLY=($(_UNSLOTHRL_COMPLETE=bash "${1/#\\~/$HOME}" "${COMP_WORDS[@]:1:COMP_CWORD}" \\
        2>/dev/null))
}
complete -o default -o bashdefault -F _unslothrl unslothrl
"""
ZSH = """\
#compdef unslothrl
_unslothrl() {
    local -a found
    found=("${(@f)$(_UNSLOTHRL_COMPLETE=zsh ${~words[1]} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        _describe -V unslothrl found
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _unslothrl unslothrl
"""
FISH = """\
function __unslothrl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (env _UNSLOTHRL_COMPLETE=fish $words[1] $words[2..-1] "$current" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$current"
    end
end
complete -c unslothrl -f -a '(__unslothrl_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}

Found = tuple[str, str]  # what may follow, and a few words on it


def answer(words: Sequence[str], commands: Mapping[str, Any]) -> int:
    """Prints what may follow `words`, the last of which is being written, in the form that the
    shell in `VARIABLE` reads. -> the exit code"""
    write = WRITERS.get(os.environ[VARIABLE], WRITERS["bash"])
    for value, about in candidates(words, commands):
        print(write(value, " ".join(about.split())))
    return 0


WRITERS: dict[str, Callable[[str, str], str]] = {
    "bash": lambda value, about: value,
    "zsh": lambda value, about: value.replace(":", "\\:") + (f":{about}" if about else ""),
    "fish": lambda value, about: f"{value}\t{about}" if about else value,
}


def candidates(words: Sequence[str], commands: Mapping[str, Any]) -> list[Found]:
    """What may stand in place of the last word; [] where that is known to the shell alone."""
    *before, current = words or [""]
    before = [word for word in before if word != "="]  # bash cuts --learner=grpo into three
    current = "" if current == "=" else current
    name = next((word for word in before if not word.startswith("-")), None)
    if " ".join(before[:2]) in commands:  # "plan sft"
        name = " ".join(before[:2])
    if not before and not current.startswith("-"):
        return matching(current, list(of_one_word(commands).items()))
    seconds = [(each.partition(" ")[2], "") for each in commands if each.startswith(f"{name} ")]
    if before == [name] and seconds and not current.startswith("-"):
        return matching(current, seconds)
    command = commands.get(name or "train", commands["train"])
    flags = {spelled: each for each in command.params for spelled in spellings(each)}
    if before and (normal(before[-1]) in FLAGS or takes_value(flags.get(normal(before[-1])))):
        return matching(current, values_of(normal(before[-1])))
    flag, has_value, value = current.partition("=")
    if has_value:
        found = matching(value, values_of(normal(flag)))
        return [(f"{flag}={each}", about) for each, about in found]
    if not current.startswith("-"):
        return []
    given = {normal(word.partition("=")[0]) for word in before}
    listed = [(spelled, each.help or "") for spelled, each in flags.items() if spelled not in given]
    if not before:
        listed += [(each, "") for each in (*FLAGS, "--version")]
    listed += [("--help", "The everyday options."), ("--help_all", "Every option.")]
    return matching(current, listed)


def of_one_word(commands: Mapping[str, Any]) -> dict[str, str]:
    """Commands with what they do; those of two words follow their first."""
    return {
        name: (command.help or "").partition(".")[0]
        for name, command in commands.items()
        if " " not in name
    }


def matching(beginning: str, found: Sequence[Found]) -> list[Found]:
    """Those that begin so; flags may be begun with dashes too."""
    if beginning.startswith("--"):
        beginning = normal(beginning)
    return [(value, about) for value, about in found if value.startswith(beginning)]


def normal(flag: str) -> str:
    """--num-candidates -> --num_candidates"""
    return "--" + flag[2:].replace("-", "_") if flag.startswith("--") else flag


def spellings(parameter: Any) -> Iterator[str]:
    """The long flags of a parameter."""
    for flag in (*parameter.opts, *parameter.secondary_opts):
        if flag.startswith("--"):
            yield normal(flag)


def takes_value(parameter: Any) -> bool:
    return parameter is not None and not parameter.is_flag


def values_of(flag: str) -> list[Found]:
    """What an option may be, as far as that is a list."""
    name = flag.removeprefix("--")
    if name in OPTIONS and (choices := choices_of(name)):
        return [(choice, "") for choice in choices]
    known = KNOWN.get(name)
    return [] if known is None else [(value, "") for value in known()]


def runs() -> list[str]:
    """The folders of runs below the usual one, the newest first."""
    try:
        found = [path for path in Path("runs").iterdir() if is_file(path / "config.toml")]
        newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [str(path) for path in newest[:MOST_RUNS] if str(path).isprintable()]


def names_of(package: str) -> list[str]:
    """The modules of a package of ours, without importing it."""
    folder = Path(__file__).parents[1] / package
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


KNOWN: dict[str, Callable[[], Sequence[str]]] = {
    "recipe": lambda: sorted(RECIPES),
    "reward": lambda: names_of("rewards/builtin"),
    "environment": lambda: sorted({*names_of("environments")} - {"base", "chat"}),
    "model": lambda: [EMBEDDED],
    "dataset": lambda: [EMBEDDED],
    "eval_dataset": lambda: [EMBEDDED],
    "resume": runs,
    "adapter": runs,
    "install_completion": lambda: list(SCRIPTS),
    "show_completion": lambda: list(SCRIPTS),
}


def run(arguments: Sequence[str]) -> int:
    """`--install_completion [SHELL]` and `--show_completion [SHELL]`. -> the exit code. UserError
    for an unknown shell, or where its files cannot be written."""
    flag, *shells = arguments
    if len(shells) > 1:
        raise UserError(f"{flag} takes one shell, got {plain(' '.join(shells))}")
    shell = shells[0] if shells else current_shell()
    if shell not in SCRIPTS:
        raise UserError(
            f"{flag}: {plain(shell) or 'this shell'} has no completion here: set one of "
            f"{', '.join(SCRIPTS)}"
        )
    if normal(flag) == SHOW:
        print(SCRIPTS[shell], end="")
        return 0
    try:
        changed = install(shell)
    except OSError as error:
        raise UserError(
            f"{flag} {shell}: {error.filename} cannot be written ({error.strerror}): put what "
            f"unslothrl --show_completion {shell} prints where your shell reads it"
        ) from None
    print(f"completion for {shell}: {changed}; open a new terminal to use it")
    return 0


def current_shell() -> str:
    """The name of the shell that called this program, as far as can be seen; "" if unknown."""
    import shellingham

    try:
        return str(shellingham.detect_shell()[0])
    except shellingham.ShellDetectionFailure:
        return Path(os.environ.get("SHELL", "")).name


def install(shell: str) -> Path:
    """Writes a shell's script, and has the shell read it. Once or twice is the same. -> the file
    that the shell reads. Raises OSError."""
    if (home := files.home()) is None:
        raise UserError(f"{INSTALL}: there is no home folder: set HOME")
    if shell == "fish":  # reads every file of this folder
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish/completions"
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "unslothrl.fish", FISH.encode())
        return folder / "unslothrl.fish"
    folder = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share") / "unslothrl"
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"completion.{shell}"
    write_whole(script, SCRIPTS[shell].encode())
    start = Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home
    start = start / f".{shell}rc"
    line = f"[ -f '{script}' ] && . '{script}'"
    text = start.read_text(errors="surrogateescape") if is_file(start) else ""
    if line not in text.splitlines():
        separator = "" if not text or text.endswith("\n") else "\n"
        with start.open("a") as file:
            file.write(f"{separator}{line}\n")
    return start
