"""Makes the pages of results out of their templates, `docs/*.md.jinja`, and the files of `docs/results`.

    python docs/render_results.py                                # write pages and figures anew: `make results`
    python docs/render_results.py --check                        # exit code 1 if a page is out of date
    python docs/render_results.py keep NAME OUT/compare.json     # keep what a command wrote as docs/results/NAME.json

A page shows no figure that was typed: in the text of a template a decimal number, a percentage, a "±" or a number of
points is refused, unless it is a constant of the protocol that `CONSTANTS` names. A sentence that is true of one
measurement only holds on to it with ``{{ claim(…) }}``, which stops the rendering when it is no longer so.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where the two are, wherever this was started from

from results_data import FOLDER, Comparison, SweepFile, read
from results_figures import Figure, ResultsError, enumerated

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
CONSTANTS = ("95 %", "95th", "τ = 0.2", "0.12 × √", "τ_FG = 0.5", "λ_contrast = 0.5", "70 % of the training images")
"""Numbers that are chosen, not measured: they may stand in the text of a template."""
TYPED = re.compile(r"\d+\.\d+|\d+ ?%|± ?\d+|\d+ points?\b")
CODE = re.compile(r"```.*?```|`[^`]*`|^ {4}.*$|\]\([^)]*\)", re.DOTALL | re.MULTILINE)


def templates(folder: Path = DOCS) -> list[Path]:
    return sorted(folder.glob("*.md.jinja"))


class Figures:
    """The figures that pages ask for while they are rendered."""

    def __init__(self) -> None:
        self.asked: dict[str, tuple[str, Callable[[Path], object]]] = {}

    def frontier(self, comparison: Comparison, file: str, alt: str, without: Sequence[str] = ()) -> str:
        """Accuracy, Coverage and Diversity of the rows against each other."""
        rows = [row for name, row in comparison.rows.items() if name not in without]

        def draw(path: Path) -> object:
            from dapl.experiments.comparison_figures import draw_frontier

            return draw_frontier(rows, path)

        return self._ask(file, comparison.digest, alt, draw)

    def ablations(self, sweep: SweepFile, file: str, alt: str) -> str:
        """The panels of the paper's figure side by side; of a system that is taken apart, a row for each change."""

        def draw(path: Path) -> object:
            from dapl.experiments.comparison_figures import save_figure
            from dapl.experiments.sweep_figure import PAPER_PANELS, side_by_side, taken_apart

            of_paper = [name for name in PAPER_PANELS if name in sweep.panels]
            panels = [panel_result(sweep, name) for name in of_paper or sweep.panels]
            seeds = enumerated([str(seed) for seed in sweep.content["seeds"]])
            caption = f"{Path(sweep.content['config']).stem}, validation split, seed {seeds}"
            drawn = side_by_side if of_paper else taken_apart
            return save_figure(drawn(panels, caption, "validation"), path, dpi=200 if of_paper else 150)

        return self._ask(file, sweep.digest, alt, draw)

    def _ask(self, file: str, digest: str, alt: str, draw: Callable[[Path], object]) -> str:
        self.asked[file] = (digest, draw)
        return f"![{alt}](images/{file})"

    def stale(self, folder: Path) -> list[str]:
        """The figures that were not drawn from the files that are there now."""
        return [file for file, (digest, _) in self.asked.items() if drawn_from(folder / file) != digest]

    def draw(self, folder: Path) -> list[Path]:
        made = []
        for file in self.stale(folder):
            digest, draw = self.asked[file]
            draw(folder / file)
            stamp(folder / file, digest)
            made.append(folder / file)
        return made


def panel_result(sweep: SweepFile, name: str) -> Any:
    """A panel as `dapl sweep` has it when it draws."""
    from dapl.experiments.sweep_results import PanelResult, Point
    from dapl.experiments.sweep_space import Choices, Panel

    panel = sweep.panel(name)
    values = tuple(panel.facts["fields"][panel.field])
    points = tuple(
        Point(
            {panel.field: row[panel.field]},
            {key: value for key, value in row.items() if hasattr(value, "deviation")},
            {},
            (row["runs"],),
            row["best"] == "best",
        )
        for row in panel.rows
    )
    shown = Panel(name, panel.facts["title"], (Choices(panel.field, values),), panel.facts["fixed"])
    return PanelResult(shown, points, (), len(points), len(points), 0)


def stamp(image: Path, digest: str) -> None:
    """Writes into a PNG what it was drawn from."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    facts = PngInfo()
    facts.add_text("drawn from", digest)
    with Image.open(image) as opened:
        opened.load()
        opened.save(image, pnginfo=facts, optimize=True)


def drawn_from(image: Path) -> str | None:
    from PIL import Image

    if not image.is_file():
        return None
    with Image.open(image) as opened:
        return opened.info.get("drawn from")


def claim(holds: bool) -> str:
    """Nothing on the page; stops where the sentence beside it is no longer true."""
    if not holds:
        raise ResultsError("what stands here no longer holds for the numbers; say what does")
    return ""


def environment(figures: Figures, results: Path = FOLDER) -> jinja2.Environment:
    made = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    made.globals |= {"results": lambda name: read(name, results), "claim": claim, "enumerated": enumerated}
    made.globals |= {"frontier": figures.frontier, "ablations_figure": figures.ablations, "Figure": Figure}
    return made


def render(template: Path, figures: Figures, results: Path = FOLDER) -> str:
    """The page of a template; an error names the line of the template."""
    source = template.read_text(encoding="utf-8")
    if wrong := typed_figures(source):
        lines = "; ".join(f"line {line}: '{text}'" for line, text in wrong)
        raise ResultsError(f"{template.name}: figures that were typed: {lines}. Take them from docs/results.")
    made = environment(figures, results)
    try:
        code = made.compile(source, template.name, template.name)
        page = made.template_class.from_code(made, code, made.globals).render()
    except ResultsError as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == template.name]
        raise ResultsError(f"{template.name}, line {lines[-1]}: {error}") from error
    note = f"<!-- Made from {template.name} and docs/results by `make results`: change these, not this page. -->"
    return f"{note}\n\n{wrapped(page)}\n"


def wrapped(page: str) -> str:
    """Paragraphs in lines of one length, and one blank line between blocks, whatever the template left out.

    >>> wrapped("One\\ntwo.\\n\\n\\n| a |\\n| b |")
    'One two.\\n\\n| a |\\n| b |'
    """
    blocks = re.split(r"\n\s*\n", page.strip("\n"))
    return "\n\n".join(
        block if block[:1] in "|#-!<" or block.startswith("    ") else textwrap.fill(block, 125, **_WHOLE_WORDS)
        for block in blocks
    )


_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def typed_figures(source: str) -> list[tuple[int, str]]:
    """(line, text) of every figure in the text of a template that is neither rendered, code nor a constant.

    >>> typed_figures("Coverage is {{ row.coverage }}, τ = 0.2, `--tau 0.5`.")
    []
    >>> typed_figures("Coverage is\\n0.906 and 3 points up.")
    [(2, '0.906'), (2, '3 points')]
    """
    found = []
    parsed = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).parse(source)
    for output in parsed.find_all(nodes.Output):
        for node in output.nodes:
            text = node.data if isinstance(node, nodes.TemplateData) else ""
            if isinstance(node, nodes.Const):  # {{ 0.906 }} is typed as well
                text = str(node.value)
            hidden = CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
            for constant in CONSTANTS:
                hidden = hidden.replace(constant, " " * len(constant))
            for match in TYPED.finditer(hidden):
                found.append((node.lineno + hidden[: match.start()].count("\n"), match.group()))
    return found


def keep(name: str, source: Path) -> Path:
    """Keeps what a command wrote, with the folders of this machine replaced by those that a reader would use."""
    content = json.loads(source.read_text(encoding="utf-8"))
    if content.get("command"):
        content["command"] = portable(content["command"], f"runs/{name}")
    if content.get("config"):
        content["config"] = local(content["config"])
    file = FOLDER / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    read(name)  # refuses what is none of the known kinds
    return file


def portable(command: str, out: str) -> str:
    """
    >>> portable("dapl compare configs/a.yaml /tmp/x/runs/b --out /tmp/x", "runs/cub20")
    'dapl compare configs/a.yaml runs/cub20/runs/b --out runs/cub20'
    """
    words = shlex.split(command)
    folder = words[words.index("--out") + 1] if "--out" in words[:-1] else None
    if folder is not None and Path(folder).is_absolute():
        words = [word.replace(folder, out, 1) if word.startswith(folder) else word for word in words]
    return shlex.join(local(word) for word in words)


def local(path: str) -> str:
    """A path below the repository from there; another absolute one by its last name."""
    if not path.startswith("/"):
        return path
    return str(Path(path).relative_to(ROOT)) if Path(path).is_relative_to(ROOT) else Path(path).name


def main(words: Sequence[str]) -> int:
    try:
        if words[:1] == ["keep"] and len(words) == 3:
            print(keep(words[1], Path(words[2])))
            return 0
        if words not in ([], ["--check"]):
            print(__doc__, file=sys.stderr)
            return 2
        return make(check=words == ["--check"])
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2


def make(check: bool) -> int:
    figures = Figures()
    pages = {template.with_suffix(""): render(template, figures) for template in templates()}
    old = [page for page, text in pages.items() if not page.is_file() or page.read_text(encoding="utf-8") != text]
    if check:
        stale = [*(page.name for page in old), *figures.stale(DOCS / "images")]
        if stale:
            print(f"out of date: {', '.join(stale)}; `make results` makes them anew.", file=sys.stderr)
        return 1 if stale else 0
    for page in old:
        page.write_text(pages[page], encoding="utf-8")
    for file in [*old, *figures.draw(DOCS / "images")]:
        print(file.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
