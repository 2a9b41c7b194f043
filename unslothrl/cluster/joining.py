"""Joining a Ray cluster that somebody else started: its address, its token, its versions.

Ray's own client retries for minutes and writes to stderr from C++, so a process of its own tries
first (`python -m unslothrl.cluster.joining HOST:PORT`), and what it finds becomes one line. Ray
2.60 starts a cluster with token authentication as soon as a token is found; a driver has to show
the same one.
"""

import json
import logging
import os
import queue
import re
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path

from unslothrl.errors import UserError
from unslothrl.variables import IMPORT_FOLDER

TOKEN, TOKEN_PATH, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"  # Ray's own
DEFAULT_TOKEN = "~/.ray/auth_token"
PORT_S, JOIN_S = 5.0, 30.0
ATTEMPTS = 3  # of Ray's own, before a port is taken for something else
ANSWERED = "unslothrl-joined "  # what the trying process begins its result with
UNAUTHENTICATED = "InvalidAuthToken"
NOT_RAY = "Failed to get cluster ID from GCS server: "
NONE_HERE = "Could not find any running Ray instance"
HELP = "`ray start --head` prints it"


def check(address: str) -> None:
    """Joins the cluster for a moment, and sets `RAY_AUTH_MODE` for this process as it needs it.

    Raises UserError, within seconds where nothing listens.
    """
    check_form(address)
    source = token_source(os.environ)
    if source is not None:
        os.environ.setdefault(MODE, "token")
    where = split(address)
    if where is not None and (reason := no_listener(*where)):
        raise UserError(
            f"ray_address {address}: nothing listens there ({reason}): start a cluster with "
            "`ray start --head` and use the address that it prints"
        )
    found = try_to_join(address)
    if "error" in found:
        raise UserError(f"ray_address {address}: {explain(found['error'], source)}")


def check_form(address: str) -> None:
    """Raises UserError for what is not HOST:PORT or auto."""
    if address == "auto":
        return
    if address.startswith("ray://"):
        host = address.removeprefix("ray://").partition(":")[0] or "HOST"
        raise UserError(
            f"ray_address {address}: Ray Client is not supported: run on a node of the cluster "
            f"and set --ray_address {host}:6379 or auto"
        )
    if address == "local":
        raise UserError("ray_address local: leave --ray_address out to start Ray on this machine")
    if split(address) is None:
        raise UserError(f"ray_address must be HOST:PORT or auto, got {address!r}: {HELP}")


def split(address: str) -> tuple[str, int] | None:
    """-> (host, port); a host of IPv6 stands in brackets."""
    parts = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[\w.-]+):(\d{1,5})", address, re.ASCII)
    if parts is None or not 0 < int(parts[2]) < 2**16:
        return None
    return parts[1].strip("[]"), int(parts[2])


def no_listener(host: str, port: int) -> str | None:
    """-> why a port takes no connection, None where it does."""
    try:
        socket.create_connection((host, port), timeout=PORT_S).close()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error) or "no answer"
    return None


def token_source(variables: MutableMapping[str, str]) -> str | None:
    """Where Ray takes its token from: a variable or a file; None where there is none. UserError."""
    if variables.get(TOKEN):
        return TOKEN
    named = variables.get(TOKEN_PATH)
    path = Path(named or os.path.expanduser(DEFAULT_TOKEN))
    try:
        found = path.read_text().strip()
    except (OSError, ValueError) as error:
        if named:
            raise UserError(
                f"{TOKEN_PATH} {named} cannot be read ({getattr(error, 'strerror', error)}): set "
                "it to a file with the cluster's token, or unset it"
            ) from None
        return None
    if named and not found:
        raise UserError(f"{TOKEN_PATH} {named} is empty: write the cluster's token into it")
    return str(path) if found else None


def token_of_our_own(variables: MutableMapping[str, str]) -> None:
    """A token for a cluster that this process starts, where the user has none.

    Ray would write one into the home folder, which may be read-only, and which would turn
    authentication on for every cluster that the user starts from then on.
    """
    if token_source(variables) is None and variables.get(MODE, "token") == "token":
        variables[TOKEN] = secrets.token_hex(32)


def try_to_join(address: str) -> dict[str, str]:
    """What another process found: {} or {"error": text}."""
    process = subprocess.Popen(
        [sys.executable, "-m", "unslothrl.cluster.joining", address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": python_path(), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    reader = threading.Thread(target=pump, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        return verdict(lines, time.monotonic() + JOIN_S)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def pump(stream, lines: "queue.SimpleQueue[str]") -> None:
    for line in stream:
        lines.put(line)
    lines.put("")  # its end


def verdict(lines: "queue.SimpleQueue[str]", deadline: float) -> dict[str, str]:
    """Reads until something is certain: Ray itself would go on trying."""
    last, failed = "", 0
    while (left := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=left)
        except queue.Empty:
            break
        if line.startswith(ANSWERED):
            return json.loads(line.removeprefix(ANSWERED))
        if UNAUTHENTICATED in line:
            return {"error": UNAUTHENTICATED}
        failed += NOT_RAY in line
        if failed == ATTEMPTS:
            break
        if not line:
            return {"error": last}
        last = line.strip() or last
    return {"error": NOT_RAY}


def explain(error: str, source: str | None) -> str:
    """What went wrong and what to do, in one line."""
    if UNAUTHENTICATED in error and os.environ.get(MODE, "token") != "token":
        return f"the cluster asks for a token, and {MODE} is {os.environ[MODE]} here: unset it"
    if UNAUTHENTICATED in error and source is None:
        return (
            f"the cluster asks for a token, and there is none here: copy the head's "
            f"{DEFAULT_TOKEN}, or set {TOKEN} or {TOKEN_PATH}"
        )
    if UNAUTHENTICATED in error:
        return (
            f"the cluster does not accept the token of {source}: use the head's, which "
            "`ray get-auth-token` prints there"
        )
    if "Version mismatch" in error:
        return " ".join(error.split()).partition(" If you")[0] + ": install the same on both"
    if NOT_RAY in error:
        return f"what listens there does not answer as Ray does: use the head's port; {HELP}"
    if NONE_HERE in error:
        return "no cluster runs on this machine: start one with `ray start --head`"
    if "node" in error and "IP address" in error:
        return (
            "this machine is no node of that cluster: run `ray start --address=HOST:PORT` on it "
            "first"
        )
    return f"it cannot be joined ({' '.join(error.split())[:300]}): see `ray status`"


def python_path() -> str:
    """Where a process that we start imports us from."""
    return os.pathsep.join(filter(None, [str(IMPORT_FOLDER), os.environ.get("PYTHONPATH")]))


def main(address: str) -> None:
    """Joins and prints what happened; its C++ threads may write to stderr meanwhile."""
    import ray
    from ray._private import services

    try:
        if address == "auto":
            found = split(services.canonicalize_bootstrap_address_or_die(address))
            if found is None or no_listener(*found):
                raise ConnectionError(NONE_HERE)  # the last one has ended
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        ray.shutdown()
        result = {}
    except BaseException as error:
        causes = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        result = {"error": " ".join(map(str, causes))}
    print("\n" + ANSWERED + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
