"""Draws a graph as SVG, by itself or in an HTML page. Neither loads other files nor has scripts."""

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, InputError
from stepnet.explain.graph import Arrow, Box, Picture, picture

__all__ = ["html", "picture", "svg", "write"]

LINE, LETTER, PAD, ABOVE, BESIDE = 17, 7.2, 12, 62, 34
COLOURS = ("#cfe3f7", "#fbe0c3", "#d5edd0", "#e8d7f1", "#fdf0b5", "#f8d3d8", "#cdeeee", "#e4dccf")
STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#222}.title{font-weight:bold}"
    ".engine,.size{fill:#555}.size,.name{paint-order:stroke;stroke:#fff;stroke-width:4px}.name{font-weight:bold}"
    ".box{stroke:#666}.arrow{stroke:#777;fill:none}.head{fill:#777}"
)
HEAD = (
    '<marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    '<path class="head" d="M0,0L8,4L0,8z"/></marker>'
)
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<body style="margin:2em;background:#fff">
{svg}
</body>
</html>
"""


@dataclass(frozen=True)
class BoxPosition:
    """Position and size of a box in the picture."""

    x: float
    y: float
    width: float
    height: float


def svg(picture: Picture) -> str:
    """Draws the picture of a graph as an SVG image."""
    spots = box_positions(picture)
    width = max(spot.x + spot.width for spot in spots) + BESIDE
    height = max(spot.y + spot.height for spot in spots) + ABOVE
    drawn = [
        line
        for index in range(len(spots))
        for line in arrows_svg([arrow for arrow in picture.arrows if arrow.source == index], spots)
    ]
    colours = iter(COLOURS * len(spots))
    for box, spot in zip(picture.boxes, spots, strict=True):
        drawn += box_svg(box, spot, "#fff" if box.is_input else next(colours))
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="background:#fff">'
    return "\n".join([head, f"<style>{STYLE}</style>", f"<defs>{HEAD}</defs>", *drawn, "</svg>\n"])


def html(picture: Picture, title: str) -> str:
    """Draws the picture of a graph as an HTML page. title: the title of the page."""
    return PAGE.format(title=escape(title), svg=svg(picture))


FORMS: Mapping[str, Callable[[Picture, str], str]] = {
    ".svg": lambda picture, title: svg(picture),
    ".html": html,
}
"""The function that writes a picture, by the end of its file's name."""


def write(picture: Picture, path: Path, force: bool = False) -> None:
    """Writes the picture to a file, as SVG or HTML by the suffix of its name.

    force: whether to replace a file that exists.

    Raises `InputError` for another suffix, and `FileError` if the file exists without `force` or cannot be
    written.
    """
    if path.suffix not in FORMS:
        raise InputError(f"a drawing is written as {' or '.join(FORMS)}, not as {path.name}")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(FORMS[path.suffix](picture, path.stem))
    except FileExistsError:
        raise FileError(f"{path}: the file is there already; force=True replaces it") from None
    except OSError as error:
        raise FileError(f"{path}: the file cannot be written ({error.strerror or error})") from error


def box_positions(picture: Picture) -> list[BoxPosition]:
    """Returns the positions of the boxes of a drawing, in the order of the boxes. Each box is on a level
    below all boxes whose values it reads; the boxes of one level are side by side and centred.
    """
    levels = [0] * len(picture.boxes)
    for index in range(len(levels)):
        sources = [arrow.source for arrow in picture.arrows if index in arrow.targets]
        levels[index] = max((levels[source] + 1 for source in sources), default=0)
    rows = [
        [n for n, own in enumerate(levels) if own == level] for level in range(max(levels, default=0) + 1)
    ]
    sizes = [size(box, [a for a in picture.arrows if a.source == n]) for n, box in enumerate(picture.boxes)]
    widest = max(sum(sizes[n][0] + BESIDE for n in row) for row in rows)
    spots, y = dict[int, BoxPosition](), float(PAD)
    for row in rows:
        x = BESIDE / 2 + (widest - sum(sizes[n][0] + BESIDE for n in row)) / 2
        for number in row:
            spots[number] = BoxPosition(x + BESIDE / 2, y, *sizes[number])
            x += sizes[number][0] + BESIDE
        y += max(sizes[n][1] for n in row) + ABOVE
    return [spots[number] for number in range(len(spots))]


def size(box: Box, gives: list[Arrow]) -> tuple[float, float]:
    """Returns (width, height) of a box, from its texts and the labels of arrows that leave it, `gives`."""
    texts = [box.title, *box.lines, box.engine]
    below = sum(len(arrow.text) + 2 for arrow in gives)
    width = max(below, *map(len, texts)) * LETTER + 2 * PAD
    return width, LINE * (1 + len(box.lines) + bool(box.engine)) + PAD


def box_svg(box: Box, spot: BoxPosition, colour: str) -> list[str]:
    """Draws a box and its lines of text as SVG. spot: its position and size. colour: its background."""
    lines = [("title", box.title), *(("", line) for line in box.lines)]
    lines += [("engine", box.engine)] if box.engine else []
    shape = f'x="{spot.x:.1f}" y="{spot.y:.1f}" width="{spot.width:.1f}" height="{spot.height:.1f}"'
    drawn = [f'<rect class="box" {shape} rx="6" fill="{colour}"/>']
    for number, (kind, line) in enumerate(lines, 1):
        drawn.append(text(line, spot.x + PAD, spot.y + LINE * number, kind))
    return drawn


def arrows_svg(arrows: list[Arrow], spots: list[BoxPosition]) -> list[str]:
    """Draws the arrows that leave a box, as lines of SVG: each with a label, and a curve to each box that it
    goes to; an output that no box reads is a short line down.

    spots: the positions of all boxes.
    """
    drawn = list[str]()
    for number, arrow in enumerate(arrows):
        spot = spots[arrow.source]
        x = spot.x + spot.width * (number + 0.5) / len(arrows)
        y = spot.y + spot.height
        drawn.append(text(arrow.text, x + 4, y + LINE - 2, "name" if arrow.name else "size"))
        for target in arrow.targets:
            end = spots[target]
            to, half = end.x + end.width / 2, (end.y - y) / 2
            path = f"M{x:.1f},{y:.1f}C{x:.1f},{y + half:.1f} {to:.1f},{end.y - half:.1f} {to:.1f},{end.y:.1f}"
            drawn.append(f'<path class="arrow" d="{path}" marker-end="url(#head)"/>')
        if not arrow.targets:
            drawn.append(f'<path class="arrow" d="M{x:.1f},{y:.1f}v{LINE + 8}" marker-end="url(#head)"/>')
    return drawn


def text(line: str, x: float, y: float, kind: str) -> str:
    """Draws a line of text at (x, y), as SVG; `kind` is its CSS class, "" for none."""
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x:.1f}" y="{y:.1f}">{escape(line)}</text>'
