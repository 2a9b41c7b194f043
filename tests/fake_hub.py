"""As much of the hub's HTTP interface as an upload of small files and a download take, on this
machine."""

import base64
import contextlib
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict] = {}  # name -> {"private", "files": path -> bytes}
        self.asked: list[str] = []  # the files that were downloaded
        self.heads: list[str] = []  # and those that were asked about

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.server.heads.append(self.path)
        self.do_GET()

    def do_GET(self) -> None:
        owner, _, rest = self.path[1:].partition("/")
        name, _, file = rest.partition("/resolve/main/")
        if file:
            files = self.server.repositories.get(f"{owner}/{name}", {}).get("files", {})
            return self.give(files[file]) if file in files else self.answer({}, 404)
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "Invalid username or password."}, 401)
        if self.path == "/api/whoami-v2":
            return self.answer({"type": "user", "name": "me", "orgs": []})
        return self.answer({"error": "not here"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('organization', 'me')}/{given['name']}"
            private = given.get("private") or given.get("visibility") == "private"
            self.server.repositories[name] = {"private": bool(private), "files": {}}
            return self.answer({"url": f"{self.server.address}/{name}"})
        if self.path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        name = "/".join(self.path.split("/")[3:5])
        files = self.server.repositories[name]["files"]
        if "/preupload/" in self.path:
            asked = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for each in json.loads(body)["files"]
            ]
            return self.answer({"files": asked})
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
        url = f"{self.server.address}/{name}/commit/{'0' * 40}"
        return self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": url})

    def give(self, content: bytes) -> None:
        if self.command == "GET":
            self.server.asked.append(self.path)
        self.send_response(200)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{zlib.crc32(content):x}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def answer(self, value: dict, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def hub() -> Iterator[Hub]:
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
