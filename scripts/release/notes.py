"""The notes of a release: what CHANGELOG.md says of its version."""

import re


def text(changelog: str, version: str, files: dict[str, str]) -> str:
    """The section of the version, or else what is not released yet. `files`: names and SHA-256 of what is published.
    Raises ValueError where there is neither section."""
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL))
    of_version = next((name for name in sections if re.split(r"[\s\]]", name.lstrip("["))[0] == version), None)
    section = sections.get(of_version or "Unreleased")
    if section is None:
        raise ValueError(f"CHANGELOG.md has neither a section {version} nor Unreleased")
    rows = "".join(f"| `{name}` | `{digest}` |\n" for name, digest in sorted(files.items()))
    title = f"# muster {version}" if of_version else f"# muster {version}, before its release"
    return f"{title}\n\n{section.strip()}\n\n## Files\n\n| file | SHA-256 |\n|---|---|\n{rows}"
