"""What every detector has: settings, and a state that can be stored, so that another detector continues from there."""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from muster.probes import typed
from muster.probes.hang.hang_settings import HangSettings, Rule
from muster.probes.hang.verdicts import HangVerdict

#: Version of the stored state; another one is not read.
VERSION = 1


class DetectorState(Protocol):
    """What any rule keeps of a job, in a `msgspec.Struct` whose fields all have defaults."""

    verdict: HangVerdict | None


K = TypeVar("K", bound=DetectorState)


class Resumable(Generic[K]):
    """A detector but for its rule: a class for a rule sets the two attributes and adds `feed`."""

    _rule: Rule
    _kept: type[K]

    def __init__(self, settings: HangSettings | None = None) -> None:
        self.settings = settings or HangSettings(rule=self._rule)
        self._job = self._kept()

    def state(self) -> dict[str, Any]:
        """What is known so far, as JSON takes it."""
        return {"version": VERSION, "rule": self._rule, "job": msgspec.to_builtins(self._job, str_keys=True)}

    @classmethod
    def restored(cls, state: Mapping[str, Any], settings: HangSettings | None = None) -> Self:
        """A detector that goes on from there. Raises ValueError where that is no state of this version."""
        found = cls(settings)
        if state.get("version") != VERSION or state.get("rule") != cls._rule:
            raise ValueError(f"no state of version {VERSION} of the {cls._rule} rule: start a new detector")
        try:
            found._job = typed.convert(state.get("job"), cls._kept, strict=False)
        except msgspec.ValidationError as error:
            raise ValueError(f"the state is damaged ({error}): start a new detector") from None
        return found

    def present(self) -> Mapping[str, Any] | None:
        """Evidence of the last record for the present verdict; None where there is none of its own."""
        return None

    @property
    def wants_stacks(self) -> bool:
        """Whether records with stacks would tell more."""
        return False

    @property
    def verdict(self) -> HangVerdict | None:
        """The present one; None before the first."""
        return self._job.verdict
