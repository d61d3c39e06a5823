"""What mkdocs does besides its files: pages from the top of the repository, and the notebook as a page.

Links are written for the repository. README.md says `docs/metrics.md`, which is `metrics.md` on the site, and links
to CONTRIBUTING.md or CHANGELOG.md lead to the pages made from them here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FROM_THE_TOP = {"README.md": "start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
NOTEBOOK = "notebooks/tour.ipynb"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made: three from the top of the repository, one from the notebook."""
    for name, page in FROM_THE_TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=with_site_links(text)))
    notebook = nbformat.read(ROOT / "docs" / NOTEBOOK, as_version=4)
    page = NOTEBOOK.replace(".ipynb", ".md")
    files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let pages in docs/ link to files at the top of the repository, as they have to there."""
    for name, page in FROM_THE_TOP.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown


def with_site_links(text: str) -> str:
    """The text of a file at the top with its links as they are on the site; what is not on the site loses its link."""
    return re.sub(r"(!?)\[([^\]]*)\]\(([^)#\s]+)([^)]*)\)", _site_link, text)


def _site_link(link: re.Match[str]) -> str:
    image, label, target, rest = link.groups()
    if "://" in target:
        return link.group()
    page = FROM_THE_TOP.get(target) or target.removeprefix("docs/")
    return f"{image}[{label}]({page}{rest})" if page != target else label


def notebook_page(notebook: nbformat.NotebookNode) -> str:
    """A notebook as Markdown: text, code and what it showed."""
    return "\n\n".join(block for cell in notebook.cells for block in _blocks(cell)) + "\n"


def _blocks(cell: nbformat.NotebookNode) -> list[str]:
    if cell.cell_type == "markdown":
        return [cell.source]
    return [f"```python\n{cell.source}\n```", *(_shown(output) for output in cell.outputs)]


def _shown(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.data
    if "text/html" in data:  # no blank line: Markdown would take the rest for text
        return '<div class="output">\n' + re.sub(r"\n\s*\n", "\n", data["text/html"]).strip() + "\n</div>"
    for kind in ("image/png", "image/jpeg"):
        if kind in data:
            return f'<img alt="output" src="data:{kind};base64,{data[kind].strip()}">'
    return f"```text\n{data['text/plain']}\n```"
