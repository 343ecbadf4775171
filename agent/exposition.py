"""Metrics as Prometheus reads them: the text format 0.0.4, and OpenMetrics 1.0.

Written by hand: prometheus_client costs an idle daemon 3.7 MB, and its loop 45 ms at the first scrape; and it cannot
tell a counter whose name does not end in `_total`, as those of dcgm-exporter do not.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from muster.agent.text import plain
from muster.probes.kernel.dataclass import dataclass

Kind = Literal["gauge", "counter", "histogram"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n"})


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of samples: its name, what it counts or measures (one sentence), and the names of its labels."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


class Catalogue:
    """The metrics of one concern, in the order in which they are shown. No two have the same name."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def gauge(self, name: str, text: str, *labels: str) -> Metric:
        """What may go up and down."""
        return self._add(Metric(name, "gauge", text, labels))

    def counter(self, name: str, text: str, *labels: str) -> Metric:
        """What only grows, and begins at 0 with the daemon or with what counts it."""
        return self._add(Metric(name, "counter", text, labels))

    def histogram(self, name: str, text: str) -> Metric:
        """Counts by upper bounds."""
        return self._add(Metric(name, "histogram", text))

    @property
    def metrics(self) -> list[Metric]:
        """All of them."""
        return list(self._metrics.values())

    def _add(self, metric: Metric) -> Metric:
        assert metric.name not in self._metrics, metric.name
        self._metrics[metric.name] = metric
        return metric


@dataclass(frozen=True, slots=True)
class Distribution:
    """What a histogram holds: how many observations were at most each of the bounds, how many there were, and their
    sum."""

    up_to: tuple[tuple[float, int], ...]
    count: int
    total: float


class Page:
    """The samples of one scrape. A label set stands once: Prometheus refuses a page that repeats one."""

    def __init__(self) -> None:
        self._samples: dict[Metric, dict[tuple[str, ...], float | Distribution]] = {}

    def add(self, metric: Metric, value: float | None, *labels: str) -> None:
        """One sample; none where the value is not known. `labels` are the values, in the order of the metric's."""
        if value is not None:
            self._put(metric, value, labels)

    def add_each(self, metric: Metric, values: Mapping[tuple[str, ...], float]) -> None:
        """A sample for each label set."""
        for labels, value in values.items():
            self._put(metric, value, labels)

    def add_counts(self, metric: Metric, names: Iterable[str], found: Iterable[str]) -> None:
        """For a metric with one label: how many of `found` are which of `names`, with a 0 for those that are none."""
        counts = dict.fromkeys(names, 0)
        for name in found:
            counts[name] = counts.get(name, 0) + 1
        for name, count in counts.items():
            self._put(metric, count, (name,))

    def add_distribution(self, metric: Metric, value: Distribution) -> None:
        """A histogram."""
        self._put(metric, value, ())

    def text(self, *, openmetrics: bool = False) -> bytes:
        """The page. Both formats are UTF-8; what is no Unicode (a path, say) has U+FFFD in its place."""
        lines: list[str] = []
        for metric, samples in self._samples.items():
            name, kind = _family(metric) if openmetrics else (metric.name, metric.kind)
            lines.append(f"# HELP {name} {metric.text.translate(_ESCAPED if openmetrics else _HELP_ESCAPED)}")
            lines.append(f"# TYPE {name} {kind}")
            for labels, value in samples.items():
                if isinstance(value, Distribution):
                    _histogram(lines.append, metric.name, value)
                else:
                    lines.append(f"{metric.name}{_labels(metric.labels, labels)} {_number(value)}")
        if openmetrics:
            lines.append("# EOF")
        return "".join(f"{line}\n" for line in lines).encode()

    def _put(self, metric: Metric, value: float | Distribution, labels: tuple[str, ...]) -> None:
        assert len(labels) == len(metric.labels), metric.name
        self._samples.setdefault(metric, {})[labels] = value


def _family(metric: Metric) -> tuple[str, str]:
    """Name and type in OpenMetrics, where a counter's suffix is at the sample only, and none is without it."""
    if metric.kind != "counter":
        return metric.name, metric.kind
    bare = metric.name.removesuffix("_total")
    return (bare, "counter") if bare != metric.name else (bare, "unknown")


def _histogram(write: Callable[[str], None], name: str, value: Distribution) -> None:
    for bound, count in value.up_to:
        write(f'{name}_bucket{{le="{float(bound)!r}"}} {count}')
    write(f'{name}_bucket{{le="+Inf"}} {value.count}')
    write(f"{name}_sum {_number(value.total)}")
    write(f"{name}_count {value.count}")


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{plain(value).translate(_ESCAPED)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header asks for OpenMetrics, and not less than for plain text."""
    weights: dict[str, float] = {}
    for part in accept.split(","):
        media, *parameters = (word.strip() for word in part.split(";"))
        given = dict(p.partition("=")[::2] for p in parameters)
        if media == "application/openmetrics-text" and given.get("version", "1.0.0") != "1.0.0":
            continue
        try:
            weight = float(given.get("q", "1"))
        except ValueError:
            continue
        weights[media] = max(weight, weights.get(media, 0.0))
    asked = weights.get("application/openmetrics-text", 0.0)
    return asked > 0 and asked >= weights.get("text/plain", 0.0)
