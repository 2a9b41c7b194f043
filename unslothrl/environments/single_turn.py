"""One completion, and the episode is over: problems whose answer can be checked. The rewards judge
the completion; nothing runs in between, and no process is started."""
