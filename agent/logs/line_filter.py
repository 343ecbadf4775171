"""Which lines of a block of output contain certain bytes, or match a regular expression.

A process that searches for a command imports this module and little else, so it imports none of ours.

The daemon searches for bytes only, never for patterns: whatever a caller asks for, a search takes time in proportion to
the output, nearly all of it in `bytes.find`, and no thread holds the interpreter for longer than one block takes.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import compress

#: A line that is longer (no newline in sight) is passed on in pieces of about this many bytes.
MAX_LINE = 65536
#: Most alternatives, and of each: most parts, and most bytes in all of them.
MOST_ALTERNATIVES, MOST_PARTS, MOST_BYTES = 16, 16, 1024
#: So many lines with a hit, one per KiB or more: now it is quicker to look at each line.
_DENSE, _DENSE_BYTES = 32, 1024
#: Bytes of lines that are looked at one by one before the next are: more than the caches of a core takes longer.
_AT_ONCE = 64 * 1024
_NEWLINE = ord("\n")
#: Bytes of what is searched for of which one may be missing.
_TRIED = 16
#: With these, text beyond ASCII can match a letter whose case is ignored (dotless i, the Kelvin sign, long s), or is
#: itself a letter with a case.
_MORE_THAN_ASCII = re.compile(rb"[iks\x80-\xff]+")

_Parts = tuple[bytes, ...]


class LineFilter:
    """Lines that contain, in order and without overlap, all parts of one of several alternatives. For one thread."""

    def __init__(self, any_of: Sequence[_Parts], *, ignore_case: bool = False) -> None:
        """`any_of`: at least one, each with at least one part; no part is empty. `ignore_case`: of ASCII letters; in a
        block with text beyond ASCII more lines are found than contain the parts, never fewer."""
        self.any_of, self.ignore_case = any_of, ignore_case
        self._any_of = [tuple(part.lower() for part in parts) for parts in any_of] if ignore_case else list(any_of)
        #: For a block with text beyond ASCII, ignoring case.
        self._loose = [
            tuple(piece for part in parts for piece in _MORE_THAN_ASCII.split(part) if piece) or (b"",)
            for parts in self._any_of
        ]
        #: How many lines each part found that were not wanted: the part that finds fewest is searched for.
        self.in_vain: dict[bytes, int] = {}
        #: Whether most lines were wanted where they were looked at last: then each is looked at from the first on.
        self.dense = False

    def of(self, data: bytes) -> bytes:
        """Of whole lines."""
        return self.view(data, len(data)).lines(0, len(data))

    def view(self, data: bytes, end: int) -> "FilteredBlock":
        """Of the whole lines in `data[:end]`."""
        if not self.ignore_case:
            return FilteredBlock(self, data, data, end, self._any_of)
        return FilteredBlock(self, data, data.lower(), end, self._any_of if data.isascii() else self._loose)


def _lacks(text: bytes, key: bytes, end: int) -> bool:
    """Whether one byte of `key` is nowhere in `text[:end]`: that is found out ten times as fast as that `key` is not,
    and at once for a byte that occurs."""
    return any(text.find(byte, 0, end) < 0 for byte in dict.fromkeys(key[:_TRIED]))


class FilteredBlock:
    """One block of output as a filter sees it."""

    def __init__(self, whole: LineFilter, data: bytes, text: bytes, end: int, any_of: Sequence[_Parts]) -> None:
        """`text` is searched, `data` returned: the same lines, of the same lengths."""
        self._data, self._text, self._end = data, text, end
        self._whole, self._any_of, self._in_vain = whole, any_of, whole.in_vain
        self._simple = len(any_of) == 1 and len(any_of[0]) == 1
        #: The part of each alternative that is searched for, and where it is next.
        self._at: dict[bytes, int] = {}
        for parts in any_of:
            key = min(parts, key=lambda part: (self._in_vain.get(part, 0), -len(part)))
            self._at[key] = end if not whole.dense and _lacks(text, key, end) else -1

    def next(self, position: int) -> int:
        """Where something is from `position` on that a wanted line contains; the end, or more: nowhere."""
        nearest = self._end
        for key, at in self._at.items():
            if at < position:
                at = self._text.find(key, position, self._end)
                self._at[key] = at = at if at >= 0 else self._end
            nearest = min(nearest, at)
        return nearest

    def lines(self, start: int, stop: int) -> bytes:
        """The wanted ones of the whole lines in [start, stop)."""
        if self._whole.dense:
            return self._of_each(start, stop)
        text, found, position, hits = self._text, [], start, 0
        while (hit := self.next(position)) < stop:
            if hits >= _DENSE and position - start < hits * _DENSE_BYTES:
                found.append(self._of_each(position, stop))
                break
            begin = text.rfind(b"\n", position, hit) + 1 or position
            position = text.find(b"\n", hit, stop) + 1 or stop
            hits += 1
            if self._simple or self._wanted(text[begin:position]):
                found.append(self._data[begin:position])
        return b"".join(found)

    def _of_each(self, start: int, stop: int) -> bytes:
        """As `lines`, by a look at each."""
        found = []
        many = few = 0
        for begin, end in whole_lines(self._data, start, stop, _AT_ONCE):
            lines = self._texts(self._data, begin, end)
            texts = lines if self._text is self._data else self._texts(self._text, begin, end)
            wanted = self._wanted_of(texts, lines)
            many += len(lines)
            few += len(wanted)
            if len(wanted) == len(lines):
                found.append(self._data[begin:end])
            elif wanted:
                last = b"" if wanted[-1] is lines[-1] and self._data[end - 1] != _NEWLINE else b"\n"
                found.append("\n".join(wanted).encode("latin-1") + last)
        self._whole.dense = few * _DENSE > many
        return b"".join(found)

    def _texts(self, data: bytes, begin: int, end: int) -> list[str]:
        """Lines, a character for each byte: to look into a `str` takes half as long as to look into `bytes`."""
        return data[begin : end - (self._data[end - 1] == _NEWLINE)].decode("latin-1").split("\n")

    def _wanted_of(self, texts: list[str], lines: list[str]) -> list[str]:
        if self._simple:
            key = self._any_of[0][0].decode("latin-1")
            if texts is lines:
                return [line for line in lines if key in line]
            return [line for text, line in zip(texts, lines, strict=True) if key in text]
        return [line for text, line in zip(texts, lines, strict=True) if self._wanted(text.encode("latin-1"))]

    def _wanted(self, text: bytes) -> bool:
        for parts in self._any_of:
            position = 0
            for part in parts:
                position = text.find(part, position)
                if position < 0:
                    break
                position += len(part)
            else:
                return True
        if len(self._at) == 1:
            (key,) = self._at
            self._in_vain[key] = self._in_vain.get(key, 0) + 1
        return False


class LineMatch:
    """Lines that match a regular expression. For one thread."""

    def __init__(self, pattern: "re.Pattern[str]", lines: LineFilter | None = None) -> None:
        """`lines`: lets all lines through that match, and few others."""
        self.pattern, self.filter = pattern, lines
        #: Whether each of these matches; ignoring case, only those of a block without text beyond ASCII.
        self._exact = lines is not None and _is_word(pattern)
        self._ignore_case = bool(pattern.flags & re.IGNORECASE)
        #: Whether most lines matched where they were looked at last.
        self._dense = False

    def lines(self, data: bytes, start: int, stop: int) -> bytes:
        """Those of the whole lines in [start, stop) that match; of one over MAX_LINE the first MAX_LINE bytes do."""
        exact = self._exact and (not self._ignore_case or data.isascii())
        # Where most lines match, to look first for those that may saves nothing.
        if self.filter is not None and (exact or not self._dense):
            data = self.filter.view(data, stop).lines(start, stop)
            start, stop = 0, len(data)
            if not data:
                return data
        pieces = list(whole_lines(data, start, stop, MAX_LINE))
        if exact and all(end - begin <= MAX_LINE for begin, end in pieces):
            return data[start:stop]
        return b"".join([self._of_piece(data[begin:end], exact) for begin, end in pieces])

    def wanted(self, line: bytes) -> bool:
        """Whether a line, or its beginning, matches."""
        # Decoded, so a dot matches a character; bytes that are not UTF-8 match no literal pattern.
        return bool(self.pattern.search(line[:MAX_LINE].rstrip(b"\r").decode("utf-8", "replace")))

    def _of_piece(self, data: bytes, exact: bool) -> bytes:
        """Of whole lines with no more than MAX_LINE bytes together, or of a longer one; `exact`: each matches."""
        if len(data) > MAX_LINE:
            return data if self.wanted(data[:-1]) else b""
        if exact:
            return data
        ascii_only = data.isascii()
        texts = whole = data[:-1].decode("utf-8", "replace").split("\n")
        if b"\r" in data:
            texts = [text.rstrip("\r") for text in whole]
        found = [bool(match) for match in map(self.pattern.search, texts)]
        few = sum(found)
        self._dense = few * 2 > len(texts)
        if few == len(texts):
            return data
        if ascii_only:
            return "".join([f"{line}\n" for line in compress(whole, found)]).encode()
        return b"".join([line + b"\n" for line in compress(data.split(b"\n"), found)])


def _is_word(pattern: "re.Pattern[str]") -> bool:
    """Whether it matches what contains it, and nothing else."""
    if pattern.flags & re.IGNORECASE and not pattern.pattern.isascii():
        return False
    return not (pattern.flags & re.VERBOSE or re.search(r"[\\.^$*+?{}\[\]|()\r\n\ufffd]", pattern.pattern))


def whole_lines(data: bytes, start: int, stop: int, most: int) -> Iterator[tuple[int, int]]:
    """Begin and end of pieces of [start, stop), which begins with a line: whole lines of at most `most` bytes together,
    or one that is longer."""
    while start < stop:
        end = data.rfind(b"\n", start, min(start + most, stop)) + 1
        if not end:
            end = data.find(b"\n", start, stop) + 1 or stop
        yield start, end
        start = end
