"""musterd: takes calls, keeps the cache of all jobs, tells what happened. It never is the parent of a rank."""


def __getattr__(name: str) -> str:
    # Late: reading the distribution's metadata takes longer than everything else that `muster --help` needs.
    if name == "__version__":
        from importlib.metadata import version

        return version("muster-agent")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
