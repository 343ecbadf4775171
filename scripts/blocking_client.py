"""proto/muster/client/blocking_client.py, from async_client.py: the same calls without an event loop.

What differs is written down here, word by word; ruff drops the imports that are left over, and sets the lines.
"""

import re
import subprocess
import sys
from pathlib import Path

_CLIENT = Path(__file__).parents[1] / "proto" / "muster" / "client"
_HEAD = '''"""The client of one daemon, for programs without an event loop.

`make docs` writes this file from async_client.py: change that.
"""
'''
#: In this order: an expression, and what takes its place.
_CHANGES = (
    (r'\A""".*?"""\n', _HEAD),
    (r"^import asyncio\n", ""),
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"^from grpc import aio\n", ""),
    (r"\baio\.Channel\b", "grpc.Channel"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAbstractAsyncContextManager\b", "AbstractContextManager"),
    (r"\basync_exec\b", "blocking_exec"),
    (r"\bAsyncExec\b", "BlockingExec"),
    (r"Service\w*AsyncStub\b", "ServiceStub"),
    (r"^class Client:", "class BlockingClient:"),
    (
        r"calls that are (repeated .+) and (raise \w+\.)",
        r"calls that block, are \1, and\n    \2 Any thread may make them.",
    ),
)
#: A loop that passes on what it gets is `yield from`.
_RULES = "I,F401,UP028"


def blocking_client() -> str:
    """The text of the file. Raises ValueError where a change finds nothing to change."""
    text = (_CLIENT / "async_client.py").read_text(encoding="utf-8")
    for pattern, replacement in _CHANGES:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE | (re.DOTALL if r"\A" in pattern else 0))
        if not count:
            raise ValueError(f"scripts/blocking_client.py: {pattern!r} is not in async_client.py")
    ruff = (sys.executable, "-m", "ruff")
    name = ("--stdin-filename", str(_CLIENT / "blocking_client.py"), "-")
    for command in (
        (*ruff, "check", "-q", "--fix", "--unsafe-fixes", "--select", _RULES, *name),
        (*ruff, "format", *name),
    ):
        text = subprocess.run(command, input=text, check=True, capture_output=True, text=True).stdout
    return text
