"""Measure time and memory of SwinRPE against the Swin and SwinV2 of other projects, all as backbones of the same
architecture with random weights.

All contestants take turns in every round; a ratio is the median of the rounds' own. Inference is also held against the
matrix products alone, without anything between them: no Swin can be faster. How peers are built, and what is counted,
stands in swin_rpe_mm/engine/benchmark. Examples:

  python tools/analysis_tools/benchmark.py --sizes 800x1344 --mode both --memory --variant halo halo=window
  python tools/analysis_tools/benchmark.py --batch-of 800x1333 1333x800 640x960 800x800 --peers mmdet timm
  python tools/analysis_tools/benchmark.py --preset gpu --out gpu.json gpu.md
"""
from __future__ import annotations

import json
from argparse import Action, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from mmengine.config import Config, DictAction
from tqdm import tqdm

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.configs import load_config, require, type_name
from swin_rpe_mm.whole_files import WholeFileBackend
from tools.lib.benchmark import report, studies
from tools.lib.benchmark.cases import DTYPES, PATCH, Case, Numbers, read_sizes
from tools.lib.benchmark.contestants import PEERS, Architecture, Contestant, select_peers
from tools.lib.benchmark.machine import describe
from tools.lib.benchmark.memory import check_memory, median_peak
from tools.lib.benchmark.timing import median_ratio, race
from tools.lib.benchmark.yardsticks import yardsticks
from tools.lib.cli import run_tool

OURS = 'SwinRPE'
REFERENCE = 'mmdet'  # where it takes part
SIZE = '800x1344'
MODES = ('inference', 'training')
PRESETS = {
    # a training step and inference as on a GPU in practice, with what bounds them, in a few minutes
    'gpu': dict(device='cuda', peers=['mmdet'], sizes=[SIZE], batch=8, dtype='bfloat16', autocast=True, mode='both',
                memory=True, floor=True, repeats=20),
}


class OptionsAction(DictAction):
    """``--options KEY=VALUE ...``."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: list[str], option_string=None) -> None:
        if not values or not all('=' in value for value in values):
            parser.error(f'{option_string} needs KEY=VALUE, got {" ".join(values) or "nothing"}')
        super().__call__(parser, namespace, values, option_string)


class VariantAction(Action):
    """``--variant NAME KEY=VALUE ...``, any number of times."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: list[str], option_string=None) -> None:
        name, *options = values
        if '=' in name:
            parser.error(f'{option_string} needs a name first, then KEY=VALUE, got {" ".join(values)}')
        found = Namespace(options=None)
        OptionsAction([], 'options')(parser, found, options, f'{option_string} {name}')
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: found.options})


def parse_args(argv: Sequence[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    who = parser.add_argument_group('who takes part')
    who.add_argument('config', nargs='?', help='config whose model.backbone is measured; default: --arch')
    who.add_argument('--arch', help="SwinRPE's arch: nano, tiny, small, base, large, or v2-nano and so on; default: "
                     'tiny')
    who.add_argument('--options', nargs='+', action=OptionsAction, metavar='KEY=VALUE',
                     help='arguments of SwinRPE, such as rpe.type=LogCPB halo=window; quote lists')
    who.add_argument('--variant', nargs='+', action=VariantAction, dest='variants', metavar=('NAME', 'KEY=VALUE'),
                     help='one more SwinRPE, with these arguments changed; may be given several times')
    who.add_argument('--peers', nargs='*', default=list(PEERS), metavar='PEER',
                     help=f'of {", ".join(PEERS)}; default: all of them that can be imported; none: only SwinRPE')
    who.add_argument('--with-cp', action='store_true', help='activation checkpointing; peers without it are left out')
    what = parser.add_argument_group('on what')
    what.add_argument('--sizes', nargs='+', metavar='HxW', help=f'in pixels, one after the other; default: {SIZE}')
    what.add_argument('--batch', type=int, default=1, help='images of each size; default: %(default)s')
    what.add_argument('--batch-of', nargs='+', metavar='HxW',
                      help='images of these sizes padded to one batch; only SwinRPE is told their extents')
    what.add_argument('--scaling', nargs='*', type=float, metavar='MP',
                      help='inference at several sizes of a square image, in megapixels; default: '
                      f'{" ".join(map(str, studies.MEGAPIXELS))}')
    what.add_argument('--fresh-sizes', type=int, metavar='N',
                      help='inference at N sizes never seen before, from half the first of --sizes to all of it, and '
                      'each once more; peers that are made for one size are left out')
    how = parser.add_argument_group('how')
    how.add_argument('--preset', choices=list(PRESETS), help='gpu: inference and training step of a batch of 8 in '
                     'bfloat16 against mmdet on a GPU, with memory and the bandwidth floor; options still override it')
    how.add_argument('--mode', choices=[*MODES, 'both'], default='inference',
                     help='training is a forward and a backward pass; default: %(default)s')
    how.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='default: %(default)s')
    how.add_argument('--dtype', choices=list(DTYPES), default='float32', help='default: %(default)s')
    how.add_argument('--autocast', action='store_true', help='weights in float32, computing in --dtype where PyTorch '
                     'thinks it safe')
    how.add_argument('--compile', action='store_true', help='torch.compile every contestant')
    how.add_argument('--threads', type=int, default=torch.get_num_threads(), help='default: %(default)s')
    how.add_argument('--repeats', type=int, default=7, help='rounds; default: %(default)s')
    how.add_argument('--memory', action='store_true', help='also measure the peak of memory above weights and images, '
                     'each in a process of its own')
    how.add_argument('--floor', action='store_true', help='also measure the time that the least possible traffic of '
                     'the blocks takes at the speed of a copy')
    how.add_argument('--out', nargs='+', type=Path, default=[], metavar='FILE', help='files to write, .json or .md')
    preset = parser.parse_known_args(argv)[0].preset
    parser.set_defaults(**PRESETS.get(preset, {}))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict:
    """Measure, print and write; return what is written as JSON."""
    args = parse_args(argv)
    check(args)
    numbers = Numbers(args.device, args.dtype, args.autocast, args.compile, args.threads)
    torch.set_num_threads(args.threads)
    modes = MODES if args.mode == 'both' else (args.mode, )
    ours = backbones(args)
    architecture = Architecture.of(ours[OURS].backbone)
    cases, fresh = batches(args)
    present, absent = select_peers(args.peers, architecture, numbers, modes)
    contestants = [*ours.values(), *present]
    others = [c.name for c in present] or [OURS]
    reference = REFERENCE if REFERENCE in others else others[0]
    settings = {key: value for key, value in vars(args).items() if key != 'out'}
    results = dict(settings=settings, machine=describe(numbers, [c.name for c in present]), absent=absent,
                   reference=reference, cases=[])
    for case in cases:
        for mode in modes:
            results['cases'].append(measure(case, mode, contestants, architecture, numbers, args, reference))
    if args.scaling is not None:
        sizes = list(dict.fromkeys(map(studies.square, args.scaling or studies.MEGAPIXELS)))
        results['scaling'] = studies.scaling(contestants, sizes, args.repeats, numbers)
    if fresh:
        results['fresh_sizes'] = studies.fresh_sizes(contestants, fresh, numbers)
    report.show(results)
    for path in args.out:
        text = json.dumps(results, indent=1) if path.suffix == '.json' else report.markdown(results)
        WholeFileBackend().put(text.encode(), path)
        print(f'written: {path}')
    return results


def check(args: Namespace) -> None:
    """Raise :class:`InputError` for arguments that cannot be."""
    for name in ('batch', 'threads', 'repeats', 'fresh_sizes'):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise InputError(f'--{name.replace("_", "-")} must be at least 1, got {value}')
    if args.config and args.arch:
        raise InputError(f'CONFIG and --arch cannot both be given, got {args.config} and {args.arch}')
    if args.scaling and (min(args.scaling) <= 0 or len(set(map(studies.square, args.scaling))) < 2):
        raise InputError(f'--scaling must be at least two different positive sizes in megapixels, got {args.scaling}')
    for name in args.peers:
        if name not in PEERS:
            raise InputError(f'--peers must be of {", ".join(PEERS)}; got {name}')
    for path in args.out:
        if path.suffix not in ('.json', '.md'):
            raise InputError(f'--out must end in .json or .md, got {path}')
    if args.autocast and args.dtype == 'float32':
        raise InputError('--autocast needs --dtype bfloat16 or float16, got float32')
    if args.device == 'cuda' and not torch.cuda.is_available():
        source = f'--preset {args.preset}' if args.preset else '--device cuda'
        raise InputError(f'{source} needs a GPU, and PyTorch finds none here')
    if args.memory or args.fresh_sizes:
        check_memory(Numbers(args.device, args.dtype, args.autocast, args.compile, args.threads))


def backbones(args: Namespace) -> dict[str, Contestant]:
    """SwinRPE as asked for, and its variants."""
    if args.config:
        cfg = load_config(args.config)
        require(cfg, 'model')
        base = cfg.model.get('backbone') or {}
        if type_name(base) != 'SwinRPE':
            raise InputError(f'{args.config} has the backbone {type_name(base) or None}; this tool needs SwinRPE')
        base = {key: value for key, value in base.items() if key not in ('type', 'init_cfg', 'pretrained')}
    else:
        base = dict(arch=args.arch or 'tiny')
    if args.with_cp:
        base['with_cp'] = True
    found = {}
    for name, options in {OURS: {}, **(args.variants or {})}.items():
        if name in PEERS or name in found:
            raise InputError(f'--variant must have a name that no other contestant has, got {name}')
        cfg = Config(dict(backbone=base))
        cfg.merge_from_dict({f'backbone.{key}': value for key, value in {**(args.options or {}), **options}.items()})
        backbone = cfg.backbone.to_dict()
        try:
            SwinRPE(**backbone)
        except TypeError as error:
            raise InputError(f'{name}: {error}') from error
        found[name] = Contestant(name, backbone, Architecture.of(backbone))
    return found


def batches(args: Namespace) -> tuple[list[Case], list[Case]]:
    """What is timed, and what is never seen before; a study alone needs no other sizes."""
    is_study = args.scaling is not None or args.fresh_sizes
    texts = args.sizes or ([] if args.batch_of or is_study else [SIZE])
    cases = [Case.of_size(size, args.batch) for size in read_sizes('--sizes', texts, PATCH)]
    if args.batch_of:
        cases.append(Case.of_images(read_sizes('--batch-of', args.batch_of)))
    fresh = []
    if args.fresh_sizes:
        largest = read_sizes('--sizes', args.sizes or [SIZE], PATCH)[0]
        fresh = studies.fresh_cases(args.fresh_sizes, largest)
        if len(fresh) < args.fresh_sizes:
            raise InputError(f'--fresh-sizes must be at most {len(fresh)}, as many sizes in tokens as there are up to '
                             f'the first of --sizes, got {args.fresh_sizes}')
    return cases, fresh


def measure(case: Case, mode: str, contestants: Sequence[Contestant], architecture: Architecture, numbers: Numbers,
            args: Namespace, reference: str) -> dict:
    """One batch in one mode: all contestants and, at inference, what bounds them."""
    torch.compiler.reset()  # what was compiled for other sizes counts against a limit
    steps = {c.name: c.step(c.build(case, numbers), case, numbers, mode) for c in contestants}
    bounds = yardsticks(architecture, case, numbers, args.floor) if mode == 'inference' else {}
    steps.update({name: step for name, (step, _) in bounds.items()})
    seconds = race(steps, args.repeats, numbers, f'{mode}, {case}')
    for name, (_, factor) in bounds.items():
        seconds[name] = [taken * factor for taken in seconds[name]]
    rows = {}
    for name, times in seconds.items():
        ratios = {other: median_ratio(times, seconds[other]) for other in (reference, *bounds)}
        rows[name] = dict(seconds=times, median=median(times), min=min(times), max=max(times), ratios=ratios)
    if args.memory:
        for contestant in tqdm(contestants, desc=f'memory of {mode}, {case}', leave=False, disable=None):
            rows[contestant.name]['peak_bytes'] = median_peak(contestant, case, numbers, mode)
    name = Path(args.config).stem if args.config else contestants[0].backbone.get('arch', 'tiny')
    title = f'{name}, {args.dtype}'
    title += ' autocast' * args.autocast + ' compiled' * args.compile + ' with_cp' * args.with_cp
    return dict(title=title, batch=str(case), mode=mode, rows=rows)


if __name__ == '__main__':
    run_tool(main)
