"""Uploads of large files to S3 or OBS in parts. One that broke off goes on: parts that the server has already are
compared by checksum, and not sent again. One that is given up is aborted, as its parts would be paid for."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable
from typing import Any

#: Bytes of a part, and how many of them S3 takes.
PART, MOST = 16 << 20, 10_000


class S3Uploads:
    """Of one output. `write` may be called by several threads."""

    def __init__(self, fs: Any) -> None:
        """`fs`: s3fs."""
        self._fs = fs
        #: Begun by us or taken up, and not complete: bucket, key and id by target.
        self._open: dict[str, dict[str, str]] = {}
        self._lock = threading.Lock()

    def write(self, path: str, size: int, target: str, at: Callable[[int], None]) -> None:
        """`at` gets how far it is, in bytes. Raises OSError and what s3fs raises."""
        bucket, key, _ = self._fs.split_path(target)
        step = max(PART, -(-size // MOST))
        where, has = self._taken_up(target, {"Bucket": bucket, "Key": key})
        parts, fd = [], os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for number, offset in enumerate(range(0, size, step), 1):
                data = os.pread(fd, step, offset)
                tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
                if has.get(number) != tag:
                    tag = self._fs.call_s3("upload_part", **where, PartNumber=number, Body=data)["ETag"]
                parts.append({"PartNumber": number, "ETag": tag})
                at(offset + len(data))
        finally:
            os.close(fd)
        self._fs.call_s3("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
        self._forget(target)

    def abort(self, say: Callable[[str], None]) -> None:
        """Those that are not complete, with the parts that the server has of them. Best effort."""
        for target, where in list(self._open.items()):
            try:
                self._fs.call_s3("abort_multipart_upload", **where)
            except Exception as error:
                if type(error).__name__ != "FileNotFoundError":  # it is complete, or somebody has aborted it
                    say(f"s3://{target}: parts of it stay in the bucket: {type(error).__name__}")
            self._forget(target)

    def _taken_up(self, target: str, where: dict[str, str]) -> tuple[dict[str, str], dict[int, str]]:
        """An upload of this key that was begun and is not complete, or a new one: where, and checksums of the parts by
        number."""
        mine = self._open.get(target)
        found, has = self._begun(where, mine["UploadId"] if mine is not None else "")
        if found is None:
            self._forget(target)
            found = self._fs.call_s3("create_multipart_upload", **where)["UploadId"]
        where = where | {"UploadId": found}
        with self._lock:
            self._open[target] = where
        return where, has

    def _begun(self, where: dict[str, str], known: str) -> tuple[str | None, dict[int, str]]:
        """Its id, and the checksums of its parts; `known`: the one that we have begun."""
        has: dict[int, str] = {}
        try:
            found = known or self._listed(where)
            if not found:
                return None, has
            more: dict[str, int] = {}
            while True:
                told = self._fs.call_s3("list_parts", **where, UploadId=found, **more)
                has |= {part["PartNumber"]: str(part["ETag"]).strip('"') for part in told.get("Parts", ())}
                if not told.get("IsTruncated"):
                    return found, has
                more = {"PartNumberMarker": told["NextPartNumberMarker"]}
        except FileNotFoundError:  # somebody has aborted it
            return None, {}
        except Exception:  # the user may write, and may not list: ours goes on with all of its parts sent again
            return known or None, {}

    def _listed(self, where: dict[str, str]) -> str:
        told = self._fs.call_s3("list_multipart_uploads", Bucket=where["Bucket"], Prefix=where["Key"])
        ids = [found["UploadId"] for found in told.get("Uploads", ()) if found["Key"] == where["Key"]]
        return ids[-1] if ids else ""

    def _forget(self, target: str) -> None:
        with self._lock, contextlib.suppress(KeyError):
            del self._open[target]
