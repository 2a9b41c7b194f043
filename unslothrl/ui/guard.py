"""Who may ask the page's server for what.

Other users of the machine, and every web site that is open in a browser, can send requests to
127.0.0.1 too. So each needs the token of this process: in the address of the page, and in a header
of all else that the page asks for. A cookie would be sent by itself, and to other servers of this
host as well. The report of a run, which a frame loads, has a key of its own: its scripts see it.
"""

import hashlib
import hmac
from collections.abc import Collection

from starlette.datastructures import MutableHeaders, QueryParams
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE, REPORT, POLICY = "/", "/report", "Content-Security-Policy"
HEADERS = {
    "Cache-Control": "no-store",
    POLICY: "default-src 'none'; frame-ancestors 'none'; sandbox",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
OF_PAGE = (  # its own script and style, by what is new in each answer; no markup from text
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; connect-src 'self'; "
    "frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
OF_REPORT = (  # which may be somebody else's file: an origin of its own, nothing loaded or sent
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)


def key_of(token: str, name: str) -> str:
    """What opens the report of a run, and nothing else."""
    return hmac.new(token.encode(), name.encode(errors="replace"), hashlib.sha256).hexdigest()


class Guard:
    """Answers what is refused, and gives every answer its headers."""

    def __init__(self, app: ASGIApp, token: str, hosts: Collection[str]):
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self.refusal(scope)
        answer = PlainTextResponse(f"{refusal}\n", 403) if refusal else self.app
        await answer(scope, receive, sent)

    def refusal(self, scope: Scope) -> str:
        """Why a request is refused, or ""."""
        request, query = Request(scope), QueryParams(scope["query_string"])
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or hosts[0] not in self.hosts:  # such as a name that leads here
            return "this host is not the page's"
        if request.method != "GET" and request.headers.get("origin") != f"http://{hosts[0]}":
            return "only the page itself may ask for this"
        wanted, given = self.token, request.headers.get("x-token", "")
        if request.method == "GET" and scope["path"] == PAGE:
            given = query.get("token", "")
        elif request.method == "GET" and scope["path"] == REPORT:
            wanted, given = key_of(self.token, query.get("name", "")), query.get("key", "")
        if not hmac.compare_digest(given.encode(errors="replace"), wanted.encode()):
            return "the token is missing or wrong: open the address that `unslothrl ui` has printed"
        return ""
