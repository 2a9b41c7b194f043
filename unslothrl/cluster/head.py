"""Whether a cluster's head is there.

Without it calls between processes go on, but calls of the head block, and after 60 s Ray ends every
process that is connected, this one included, in the middle of whatever it does. So what asks the
head looks first whether it is there, and a run whose head has gone ends by itself before that.
"""

import socket
import time

from unslothrl.cluster.joining import split
from unslothrl.errors import HeadLost

LOOK_S = 2.0  # between two looks
CONNECT_S = 1.0
GONE_S = 30.0  # after which it is taken for gone; what is left of the 60 is for the end of the run


class Head:
    """Of the cluster at `address`, "host:port"."""

    def __init__(self, address: str):
        self.address, self.endpoint = address, split(address)
        self.looked = self.seen = time.monotonic()
        self.is_gone = False

    def answers(self) -> bool:
        """Whether it does now; takes a second at most."""
        if self.endpoint is None:
            return True
        try:
            socket.create_connection(self.endpoint, timeout=CONNECT_S).close()
        except OSError:
            return False
        self.seen = time.monotonic()
        return True

    def check(self) -> None:
        """Looks now and then. Raises HeadLost once it is gone; what is called after that is for the
        end of the run."""
        now = time.monotonic()
        if self.is_gone or now - self.looked < LOOK_S:
            return
        if now - self.looked > GONE_S:  # nobody has looked for long: this process was busy
            self.seen = now
        self.looked = now
        if not self.answers() and now - self.seen > GONE_S:
            self.is_gone = True
            raise HeadLost(
                f"Ray's head at {self.address} has not answered for {now - self.seen:.0f} s, and "
                "without it Ray ends every process: continue with --resume when it is back"
            )
