"""Images that run side by side and meet in every batch norm.

A batch norm in training takes its statistics over the whole batch, so images that are otherwise run alone must meet
there: it sees the real pixels of all of them in one call, and none of their padding. Each image runs in a thread of
its own, but exactly one at a time and always in the same order, so that random numbers are drawn and processes talk to
each other as in a loop.
"""
import threading
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Iterator, List, Optional, Sequence

import torch
from torch import Tensor, nn

Task = Callable[[], Any]

_here = threading.local()


@torch.compiler.disable  # the compiler doesn't follow into threads
def run_side_by_side(tasks: Sequence[Task], norms: Sequence[nn.Module]) -> List[Any]:
    """Run ``tasks``, which meet in ``norms``: each of these is called once with what all tasks give it.

    Where one task doesn't come to a norm that others wait in, these go on without it.

    Args:
        tasks (Sequence[Callable]): What to do for each image.
        norms (Sequence[nn.Module]): Batch norms, ``nn.SyncBatchNorm`` too.

    Returns:
        list: What each task returned.

    Raises:
        Exception: The first that a task raises; the others are ended where they wait.
    """
    runners = [_Runner(task) for task in tasks]
    with _meeting_in(norms):
        try:
            while True:
                for runner in runners:
                    if not runner.ended and runner.norm is None:
                        runner.go_on()
                waiting = [runner for runner in runners if not runner.ended]
                if not waiting:
                    return [runner.result for runner in runners]
                together = [runner for runner in waiting if runner.norm is waiting[0].norm]
                outputs = _joined(_own_forward(together[0].norm), [runner.given for runner in together])
                for runner, output in zip(together, outputs):
                    runner.answer(output)
        finally:
            for runner in runners:
                runner.stop()


class _Stopped(BaseException):
    """Ends a thread whose result nobody waits for."""


class _Runner:
    """One task, in a thread that is halted whenever it waits in a norm."""

    def __init__(self, task: Task):
        self.result: Any = None
        self.norm: Optional[nn.Module] = None  # where it waits
        self.given: Optional[Tensor] = None
        self.ended = False
        self._task = task
        self._error: Optional[BaseException] = None
        self._stopping = False
        self._may_run, self._has_halted = threading.Semaphore(0), threading.Semaphore(0)
        self._contexts = _thread_contexts()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go_on(self) -> None:
        """Run to the next norm or to the end; raises what the task raised."""
        if self._thread.ident is None:
            self._thread.start()
        self._may_run.release()
        self._has_halted.acquire()
        if self._error is not None:
            raise self._error

    def answer(self, output: Tensor) -> None:
        """Give it the norm's output, with which it will go on."""
        self.norm, self.given = None, output

    def stop(self) -> None:
        """End the thread, wherever it waits."""
        if self._thread.ident is None:
            return
        self._stopping = True
        self._may_run.release()
        self._thread.join()

    def wait_in(self, norm: nn.Module, given: Tensor) -> Tensor:
        """Called in its thread: halt until the norm's output is there."""
        self.norm, self.given = norm, given
        self._has_halted.release()
        self._may_run.acquire()
        if self._stopping:
            raise _Stopped
        return self.given

    def _run(self) -> None:
        _here.runner = self
        self._may_run.acquire()
        try:
            with ExitStack() as stack:
                for context in self._contexts:
                    stack.enter_context(context)
                if not self._stopping:
                    self.result = self._task()
        except _Stopped:
            pass
        except BaseException as error:  # handed to the thread that waits for the result
            self._error = error
        self.ended = True
        self._has_halted.release()


def _thread_contexts() -> List[Any]:
    """What PyTorch keeps for each thread, as it is in this one."""
    contexts = [torch.set_grad_enabled(torch.is_grad_enabled())]
    if torch.is_autocast_enabled('cpu'):
        contexts.append(torch.autocast('cpu', torch.get_autocast_dtype('cpu')))
    if torch.cuda.is_initialized():
        contexts.append(torch.cuda.stream(torch.cuda.current_stream()))
        if torch.is_autocast_enabled('cuda'):
            contexts.append(torch.autocast('cuda', torch.get_autocast_dtype('cuda')))
    return contexts


@contextmanager
def _meeting_in(norms: Sequence[nn.Module]) -> Iterator[None]:
    """While it lasts, whoever calls one of the norms waits for the others there."""
    for norm in norms:
        norm.forward = _wait_in(norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


def _wait_in(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda given: _here.runner.wait_in(norm, given)


def _own_forward(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    return type(norm).forward.__get__(norm)


def _joined(norm: Callable[[Tensor], Tensor], inputs: Sequence[Tensor]) -> List[Tensor]:
    """The norm of all inputs' pixels in one call, each ``(N, C, *size)`` with any N and size."""
    if len(inputs) == 1:
        return [norm(inputs[0])]
    dims = inputs[0].dim()
    rows = [given.transpose(0, 1).flatten(1) for given in inputs]  # (C, N * pixels)
    pixels = torch.cat(rows, 1)
    if dims == 2:
        outputs = norm(pixels.t()).t()
    else:
        outputs = norm(pixels.reshape(1, len(pixels), -1, *[1] * (dims - 3))).flatten(2)[0]
    return [part.reshape(given.transpose(0, 1).shape).transpose(0, 1).contiguous()
            for part, given in zip(outputs.split([row.shape[1] for row in rows], 1), inputs)]
