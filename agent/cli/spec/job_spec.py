"""The spec of a job from options and job.toml. Both have the same keys; options win."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from muster.agent.cli.exits import BadSpec, CommandFailed, Exit
from muster.agent.cli.spec import spec_values
from muster.agent.cli.spec.spec_values import MAX_FILE
from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.modes import boot, modelarts
from muster.supervisors.launch.spec_rules import violations
from muster.supervisors.model.spec import FIELDS, JobSpec, Violation
from muster.supervisors.model.spec_fields import JOB_ID, Field, FilePath

#: The keys of job.toml; the first field of a key describes it.
KEYS: dict[str, Field] = {about.key: about for about in reversed(FIELDS.values()) if about.key}
#: What says the id of a job in a pod: another one in each.
OF_POD = "HOSTNAME"
#: How many ranks: who says one of these replaces whatever a file says of all of them.
HOW_MANY = ("ranks", "card_count", "card_indices", "all_cards")
#: How cards are asked for, by what was written behind `cards`.
_CARDS: dict[type, str] = {tuple: "card_indices", int: "card_count", bool: "all_cards"}


@dataclass(slots=True)
class Draft:
    """What was asked for so far. `written`: the fields that somebody set, as they wrote them ("--nice")."""

    asked: JobSpec = field(default_factory=lambda: JobSpec("", (), boot=""))
    written: dict[str, str] = field(default_factory=dict)

    def say(self, about: Field, value: Any, written: str) -> None:
        """Sets a field. A list of cards is which ones, a number how many, True all of them."""
        name = _CARDS[type(value)] if about.name == "card_count" else about.name
        self.asked = replace(self.asked, **{name: value})
        self.written[name] = written

    def override(self, other: "Draft") -> None:
        """Takes over what `other` says; tables are joined, name by name."""
        if other.written.keys() & set(HOW_MANY):
            for name in HOW_MANY:
                self.written.pop(name, None)
                self.asked = replace(self.asked, **{name: FIELDS[name].default})
        for name, written in other.written.items():
            value = getattr(other.asked, name)
            self.say(FIELDS[name], getattr(self.asked, name) | value if isinstance(value, dict) else value, written)

    def spec(self) -> JobSpec:
        """The whole spec; a job without an id gets one, so that a lost answer can be asked for again.

        Raises BadSpec with everything that is wrong, and CommandFailed (usage) where there is no command.
        """
        asked = self.asked
        if not asked.command:
            raise CommandFailed(
                "COMMAND is missing: give it after --, as in `muster run --ranks 2 -- python train.py`", Exit.USAGE
            )
        found = [
            Violation(self._name(name) + part, text)
            for name in HOW_MANY
            if name in self.written and not getattr(asked, name)
            for part, text in FIELDS[name].problems(getattr(asked, name))
        ]
        if len(asked.nodes) > 1 and "node_rank" not in self.written:
            text = f"is not set: give the number of this node, 0 to {len(asked.nodes) - 1}"
            found.append(Violation(self._name("node_rank"), text))
        # Of the nodes of a job in pods only the number is known.
        said: dict[str, Any] = {"node_count": len(asked.nodes) or asked.node_count}
        if "job_id" not in self.written:
            said["job_id"] = asked.job_id or new_id(asked.command)
        if asked.nodes and not asked.master_addr:
            said["master_addr"] = asked.nodes[0]
        for about in FIELDS.values():
            if isinstance(about, FilePath) and (path := getattr(asked, about.name)):
                # A relative path is one from here; the daemon is elsewhere.
                said[about.name] = os.path.abspath(path)
        spec = replace(asked, **said)
        if text := modelarts.missing_node_rank(spec, node_rank_said="node_rank" in self.written):
            found.append(Violation(self._name("node_rank"), text))
        spec = modelarts.understood(spec, node_rank_said="node_rank" in self.written)
        if (not asked.job_id or self.written.get("job_id") == OF_POD) and boot.knows_nodes_by_id(spec):
            text = f"is not set: in boot mode {spec.boot} the nodes know each other by the job's id: "
            found.append(Violation(self._name("job_id"), f"{text}give NAME, the same on every node"))
        found += violations(spec, self._name)
        found = found or list(self._not_utf8(spec))
        if found:
            raise BadSpec(found)
        return spec

    def _name(self, field: str) -> str:
        """A field as its user wrote it; a field that the user did not write, as it would be written."""
        about = FIELDS[field]
        return self.written.get(field) or about.option or about.key or about.api

    def _not_utf8(self, spec: JobSpec) -> Iterator[Violation]:
        """Text that is not UTF-8, which is all that the daemon's API takes."""
        for name in FIELDS:
            value = getattr(spec, name)
            texts = {"": value}
            if isinstance(value, dict):
                texts = {f"[{key!a}]": f"{key}{text}" for key, text in value.items()}
            elif isinstance(value, tuple):
                texts = {f"[{i}]": word for i, word in enumerate(value)}
            for part, text in texts.items():
                if isinstance(text, str) and not is_utf8(text):
                    yield Violation(self._name(name) + part, "is not UTF-8: the API of the daemon takes only UTF-8")


def new_id(command: tuple[str, ...]) -> str:
    """An id that nobody else has, beginning with the program's name so that people know it again."""
    name = "".join(c for c in os.path.basename(command[0])[:24] if c.isascii() and (c.isalnum() or c in "._-"))
    tail = os.urandom(4).hex()
    return f"{name}-{tail}" if JOB_ID.fullmatch(name) else f"job-{tail}"


def is_utf8(value: str) -> bool:
    """False: it holds bytes that are not UTF-8, as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# --- job.toml ---------------------------------------------------------------------------------------------------------


def read_file(path: str) -> Draft:
    """The draft in a TOML file; "-" is stdin. Raises CommandFailed (usage): file, key and what is allowed."""
    import tomllib

    shown = "standard input" if path == "-" else path
    try:
        if path == "-":
            with open(0, "rb", closefd=False) as file:
                raw = file.read(MAX_FILE + 1)
        else:
            with open(path, "rb") as file:
                raw = file.read(MAX_FILE + 1)
        if len(raw) > MAX_FILE:
            raise CommandFailed(f"{shown}: is larger than {MAX_FILE >> 20} MiB: give the spec of a job", Exit.USAGE)
        return from_table(tomllib.loads(raw.decode()), shown)
    except OSError as error:
        raise CommandFailed(f"{shown}: {error.strerror}", Exit.USAGE) from None
    except ValueError as error:  # also what is no UTF-8 and no TOML
        raise CommandFailed(f"{shown}: {error}", Exit.USAGE) from None
    except RecursionError:
        raise CommandFailed(f"{shown}: is nested too deeply", Exit.USAGE) from None


def from_table(table: Mapping[str, Any], file: str = "job.toml") -> Draft:
    """The draft that a TOML table describes; keys may be written with - or _. Raises ValueError."""
    draft = Draft()
    seen: dict[str, str] = {}
    for written, value in table.items():
        key = written.replace("-", "_")
        if key not in KEYS:
            from muster.probes.settings import near_names  # takes longer to load than all the rest of this file

            near = near_names(key, KEYS, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"unknown key {written!r}: {hint}the known keys are {', '.join(sorted(KEYS))}")
        if key in seen:
            raise ValueError(f"{written!r} and {seen[key]!r} are the same key: give only one of them")
        seen[key] = written
        try:
            draft.say(KEYS[key], spec_values.from_toml(KEYS[key], value), f"{file}: {written}")
        except ValueError as error:
            raise ValueError(f"{written}: {error}") from None
    return draft
