"""Renders a digest as HTML for mail clients, as plain text, and as lines of a chat. Pure.

The HTML has tables, inline styles and no pictures, as many clients ignore style sheets and load nothing. Names come
from users, so all text is escaped here.
"""

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from gpudeck.digests.content import Digest, DigestSection
from gpudeck.model.text import clean

_WIDTH: Final = 600
_FONT: Final = "font-family:-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
_TEXT: Final = f"{_FONT};font-size:15px;line-height:22px;color:#1f2328"
_SMALL: Final = f"{_FONT};font-size:13px;line-height:18px;color:#59636e"
_LINE: Final = "border-top:1px solid #d1d9e0"
_TABLE: Final = 'role="presentation" width="100%" cellpadding="0" cellspacing="0" border="0"'
_SHORT: Final = 16
"""Shorter figures are not broken into lines."""
_CODE: Final = re.compile("`([^`]+)`")
_MAX_LINES: Final = 29
_NUMBER_SPACE: Final = re.compile(r"(?<=\d) (?=\d{3}(?!\d))")


def render_html(digest: Digest) -> str:
    """A whole document."""
    body = "".join(_section_html(one) for one in digest.sections)
    footer = "".join(f'<p style="margin:0 0 6px;{_SMALL}">{_prose(line)}</p>' for line in digest.footer)
    url = _url(digest)
    link = f'<p style="margin:0 0 6px;{_SMALL}"><a href="{_html(url)}" style="color:#0969da">Open the page</a></p>'
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light"><meta name="supported-color-schemes" content="light">'
        f"<title>{_html(digest.title)}</title></head>"
        '<body style="margin:0;padding:0;background:#f6f8fa">'
        f'<table {_TABLE} bgcolor="#f6f8fa"><tr><td align="center" style="padding:16px 8px">'
        f'<table role="presentation" width="100%" cellpadding="0" cellspacing="0" border="0" bgcolor="#ffffff" '
        f'style="max-width:{_WIDTH}px;background:#ffffff;border:1px solid #d1d9e0;border-radius:6px">'
        f'<tr><td style="padding:20px 20px 4px"><h1 style="margin:0;{_FONT};font-size:20px;line-height:26px;'
        f'color:#1f2328">{_html(digest.title)}</h1></td></tr>{body}'
        f'<tr><td style="padding:16px 20px;{_LINE}">{footer}{link if url else ""}</td></tr>'
        "</table></td></tr></table></body></html>\n"
    )


def _section_html(section: DigestSection) -> str:
    figures = "".join(
        f'<tr><td valign="top" style="padding:5px 12px 5px 0;{_LINE};{_TEXT}">{_html(one.label)}'
        + (f'<br><span style="{_SMALL};word-break:break-word">{_prose(one.note)}</span>' if one.note else "")
        + f'</td><td valign="top" align="right" style="padding:5px 0;{_LINE};{_TEXT};font-weight:600">'
        f"{_html(one.value) if len(one.value) > _SHORT else _html(one.value).replace(' ', '&nbsp;')}</td></tr>"
        for one in section.figures
    )
    table = _table_html(section) if section.rows else ""
    texts = "".join(f'<p style="margin:8px 0 0;{_TEXT};font-size:14px">{_prose(text)}</p>' for text in section.texts)
    return (
        f'<tr><td style="padding:14px 20px 8px"><h2 style="margin:0 0 6px;{_FONT};font-size:16px;line-height:22px;'
        f'color:#1f2328">{_html(section.title)}</h2>'
        + (f"<table {_TABLE}>{figures}</table>" if figures else "")
        + f"{table}{texts}</td></tr>"
    )


def _table_html(section: DigestSection) -> str:
    # With several columns of numbers the names need less room, and long ones are broken.
    first = ' width="34%"' if len(section.head) > 2 else ' width="80%"'

    def cells(tag: str, row: tuple[str, ...], style: str) -> str:
        return "".join(
            f'<{tag} valign="top" align="{"right" if at else "left"}" style="padding:4px 0 4px {8 if at else 0}px;'
            f'{style};{"white-space:nowrap" if at and tag == "td" else "word-break:break-word"}"'
            f"{'' if at or tag == 'td' else first}>{_prose(cell)}</{tag}>"
            for at, cell in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row, f'{_LINE};{_TEXT};font-size:13px')}</tr>" for row in section.rows)
    head = cells("th", section.head, f"{_SMALL};font-weight:600")
    whole = 'width="100%" cellpadding="0" cellspacing="0" border="0" style="margin-top:8px"'
    return f"<table {whole}><tr>{head}</tr>{body}</table>"


def render_text(digest: Digest) -> str:
    """For clients that show no HTML."""
    title = clean(digest.title)
    lines = [title, "=" * len(title), ""]
    for section in digest.sections:
        figures = [(one.label, one.value + (f"  ({clean(one.note)})" if one.note else "")) for one in section.figures]
        table = [section.head, *section.rows] if section.rows else []
        lines += [clean(section.title), "-" * len(section.title)]
        lines += [*_align(figures, str.ljust), *_align(table, str.rjust), *map(clean, section.texts), ""]
    lines += ["--", *map(clean, digest.footer), *([_url(digest)] if digest.page else [])]
    return "\n".join(lines) + "\n"


def _align(rows: Sequence[tuple[str, ...]], align: Callable[[str, int], str]) -> list[str]:
    """Align rows in columns; `align` is for all but the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(align, row[1:], widths[1:])]).rstrip() for row in rows]


def render_lines(digest: Digest) -> list[str]:
    """For chats: a line a section and a line a table's row, as short as they get."""
    lines = []
    for section in digest.sections:
        figures = "; ".join(
            f"{one.label} {one.value}" + (f" ({one.note})" if one.note else "") for one in section.figures
        )
        lines.append(f"{section.title}: {figures}".rstrip())
        for name, *row in section.rows[:5]:
            lines.append(", ".join([name, *map("{} {}".format, section.head[1:], row)]))
        lines += section.texts
    return [*lines[: _MAX_LINES - len(digest.footer)], *digest.footer]


def _url(digest: Digest) -> str:
    return "" if digest.page is None else f"{digest.page.rstrip('/')}/{digest.link}"


def _prose(text: str) -> str:
    """Commands, which stand in backticks, are set as code."""
    return _CODE.sub(r"<code>\1</code>", _html(text))


def _html(text: str) -> str:
    """A number stays in one line, with its percent sign."""
    return _NUMBER_SPACE.sub("&#8239;", escape(clean(text))).replace(" %", "&nbsp;%")
