"""Known errors in the output of jobs: a table of signatures in files, and the search of a text for them.

The table is `signatures.toml` beside this module. Files `*.toml` of an operator add signatures and replace those with
the same id. docs/guides/signatures.md explains the keys.
"""

import functools
import os
import re
import stat
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from muster.agent.why import signature_patterns
from muster.agent.why.signature_patterns import BadPattern, Pattern
from muster.probes import typed
from muster.probes.kernel.dataclass import dataclass

#: Limits of the operator's files, and of all signatures together.
MAX_FILES, MAX_FILE_BYTES, MAX_SIGNATURES, MAX_PROBLEMS = 64, 256 << 10, 2000, 20
#: In a longer line a pattern is matched against so many bytes before and after its plain part.
REACH = 500
#: Remembered places of one signature in one text.
MAX_HITS = 64
#: How many bytes before its end are the end of a text.
_END_BYTES = 1024
_BUILTIN = Path(__file__).with_name("signatures.toml")
_END_OF_LINE = re.compile(rb"[\r\n]")
#: The line of a traceback that precedes a line of the program's source.
_FRAME = re.compile(r'^ {2,}File "[^"]{1,900}", line [0-9]{1,9}, in ')
#: Lines below the level of an error: NCCL's information, and warnings of PyTorch's C++ code, such as the one about IPv6
#: that each rendezvous writes; and what programs go on from: TensorFlow without a library, a login script without
#: modules, Slurm with another folder, the dynamic linker.
_NO_ERROR = re.compile(
    r" NCCL INFO |^\[W[0-9 ]|Could not load dynamic library '|^/etc/[^ ]{1,200}: command not found$|"
    r"^/etc/[^ ]{1,200}: line [0-9]{1,6}: [^ :]{1,200}: command not found$|: going to /tmp instead|"
    r"Unable to create TMPDIR \[|cannot be preloaded|^fatal: (?:not a git repository|detected dubious ownership)"
)
#: What stands before the text of a line whose level is below that of an error, and how far it may be from the begin.
_LOW_LEVEL = re.compile(r"(?:^|[\s\[(|:<-])(?:INFO|DEBUG|TRACE|NOTICE)(?:$|[\s\]):|>,])|^[ID][0-9]{4} ")
_LEVEL_WITHIN = 120
#: How an item of a list begins, a comment, or a key or value of a file.
_ITEM = re.compile(
    r"""\s*(?:#(?! A fatal error has been detected)|//|[-*\u2022] |["'`{]|\[["']|"""
    r"""[A-Za-z_]{0,40}(?:_errors|patterns|keywords|signatures|messages) ?[:=])"""
)
_QUOTES = "'\"`"
#: What reports the text in the quotes behind it: "Cuda failure 'out of memory'", "failed: '...'", `assert(x && "...")`.
_REPORTING = re.compile(
    r"""(?:error|exception|exc_info|failure|failed|fault|what\(\))["']?(?: message| [0-9]{1,5})?[ :=(]{1,3}$|&& $|"""
    r"\bOs \{ code: [0-9]{1,4}, kind: [A-Za-z]{1,40}, message: $|\bdetails = $",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(
    r"[A-Za-z_][A-Za-z0-9_.]{0,80}(?:Error|Exception)\b"
    r"|[a-z_][A-Za-z0-9_.]{0,80}\.[A-Z][A-Za-z]{1,40}: "
    r"|(?:[A-Za-z0-9_./-]{1,80}: )?(?:[Ff]atal )?(?:[Ee]rror|[Ff]atal): "
)
#: An exception's text behind whatever stands before: some programs log tracebacks at the level INFO.
_RAISED = re.compile(r"(?:^|[\s\])])[A-Za-z_][A-Za-z0-9_.]{0,80}(?:Error|Exception): ")
#: Of a line with another text in quotes: its level.
_ERROR_LEVEL = re.compile(r"\b(?:ERROR|FATAL|CRITICAL|SEVERE)\b|level\W{1,5}(?:error|fatal|critical)|^[EF][0-9]{4} ")
#: How the lines of a traceback begin that the program has drawn into a box (rich).
_FRAMED = "│╭╰"
#: Prefixes that launchers write before each line of a rank: PyTorch and torchrun, Open MPI (--tag-output), Ray, Slurm
#: (srun -l).
_PREFIX = re.compile(
    r"^(?:\[(?:rank|default) ?([0-9]{1,5})\] ?:? ?|\[[0-9]{1,9},([0-9]{1,7})\]<std(?:err|out)>: ?|"
    r"\([A-Za-z_][^ ()]{0,80}(?: [^ ()]{1,80})? pid=[0-9]{1,9}(?:, ip=[0-9a-f.:]{2,45})?\) |([0-9]{1,7}): )"
)
#: A progress bar or a prompt ends no line: a traceback begins behind it, and the prefix with it.
_RAISING = re.compile(r"\[(?:rank|default) ?([0-9]{1,5})\] ?:? ?Traceback \(")

#: What is at fault: the program, what is installed, memory (of card or host), an error of the card or its driver that
#: either the program or the hardware may have caused, the node, the network, the rendezvous, storage, or another rank.
#: agent/why/causes/advice.py says what follows from it.
Kind = Literal["job", "environment", "memory", "device", "node", "network", "rendezvous", "storage", "peer"]
#: A cause; the consequence of a cause elsewhere; or a hint, which ends no job.
Role = Literal["root", "follow", "hint"]
#: What a hit shows: the line that matched, or the last line of the Python traceback that begins there. `end`: the line
#: counts at the end of a text alone, where nothing else is known of it.
Shows = Literal["line", "exception", "end"]
#: Keys whose value is one of a few words.
_WORDS = {"kind": get_args(Kind), "role": get_args(Role), "shows": get_args(Shows)}


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row of the table; docs/guides/signatures.md has the meaning of each key."""

    id: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,63}$")]
    match: Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=32)]
    cause: Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
    next: Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
    kind: Kind
    role: Role = "root"
    priority: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    shows: Shows = "line"


@dataclass(frozen=True, slots=True)
class Table:
    """Signatures with their patterns. `problems`: sentences about files that could not be used."""

    rows: tuple[tuple[Signature, tuple[Pattern, ...]], ...]
    problems: tuple[str, ...] = ()

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """In the order in which they are tried."""
        return tuple(signature for signature, _ in self.rows)


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature in a text: the byte where its line begins, and the text to show. `worker`: the worker that wrote the
    line, if a launcher or PyTorch put that before it ("[rank3]: "). `mentioned`: the line does not report the error,
    but mentions it: at a level below that of an error, in quotes, or as an item of a list."""

    signature: Signature
    at: int
    line: str
    worker: int | None = None
    mentioned: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """All hits in a text, in order. `whole`: the text was searched to its end."""

    hits: tuple[Hit, ...] = ()
    whole: bool = True


@functools.cache
def builtin() -> Table:
    """The table that muster ships. Raises ValueError if it is invalid, which is a bug."""
    found, problems = _rows(_BUILTIN.read_bytes(), _BUILTIN.name, proven=True)
    if problems:
        raise ValueError("; ".join(problems))
    return Table(tuple(found.values()))


def load(folder: Path | None) -> Table:
    """The built-in table plus an operator's files, in the order of their names. Blocks. An invalid file or signature is
    left out and reported in `problems`; a folder that does not exist is no problem."""
    found, problems = builtin(), list[str]()
    for path in _files(folder, problems):
        one = load_file(path)
        problems += one.problems
        found = with_own(one, found)
    rows = found.rows
    if len(rows) > MAX_SIGNATURES:
        problems.append(f"{folder}: {len(rows)} signatures, of which {MAX_SIGNATURES} are used")
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"{folder}: {len(problems) - MAX_PROBLEMS} more problems"]
    return Table(rows[:MAX_SIGNATURES], tuple(problems))


def with_own(own: Table, table: Table | None = None) -> Table:
    """A table, muster's where none is given, with these added; they replace those with the same id."""
    rows = {row[0].id: row for row in (table or builtin()).rows} | {row[0].id: row for row in own.rows}
    return Table(tuple(rows.values()))


def load_file(path: Path) -> Table:
    """The signatures of one file alone, and what is wrong with it. Blocks; raises nothing."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return Table((), (f"{path}: skipped: it is not a file",))
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return Table((), (f"{path}: cannot be read: {error.strerror}",))
    if len(data) > MAX_FILE_BYTES:
        return Table((), (f"{path}: skipped: it has over {MAX_FILE_BYTES} bytes",))
    found, problems = _rows(data, str(path))
    return Table(tuple(found.values()), tuple(problems))


def _files(folder: Path | None, problems: list[str]) -> list[Path]:
    if folder is None:
        return []
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix == ".toml")
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{folder}: cannot be read: {error.strerror}")
        return []
    if len(found) > MAX_FILES:
        problems.append(f"{folder}: has {len(found)} files, of which the first {MAX_FILES} are read")
    return found[:MAX_FILES]


def _rows(
    data: bytes, name: str, *, proven: bool = False
) -> tuple[dict[str, tuple[Signature, tuple[Pattern, ...]]], list[str]]:
    """The valid signatures of a file by id, and what is wrong with the others."""
    try:
        text = data.decode()
        raw = tomllib.loads(text)
        tables = typed.convert(raw, _Tables).signature
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return {}, [f"{name}: skipped: it is not valid TOML: {error}"]
    except RecursionError:
        return {}, [f"{name}: skipped: it is nested too deeply"]
    except msgspec.ValidationError as error:
        return {}, [f"{name}: skipped: {error}: each signature begins with the line [[signature]]"]
    found: dict[str, tuple[Signature, tuple[Pattern, ...]]] = {}
    problems = []
    for number, table in enumerate(tables, 1):
        title = f"{name}: signature {number}"
        try:
            signature = _signature(table)
            title = f"{name}: {signature.id}"
            patterns = tuple(_pattern(source, proven) for source in signature.match)
            if signature.id in found:
                raise ValueError("the file has two signatures with this id")
        except ValueError as error:  # msgspec's own is one
            problems.append(f"{title}: skipped: {error}")
            continue
        found[signature.id] = (signature, patterns)
    return found, problems


class _Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    signature: list[dict[str, object]] = []


def _signature(table: dict[str, object]) -> Signature:
    """Raises ValueError, which names the key and what is allowed."""
    keys = Signature.__struct_fields__
    if unknown := next((key for key in table if key not in keys), None):
        raise ValueError(f"unknown key {unknown[:40]!r}: must be one of {', '.join(keys)}")
    for key, words in _WORDS.items():
        if key in table and table[key] not in words:
            raise ValueError(f"{key} = {str(table[key])[:40]!r}: must be one of {', '.join(words)}")
    return typed.convert(table, Signature)


def _pattern(source: str, proven: bool) -> Pattern:
    try:
        return signature_patterns.read(source, proven=proven)
    except BadPattern as error:
        raise ValueError(f"match {source!r} {error}") from None


def scan(text: bytes, table: Table, *, until: float, clock: Callable[[], float] = time.monotonic) -> Scan:
    """Searches output of a job. Blocks until `clock` reaches `until` at most, plus one line.

    A carriage return ends a line as well: progress bars are rewritten with it.
    """
    hits: list[Hit] = []
    whole = True
    for signature, patterns in table.rows:
        places: dict[int, Hit] = {}
        for pattern in patterns:
            whole &= _search(text, signature, pattern, places, until, clock)
        hits += [places[at] for at in sorted(places)[-MAX_HITS:]]
    hits = _without_known(hits, len(text))
    return Scan(tuple(sorted(hits, key=lambda hit: (hit.at, -hit.signature.priority))), whole)


def _without_known(hits: list[Hit], end: int) -> list[Hit]:
    """Without those that count at the end alone, where they are not there, or something else is known of the line."""
    places = {hit.at for hit in hits if hit.signature.shows != "end"}
    raised = {hit.line for hit in hits if hit.signature.shows == "exception"}

    def counts(hit: Hit) -> bool:
        return end - hit.at <= _END_BYTES and hit.at not in places and unprefixed(hit.line) not in raised

    return [hit for hit in hits if hit.signature.shows != "end" or counts(hit)]


def _search(
    text: bytes,
    signature: Signature,
    pattern: Pattern,
    places: dict[int, Hit],
    until: float,
    clock: Callable[[], float],
) -> bool:
    literal = pattern.literal.encode()
    place = text.find(literal)
    while place >= 0:
        if clock() >= until:
            return False
        start, stop = _line(text, place)
        left, right = max(start, place - REACH), min(stop, place + len(literal) + REACH)
        line = text[left:right].decode("utf-8", "replace")
        bare = unprefixed(line)
        if (
            start not in places
            and not (pattern.anchored and left > start)
            and (match := pattern.regex.search(bare)) is not None
            and not _NO_ERROR.search(bare)
            and not _is_source(text, start, line)
        ):
            raising = _RAISING.search(line) if signature.shows == "exception" else None
            worker = int(raising[1]) if raising else worker_of(line)
            before = line[: line.find(pattern.literal)] if left == start else ""
            shown = _exception(text, stop, worker, before) if signature.shows == "exception" else ""
            mentioned = signature.shows != "exception" and left == start and _is_mentioned(bare, match.start())
            places[start] = Hit(signature, start, shown or line.strip(), worker, mentioned)
        # The same line again only if it is longer than the part that was searched.
        place = text.find(literal, right if right < stop else stop)
    return True


def _is_mentioned(line: str, at: int) -> bool:
    """Whether a line only mentions what it has from this character on."""
    if _LOW_LEVEL.search(line[: min(at, _LEVEL_WITHIN)]):
        return _RAISED.search(line[: at + _LEVEL_WITHIN]) is None
    quote = -1
    for place, character in enumerate(line[:at]):
        if quote >= 0:
            quote = -1 if character == line[quote] else quote
        elif character in _QUOTES and not (place and line[place - 1].isalnum()):
            quote = place
    end = line.find(line[quote], at) if quote >= 0 else -1
    around = line[:at] if quote < 0 else line[:quote] + (line[end:] if end >= 0 else "")
    if _ERROR_LEVEL.search(around):
        return False
    if quote >= 0:
        return not (_EXCEPTION.match(line) or _REPORTING.search(line[:quote]))
    return _ITEM.match(line) is not None


def _line(text: bytes, place: int) -> tuple[int, int]:
    """Where the line around a byte begins and ends."""
    end = _END_OF_LINE.search(text, place)
    return line_start(text, place), end.start() if end else len(text)


def line_start(text: bytes, place: int) -> int:
    """Where the line around a byte begins."""
    return max(text.rfind(b"\n", 0, place), text.rfind(b"\r", 0, place)) + 1


def unprefixed(line: str) -> str:
    """A line without the prefix of a launcher, such as "[rank3]: "."""
    return _PREFIX.sub("", line)


def worker_of(line: str) -> int | None:
    """The worker that a line's prefix names."""
    match = _PREFIX.match(line)
    number = (match[1] or match[2] or match[3]) if match else None
    return int(number) if number else None


def _is_source(text: bytes, start: int, line: str) -> bool:
    """Whether a line is source code in a traceback: its words are no error."""
    if not unprefixed(line).startswith("    ") or start == 0:
        return False
    before = text[text.rfind(b"\n", 0, start - 1) + 1 : start][: 2 * REACH].decode("utf-8", "replace")
    return _FRAME.match(unprefixed(before)) is not None


def _exception(text: bytes, place: int, worker: int | None, before: str) -> str:
    """The last line of the traceback whose first line ends at `place`: the first line that is not indented, of the same
    worker if several write into one output; with the next one, if it ends with a colon. `before`: what a launcher or
    collector writes before each line, as it stands before the first one; its numbers may differ."""
    prefix, said = _numbers_free(before), ""
    for raw in text[place : place + 16384].splitlines()[1:400]:
        line = raw[: 2 * REACH].decode("utf-8", "replace")
        found = prefix.match(line) if prefix is not None else None
        bare = line[found.end() :] if found is not None else unprefixed(line)
        if said and bare.strip():
            return f"{said} {bare.strip()}"
        if not said and bare and not bare[0].isspace() and bare[0] not in _FRAMED and worker_of(line) == worker:
            said = bare.strip()
            if not said.endswith(":"):
                return said
    return said


def _numbers_free(before: str) -> re.Pattern[str] | None:
    """Matches a prefix of lines, with other numbers in it (a time); None where it is none, or too long to be one."""
    if not before.strip() or len(before) > _LEVEL_WITHIN:
        return None
    return re.compile(re.sub("[0-9]+", "[0-9]+", re.escape(before)))
