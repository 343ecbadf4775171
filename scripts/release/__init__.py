"""`make release`: what is published of a version, in dist/, the same bytes from the same commit.

`package` describes the packages: name, version, what they need, for which Python. `tree` lays out their files, `deb`
and `rpm` pack them, both with the scripts that run `maintain.sh` on the node. `sbom` and `notes` are files beside them.
"""
