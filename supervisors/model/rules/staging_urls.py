"""URLs that code, inputs and outputs of a job are copied from and to: which are allowed, and how one may be shown."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping

#: By scheme: the Python module that reads and writes it. Those of fsspec that hold files under a name.
MODULES: Mapping[str, str] = {
    "file": "fsspec",
    "ftp": "fsspec",
    "http": "aiohttp",
    "https": "aiohttp",
    "s3": "s3fs",
    "s3a": "s3fs",
    "obs": "s3fs",
    "abfs": "adlfs",
    "az": "adlfs",
    "dbfs": "requests",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hdfs": "pyarrow",
    "hf": "huggingface_hub",
    "lakefs": "lakefs_spec",
    "oci": "ocifs",
    "oss": "ossfs",
    "sftp": "paramiko",
    "smb": "smbprotocol",
    "ssh": "paramiko",
    "tos": "tosfs",
    "webdav": "webdav4",
    "webhdfs": "requests",
}
#: What is read, and never written.
READ_ONLY = frozenset({"http", "https"})
EXTRA = "pip install 'muster-agent[staging]'"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.+)", re.DOTALL)
_USER = re.compile(r"[^/?#]*@")
_MAX_URL = 4096
#: What stands for itself in a URL of an input or an output: the same job begins on several nodes.
NODE, HOST, JOB = "{node}", "{host}", "{job}"
_PLACES = (NODE, HOST, JOB)
_BRACES = re.compile(r"\{[^{}]*\}?|\}")


def scheme(url: str) -> str:
    """In lower case; empty where the text is no URL."""
    match = _URL.fullmatch(url)
    return match[1].lower() if match is not None else ""


def name(url: str) -> str:
    """The last part of its path; `code` where it has none that can be the name of a folder."""
    match = _URL.fullmatch(url)
    rest = re.split(r"[?#]", match[2] if match is not None else "", maxsplit=1)[0].rstrip("/")
    last = rest.partition("/")[2].rpartition("/")[2]
    return last if last not in ("", ".", "..") else "code"


def shown(url: str) -> str:
    """Without what may be a secret: a password, and what is behind `?`, as the signature of a URL that is signed."""
    match = _URL.fullmatch(url)
    if match is None:
        return url
    rest = _USER.sub("", match[2], count=1) if _USER.match(match[2]) else match[2]
    path, mark, _ = rest.partition("?")
    return f"{match[1]}://{path}" + ("?..." if mark else "")


def of_node(url: str, *, node: int, host: str, job: str) -> str:
    """With the number of this node in its job, its name and the job's id in their places."""
    for place, value in zip(_PLACES, (str(node), host, job), strict=True):
        url = url.replace(place, value)
    return url


def all_shown(urls: Mapping[str, str]) -> dict[str, str]:
    """`shown`, by path."""
    return {path: shown(url) for path, url in urls.items()}


def problem(url: str, *, written: bool = False) -> str:
    """What is wrong with a URL as such; `written`: it is copied to. Empty: nothing."""
    match = _URL.fullmatch(url)
    if match is None:
        return f"{url[:80]!r}: must be a URL, as in s3://bucket/folder or file:///folder"
    if len(url) > _MAX_URL or any(c in url for c in "\0\n\r"):
        return f"must be a URL of at most {_MAX_URL} characters in one line"
    if "::" in url:
        return f"{shown(url)!r}: chains of URLs are not supported: give one URL"
    if _USER.match(match[2]) and match[1].lower() not in ("abfs", "az"):  # theirs name a container so
        return f"{shown(url)!r}: has a user or a password in it: write them into the file of staging_credentials"
    if match[1].lower() == "file" and not match[2].startswith("/"):
        return f"{shown(url)!r}: must have an absolute path, as in file:///folder"
    if written and match[1].lower() in READ_ONLY:
        return f"{shown(url)!r}: nothing can be copied to {match[1]}: give a URL of another scheme, as s3"
    return ""


def twice(paths: Iterable[str]) -> str:
    """The first path that names the same place as one before it, as `x` and `./x/` do; empty: none does."""
    seen: set[str] = set()
    for path in paths:
        place = posixpath.normpath(path)
        if place in seen:
            return path
        seen.add(place)
    return ""


def undelivered(outputs: Iterable[str], warnings: Iterable[str]) -> list[str]:
    """Those of the outputs that a warning of the step `outputs` names by their absolute paths; all of them where it
    names none."""
    paths = list(outputs)
    told = "\n".join(text for text in warnings if text.startswith("outputs"))
    return [path for path in paths if f"/{posixpath.normpath(path).lstrip('/')}: " in told] or paths


def problems(urls: Mapping[str, str], *, written: bool = False) -> Iterator[tuple[str, str]]:
    """By path: what is wrong with it or its URL."""
    for path, url in urls.items():
        if not path or "\0" in path or len(path) > 4095:
            yield path, "must be a path of 1 to 4095 characters without NUL"
        elif found := problem(url, written=written) or _misplaced(url):
            yield path, found


def _misplaced(url: str) -> str:
    """What is wrong with braces in it."""
    wrong = next((found for found in _BRACES.findall(url.partition("?")[0]) if found not in _PLACES), "")
    return f"{shown(url)!r}: {wrong!r} is not a placeholder: known are {', '.join(_PLACES)}" if wrong else ""
