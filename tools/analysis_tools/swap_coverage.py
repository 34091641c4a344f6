"""Try tools/swap_backbone.py on every config that MMDetection and MMSegmentation ship, and count what comes of it.

Every config is read and its backbone swapped; every model that comes out is built; and of every folder, one model takes
a training step and a test step on random images. Nothing is downloaded. Each attempt has a process of its own, with
limits of time and memory. What is done is kept in results.jsonl: a run that was stopped goes on where it was.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import sys
import time
import traceback
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import torch
from mmengine.config import Config
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from swin_rpe_mm import __version__
from swin_rpe_mm.checkpoints import to_mm_names
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import load_config
from swin_rpe_mm.mm.swap import Swap, SwapRefused, swap_backbone
from swin_rpe_mm.mm.swap.check import CheckFailed, build, check, of_package, prepare
from swin_rpe_mm.models.config import ARCHS
from tools.lib.cli import run_tool, sentence_of

LIBRARIES = ('mmdet', 'mmseg')
STEPS = ('one-per-folder', 'none', 'all')
# What an attempt can end in; the first of each kind is what one hopes for.
SWAPPED, REFUSED, NO_MODEL, UNREADABLE = 'swapped', 'refused', 'no model', 'does not parse'
BUILT, STEPPED, OFFLINE, BEFORE_TOO, FAILED = 'built', 'stepped', 'needs a download', 'fails unswapped too', 'failed'
COLUMNS = ('configs', 'no model', 'does not parse', 'refused', 'failed to swap', 'swapped', 'same weights', 'built',
           'not built', 'failed to build', 'folders stepped', 'not stepped', 'failed to step')


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter)
    parser.add_argument('paths', nargs='*', type=Path, default=[], metavar='PATH',
                        help='folders of configs, or config files; without any, those of the installed libraries')
    parser.add_argument('--out', type=Path, default='work_dirs/swap_coverage',
                        help='folder for results.jsonl, coverage.json and coverage.md')
    parser.add_argument('--arch', choices=list(ARCHS),
                        help="backbone; without it the swap's own: tiny, and a Swin's own sizes")
    parser.add_argument('--step', choices=STEPS, default=STEPS[0], help='which models take a training and a test step')
    parser.add_argument('--jobs', type=int, default=1, help='attempts at the same time, with one thread each')
    parser.add_argument('--time-limit', type=float, default=300, metavar='SECONDS', help='for each attempt')
    parser.add_argument('--memory-limit', type=float, default=12, metavar='GB', help='for each attempt')
    parser.add_argument('--retry-failed', action='store_true', help='forget the attempts that failed, and repeat them')
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    for name in ('jobs', 'time_limit', 'memory_limit'):
        if getattr(args, name) <= 0:
            raise InputError(f'--{name.replace("_", "-")} must be above 0, got {getattr(args, name)}')
    sources = find_sources(args.paths)
    results = Results(args.out / 'results.jsonl', dict(version=__version__, arch=args.arch), args.retry_failed)
    run_all('swap', [source for source in sources if results.swap_of(source) is None], results, args)
    run_all('build', to_build(sources, results), results, args)
    run_all('step', to_step(sources, results, args.step), results, args)
    coverage = summarise(sources, results)
    write_text(args.out / 'coverage.json', json.dumps(coverage, indent=1) + '\n')
    write_text(args.out / 'coverage.md', markdown(coverage))
    print_table(coverage)
    print(f'written: {args.out / "coverage.md"}')


# ---- which configs


@dataclass(frozen=True)
class Source:
    """A config: its library, its path there, and where that is. The first part of the path is its folder."""
    library: str
    path: str
    file: str

    @property
    def name(self) -> str:
        return f'{self.library}/{self.path}'

    @property
    def folder(self) -> str:
        return f'{self.library}/{self.path.partition("/")[0]}'


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Every config below the paths, without what other configs are made of (``_base_``)."""
    sources = []
    for root in paths or installed_configs():
        if not root.exists():
            raise InputError(f'{root} does not exist: name a folder of configs or a config file')
        files = [root] if root.is_file() else sorted(root.rglob('*.py'))
        library, top = library_of(root)
        paths_there = ((file, file.absolute().relative_to(top)) for file in files)
        sources += [Source(library, there.as_posix(), str(file.absolute())) for file, there in paths_there
                    if '_base_' not in there.parts]
    if not sources:
        raise InputError(f'there are no configs in {", ".join(map(str, paths))}')
    return sources


def library_of(root: Path) -> tuple[str, Path]:
    """The library that a folder of configs belongs to, and where the library's configs begin."""
    root = root.absolute()
    for folder in (root, *root.parents):
        if folder.name == 'configs' and folder.parent.name == '.mim':
            return folder.parent.parent.name, folder
    top = root.parent if root.is_file() else root
    return top.name, top


def installed_configs() -> list[Path]:
    """Where pip put the configs of the libraries."""
    roots = [Path(spec.submodule_search_locations[0], '.mim', 'configs')
             for spec in map(find_spec, LIBRARIES) if spec is not None]
    roots = [root for root in roots if root.is_dir()]
    if not roots:
        raise InputError('neither MMDetection nor MMSegmentation is installed with its configs: name a folder of them')
    return roots


# ---- results


class Results:
    """One JSON object per line, each written in one go: first the settings, then one per attempt.

    Args:
        path (Path): The file; a line that was cut off is forgotten.
        settings (dict): What the results depend on.
        retry_failed (bool): Whether to forget failures.

    Raises:
        InputError: If the file is of other settings, or no such file.
    """

    def __init__(self, path: Path, settings: dict, retry_failed: bool):
        self.path, self.records = path, []
        lines = path.read_bytes().split(b'\n')[:-1] if path.is_file() else []
        try:
            found, *self.records = map(json.loads, lines) if lines else [settings]
        except ValueError:
            raise InputError(f'{path} is no file that this tool has written: name another --out') from None
        if found != settings:
            raise InputError(f'{path} holds results for other settings, {found}: name another --out')
        if retry_failed:
            self.records = [record for record in self.records if record['outcome'] != FAILED]
        write_text(path, ''.join(json.dumps(line) + '\n' for line in (settings, *self.records)))

    def add(self, record: dict) -> None:
        self.records.append(record)
        with self.path.open('ab', buffering=0) as file:
            file.write(json.dumps(record).encode() + b'\n')

    def swap_of(self, source: Source) -> dict | None:
        return next((r for r in self.records if r['attempt'] == 'swap' and r['config'] == source.name), None)

    def of_model(self, attempt: str, model: str) -> dict | None:
        return next((r for r in self.records if r['attempt'] == attempt and r['model'] == model), None)


def write_text(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f'{path.name}.partial')
    partial.write_text(text)
    os.replace(partial, path)


def swapped_models(sources: Iterable[Source], results: Results) -> dict[str, list[Source]]:
    """The configs of every model that came out of a swap; many share one."""
    models: dict[str, list[Source]] = {}
    for source in sources:
        record = results.swap_of(source)
        if record and record['outcome'] == SWAPPED:
            models.setdefault(record['model'], []).append(source)
    return models


def to_build(sources: Iterable[Source], results: Results) -> list[Source]:
    return [same[0] for model, same in swapped_models(sources, results).items() if not results.of_model('build', model)]


def to_step(sources: Iterable[Source], results: Results, which: str) -> list[Source]:
    """Of every folder the smallest model that was built, or all of them, unless they are done."""
    folders: dict[str, list[tuple[int, str]]] = {}
    representatives = {}
    for model, same in swapped_models(sources, results).items():
        record = results.of_model('build', model)
        if record and record['outcome'] == BUILT:
            representatives[model] = same[0]
            for folder in {source.folder for source in same}:
                folders.setdefault(folder, []).append((record['numbers'], model))
    wanted = dict(none=[], all=representatives)
    wanted[STEPS[0]] = dict.fromkeys(min(models)[1] for models in folders.values())
    return [representatives[model] for model in wanted[which] if not results.of_model('step', model)]


# ---- attempts


def run_all(attempt: str, sources: Sequence[Source], results: Results, args: Namespace) -> None:
    """Attempt the same with all ``sources``, and note the results as they come."""
    if not sources:
        return
    columns = (TextColumn('{task.description:6}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn(), TextColumn('{task.fields[last]}'))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task(attempt, total=len(sources), last='')
        for source, record in in_processes(attempt, sources, args):
            model = (results.swap_of(source) or {}).get('model')
            results.add({'attempt': attempt, 'config': source.name, 'model': model, **record})
            progress.update(bar, advance=1, last=f'{source.name}: {record["outcome"]}')


def in_processes(attempt: str, sources: Iterable[Source], args: Namespace) -> Iterator[tuple[Source, dict]]:
    """Run attempts in processes of their own, ``args.jobs`` at a time; yield each with how it ended.

    They are forked from a process that has imported everything, so that each takes but a moment to start.
    """
    context = get_context('forkserver')
    context.set_forkserver_preload(['mmdet.models', 'mmseg.models', 'swin_rpe_mm.mm.swap.check'])
    running, waiting = {}, iter(sources)
    first = context.Process(target=int)  # waits for the imports, which count for no attempt
    first.start()
    first.join()
    try:
        while True:
            while len(running) < args.jobs and (source := next(waiting, None)):
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=try_one, args=(theirs, attempt, source.file, args.arch,
                                                                args.memory_limit), daemon=True)
                process.start()
                theirs.close()
                running[source] = (process, mine, time.monotonic())
            if not running:
                return
            wait([process.sentinel for process, _, _ in running.values()], timeout=1)
            for source, (process, pipe, start) in list(running.items()):
                seconds = time.monotonic() - start
                if process.is_alive() and seconds < args.time_limit:
                    continue
                record = ending(process, pipe, args.time_limit)
                del running[source]
                yield source, {**record, 'seconds': round(seconds, 2)}
    finally:
        for process, _, _ in running.values():
            process.kill()


def ending(process, pipe, limit: float) -> dict:
    """What a process has sent; or what became of it."""
    late = process.is_alive() and not pipe.poll()
    if late:
        process.kill()
    process.join()
    try:
        return dict(outcome=FAILED, reason=f'took longer than {limit:g} s') if late else pipe.recv()
    except EOFError:
        return dict(outcome=FAILED, reason=f'the process ended with status {process.exitcode}')


def try_one(pipe, attempt: str, file: str, arch: str | None, gigabytes: float) -> None:
    """Make an attempt in a process of its own, and send how it ended."""
    limit = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(1)
    os.environ.update(HF_HUB_OFFLINE='1')
    sys.stdout = sys.stderr = open(os.devnull, 'w')
    try:
        record = dict(swap=try_swap, build=try_build, step=try_step)[attempt](file, arch)
    except SwapRefused as error:
        record = dict(outcome=REFUSED, reason=str(error))
    except Exception as error:
        record = dict(outcome=FAILED, reason=in_one_line(error), traceback=traceback.format_exc()[-6000:])
    pipe.send(record)


def try_swap(file: str, arch: str | None) -> dict:
    try:
        cfg = load_config(file)
    except Exception as error:
        return dict(outcome=UNREADABLE, reason=what_is_missing(error))
    if cfg.get('model') is None:
        return dict(outcome=NO_MODEL)
    swap = swap_backbone(cfg, arch=arch)
    content = json.dumps(swap.cfg.model.to_dict(), sort_keys=True, default=str)
    model = hashlib.sha1(content.encode()).hexdigest()[:12]
    return dict(outcome=SWAPPED, model=model, keeps_weights=swap.keeps_weights)


def try_build(file: str, arch: str | None) -> dict:
    """Build the model; where checkpoints are to stay, its weights must have mm's names and the source's shapes."""
    swap = swap_backbone(load_config(file), arch=arch)
    try:
        shapes = shapes_of(swap.cfg)
    except Exception as error:
        return unswapped_too(error, swap, shapes_of)
    record = dict(outcome=BUILT, numbers=sum(shape.numel() for shape in shapes.values()))
    if swap.keeps_weights:
        before = shapes_of(swap.source)
        if before != shapes:
            names = sorted(name for name in {*before, *shapes} if before.get(name) != shapes.get(name))
            raise ValueError(f'{len(names)} weights differ from those of the source, such as {names[0]}')
    return record


def try_step(file: str, arch: str | None) -> dict:
    swap = swap_backbone(load_config(file), arch=arch)
    try:
        result = check(swap.cfg)
    except CheckFailed as error:
        return unswapped_too(error, swap, check)
    return dict(outcome=STEPPED, losses=result.losses, predictions=result.predictions, parameters=result.parameters)


def unswapped_too(error: Exception, swap: Swap, attempt) -> dict:
    """Whether the same goes wrong with the backbone that the config had; if not, ``error`` is raised again."""
    if isinstance(error, InputError):
        return dict(outcome=OFFLINE, reason=in_one_line(error))
    try:
        attempt(swap.source)
    except Exception as own:
        if getattr(own, 'step', None) == getattr(error, 'step', None):
            return dict(outcome=BEFORE_TOO, reason=in_one_line(error), source=in_one_line(own))
    raise error


def shapes_of(cfg: Config) -> dict[str, torch.Size]:
    """Names in mm and shapes of the weights of a config's model.

    The index that other Swins store with their tables says nothing that the window does not.
    """
    cfg = prepare(cfg)
    with of_package(cfg):
        weights = build(cfg).state_dict()
    return {name: value.shape for name, value in to_mm_names(weights, weights._metadata).items()
            if not name.endswith('.relative_position_index')}


def in_one_line(error: BaseException) -> str:
    return sentence_of(error) or ' '.join(f'{type(error).__name__}: {error}'.split())[:300]


def what_is_missing(error: BaseException) -> str:
    """Why a config cannot be read: the module that is not installed, or the file that is not there."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return f'needs {error.name.partition(".")[0]}'
        missing = re.search(r"imports': \[?'(\w+)|(\w+) is not installed", str(error))
        if missing:
            return f'needs {missing[1] or missing[2]}'
        last, error = error, error.__cause__ or error.__context__
    return in_one_line(last)


# ---- tables


def summarise(sources: Sequence[Source], results: Results) -> dict:
    """Counts per library, reasons with the number of configs, and what became of every config."""
    coverage = dict(settings=dict(version=__version__), libraries={}, configs={})
    for library in dict.fromkeys(source.library for source in sources):
        own = [source for source in sources if source.library == library]
        coverage['libraries'][library] = summarise_library(own, results, coverage['configs'])
    return coverage


def summarise_library(sources: Sequence[Source], results: Results, configs: dict) -> dict:
    counts, reasons, stepped = Counter(configs=len(sources)), Counter(), {}
    for source in sources:
        swap = results.swap_of(source) or dict(outcome='not tried', model=None)
        build, step = ({}, {})
        if swap['outcome'] == SWAPPED:
            build = results.of_model('build', swap['model']) or {}
            step = results.of_model('step', swap['model']) or {}
            counts['same weights'] += swap['keeps_weights'] and build.get('outcome') == BUILT
        counts[dict([(FAILED, 'failed to swap')]).get(swap['outcome'], swap['outcome'])] += 1
        counts[{BUILT: 'built', FAILED: 'failed to build'}.get(build.get('outcome'), 'not built')] += bool(build)
        if step:
            stepped.setdefault(source.folder, []).append(step['outcome'])
        row = configs[source.name] = dict(swap=swap['outcome'])
        for attempt, record in dict(swap=swap, build=build, step=step).items():
            if record:
                row[attempt] = record['outcome']
            if record.get('config', source.name) != source.name:
                row[f'{attempt} of'] = record['config']
            if record.get('reason'):
                row['reason'] = record['reason']
                if record.get('config') == source.name or attempt != 'step':
                    reasons[attempt, record['outcome'], record['reason']] += 1
    for outcomes in stepped.values():
        kind = 'failed to step' if FAILED in outcomes else 'folders stepped' if STEPPED in outcomes else 'not stepped'
        counts[kind] += 1
    return dict(counts={name: counts[name] for name in COLUMNS},
                reasons=[dict(attempt=a, outcome=o, reason=r, configs=n) for (a, o, r), n in reasons.most_common()])


def markdown(coverage: dict) -> str:
    """The counts, one row per library, then the reasons."""
    lines = ['# Coverage of the swap', '', f'| library | {" | ".join(COLUMNS)} |', '|---|' + '---:|' * len(COLUMNS)]
    for library, found in coverage['libraries'].items():
        lines.append(f'| {library} | {" | ".join(str(found["counts"][name]) for name in COLUMNS)} |')
    lines += ['', 'Configs that share a model are built once: *built* counts them all. Of each folder one model takes '
              'a training and a test step, unless all were asked for.']
    for library, found in coverage['libraries'].items():
        lines += ['', f'## {library}', '', '| configs | attempt | outcome | reason |', '|---:|---|---|---|']
        for row in found['reasons']:
            reason = row['reason'].replace('|', '\\|')
            lines.append(f'| {row["configs"]} | {row["attempt"]} | {row["outcome"]} | {reason} |')
    return '\n'.join(lines) + '\n'


def print_table(coverage: dict) -> None:
    shown = Table('', *coverage['libraries'], title='Coverage of the swap')
    for name in COLUMNS:
        shown.add_row(name, *(str(found['counts'][name]) for found in coverage['libraries'].values()))
    Console(width=120).print(shown)


if __name__ == '__main__':
    run_tool(main)
