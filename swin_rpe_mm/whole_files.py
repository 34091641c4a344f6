"""Files that are written whole or not at all."""
from __future__ import annotations

import os
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend


class WholeFileBackend(LocalBackend):
    """The local file system, with files that appear only when they are complete.

    mmengine removes the checkpoints that are out of date before it writes the next one. Here they stay until
    :meth:`remove_outdated`, so that a process killed in between leaves one to resume from.
    """

    def __init__(self):
        super().__init__()
        self._outdated: dict[str, int] = {}

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write to a temporary file beside ``filepath``, then rename it."""
        target = Path(filepath)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f'{target.name}.{os.getpid()}.partial')
        try:
            with open(partial, 'wb') as file:
                file.write(obj)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self, filepath: str | Path) -> None:
        """Note that ``filepath`` may go at the next :meth:`remove_outdated`."""
        self._outdated[str(filepath)] = os.stat(filepath).st_mtime_ns

    def remove_outdated(self) -> None:
        """Remove what was noted, unless it has been written anew since."""
        for path, written in self._outdated.items():
            if os.path.isfile(path) and os.stat(path).st_mtime_ns == written:
                os.remove(path)
        self._outdated.clear()


register_backend('swin_rpe_mm.whole_files', WholeFileBackend, force=True)
