"""A window for `render_mode="human"`, drawn by matplotlib."""

import os
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np

TOOLKITS = ("tkinter", "PyQt6", "PySide6", "PyQt5", "PySide2", "gi", "wx")
NO_SCREEN = (
    "render_mode='human' needs a screen, matplotlib and a window toolkit such as tkinter, and here "
    "{missing}; use render_mode='rgb_array', which needs none of them"
)


def has_screen() -> bool:
    """Whether a window could be opened: asked of the system, without loading anything."""
    return missing() is None


def missing() -> str | None:
    """What keeps a window from being opened, in words; None if nothing does."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, displays)):
        return "there is no screen"
    if find_spec("matplotlib") is None:
        return "there is no matplotlib"
    if sys.platform != "darwin" and not any(map(find_spec, TOOLKITS)):
        return "there is no toolkit"
    return None


class Window:
    """Shows frames at a steady pace."""

    def __init__(self, title: str, frames_per_second: float) -> None:
        if (why := missing()) is not None:
            raise RuntimeError(NO_SCREEN.format(missing=why))
        self.title, self.pause = title, 1.0 / frames_per_second
        self._image: Any = None

    def show(self, frame: np.ndarray) -> None:
        """Puts a frame into the window, and leaves it there for the time of one frame."""
        if self._image is None:
            self._image = self._open(frame)
        self._image.set_data(frame)
        canvas = self._image.figure.canvas
        canvas.draw_idle()
        canvas.start_event_loop(self.pause)

    def close(self) -> None:
        """Closes the window; may be called again."""
        if self._image is not None:
            from matplotlib import pyplot

            pyplot.close(self._image.figure)
            self._image = None

    def _open(self, frame: np.ndarray) -> Any:
        from matplotlib import pyplot  # late: it takes a while, and others draw no window

        height, width = frame.shape[:2]
        figure = pyplot.figure(self.title, figsize=(width / 100, height / 100), dpi=100)
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        image = axes.imshow(frame)
        if (manager := figure.canvas.manager) is not None:
            manager.show()
        return image
