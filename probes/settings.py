"""What a setting is. Each setting is declared once, as a field of a frozen dataclass that derives from `Settings`:

    max_jobs: int = setting(256, "Jobs that have not ended, at most.", least=1, most=1_000_000)

Reading a file, reading a command line, error messages, the commented configuration file and the reference page go by
this declaration. The name ends in the unit of the value (`UNITS`).
"""

import dataclasses
import inspect
import math
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from muster.probes.kernel.dataclass import dataclass

T = TypeVar("T")

#: Units by the end of a name.
UNITS = {
    "_s": "seconds",
    "_days": "days",
    "_bytes": "bytes",
    "_kb": "units of 1024 bytes",
    "_mb": "units of 2^20 bytes",
    "_gb": "units of 2^30 bytes",
    "_percent": "percent",
    "_c": "degrees Celsius",
    "_gbps": "Gbit/s",
}
#: Characters of a value that an error shows.
_SHOWN = 80
_KEY = "setting"


class FileMode(int):
    """Permission bits of a file."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of a setting. `name`, `kind` (its type) and `default` come from the dataclass."""

    help: str
    least: float = 0
    above: float | None = None
    most: float | None = None
    what: str = ""
    rule: Callable[[Any], str] | None = None
    restart: bool = False
    secret: bool = False
    name: str = ""
    kind: Any = None
    default: Any = None

    @property
    def unit(self) -> str:
        """The unit of the value; empty: a count, a ratio, or no number."""
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), "")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed; empty: any text."""
        return cast("tuple[str, ...]", get_args(self.kind)) if get_origin(self.kind) is Literal else ()

    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.what:
            return self.what
        if self.choices:
            return " or ".join([", ".join(self.choices[:-1]), self.choices[-1]])
        if self.kind is bool:
            return "true or false"
        if self.kind is FileMode:
            return 'octal text as in "0660" that lets the owner read and write'
        if self.kind is str:
            return "text"
        if self.kind not in (int, float):
            return "a list of numbers" if get_args(self.kind)[0] is float else "a list of texts"
        number = "a whole number" if self.kind is int else "a number"
        unit = f" ({self.unit})" if self.unit else ""
        if self.above is not None:
            most = f", at most {_number(self.most)}" if self.most is not None else ""
            return f"{number} above {_number(self.above)}{most}{unit}"
        if self.most is None:
            return f"{number}, {_number(self.least)} or more{unit}"
        return f"{number}, {_number(self.least)} to {_number(self.most)}{unit}"

    def read(self, value: object) -> Any:
        """A value of a TOML file. Raises ValueError with one sentence, which begins with the name."""
        found = _converted(self.kind, value)
        if found is None:
            raise ValueError(f"{self._shown(value)}: must be {self.allowed()}")
        if problem := self.problem(found):
            raise ValueError(problem)
        return found

    def written(self, text: str) -> Any:
        """A value as it is written on a command line. Raises ValueError as `read` does."""
        found = _WRITTEN[self.kind](text) if self.kind in _WRITTEN else text
        return self.read(text if found is None else found)

    def problem(self, value: Any) -> str:
        """What is wrong with a value of the right type: a sentence that begins with the name; empty: nothing is."""
        texts = (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()
        if any(isinstance(text, str) and "\0" in text for text in texts):
            return f"{self.name}: must not contain a NUL character"
        if self.choices and value not in self.choices:
            return f"{self._shown(value)}: must be {self.allowed()}"
        if self.kind in (int, float) and not self._in_range(value):
            return f"{self._shown(value)}: must be {self.allowed()}"
        if self.rule is not None and (problem := self.rule(value)):
            return f"{self.name}: {problem}"
        return ""

    def _in_range(self, value: float) -> bool:
        least = value > self.above if self.above is not None else value >= self.least
        return least and (self.most is None or value <= self.most) and value != math.inf

    def _shown(self, value: object) -> str:
        if self.secret:
            return self.name
        text = repr(value) if isinstance(value, str) else toml(value)
        return f"{self.name}: {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"


def setting(
    default: T,
    help: str,
    *,
    least: float = 0,
    above: float | None = None,
    most: float | None = None,
    what: str = "",
    rule: Callable[[Any], str] | None = None,
    restart: bool = False,
    secret: bool = False,
) -> T:
    """Declares a setting, as the default of a field.

    A number is at least `least` (or above `above`) and at most `most`. `what` says in words what is allowed, where type
    and range do not. `rule` returns what is wrong with a value, or an empty text. `restart`: a new value takes effect
    when musterd is started again. `secret`: no error shows the value.
    """
    found = Setting(help, least, above, most, what, rule, restart, secret)
    return dataclasses.field(default=default, metadata={_KEY: found})


class Settings:
    """Base of settings that belong together. Raises ValueError for a value that is not allowed."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for declared in settings_of(type(self)).values():
            if problem := declared.problem(getattr(self, declared.name)):
                raise ValueError(problem)
        self.check_together()

    def check_together(self) -> None:
        """The rules that bind several settings. Raises ValueError with one sentence that begins with a name."""

    @classmethod
    def read(cls, table: Mapping[str, object]) -> Self:
        """From a table of a TOML file; what is missing has its default. Raises ValueError with one sentence that begins
        with a name."""
        known = settings_of(cls)
        for name in table:
            if name not in known:
                raise ValueError(unknown(name, known))
        return cls(**{name: known[name].read(value) for name, value in table.items()})

    def with_written(self, texts: Mapping[str, str]) -> Self:
        """With other values, as they are written on a command line. Raises ValueError as `read` does."""
        known = settings_of(type(self))
        changed = {}
        for name, text in texts.items():
            if name not in known:
                raise ValueError(unknown(name, known))
            changed[name] = known[name].written(text)
        return dataclasses.replace(cast("Any", self), **changed)  # type: ignore[no-any-return]


#: What `settings_of` found already.
_FOUND: dict[type, Mapping[str, Setting]] = {}


def settings_of(kind: type[Settings]) -> Mapping[str, Setting]:
    """All settings by name: those that a class declares itself come first, then those of its base."""
    if kind not in _FOUND:
        types_ = get_type_hints(kind)
        fields = {field.name: field for field in dataclasses.fields(cast("Any", kind))}
        own = inspect.get_annotations(kind)
        found = {}
        for name in [*(name for name in fields if name in own), *(name for name in fields if name not in own)]:
            declared: Setting = fields[name].metadata[_KEY]
            found[name] = dataclasses.replace(declared, name=name, kind=types_[name], default=fields[name].default)
        _FOUND[kind] = types.MappingProxyType(found)
    return _FOUND[kind]


def near_names(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names that are most like one that nobody knows, nearest first, down to a likeness of `cutoff` (0 to 1)."""
    import difflib  # half a MB, for errors alone

    return difflib.get_close_matches(name, known, most, cutoff)


def unknown(name: str, known: Collection[str]) -> str:
    """A sentence about a name that no setting has, with the nearest name, or all."""
    near = near_names(name, known)
    return f"unknown key {name!r}: " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")


def toml(value: object) -> str:
    """A value as a TOML file has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, FileMode):
        return f'"{value:04o}"'
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    return (
        '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\0", "\\u0000").replace("\n", "\\n") + '"'
    )


def absolute_path(path: str) -> str:
    """A rule: the text is empty or an absolute path."""
    return "" if not path or path.startswith("/") else f"{path!r}: must be an absolute path"


def optional_path(default: str, help: str) -> str:
    """A setting: an absolute path, or empty."""
    return setting(default, help, what="an absolute path, or empty", rule=absolute_path)


def percent(default: float, help: str) -> float:
    """A setting: a share."""
    return setting(default, help, most=100)


def _number(value: float) -> str:
    return str(value).removesuffix(".0")


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


#: How a value is read from a text; None: the text is none of this type.
_WRITTEN: dict[Any, Callable[[str], object]] = {
    bool: {"true": True, "false": False}.get,
    int: _whole,
    float: _float,
}


def _converted(kind: Any, value: object) -> Any:
    """None where the value is of another type."""
    if kind is FileMode:
        return _mode(value)
    if get_origin(kind) is tuple:
        (item, _) = get_args(kind)
        if not isinstance(value, list | tuple):
            return None
        items = tuple(_converted(item, each) for each in value)
        return None if None in items else items
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return None
    wanted = str if get_origin(kind) is Literal else kind
    return value if type(value) is wanted else None


def _mode(value: object) -> FileMode | None:
    """Permission bits may be written as "0660" or as 0o660."""
    number = -1
    if isinstance(value, str) and 3 <= len(value) <= 4 and set(value) <= set("01234567"):
        number = int(value, 8)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    return FileMode(number) if 0 <= number <= 0o777 and number & 0o600 == 0o600 else None
