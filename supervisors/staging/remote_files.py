"""Files of another place, by fsspec."""

import os
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from muster.supervisors.model.rules import staging_urls
from muster.supervisors.staging import credentials, remote_ranges, staged_file
from muster.supervisors.staging.local_files import LocalSource, md5_of
from muster.supervisors.staging.s3_upload import PART, S3Uploads
from muster.supervisors.staging.staged_file import StagedFile
from muster.supervisors.staging.troubles import FileChanged, NotCopyable, TryAgain, of_remote

#: What one request asks for, and how long a server may be silent, in seconds.
BLOCK, SILENCE_S = 8 << 20, 60
#: Folders in folders, at most: a web server may answer each URL with the same page of links.
MAX_DEPTH = 100
_S3 = frozenset({"s3", "s3a", "obs"})
_HTTP = frozenset({"http", "https"})
_RANGES = dict.fromkeys(_S3, remote_ranges.of_s3) | dict.fromkeys(_HTTP, remote_ranges.of_http)
#: Where a file that is being written is seen by others, so that it gets its name once it is whole.
_RENAMES = frozenset({"ftp", "sftp", "ssh", "smb", "hdfs", "webdav", "webhdfs", "dbfs"})
#: Where folders are listed one by one: `find` of fsspec leaves those out that cannot be listed, and says nothing.
_WALKED = _HTTP | _RENAMES


class FileSystem:
    """That of a URL, and the path in it."""

    def __init__(self, url: str, table: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises NotCopyable."""
        self.scheme, self.shown, self.name = staging_urls.scheme(url), staging_urls.shown(url), staging_urls.name(url)
        #: Whether its path, without what stands behind `?`, ends with /.
        self.is_into = url.partition("?")[0].endswith("/")
        given = credentials.options(table, url)
        if self.scheme in _S3:
            given = _of_s3(given, self.scheme)
            url = f"s3://{url.partition('://')[2]}"
        elif self.scheme in _HTTP:
            # Proxies are those of the job's environment.
            given["client_kwargs"] = {"trust_env": True, "timeout": _timeout()} | given.get("client_kwargs", {})
        try:
            import fsspec.core

            self.fs, self.path = fsspec.core.url_to_fs(url, use_listings_cache=False, **given)
        except ImportError as error:
            raise NotCopyable(f"{self.shown}: {error}: {staging_urls.EXTRA}") from None
        except (TypeError, ValueError) as error:
            raise NotCopyable(f"{self.shown}: {error}: check URL and staging_credentials") from None

    def info(self, place: str) -> dict[str, Any]:
        """Raises what fsspec raises."""
        found: dict[str, Any] = self.fs.info(place)
        return found

    def below(self) -> dict[str, dict[str, Any]]:
        """By place what is in this folder and in those below it. Raises NotCopyable and what fsspec raises."""
        found: dict[str, dict[str, Any]] = {}
        if self.scheme not in _WALKED:
            found = self.fs.find(self.path, detail=True)
            return found
        top = self.path.rstrip("/")
        folders = {self.path: 0}
        while folders:
            folder, depth = folders.popitem()
            if depth > MAX_DEPTH:
                raise NotCopyable(f"{self.shown}: has folders in folders without end, as {folder[len(top) :]!r}")
            for info in self.fs.ls(folder, detail=True):
                place = info["name"]
                if info.get("type") != "directory":
                    found[place] = info
                elif len(place.rstrip("/")) > len(folder.rstrip("/")) and ".." not in place.split("/"):
                    folders[place] = depth + 1
        return found


class RemoteSource:
    """A file or a folder of another place."""

    def __init__(self, there: FileSystem) -> None:
        """Raises NotCopyable, TryAgain."""
        self._there, self.shown, self.name = there, there.shown, self._decoded(there, there.name)
        self._whole: set[str] = set()
        try:
            kind = "directory" if self._is_listing else there.info(there.path).get("type")
        except Exception as error:
            raise of_remote(error, self.shown) from None
        self.is_folder = kind == "directory"

    @property
    def _is_listing(self) -> bool:
        """A web server has no folders, but pages with links."""
        return self._there.scheme in _HTTP and self._there.is_into

    def items(self, say: Callable[[str], None]) -> list[StagedFile]:
        """See Source."""
        there = self._there
        try:
            if not self.is_folder:
                return [staged_file.of_info("", there.path, there.info(there.path))]
            base = there.path.rstrip("/")
            items = []
            for place, info in there.below().items():
                name = place.removeprefix(base).removeprefix("/")  # one /: a//x of S3 is another key than a/x
                if info.get("type") != "file" or not name or name.endswith("/") or "?" in name:
                    continue
                info = there.info(place) if there.scheme in _HTTP else info
                items.append(staged_file.of_info(self._decoded(there, name), place, info))
        except Exception as error:
            raise of_remote(error, self.shown) from None
        if not items:
            raise NotCopyable(f"{self.shown}: has no files")
        return items

    @staticmethod
    def _decoded(there: FileSystem, name: str) -> str:
        """A web server writes a%20b for the file `a b`."""
        return urllib.parse.unquote(name, errors="surrogateescape") if there.scheme in _HTTP else name

    def look(self, item: StagedFile) -> StagedFile:
        """See Source."""
        try:
            now = staged_file.of_info(item.name, item.place, self._there.info(item.place))
        except Exception as error:
            found = of_remote(error, self.shown)
            if isinstance(found, NotCopyable):  # it was there
                raise FileChanged(f"{found}: it was removed while it was copied") from None
            raise found from None
        return now

    def has_ranges(self, item: StagedFile) -> bool:
        """See Source."""
        return item.place not in self._whole

    def read(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        """See Source."""
        try:
            yield from self._ranges(item, offset) if self._there.scheme in _RANGES else self._blocks(item, offset)
        except remote_ranges.WholeOnly:
            self._whole.add(item.place)
            raise TryAgain(f"{self.shown}: the server sends only whole files: starting again") from None
        except Exception as error:
            raise of_remote(error, self.shown) from None

    def _ranges(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        """In requests of BLOCK bytes, so that none of them takes long."""
        pieces, size, came = _RANGES[self._there.scheme], item.size, True
        while came and (size is None or offset < size):
            came = False
            for piece in pieces(
                self._there.fs, item.place, offset, None if size is None else min(offset + BLOCK, size)
            ):
                came = size is not None
                offset += len(piece)
                yield piece

    def _blocks(self, item: StagedFile, offset: int) -> Iterator[bytes]:
        with self._there.fs.open(item.place, "rb") as file:
            if offset:
                file.seek(offset)
            while block := file.read(BLOCK):
                yield block


class RemoteSink:
    """A place elsewhere that files of this node are copied to."""

    def __init__(self, there: FileSystem, source: LocalSource) -> None:
        self._there, self.shown, self._source = there, there.shown, source
        into = there.path if source.is_folder or not there.is_into else f"{there.path.rstrip('/')}/"
        self._base = into + (os.path.basename(source.path) if into.endswith("/") and not source.is_folder else "")
        self._known: dict[str, StagedFile] = {}
        self._uploads = S3Uploads(there.fs)

    def target(self, item: StagedFile) -> str:
        """The path that a file gets."""
        return f"{self._base.rstrip('/')}/{item.name}" if item.name else self._base

    def prepare(self, items: Iterable[StagedFile]) -> None:
        """Looks what is there already. Raises NotCopyable, TryAgain."""
        try:
            found = self._there.fs.find(self._base, detail=True)
        except FileNotFoundError:
            return
        except Exception as error:
            raise of_remote(error, self.shown) from None
        self._known = {place: staged_file.of_info("", place, info) for place, info in found.items()}

    def has(self, item: StagedFile) -> bool:
        """Whether this content is there: by checksum, or by size and time: it is not older."""
        found = self._known.get(self.target(item))
        if found is None or found.size != item.size:
            return False
        if found.md5:
            return md5_of(item.place) == found.md5
        return bool(found.mtime) and found.mtime >= item.mtime

    def write(self, item: StagedFile, at: Callable[[int], None]) -> None:
        """Copies one file; `at` gets how far it is, in bytes. Raises NotCopyable, TryAgain."""
        at(0)
        target, size = self.target(item), item.size or 0
        try:
            if self._there.scheme in _S3 and size > PART:
                self._uploads.write(item.place, size, target, at)
            else:
                self._put(item.place, target)
            told = self._there.info(target).get("size")
        except FileNotFoundError:
            raise NotCopyable(f"{self.shown}: there is no such bucket or folder") from None
        except Exception as error:
            raise of_remote(error, self.shown) from None
        if self._source.look(item).version != item.version:
            raise FileChanged(f"{item.place}: changed while it was copied")
        if told != size:
            raise TryAgain(f"{self.shown}: {item.name or 'it'} has {told} of {size} bytes there")
        at(size)

    def give_up(self, say: Callable[[str], None]) -> None:
        """Nobody goes on with what is not copied by now: no part of it is to stay there. Best effort; `say` gets what
        stays."""
        self._uploads.abort(say)

    def _put(self, path: str, target: str) -> None:
        fs = self._there.fs
        if self._there.scheme not in _RENAMES:
            fs.put_file(path, target)
            return
        fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        part = f"{target}.muster-part"
        fs.put_file(path, part)
        if fs.exists(target):
            fs.rm_file(target)
        fs.mv(part, target)


def _of_s3(given: dict[str, Any], scheme: str) -> dict[str, Any]:
    """With what the platform's variables say of its object storage. Raises NotCopyable."""
    client = dict(given.get("client_kwargs", {}))
    endpoint = os.environ.get("S3_ENDPOINT", "")
    if endpoint and "://" not in endpoint:
        endpoint = ("http://" if os.environ.get("S3_USE_HTTPS") == "0" else "https://") + endpoint
    endpoint = str(given.pop("endpoint_url", "") or client.pop("endpoint_url", "") or endpoint)
    if scheme == "obs" and not endpoint:
        raise NotCopyable("obs: needs the address of the service: endpoint_url below [obs] in the file of "
                          "staging_credentials, or S3_ENDPOINT in the job's environment")  # fmt: skip
    if os.environ.get("S3_VERIFY_SSL") == "0":
        client.setdefault("verify", False)
    return given | {"client_kwargs": client} | ({"endpoint_url": endpoint} if endpoint else {})


def _timeout() -> Any:
    """None for a whole file, however large it is. Raises ImportError."""
    try:
        import aiohttp
    except ImportError:
        return None
    return aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
