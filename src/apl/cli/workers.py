"""Processes that embed, forked from a server that has imported what they need; started anew where a system has no such server."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_all_start_methods, get_context, parent_process
from multiprocessing.context import BaseContext


def prepare() -> BaseContext:
    """Let the server begin its imports, while this process goes on with its own."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers inherit it: one core for each, numpy's products included
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    from multiprocessing import forkserver

    context = get_context("forkserver")
    context.set_forkserver_preload(["apl.cli.embedding"])
    forkserver.ensure_running()
    return context


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(workers, prepare(), _begin) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise RuntimeError(
                "a worker process ended unexpectedly, perhaps for lack of memory: what was learnt so far stays, "
                "and the same command goes on from there"
            ) from None
        except BaseException:
            for worker in active_children():  # Their work is lost anyway; to wait for it would invite a second Ctrl-C.
                worker.terminate()
            raise


def _begin() -> None:
    """In a worker, before its work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that learns
    threading.Thread(target=_end_with_the_learner, daemon=True).start()


def _end_with_the_learner() -> None:
    """Otherwise the workers of a process that was killed would wait for ever."""
    learner = parent_process()
    if learner is not None:
        learner.join()
        os._exit(1)
