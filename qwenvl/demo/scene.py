"""Drawing of the demo's clips: an assembly station seen from above, six steps, a gloved hand that does them.

Coordinates are fractions of the picture's side, (0, 0) at the top left. Everything is drawn at twice the size and
halved, which smooths the edges.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw

Point = tuple[float, float]
Colour = tuple[int, int, int]

SIZE = 168
"""Side of a frame in pixels: six merged patches of Qwen2.5-VL, and three times what the tiny model sees."""

STEPS: tuple[str, ...] = (
    "pick the screw",
    "insert the fan",
    "plug the cable",
    "fasten the screw",
    "close the cover",
    "scan the label",
)

# Places in the picture.
SCREW_TRAY = (0.17, 0.2)
FAN_TRAY = (0.84, 0.6)
CABLE_HOOK = (0.14, 0.62)
COVER_RACK = (0.8, 0.17)
SCANNER_REST = (0.86, 0.87)

# Places on the housing (``Station.at``).
FAN_SEAT = (0.7, 0.34)
CABLE_PORT = (0.12, 0.36)
SCREW_HOLE = (0.42, 0.5)
CENTRE = (0.5, 0.5)
LABEL = (0.72, 0.8)

# Colours: red, green, blue.
METAL = (188, 192, 198)
DARK_METAL = (96, 101, 110)
RUBBER = (22, 24, 28)
PCB = (22, 92, 60)
COPPER = (196, 160, 84)
PORT = (228, 228, 220)
FAN = (34, 36, 46)
FAN_BLADE = (120, 130, 150)
CABLE = (244, 190, 30)
DRIVER = (206, 48, 40)
COVER = (58, 108, 190)
LASER = (255, 60, 60)
PICK_LIGHT = (70, 230, 120)
WORK_LIGHT = (255, 236, 150)

# Indices into STEPS.
INSERT_FAN = 1
PLUG_CABLE = 2
FASTEN_SCREW = 3
CLOSE_COVER = 4


@dataclass
class Station:
    """One clip's station: what varies from clip to clip, and the steps that are done."""

    shift: Point  # of the housing from its usual place
    mat: Colour  # of the bench
    glove: Colour
    light: float  # brightness of the lamp, about 1
    wobble: tuple[float, float]  # size and phase of the hand's deviation from the straight way
    done: set[int] = field(default_factory=set)  # indices into STEPS

    @classmethod
    def draw_lot(cls, rng: np.random.Generator) -> Station:
        """A random station, with no step done."""
        mats = ((30, 38, 50), (34, 36, 40), (28, 44, 46), (40, 36, 48))
        gloves = ((226, 222, 214), (120, 186, 214), (214, 196, 150))
        return cls(
            shift=tuple(rng.uniform(-0.025, 0.025, 2)),
            mat=mats[rng.integers(len(mats))],
            glove=gloves[rng.integers(len(gloves))],
            light=rng.uniform(0.9, 1.1),
            wobble=(rng.uniform(0.0, 0.02), rng.uniform(0, 2 * math.pi)),
        )

    def at(self, x: float, y: float) -> Point:
        """A place on the housing (0..1 each way) as a place in the picture."""
        return 0.3 + 0.4 * x + self.shift[0], 0.32 + 0.4 * y + self.shift[1]


class Canvas:
    """A picture to draw on in fractions of its side."""

    def __init__(self, image: Image.Image):
        self.image = image
        self.scale = image.width
        self.pen = ImageDraw.Draw(image, "RGBA")

    def box(self, centre: Point, width: float, height: float, fill, radius: float = 0.0, outline=None) -> None:
        """A rectangle with rounded corners."""
        corners = self._corners(centre, width / 2, height / 2)
        self.pen.rounded_rectangle(corners, radius * self.scale, fill=fill, outline=outline, width=2)

    def disc(self, centre: Point, radius: float, fill, outline=None) -> None:
        """A filled circle."""
        self.pen.ellipse(self._corners(centre, radius, radius), fill=fill, outline=outline, width=2)

    def _corners(self, centre: Point, dx: float, dy: float) -> list[float]:
        """Left, top, right and bottom in pixels of what reaches ``dx`` and ``dy`` from its centre."""
        x, y = centre
        return [
            (x - dx) * self.scale,
            (y - dy) * self.scale,
            (x + dx) * self.scale,
            (y + dy) * self.scale,
        ]

    def line(self, points: list[Point], width: float, fill) -> None:
        """A line with round joints and ends."""
        dots = [(x * self.scale, y * self.scale) for x, y in points]
        self.pen.line(dots, fill=fill, width=max(1, round(width * self.scale)), joint="curve")
        for end in (points[0], points[-1]):
            self.disc(end, width / 2, fill)

    def shape(self, points: list[Point], fill) -> None:
        """A filled polygon."""
        self.pen.polygon([(x * self.scale, y * self.scale) for x, y in points], fill=fill)


def draw_bench(station: Station) -> Image.Image:
    """The background of a segment: mat, trays, housing, and the parts that are already in it."""
    canvas = Canvas(Image.new("RGB", (2 * SIZE, 2 * SIZE), station.mat))
    grid = tuple(c + 9 for c in station.mat)
    for i in range(1, 10):
        canvas.line([(i / 10, 0), (i / 10, 1)], 0.004, grid)
        canvas.line([(0, i / 10), (1, i / 10)], 0.004, grid)
    canvas.box(SCREW_TRAY, 0.24, 0.26, (58, 63, 72), 0.03, outline=(86, 92, 102))
    canvas.box(FAN_TRAY, 0.24, 0.24, (58, 63, 72), 0.03, outline=(86, 92, 102))
    for dx, dy in ((-0.06, -0.07), (0.0, -0.04), (0.06, -0.07), (-0.05, 0.02), (0.05, 0.03), (0.0, 0.08)):
        _draw_screw(canvas, (SCREW_TRAY[0] + dx, SCREW_TRAY[1] + dy))
    if INSERT_FAN not in station.done:
        _draw_fan(canvas, FAN_TRAY, 0.0)
    if PLUG_CABLE not in station.done:
        for radius in (0.085, 0.077, 0.06, 0.052):  # a coil
            canvas.disc(CABLE_HOOK, radius, None, outline=CABLE)
    if CLOSE_COVER not in station.done:
        _draw_cover(canvas, COVER_RACK, 0.55)
    _draw_scanner(canvas, SCANNER_REST)
    _draw_housing(canvas, station)
    return canvas.image


def draw_frame(bench: Image.Image, station: Station, step: int, t: float) -> np.ndarray:
    """The station at time ``t`` (0..1) of step number ``step`` (from 0), SIZE x SIZE x 3, uint8."""
    canvas = Canvas(bench.copy())
    _PLAY[step](canvas, station, t)
    halved = np.asarray(canvas.image.reduce(2), dtype=np.float32)
    return (halved * station.light).clip(0, 255).astype(np.uint8)


def _draw_housing(canvas: Canvas, station: Station) -> None:
    """The housing with its board, and with the parts of the steps that are done."""
    canvas.box(station.at(0.53, 0.54), 0.46, 0.46, (0, 0, 0, 70), 0.04)  # its shadow
    canvas.box(station.at(*CENTRE), 0.46, 0.46, METAL, 0.04, outline=DARK_METAL)
    canvas.box(station.at(*CENTRE), 0.39, 0.39, PCB, 0.02)
    for x in (0.02, 0.98):
        for y in (0.02, 0.98):
            canvas.disc(station.at(x, y), 0.018, DARK_METAL)
    for k in range(4):
        x = 0.14 + 0.08 * k
        canvas.line([station.at(x, 0.62), station.at(x, 0.9)], 0.008, COPPER)
    canvas.disc(station.at(*FAN_SEAT), 0.085, RUBBER)
    canvas.box(station.at(*CABLE_PORT), 0.06, 0.12, PORT, 0.01)
    _draw_label(canvas, station.at(*LABEL), 1.0)
    if INSERT_FAN in station.done:
        _draw_fan(canvas, station.at(*FAN_SEAT), 0.4)
    if PLUG_CABLE in station.done:
        _draw_cable(canvas, station.at(*CABLE_PORT))
    if FASTEN_SCREW in station.done:
        _draw_screw(canvas, station.at(*SCREW_HOLE))
    if CLOSE_COVER in station.done:
        _draw_cover(canvas, station.at(*CENTRE), 1.0)


def _draw_screw(canvas: Canvas, centre: Point) -> None:
    x, y = centre
    canvas.disc(centre, 0.022, METAL, outline=DARK_METAL)
    canvas.line([(x - 0.01, y), (x + 0.01, y)], 0.006, DARK_METAL)


def _draw_fan(canvas: Canvas, centre: Point, angle: float) -> None:
    canvas.box(centre, 0.19, 0.19, FAN, 0.02, outline=(8, 8, 12))
    canvas.disc(centre, 0.085, (54, 58, 70))
    x, y = centre
    for k in range(5):
        of_blade = angle + 2 * math.pi * k / 5
        tip = (x + 0.07 * math.cos(of_blade), y + 0.07 * math.sin(of_blade))
        canvas.line([centre, tip], 0.032, FAN_BLADE)
    canvas.disc(centre, 0.028, FAN)


def _draw_cable(canvas: Canvas, plug: Point) -> None:
    """A cable from the left edge to ``plug``, which sags."""
    start_x = -0.02
    start_y = 0.74
    dx = plug[0] - start_x
    dy = plug[1] - start_y
    points = []
    for k in range(9):
        sag = 0.1 * math.sin(math.pi * k / 8)
        points.append((start_x + dx * k / 8, start_y + dy * k / 8 + sag))
    canvas.line(points, 0.032, CABLE)
    canvas.box(plug, 0.085, 0.1, (250, 214, 90), 0.012, outline=(150, 110, 10))


def _draw_cover(canvas: Canvas, centre: Point, scale: float) -> None:
    x, y = centre
    side = 0.47 * scale
    canvas.box((x + 0.012, y + 0.014), side, side, (0, 0, 0, 80), 0.04)  # its shadow
    canvas.box(centre, side, side, COVER, 0.04, outline=(30, 60, 120))
    for k in (-1, 0, 1):
        groove_y = y + 0.09 * k * scale
        groove = [(x - 0.12 * scale, groove_y), (x + 0.12 * scale, groove_y)]
        canvas.line(groove, 0.03 * scale, (34, 70, 136))
    # The cover bears the label where the housing has it: the station is scanned open or closed.
    label = (x + 0.4 * (LABEL[0] - 0.5) * scale, y + 0.4 * (LABEL[1] - 0.5) * scale)
    _draw_label(canvas, label, scale)


def _draw_label(canvas: Canvas, centre: Point, scale: float) -> None:
    canvas.box(centre, 0.13 * scale, 0.07 * scale, (238, 238, 232), 0.006)
    top = centre[1] - 0.016 * scale
    bottom = centre[1] + 0.016 * scale
    for k in range(6):  # the bars of its code
        x = centre[0] + (0.018 * k - 0.045) * scale
        canvas.line([(x, top), (x, bottom)], 0.006 * scale, RUBBER)


def _draw_scanner(canvas: Canvas, centre: Point) -> None:
    canvas.box(centre, 0.16, 0.2, (84, 86, 94), 0.04, outline=(20, 20, 24))
    canvas.box((centre[0], centre[1] - 0.075), 0.12, 0.035, LASER, 0.01)


def _draw_hand(canvas: Canvas, station: Station, tip: Point) -> None:
    """A forearm from the near edge and a gloved hand whose fingers end at ``tip``."""
    x, y = tip
    wrist = (x + 0.18 * (0.45 - x), y + 0.17)
    canvas.line([(wrist[0] + 0.02, 1.1), wrist], 0.13, (44, 62, 104))
    shade = tuple(int(c * 0.82) for c in station.glove)
    canvas.line([wrist, (x, y + 0.09)], 0.12, shade)
    canvas.disc((x, y + 0.085), 0.062, station.glove)
    for k in (-1, 0, 1):
        canvas.line([(x + 0.035 * k, y + 0.06), (x + 0.022 * k, y + 0.012)], 0.028, station.glove)


def _along(station: Station, start: Point, end: Point, t: float) -> Point:
    """The place at time ``t`` on the way from ``start`` to ``end``, slow at both ends, straying a little."""
    t = min(max(t, 0.0), 1.0)
    done = 0.5 - 0.5 * math.cos(math.pi * t)  # share of the way
    size, phase = station.wobble
    stray = size * math.sin(math.pi * t) * math.sin(phase + 5 * t)
    x = start[0] + (end[0] - start[0]) * done + stray
    y = start[1] + (end[1] - start[1]) * done + stray
    return x, y


def _pick_screw(canvas: Canvas, station: Station, t: float) -> None:
    canvas.box(SCREW_TRAY, 0.24, 0.26, (*PICK_LIGHT, 130), 0.03, outline=PICK_LIGHT)
    above_housing = station.at(0.3, 0.45)
    on_the_way_back = t >= 0.5
    if on_the_way_back:
        tip = _along(station, SCREW_TRAY, above_housing, 2 * t - 1)
    else:
        tip = _along(station, above_housing, SCREW_TRAY, 2 * t)
    _draw_hand(canvas, station, tip)
    if on_the_way_back:
        _draw_screw(canvas, (tip[0], tip[1] - 0.01))


def _insert_fan(canvas: Canvas, station: Station, t: float) -> None:
    canvas.box(FAN_TRAY, 0.21, 0.21, (58, 63, 72))  # the fan is not in its tray any more
    place = _along(station, FAN_TRAY, station.at(*FAN_SEAT), t / 0.8)
    _draw_fan(canvas, place, 0.5 * t)
    _draw_hand(canvas, station, (place[0], place[1] + 0.05))


def _plug_cable(canvas: Canvas, station: Station, t: float) -> None:
    plug = _along(station, (0.06, 0.62), station.at(*CABLE_PORT), t / 0.8)
    _draw_cable(canvas, plug)
    _draw_hand(canvas, station, (plug[0], plug[1] + 0.04))


def _fasten_screw(canvas: Canvas, station: Station, t: float) -> None:
    target = station.at(*SCREW_HOLE)
    tip = _along(station, (target[0], target[1] - 0.05), target, t / 0.4)
    x, y = tip
    canvas.disc(target, 0.12, (*WORK_LIGHT, 150))
    _draw_screw(canvas, target)
    _draw_hand(canvas, station, (x + 0.02, y + 0.2))
    canvas.line([tip, (x, y + 0.05)], 0.025, DARK_METAL)
    canvas.box((x, y + 0.16), 0.15, 0.25, DRIVER, 0.04, outline=(110, 20, 16))
    canvas.box((x, y + 0.09), 0.15, 0.03, WORK_LIGHT)
    for k in range(2):  # a cross that turns with the driver
        angle = 14 * t + math.pi * k / 2
        dx = 0.07 * math.cos(angle)
        dy = 0.07 * math.sin(angle)
        canvas.line([(x - dx, y - dy), (x + dx, y + dy)], 0.018, (255, 255, 240))


def _close_cover(canvas: Canvas, station: Station, t: float) -> None:
    canvas.box(COVER_RACK, 0.27, 0.27, station.mat)  # the cover is not in its rack any more
    place = _along(station, COVER_RACK, station.at(*CENTRE), t / 0.8)
    _draw_cover(canvas, place, 0.75 + 0.25 * min(1.0, t / 0.8))
    _draw_hand(canvas, station, (place[0], place[1] + 0.12))


def _scan_label(canvas: Canvas, station: Station, t: float) -> None:
    canvas.box(SCANNER_REST, 0.18, 0.22, station.mat)
    label = station.at(*LABEL)
    place = _along(station, SCANNER_REST, (label[0] + 0.02, label[1] + 0.2), t / 0.35)
    if t > 0.25:
        spread = 0.19 + 0.03 * math.sin(18 * t)
        top = label[1] - 0.08
        beam = [(place[0], place[1] - 0.08), (label[0] - spread, top), (label[0] + spread, top)]
        canvas.shape(beam, (*LASER, 190))
    _draw_scanner(canvas, place)
    _draw_hand(canvas, station, (place[0], place[1] + 0.04))


_PLAY: tuple[Callable[[Canvas, Station, float], None], ...]  # in the order of STEPS
_PLAY = (_pick_screw, _insert_fan, _plug_cable, _fasten_screw, _close_cover, _scan_label)
