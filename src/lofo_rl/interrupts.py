"""Ctrl-C while a compiled program keeps the main thread busy."""

import os
import signal
import threading
import time
from collections.abc import Callable

PATIENCE = 2.0  # seconds for Python's own way out


def heed_interrupts(leave: Callable[[], None]) -> None:
    """Calls `leave`, which must end the process, if an interrupt is not answered in time.

    Python answers between two of its own instructions, and a compiled program may take minutes. So
    a thread waits for the signal, too. Whoever starts us with interrupts ignored keeps it so.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait() -> None:
        while os.read(reading, 1)[0] != signal.SIGINT:
            pass
        time.sleep(PATIENCE)
        leave()

    threading.Thread(target=wait, daemon=True, name="interrupts").start()
