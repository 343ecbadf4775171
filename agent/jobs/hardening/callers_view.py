"""What of this node's files a user may know of, by the modes of files and folders. The daemon of root looks at paths
that a user names: what it says of them must not tell more than the user's own look would."""

import os
import stat
from pathlib import PurePath

from muster.probes.kernel.dataclass import dataclass
from muster.supervisors.launch.child import Account

_READ, _SEARCH = 4, 1


@dataclass(frozen=True, slots=True)
class CallersView:
    """Of one user. Access lists are not looked at: what only they allow is not seen."""

    name: str
    uid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, user: str) -> "CallersView":
        """Raises NotStartable for a user that this node does not know."""
        account = Account.of(user)
        return cls(account.name, account.uid, frozenset(os.getgrouplist(account.name, account.gid)))

    def reaches(self, path: str) -> bool:
        """Whether the user may pass all folders on the way to an absolute path, and on the way that its links lead.
        Blocks."""
        return all(self._passes(way) for way in (path, os.path.realpath(path)))

    def reads(self, found: os.stat_result) -> bool:
        """Whether the user may read such a file."""
        return self._may(found, _READ)

    def _passes(self, path: str) -> bool:
        for folder in reversed(PurePath(path).parents):
            try:
                found = os.stat(folder)
            except OSError:
                return True  # the user's own look ends here, too
            if stat.S_ISDIR(found.st_mode) and not self._may(found, _SEARCH):
                return False
        return True

    def _may(self, found: os.stat_result, what: int) -> bool:
        if self.uid == 0:
            return True
        shift = 6 if found.st_uid == self.uid else 3 if found.st_gid in self.groups else 0
        return bool(found.st_mode >> shift & what)
