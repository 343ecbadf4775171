"""The upload of a large file to S3 or OBS in parts. One that broke off goes on: parts that the server has already are
compared by checksum, and not sent again."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

#: Bytes of a part, and how many of them S3 takes.
PART, MOST = 16 << 20, 10_000


def upload(fs: Any, path: str, size: int, target: str, at: Callable[[int], None]) -> None:
    """`fs`: s3fs. `at` gets how far it is, in bytes. Raises OSError and what s3fs raises."""
    bucket, key, _ = fs.split_path(target)
    where = {"Bucket": bucket, "Key": key}
    step = max(PART, -(-size // MOST))
    begun, has = _begun(fs, where)
    if begun is None:
        begun = fs.call_s3("create_multipart_upload", **where)["UploadId"]
    where["UploadId"] = begun
    parts, fd = [], os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for number, offset in enumerate(range(0, size, step), 1):
            data = os.pread(fd, step, offset)
            tag = hashlib.md5(data, usedforsecurity=False).hexdigest()
            if has.get(number) != tag:
                tag = fs.call_s3("upload_part", **where, PartNumber=number, Body=data)["ETag"]
            parts.append({"PartNumber": number, "ETag": tag})
            at(offset + len(data))
    finally:
        os.close(fd)
    fs.call_s3("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})


def _begun(fs: Any, where: dict[str, str]) -> tuple[str | None, dict[int, str]]:
    """An upload of this key that was begun and not ended: its id, and the checksums of its parts by number."""
    try:
        told = fs.call_s3("list_multipart_uploads", Bucket=where["Bucket"], Prefix=where["Key"])
        ids = [found["UploadId"] for found in told.get("Uploads", ()) if found["Key"] == where["Key"]]
        if not ids:
            return None, {}
        has: dict[int, str] = {}
        more: dict[str, int] = {}
        while True:
            told = fs.call_s3("list_parts", **where, UploadId=ids[-1], **more)
            has |= {part["PartNumber"]: str(part["ETag"]).strip('"') for part in told.get("Parts", ())}
            if not told.get("IsTruncated"):
                return ids[-1], has
            more = {"PartNumberMarker": told["NextPartNumberMarker"]}
    except Exception:  # the user may write, and may not list: it is begun anew
        return None, {}
