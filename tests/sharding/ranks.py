"""Two processes on the CPU that talk through gloo and call functions together."""
from __future__ import annotations

import datetime
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZE = 2
SECONDS = 120  # that a function may take, with whatever it waits for


class Ranks:
    """Two processes that are started once: to import what a test needs takes longer than the test."""

    def __init__(self, meeting_point: str):
        context = mp.get_context('spawn')
        self._connections, self._processes = [], []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, meeting_point, theirs), daemon=True)
            process.start()
            theirs.close()  # so that a dead process ends the connection
            self._connections.append(ours)
            self._processes.append(process)

    def run(self, function: Callable, *args: Any) -> list:
        """What ``function(*args)`` returns in each process; it must be importable, and return no tensors.

        If one process fails the other one may wait for it forever: both are ended then.
        """
        for connection in self._connections:
            connection.send((function, args))
        results, waiting = [None] * SIZE, set(self._connections)
        while waiting:
            ready = wait(waiting, SECONDS)
            for connection in ready:
                rank = self._connections.index(connection)
                try:
                    results[rank], failure = connection.recv()
                except EOFError:
                    failure = 'it died'
                if failure:
                    self.end()
                    raise AssertionError(f'rank {rank} failed: {failure}')
                waiting.remove(connection)
            if not ready:
                self.end()
                raise AssertionError(f'no answer after {SECONDS} s')
        return results

    @property
    def alive(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _serve(rank: int, meeting_point: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    dist.init_process_group(
        'gloo', init_method=f'file://{meeting_point}', rank=rank, world_size=SIZE,
        timeout=datetime.timedelta(seconds=SECONDS))
    while True:
        function, args = connection.recv()
        try:
            torch.manual_seed(0)
            connection.send((function(*args), None))
        except BaseException:  # as those of torch.distributed.checkpoint are
            connection.send((None, traceback.format_exc()))
