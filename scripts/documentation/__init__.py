"""The documentation as a whole: its site, its pictures, and the test of its commands.

`try_pages` runs every shell command of the pages and compares what it prints; `pages`, `sandbox` and `comparison` are
its parts. `site_hooks` makes links out of docs/ work in the site of MkDocs. `recordings`, `terminal_svg` and
`report_pictures` make the pictures in docs/pictures from real sessions. The room's interface are the modules that have
a `main`, as `make docs-test`, `make site` and `make recordings` call them.
"""
