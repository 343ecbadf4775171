"""Is a rank of a running job slow, so that its peers wait for it again and again?

docs/concepts/slow-rank.md explains it.

`SlowRule` takes the records of one job beside its `Detector`, whose tracks of cards it reads, and returns each change;
`SlowSettings` has every number. No clock and no IO. What it says changes no verdict of the hang rule, and nothing acts
on it.
"""

from muster.probes.hang.slow.slow_rule import SlowChange, SlowRule, SlowVerdict
from muster.probes.hang.slow.slow_settings import SlowSettings

__all__ = ["SlowChange", "SlowRule", "SlowSettings", "SlowVerdict"]
