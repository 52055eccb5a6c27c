"""Films of a run: the world before and after the change, beside what the world model foresees."""

from collections import Counter
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from lofo_rl.records import read_arrays
from lofo_rl.reports.runs import Run, load
from lofo_rl.types import LofoError

SIDES = 256, 192, 128  # pixels of a picture in the film: the largest that keeps the file small
MOST_BYTES = 3_000_000
FRAME_MILLISECONDS, LAST_MILLISECONDS = 100, 1500
NUM_COLOURS = 108  # of the pictures; words and marks have their own
LINE, MARGIN, GAP, BAR = 20, 10, 6, 5  # pixels
INK, SOFT, PAPER = "#1d2329", "#5c6670", "#ffffff"
SEEN, IMAGINED, AHEAD = "#0b6e4f", "#d45500", "#d8dde2"


class Column(NamedTuple):
    """One episode, at the end of a phase."""

    phase: int
    seed: int
    seen: np.ndarray  # [T, H, W, 3] uint8, the world's pictures
    foreseen: np.ndarray  # [T, H, W, 3] uint8, the model's
    rewards: np.ndarray  # [T], of the action in each state
    num_seen: int  # pictures that the model was shown

    def word(self, time: int) -> str:
        """What the model knows the picture of that time by."""
        return "seen" if time < self.num_seen else "imagined"

    def colour(self, time: int) -> str:
        return SEEN if time < self.num_seen else IMAGINED


def make_films(folders: Iterable[Path], out: Path) -> list[Path]:
    """One GIF for every run that was filmed: the end of each phase in a column of its own."""
    folders = list(folders)
    if paths := save_films(load(folders), out):
        return paths
    where = ", ".join(map(str, folders))
    raise LofoError(
        f"no films in {where}: a phase's end leaves a file ...-film.npz beside the rows, where the "
        "agent has a world model; published records may leave it out"
    )


def save_films(runs: Sequence[Run], out: Path) -> list[Path]:
    """The films of those runs that have any."""
    films = [(run, columns) for run in runs if (columns := read_columns(run))]
    count = Counter(run.id for run, _ in films)
    paths = []
    for number, (run, columns) in enumerate(films, start=1):
        ending = "" if count[run.id] == 1 else f"-{number}"  # the same id at another length
        path = out / f"film-{run.id.replace('/', '-')}{ending}.gif"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_encode(run, columns))
        paths.append(path)
    return paths


def read_columns(run: Run) -> list[Column]:
    """The films of one seed: that of the folder which has most of them."""
    files = [(phase, file) for phase, several in run.films.items() for file in several]
    if not files:
        return []
    count = Counter(file.folder for _, file in files)
    folder = max(count, key=lambda f: count[f])
    columns = []
    for phase, file in sorted(f for f in files if f[1].folder == folder):
        arrays = read_arrays(folder, file.name)
        seen, foreseen, rewards = (arrays[name] for name in ("seen", "foreseen", "rewards"))
        shown = Column(phase, file.seeds[0], seen, foreseen, rewards, int(arrays["num_seen"]))
        columns.append(shown)
    return columns


def _encode(run: Run, columns: Sequence[Column]) -> bytes:
    """A GIF that goes on for ever, as large as the limit allows."""
    for side in SIDES:
        frames = _frames(run, columns, side)
        durations = [FRAME_MILLISECONDS] * (len(frames) - 1) + [LAST_MILLISECONDS]
        file = BytesIO()
        first, *others = _in_few_colours(frames)
        first.save(file, "GIF", save_all=True, append_images=others, duration=durations, loop=0)
        if file.tell() < MOST_BYTES:
            break
    return file.getvalue()


def _in_few_colours(frames: Sequence[Image.Image]) -> list[Image.Image]:
    """The frames with one palette for all, so that nothing flickers."""
    sample = np.concatenate([np.asarray(frame) for frame in frames[:: max(len(frames) // 6, 1)]])
    common = Image.fromarray(sample).quantize(NUM_COLOURS).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette(common + _shades())
    return [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]


def _shades() -> list[int]:
    """The colours of words and marks, and those of their smooth edges on paper."""
    paper = np.array(ImageColor.getrgb(PAPER))
    colours = [np.array(ImageColor.getrgb(c)) for c in (INK, SOFT, SEEN, IMAGINED, AHEAD)]
    mixed = [paper + (c - paper) * share for c in colours for share in (1.0, 0.75, 0.5, 0.25)]
    return np.concatenate([paper, *mixed]).round().astype(int).tolist()


def _frames(run: Run, columns: Sequence[Column], side: int) -> list[Image.Image]:
    width = 2 * side + GAP + MARGIN
    size = MARGIN + len(columns) * width, 3 * LINE + side + GAP + BAR + 2 * MARGIN
    num_frames = min(len(column.seen) for column in columns)
    frames = []
    for time in range(num_frames):
        frame = Image.new("RGB", size, PAPER)
        title = f"{run.member}, {run.world}, seed {columns[0].seed}"
        _write(frame, (MARGIN, MARGIN), title, INK)
        for number, column in enumerate(columns):
            _draw(frame, MARGIN + number * width, column, time, side)
        frames.append(frame)
    return frames


def _draw(frame: Image.Image, left: int, column: Column, time: int, side: int) -> None:
    """A column at one time: words, the true picture, the model's, and how far the film is."""
    words, names, top = (MARGIN + k * LINE for k in (1, 2, 3))
    right = left + side + GAP
    # a reward belongs to the action that led here, so the first picture has none
    earned = f"{column.rewards[:time].sum():g}"
    _write(frame, (left, words), f"end of phase {column.phase}, reward so far {earned}", INK)
    _write(frame, (left, names), f"world, after {time} actions", SOFT)
    _write(frame, (right, names), f"model: {column.word(time)}", column.colour(time))
    frame.paste(_enlarge(column.seen[time], side), (left, top))
    frame.paste(_enlarge(column.foreseen[time], side), (right, top))
    pen = ImageDraw.Draw(frame)
    edge = (right - 2, top - 2, right + side + 1, top + side + 1)
    pen.rectangle(edge, outline=column.colour(time), width=2)
    bar = top + side + GAP
    for moment in range(num := len(column.seen)):
        ends = right + moment * side // num, right + (moment + 1) * side // num - 1
        colour = column.colour(moment) if moment <= time else AHEAD
        pen.rectangle((ends[0], bar, ends[1], bar + BAR - 1), fill=colour)


def _enlarge(picture: np.ndarray, side: int) -> Image.Image:
    return Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST)


def _write(frame: Image.Image, place: tuple[int, int], text: str, colour: str) -> None:
    ImageDraw.Draw(frame).text(place, text, fill=colour, font=ImageFont.load_default(13))
