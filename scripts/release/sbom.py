"""What is in a package, as CycloneDX 1.6: each wheel with its hash, its license and what it needs of the others."""

import email.message
import email.parser
import hashlib
import json
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.release.package import NAME, Package


def text(package: Package) -> str:
    """JSON, the same for the same package."""
    found = {str(canonicalize_name(about["Name"])): about for about in map(_metadata, package.wheels)}
    wheels = {str(canonicalize_name(_metadata(wheel)["Name"])): wheel for wheel in package.wheels}
    parts = {name: _component(about, wheels[name]) for name, about in sorted(found.items())}
    own = parts.pop(NAME) | {"type": "application"}
    bom = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, package.id)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(package.epoch)),
            "component": own,
            "properties": [
                {"name": "muster:package", "value": package.stem},
                {"name": "muster:python", "value": package.python},
            ],
        },
        "components": list(parts.values()),
        "dependencies": [_needs(found[name], found, package) for name in (NAME, *parts)],
    }
    return json.dumps(bom, indent=2) + "\n"


def _metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.parser.BytesParser().parsebytes(archive.read(name), headersonly=True)


def _purl(about: email.message.Message) -> str:
    return f"pkg:pypi/{canonicalize_name(about['Name'])}@{about['Version']}"


def _component(about: email.message.Message, wheel: Path) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _purl(about),
        "name": about["Name"],
        "version": about["Version"],
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(wheel.read_bytes()).hexdigest()}],
        "purl": _purl(about),
    }
    if about["Summary"]:
        component["description"] = about["Summary"]
    if expression := about["License-Expression"]:
        component["licenses"] = [{"expression": expression}]
    elif name := _license(about):
        component["licenses"] = [{"license": {"name": name}}]
    return component


def _license(about: email.message.Message) -> str:
    """Of an older wheel, as it calls it: its classifier says it shorter than the text that some have as `License`."""
    classified = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License :: OSI")
    ]
    return ", ".join(classified) or (about["License"] or "").strip().partition("\n")[0]


def _needs(about: email.message.Message, found: dict[str, Any], package: Package) -> dict[str, Any]:
    target = {
        "python_version": package.python,
        "python_full_version": f"{package.python}.0",
        "platform_machine": package.machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    needed = set()
    for line in about.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        name = str(canonicalize_name(requirement.name))
        if name in found and (requirement.marker is None or requirement.marker.evaluate(target)):
            needed.add(_purl(found[name]))
    return {"ref": _purl(about), "dependsOn": sorted(needed)}
