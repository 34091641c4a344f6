"""One HTML page that shows pictures together, readable from a file without a server."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..whole_files import WholeFileBackend

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1400px; margin: 0 auto;
  padding: 1.5rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dt { color: #666; } dd { margin: 0;
  overflow-wrap: anywhere; }
figure { margin: 0; } img { max-width: 100%; border: 1px solid #ddd; } figcaption { max-width: 75ch; }
nav a { margin-right: 1rem; }
"""


class Section(NamedTuple):
    """A picture of the page.

    Attributes:
        name (str): Its anchor.
        title (str): What stands above it.
        sentences (Sequence[str]): What it shows.
        png, svg (str): The files, beside the page.
    """
    name: str
    title: str
    sentences: Sequence[str]
    png: str
    svg: str


def page(title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The page as HTML.

    Args:
        title (str): Its title.
        facts (Mapping[str, str]): What the pictures were made from.
        sections (Sequence[Section]): The pictures.
    """
    listed = ''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in facts.items())
    links = ''.join(f'<a href="#{escape(part.name)}">{escape(part.title)}</a>' for part in sections)
    figures = '\n'.join(
        f'<section id="{escape(part.name)}"><h2>{escape(part.title)}</h2>\n'
        f'<figure><a href="{escape(part.svg)}"><img src="{escape(part.png)}" alt="{escape(part.title)}"></a>\n'
        f'<figcaption>{" ".join(map(escape, part.sentences))} <a href="{escape(part.svg)}">SVG</a> '
        f'<a href="{escape(part.png)}">PNG</a></figcaption></figure></section>' for part in sections)
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n<body>'
            f'<h1>{escape(title)}</h1>\n<dl>{listed}</dl>\n<nav>{links}</nav>\n{figures}\n</body></html>\n')


def write_page(path: Path, title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> None:
    """Write :func:`page`, whole or not at all."""
    WholeFileBackend().put(page(title, facts, sections).encode(), path)
