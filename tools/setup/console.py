"""What the reader sees: numbered steps, and long commands with the time they have taken so far."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

LINE_EVERY_S = 20  # without a terminal, one line of progress this often


class SetupError(Exception):
    """Set-up cannot go on; the message says why and what to do."""


def duration(seconds: float) -> str:
    """``75`` -> ``1 min 15 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes} min {rest} s' if minutes else f'{rest} s'


def say(text: str) -> None:
    """Print one line at once, also into a pipe."""
    print(text, flush=True)


def run(command: Sequence[str], log: Path, env: Mapping[str, str],
        progress: Callable[[float], str] | None = None) -> bool:
    """Run a command into the log, showing elapsed time and ``progress(elapsed)``; True if it succeeded."""
    on_terminal = sys.stdout.isatty()
    start = shown = time.monotonic()
    with log.open('ab') as out:
        out.write(f'\n$ {" ".join(command)}\n'.encode())
        out.flush()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                                   start_new_session=True)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                now = time.monotonic()
                if now - shown >= (1 if on_terminal else LINE_EVERY_S):
                    shown = now
                    text = f'      {duration(now - start)}{", " + progress(now - start) if progress else ""}'
                    print(f'\r{text:<78.78}' if on_terminal else text, end='' if on_terminal else '\n', flush=True)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # pip's compilers too: none may go on in the background
                process.wait()
            if on_terminal:
                print(f'\r{"":<78}\r', end='', flush=True)
    return process.returncode == 0


def remaining(done: int, total: int, seconds: float, before: int = 0) -> str:
    """``10 of 78 files, about 2 min 0 s left``, where ``before`` were done at the start; a guess only after five."""
    new = done - before
    left = f', about {duration(seconds * (total - done) / new)} left' if new >= 5 and done < total else ''
    return f'{done} of {total} files{left}'


def last_line(log: Path) -> str:
    """The newest line of the log: what a quiet command is doing."""
    with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - 10_000))
        lines = file.read().decode(errors='replace').split('\n')
    return next((line.strip() for line in reversed(lines) if line.strip()), '')[:60]


def tail(log: Path, lines: int = 15) -> str:
    """The end of the log, indented, for an error message."""
    return '\n'.join('    ' + line for line in log.read_text(errors='replace').splitlines()[-lines:])
