"""Results as tables, for the screen and as Markdown."""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tools.lib.benchmark.yardsticks import FLOOR, PRODUCTS, READY

_SHORT = {PRODUCTS: 'products', READY: 'ready products', FLOOR: 'ideal traffic'}


class Sheet(NamedTuple):
    """A table with a title; the first column is text, the others are numbers."""
    title: str
    columns: list[str]
    rows: list[list[str]]


def sheets(results: dict) -> Iterator[Sheet]:
    """All tables of some results."""
    for measured in results['cases']:
        yield _times(measured)
    if 'scaling' in results:
        yield _scaling(results['scaling'])
    if 'fresh_sizes' in results:
        yield _fresh(results['fresh_sizes'])


def show(results: dict) -> None:
    console = Console(width=140)
    for name, reason in results['absent'].items():
        console.print(f'not compared: {name}: {reason}', highlight=False, markup=False)
    for sheet in sheets(results):
        table = Table(sheet.columns[0], title=sheet.title, title_justify='left')
        for column in sheet.columns[1:]:
            table.add_column(column, justify='right')
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    console.print('; '.join(f'{name} {value}' for name, value in results['machine'].items()), highlight=False,
                  markup=False)


def markdown(results: dict) -> str:
    lines = []
    for sheet in sheets(results):
        lines += [f'**{sheet.title}**', '', _line(sheet.columns), '|---|' + '---:|' * (len(sheet.columns) - 1),
                  *map(_line, sheet.rows), '']
    lines += [f'Not compared: {name}, {reason}.' for name, reason in results['absent'].items()]
    lines += ['', '| machine | |', '|---|---|', *(_line([name, value]) for name, value in results['machine'].items())]
    return '\n'.join(lines) + '\n'


def _line(cells: list[str]) -> str:
    return '| ' + ' | '.join(cells) + ' |'


def _times(measured: dict) -> Sheet:
    """Least to most, as a share of other rows, and memory where it was measured."""
    rows = measured['rows']
    others = list(next(iter(rows.values()))['ratios'])
    has_memory = any('peak_bytes' in row for row in rows.values())
    columns = [measured['mode'], 'median', 'least .. most', *(f'/ {_SHORT.get(other, other)}' for other in others)]
    columns += ['memory'] * has_memory
    lines = []
    for name, row in rows.items():
        cells = [name, _seconds(row['median']), f'{_seconds(row["min"])} .. {_seconds(row["max"])}',
                 *(f'{row["ratios"][other]:.3f}' for other in others)]
        if has_memory:
            cells.append(_megabytes(row['peak_bytes']) if 'peak_bytes' in row else '')
        lines.append(cells)
    return Sheet(f'{measured["title"]}, {measured["batch"]}', columns, lines)


def _scaling(found: dict) -> Sheet:
    columns = ['inference', *('x'.join(map(str, size)) for size in found['sizes']), 'power of pixels']
    return Sheet('Time against size', columns, [
        [name, *map(_seconds, times), f'{found["power"][name]:.3f}'] for name, times in found['seconds'].items()])


def _fresh(found: dict[str, dict]) -> Sheet:
    number = len(next(iter(found.values()))['fresh']) if found else 0
    after = sorted({1, -(-number // 2), number})
    columns = ['inference', 'new size', 'again', 'new / again', *(f'taken after {count}' for count in after),
               *(f'kept after {count}' for count in after)]
    rows = []
    for name, result in found.items():
        middle = {kind: sorted(result[kind])[number // 2] for kind in ('fresh', 'seen')}
        rows.append([name, _seconds(middle['fresh']), _seconds(middle['seen']), f'{result["ratio"]:.3f}',
                     *(_megabytes(result[kind][count - 1]) for kind in ('taken', 'kept') for count in after)])
    return Sheet(f'{number} sizes never seen before', columns, rows)


def _seconds(value: float) -> str:
    return f'{value:.3f} s' if value >= 1 else f'{1000 * value:.2f} ms'


def _megabytes(value: int | None) -> str:
    return 'out of memory' if value is None else f'{value / 2**20:.1f} MiB'
