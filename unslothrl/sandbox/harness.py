"""The first thing that runs inside the sandbox: gives up what it may, then becomes the program.

    python -I -S -B harness.py FD_OF_REQUEST FD_OF_REPORT

It reports that the program begins by a "+", and then what a function returns. The report is a
socket: nothing that was written to it can be read back.

It imports nothing of this package, which is not there, and little else: a program costs a start of
Python each time. The request holds no expected answer: what a program returns is compared outside.
"""

import atexit
import marshal
import os
import resource
import sys


def main() -> None:
    request_fd, report_fd = map(int, sys.argv[1:])
    with os.fdopen(request_fd, "rb") as file:
        request = marshal.load(file)
    become(request["uid"])
    limit(request["limits"])
    os.write(report_fd, b"+")  # all that follows is the program's doing
    sys.argv = ["main.py"]
    sys.path[:] = [*sys.path[:], request["packages"]]
    sys.set_int_max_str_digits(0)
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    exec(compile(request["text"], "main.py", "exec"), module.__dict__)
    if request["function"] is not None:
        import json

        value = find(module, request["function"])(*request["arguments"])
        reply = json.dumps(value).encode()
        while reply:
            reply = reply[os.write(report_fd, reply) :]
    end()


def end() -> None:
    """What Python does at a program's end, without the third of its time to take itself apart."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def become(uid: int | None) -> None:
    """Another user, whom nothing belongs to, where we are root: all capabilities go with it."""
    if uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def limit(limits: dict) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(kind, (value, value))


def find(module, name: str):
    solution = getattr(module, "Solution", None)
    if hasattr(module, name) or solution is None:
        return getattr(module, name)
    return getattr(solution(), name)


if __name__ == "__main__":
    main()
