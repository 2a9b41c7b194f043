"""Joining a Ray cluster that the user started: its address, its token, its versions.

Ray's own client retries for minutes and writes to stderr from C++. So a separate process tries
first (`python -m unslothrl.cluster.joining HOST:PORT`), and its result becomes one line. Ray 2.60
starts a cluster with token authentication as soon as there is a token; a driver must present the
same one.
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
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from unslothrl.errors import UserError
from unslothrl.variables import import_path

TOKEN, TOKEN_PATH, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"  # read by Ray
DEFAULT_TOKEN = "~/.ray/auth_token"
PORT_S, JOIN_S = 5.0, 30.0
ATTEMPTS = 3  # of Ray's client, after which the port is taken for another program's
RESULT_PREFIX = "unslothrl-joined "  # of the line that has the other process's result
UNAUTHENTICATED = "InvalidAuthToken"
NOT_RAY = "Failed to get cluster ID from GCS server: "
NO_LOCAL_CLUSTER = "Could not find any running Ray instance"
LOOPBACK = "127.0.0.1"
HELP = "`ray start --head` prints it"


def check(address: str, module: str = "unslothrl.cluster.joining") -> dict[str, Any]:
    """Tries to join the cluster from another process. Sets `RAY_AUTH_MODE` if there is a token.

    -> what that process, which runs `module`, has answered. Raises UserError if it cannot be
    joined, within seconds where nothing listens.
    """
    check_form(address)
    source = token_source(os.environ)
    if source is not None:
        os.environ.setdefault(MODE, "token")
    endpoint = split(address)
    if endpoint is not None and (reason := connection_error(*endpoint)):
        raise UserError(
            f"ray_address {address}: nothing listens there ({reason}): start a cluster with "
            "`ray start --head` and use the address that it prints"
        )
    result = try_to_join(address, module)
    if "error" in result:
        raise UserError(f"ray_address {address}: {explain(result['error'], source)}")
    return result


def check_form(address: str) -> None:
    """Raises UserError unless `address` is HOST:PORT or auto."""
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
    """-> (host, port), None if `address` has another form. An IPv6 host is in brackets."""
    parts = re.fullmatch(r"(\[[0-9a-fA-F:.%]+\]|[\w.-]+):(\d{1,5})", address, re.ASCII)
    if parts is None or not 0 < int(parts[2]) < 2**16:
        return None
    return parts[1].strip("[]"), int(parts[2])


def connection_error(host: str, port: int) -> str | None:
    """-> why a port accepts no connection, None if it does."""
    try:
        socket.create_connection((host, port), timeout=PORT_S).close()
    except (OSError, UnicodeError) as error:
        return getattr(error, "strerror", None) or str(error) or "no answer"
    return None


def token_source(variables: MutableMapping[str, str]) -> str | None:
    """-> the variable or the file that Ray reads its token from, None if there is no token.

    Raises UserError if `RAY_AUTH_TOKEN_PATH` names a file that is unreadable or empty.
    """
    if variables.get(TOKEN):
        return TOKEN
    named = variables.get(TOKEN_PATH)
    path = Path(named or os.path.expanduser(DEFAULT_TOKEN))
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        if named:
            raise UserError(
                f"{TOKEN_PATH} {named} cannot be read ({getattr(error, 'strerror', error)}): set "
                "it to a file with the cluster's token, or unset it"
            ) from None
        return None
    if named and not token:
        raise UserError(f"{TOKEN_PATH} {named} is empty: write the cluster's token into it")
    return str(path) if token else None


def ensure_token(variables: MutableMapping[str, str]) -> None:
    """Sets a random token for a cluster that this process starts, unless the user has a token.

    Ray would write one to the home folder, which may be read-only; from then on every cluster that
    the user starts would use token authentication.
    """
    if token_source(variables) is None and variables.get(MODE, "token") == "token":
        variables[TOKEN] = secrets.token_hex(32)


def try_to_join(address: str, module: str) -> dict[str, Any]:
    """Joins from another process. -> what it answers, {"error": text} where it cannot"""
    process = subprocess.Popen(
        [sys.executable, "-m", module, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": python_path(), "RAY_USAGE_STATS_ENABLED": "0"},
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    assert process.stdout is not None
    reader = threading.Thread(target=queue_lines, args=(process.stdout, lines), daemon=True)
    reader.start()
    try:
        return read_result(lines, time.monotonic() + JOIN_S)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()


def queue_lines(stream, lines: "queue.SimpleQueue[str]") -> None:
    """Puts every line of `stream` into `lines`, and "" at its end."""
    for line in stream:
        lines.put(line)
    lines.put("")


def read_result(lines: "queue.SimpleQueue[str]", deadline: float) -> dict[str, Any]:
    """Reads the other process's output until the result is certain. -> it, or {"error": text}

    It does not wait for the process to end, because Ray's client would go on trying.
    """
    last, failed = "", 0
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=remaining)
        except queue.Empty:
            break
        if line.startswith(RESULT_PREFIX):
            return json.loads(line.removeprefix(RESULT_PREFIX))
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
    if NOT_RAY in error or "http2 header" in error:
        return f"what listens there does not answer as Ray does: use the head's port; {HELP}"
    if NO_LOCAL_CLUSTER in error:
        return "no cluster runs on this machine: start one with `ray start --head`"
    if "node" in error and "IP address" in error:
        return (
            "this machine is not a node of that cluster: run `ray start --address=HOST:PORT` on it "
            "first"
        )
    return f"it cannot be joined ({' '.join(error.split())[:300]}): see `ray status`"


def python_path() -> str:
    """PYTHONPATH with which another process can import this package."""
    return os.pathsep.join(filter(None, [import_path(), os.environ.get("PYTHONPATH")]))


def answering(address: str) -> str:
    """The address of this machine's last cluster that Ray remembers, at the loopback where it
    listens there alone. ConnectionError where it has ended."""
    endpoint = split(address)
    if endpoint is not None:
        for host in (endpoint[0], LOOPBACK):
            if connection_error(host, endpoint[1]) is None:
                return f"[{host}]:{endpoint[1]}" if ":" in host else f"{host}:{endpoint[1]}"
    raise ConnectionError(NO_LOCAL_CLUSTER)


def main(address: str, join: Callable[[str], dict[str, Any]]) -> None:
    """Joins and prints the result on a line of its own, among what Ray's C++ threads write."""
    from ray._private import services

    try:
        if address == "auto":
            address = services.canonicalize_bootstrap_address_or_die(address)
            address = answering(address)
        result = join(address)
    except BaseException as error:
        causes = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        result = {"error": " ".join(map(str, causes))}
    print("\n" + RESULT_PREFIX + json.dumps(result), flush=True)


def as_driver(address: str) -> dict[str, Any]:
    import ray

    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    ray.shutdown()
    return {}


if __name__ == "__main__":
    main(sys.argv[1], as_driver)
