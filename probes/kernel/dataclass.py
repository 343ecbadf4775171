"""`dataclass`, as in the standard library, but made in a tenth of the time: use it in its place.

The library writes the source of up to seven methods for each class and compiles them, a millisecond for each class at
each start, and the daemon has three hundred. Here the constructor is compiled when the first object is made, which most
processes never do for most classes. The other methods are the same function for all classes.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["compile_all", "dataclass"]

Fields = tuple[dataclasses.Field[Any], ...]

#: Classes whose constructor is not compiled yet, by the function that does it.
_waiting: dict[type, Callable[[], object]] = {}

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls=None,
        /,
        *,
        repr=True,
        eq=True,
        frozen=False,
        match_args=True,
        kw_only=False,
        slots=False,
        weakref_slot=False,
    ):
        """See `dataclasses.dataclass`. `order`, `unsafe_hash`, `init=False` and InitVar are not supported."""

        def decorate(cls):
            own = frozenset(cls.__dict__)
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # else the library asks `inspect` for the signature
            cls = dataclasses.dataclass(
                init=False, repr=False, eq=False,
                match_args=match_args, kw_only=kw_only, slots=slots, weakref_slot=weakref_slot,
            )(cls)  # fmt: skip
            _add_constructor(cls, frozen)
            fields = dataclasses.fields(cls)
            if repr and "__repr__" not in own:
                cls.__repr__ = _repr
            if eq:
                _add_equality(cls, fields, own, frozen)
            if frozen:
                _freeze(cls, fields, slots, own)
            return cls

        return decorate if cls is None else decorate(cls)


def compile_all() -> None:
    """Compiles the constructors of all classes: for a process that forks, so that its children share them."""
    while _waiting:
        _, compile_it = _waiting.popitem()
        compile_it()


def _add_constructor(cls: Any, frozen: bool) -> None:
    def compiled() -> Any:
        _waiting.pop(cls, None)
        cls.__init__ = made = _constructor(cls, frozen)
        return made

    def __init__(self: Any, *args: Any, **named: Any) -> None:
        compiled()(self, *args, **named)

    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = __init__
    _waiting[cls] = compiled


def _constructor(cls: Any, frozen: bool) -> Any:
    """The compiled `__init__`."""
    names: dict[str, Any] = {"_MISSING": MISSING, "_set": object.__setattr__}
    places: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name, value = field.name, field.name
        place = name
        if field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            place = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            place = f"{name}=_MISSING"
            value = f"_make_{name}()" + (f" if {name} is _MISSING else {name}" if field.init else "")
        if field.init:
            (named if field.kw_only else places).append(place)
        elif value == name:
            continue  # set by __post_init__
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join(["self", *places, *(["*", *named] if named else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), names)
    made = names["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    made.__annotations__ = {f.name: f.type for f in dataclasses.fields(cls) if f.init} | {"return": None}
    return made


@recursive_repr()
def _repr(self: Any) -> str:
    said = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({said})"


def _add_equality(cls: Any, fields: Fields, own: frozenset[str], frozen: bool) -> None:
    values = _values([field.name for field in fields if field.compare])
    if "__eq__" not in own:

        def __eq__(self: object, other: object) -> bool:
            return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

        cls.__eq__ = __eq__
    if "__hash__" in own and not (cls.__hash__ is None and "__eq__" in own):  # Python sets None beside an __eq__
        return
    if not frozen:
        cls.__hash__ = None
        return
    hashed = _values([f.name for f in fields if (f.compare if f.hash is None else f.hash)])
    cls.__hash__ = lambda self: hash(hashed(self))


def _values(names: list[str]) -> Callable[[Any], Any]:
    """The function that returns the values of these attributes of an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda one: tuple(getattr(one, name) for name in names)


def _freeze(cls: Any, fields: Fields, slots: bool, own: frozenset[str]) -> None:
    names = frozenset([field.name for field in fields])

    def __setattr__(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
    if slots and "__getstate__" not in own:  # copies cannot be made by setting attributes
        cls.__getstate__, cls.__setstate__ = _state, _set_state


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
