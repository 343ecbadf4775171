"""musterd: answers calls, keeps the cache of all jobs, and reports what happened. It is never the parent of a rank."""

#: Of the code that runs, not of what pip has put in its place since. Packages get it from here; the build: `build.py`.
__version__ = "0.1.0"
