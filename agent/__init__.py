"""musterd: takes calls, keeps the cache of all jobs, tells what happened. It never is the parent of a rank."""

#: Of the code that runs, not of what pip has put in its place since. Packages get it from here; the build: `build.py`.
__version__ = "0.1.0"
