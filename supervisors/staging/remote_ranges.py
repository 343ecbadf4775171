"""Reads a part of a file of a web server or of S3, and yields its bytes as they come: what arrived before the server
broke off counts. The files of fsspec give nothing of a request that was not answered as a whole."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

#: Bytes that are taken at a time, and how many such pieces wait for the disk.
PIECE, WAITING = 64 << 10, 16


class WholeOnly(Exception):
    """Raised where a server of HTTP does not send the part that was asked for: it sends whole files only."""


def of_http(fs: Any, url: str, offset: int, end: int | None) -> Iterator[bytes]:
    """Bytes from `offset` to `end`, which is not among them (None: the file's own); all of the file where the server
    sends no parts and `offset` is 0. Raises WholeOnly, OSError and what aiohttp raises."""
    return _drained(fs, _http_pieces(fs, url, offset, end))


def of_s3(fs: Any, path: str, offset: int, end: int | None) -> Iterator[bytes]:
    """As `of_http`, of s3fs."""
    return _drained(fs, _s3_pieces(fs, path, offset, end))


async def _http_pieces(fs: Any, url: str, offset: int, end: int | None) -> AsyncGenerator[bytes, None]:
    session = await fs.set_session()
    given = dict(fs.kwargs)
    headers = {"Accept-Encoding": "identity", **given.pop("headers", {}), "Range": _asked(offset, end)}
    async with session.get(fs.encode_url(url), headers=headers, **given) as answer:
        if answer.status == 416:  # the file is shorter by now
            return
        answer.raise_for_status()
        if offset and answer.status != 206:
            raise WholeOnly
        async for piece in answer.content.iter_any():
            yield piece


async def _s3_pieces(fs: Any, path: str, offset: int, end: int | None) -> AsyncGenerator[bytes, None]:
    bucket, key, version = fs.split_path(path)
    which = {"Bucket": bucket, "Key": key} | ({"VersionId": version} if version else {})
    answer = await fs._call_s3("get_object", **which, Range=_asked(offset, end))
    async with answer["Body"]:
        while piece := await answer["Body"].read(PIECE):
            yield piece


def _asked(offset: int, end: int | None) -> str:
    return f"bytes={offset}-{'' if end is None else end - 1}"


def _drained(fs: Any, pieces: AsyncGenerator[bytes, None]) -> Iterator[bytes]:
    """What comes on fsspec's loop, in this thread. A server waits while the disk is slow."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
    over = False

    async def fill() -> None:
        nonlocal over
        try:
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    await queue.put(piece)
        finally:
            over = True
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)

    async def take() -> bytes | None:
        if over and queue.empty():
            return None
        return await queue.get()

    filling = asyncio.run_coroutine_threadsafe(fill(), fs.loop)
    try:
        while (piece := asyncio.run_coroutine_threadsafe(take(), fs.loop).result()) is not None:
            yield piece
        filling.result()
    finally:
        filling.cancel()
        concurrent.futures.wait([filling], 5)
