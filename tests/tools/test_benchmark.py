"""The benchmark: everybody does the same work, its figures are what they say, and what is missing is named."""
import json
import os
from dataclasses import replace
from statistics import median

import pytest
import torch
from tiny import load_tool
from torch.utils.flop_counter import FlopCounterMode

from swin_rpe_mm import get_extents
from swin_rpe_mm.errors import InputError
from tools.lib import peers
from tools.lib.benchmark import studies
from tools.lib.benchmark.cases import Case, Numbers
from tools.lib.benchmark.contestants import PEERS, SMALL, Architecture, Contestant, select_peers
from tools.lib.benchmark.memory import in_own_process, peak_of
from tools.lib.benchmark.timing import race
from tools.lib.benchmark.yardsticks import FLOOR, PRODUCTS, READY, Copy, Products, ideal_traffic, linear_shapes

FLOAT32 = Numbers('cpu', 'float32', False, False, 1)
BFLOAT16 = Numbers('cpu', 'bfloat16', True, False, 1)
NANO = Architecture.of(dict(arch='nano'))
OURS = Contestant('SwinRPE', dict(arch='nano'), NANO)


@pytest.fixture(scope='module')
def tool():
    return load_tool('analysis_tools/benchmark')


@pytest.fixture
def run(tool, tmp_path):
    """``run(*args)`` measures with the smallest arch and two rounds on one thread."""
    return lambda *args: tool(['--arch', 'nano', '--repeats', '2', '--threads', '1', *map(str, args)])


def test_tables_and_files(run, tmp_path, capsys):
    files = tmp_path / 'made/b.json', tmp_path / 'made/b.md'
    results = run('--peers', 'mmseg', '--sizes', '64x96', '--batch', 2, '--batch-of', '50x70', '64x40', '--mode',
                  'both', '--floor', '--variant', 'wide halo', 'halo=window', 'rpe.type=LogCPB', '--out', *files)
    written = json.loads(files[0].read_text())
    assert written == json.loads(json.dumps(results, default=str))
    assert [(case['batch'], case['mode']) for case in written['cases']] == [
        ('2 x 64x96', 'inference'), ('2 x 64x96', 'training'),
        ('2 in 64x96: 50x70 64x40', 'inference'), ('2 in 64x96: 50x70 64x40', 'training')]
    for case in written['cases']:
        yards = [PRODUCTS, READY, FLOOR] if case['mode'] == 'inference' else []
        rows = case['rows']
        assert list(rows) == ['SwinRPE', 'wide halo', 'mmseg', *yards]
        for row in rows.values():
            times = row['seconds']
            assert len(times) == 2 and min(times) > 0
            assert (row['median'], row['min'], row['max']) == (median(times), min(times), max(times))
            assert list(row['ratios']) == ['mmseg', *yards]
            for other, ratio in row['ratios'].items():
                assert ratio == pytest.approx(median(a / b for a, b in zip(times, rows[other]['seconds'])))
    markdown, printed = files[1].read_text(), capsys.readouterr().out
    for case in written['cases']:
        for name, row in case['rows'].items():
            cells = ' | '.join(f'{ratio:.3f}' for ratio in row['ratios'].values())
            lines = [line for line in markdown.splitlines() if line.startswith(f'| {name} |')]
            assert any(line.endswith(f' | {cells} |') for line in lines)
        assert f'nano, float32, {case["batch"]}' in markdown and f'nano, float32, {case["batch"]}' in printed
    assert f'| mmseg | {peers.version_of("mmseg")} |' in markdown and f'| PyTorch | {torch.__version__} |' in markdown
    assert str(files[1]) in printed


def test_a_missing_peer_is_named(run, tmp_path, monkeypatch, capsys):
    """So is one that has no such architecture, or cannot compute in that type."""
    with monkeypatch.context() as patch:
        patch.setattr(peers, 'FOLDER', tmp_path)
        patch.setattr(peers, '_is_found', lambda package: package != 'transformers')
        results = run('--peers', 'transformers', 'mmseg', '--sizes', '64x64', '--out', tmp_path / 'b.md')
    reason = 'transformers is neither installed nor in .venv/peers, where make setup puts it'
    assert results['absent'] == dict(transformers=reason)
    assert f'not compared: transformers: {reason}' in capsys.readouterr().out
    assert f'Not compared: transformers, {reason}.' in (tmp_path / 'b.md').read_text()
    for architecture, numbers, reason in [
            (replace(NANO, version=2), FLOAT32, 'mmseg has no SwinV2'),
            (replace(NANO, window=(4, 7)), FLOAT32, r'mmseg is compared at one square window only, and it is \(4, 7\)'),
            (NANO, replace(BFLOAT16, autocast=False), 'expected .* same dtype.*')]:
        present, absent = select_peers(['mmseg'], architecture, numbers, ['inference'])
        assert present == [] and '\n' not in absent['mmseg']
        pytest.raises(InputError, _raise, absent['mmseg']).match(f'^{reason}$')


def _raise(sentence: str):
    raise InputError(sentence)


@pytest.mark.parametrize('numbers', [FLOAT32, BFLOAT16], ids=['float32', 'autocast'])
@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
def test_all_give_the_same_maps(arch, numbers):
    """Of every size, also of one that is in no way a multiple of the window."""
    architecture = Architecture.of(dict(arch=arch, depths=(1, 2, 1, 1)))
    present, absent = select_peers(list(PEERS), architecture, numbers, ['training'])
    assert all('neither installed' in reason or 'has no SwinV2' in reason or 'cannot be imported' in reason
               for reason in absent.values())
    ours = Contestant('SwinRPE', dict(arch=arch, depths=(1, 2, 1, 1)), architecture)
    for case in (Case.of_size((100, 76)), Case.of_images([(33, 64), (64, 50)])):
        shapes = {peer.name: [tuple(found.shape) for found in
                              peer.step(peer.build(case, numbers), case, numbers, 'inference')()]
                  for peer in (ours, *present)}
        steps = [tuple(-(-side // (4 * 2**i)) for side in case.size) for i in range(4)]
        wanted = [(len(case.extents), 32 * 2**i, *steps[i]) for i in range(4)]
        assert shapes == dict.fromkeys(shapes, wanted)


@pytest.mark.parametrize('name', PEERS)
def test_peers_have_the_same_weights(name):
    """But for output norms and, in some, absolute tables of indices: the numbers of linear layers are the same."""
    def sizes(contestant: Contestant) -> list[tuple[int, ...]]:
        model = contestant.build(SMALL, FLOAT32)
        return sorted(tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() >= 2)

    present, absent = select_peers([name], NANO, FLOAT32, ['inference'])
    if absent:
        pytest.skip(absent[name])
    ours, theirs = sizes(OURS), sizes(present[0])
    if name == 'transformers':  # q, k and v apart
        count = sum(a * b for a, b in (shape for shape in ours if len(shape) == 2))
        assert sum(a * b for a, b in (shape for shape in theirs if len(shape) == 2)) == count
    else:
        assert theirs == ours


def test_only_swinrpe_is_told_the_extents():
    case = Case.of_images([(50, 70), (64, 40)])
    assert case.size == (64, 96) and str(case) == '2 in 64x96: 50x70 64x40'
    images = case.images(FLOAT32)
    assert type(images) is torch.Tensor
    assert images[0, :, 50:].abs().max() == images[1, :, :, 40:].abs().max() == 0 < images[1, :, 63, 39].abs().min()
    seen = []
    for is_peer in (False, True):
        class Watch(torch.nn.Module):
            def forward(self, images):
                seen.append(get_extents(images))
                return ()

        Contestant('x', None if is_peer else {}, NANO).step(Watch(), case, FLOAT32, 'inference')()
    assert seen == [((50, 70), (64, 40)), None]
    assert get_extents(Case.of_size((64, 96), 2).images(FLOAT32)) is None


def test_products_are_those_of_a_swin():
    """As many multiply-adds as mmseg's convolution and linear layers have where no window is padded; on ready outputs
    too. Batch padding does not count, but for the patch embedding."""
    def flops(call) -> int:
        with FlopCounterMode(display=False) as counter:
            call()
        counts = counter.get_flop_counts()['Global']
        return sum(count for op, count in counts.items() if 'bmm' not in str(op))

    case = Case.of_size((224, 224))
    products = Products(NANO, case, FLOAT32)
    peer = Contestant('mmseg', None, NANO)
    wanted = flops(peer.step(peer.build(case, FLOAT32), case, FLOAT32, 'inference'))
    assert flops(products.alone) == flops(products.into_ready_outputs) == wanted
    analytic = 2 * 56 * 56 * 48 * 32 + sum(2 * t * a * b for t, a, b, _ in linear_shapes(NANO, case))
    assert analytic == wanted

    padded = Case.of_images([(50, 70), (64, 40)])
    assert [padded.tokens(stage) for stage in range(4)] == [
        13 * 18 + 16 * 10, 7 * 9 + 8 * 5, 4 * 5 + 4 * 3, 2 * 3 + 2 * 2]


def test_ready_outputs_are_the_same_numbers():
    products = Products(NANO, SMALL, FLOAT32)
    products.into_ready_outputs()
    tensor, weight, bias, out = products.layers[-1]
    torch.testing.assert_close(out, tensor @ weight.t() + bias, atol=1e-3, rtol=1e-4)


def test_ideal_traffic():
    """Swin-T on 800x1344 px, by stage in GB: bfloat16 has 22 values of 2 bytes per block, token and channel."""
    tiny, case = Architecture.of(dict(arch='tiny')), Case.of_size((800, 1344))
    stages = [ideal_traffic(replace(tiny, depths=tuple(depth * (i == stage) for i, depth in enumerate(tiny.depths))),
                            case, BFLOAT16) / 1e9 for stage in range(4)]
    assert [round(gigabytes, 2) for gigabytes in stages] == [0.57, 0.28, 0.43, 0.07]
    assert ideal_traffic(tiny, case, FLOAT32) == 2 * ideal_traffic(tiny, case, BFLOAT16)
    copy = Copy(FLOAT32)
    copy()
    assert copy.traffic == copy.source.nbytes + copy.target.nbytes


def test_all_take_turns():
    """Every round has everybody once, and each begins one round in turn; the first round only warms up."""
    calls = []
    seconds = race({name: lambda name=name: calls.append(name) for name in 'abc'}, 3, FLOAT32, '')
    assert calls == list('abc' 'cab' 'bca' 'abc')
    assert {name: len(times) for name, times in seconds.items()} == dict(a=3, b=3, c=3)


def test_training_leaves_a_gradient_for_everything():
    model = OURS.build(SMALL, FLOAT32)
    step = OURS.step(model, SMALL, FLOAT32, 'training')
    step()
    assert model.training and all(parameter.grad is not None for parameter in model.parameters())
    step = OURS.step(model, SMALL, FLOAT32, 'inference')
    assert not model.training and not step()[0].requires_grad


# ---- memory ----


def test_peak():
    """What is freed again within the step counts; what was there before does not."""
    before = torch.ones(2**24)
    assert peak_of(lambda: torch.ones(2**24).sum(), FLOAT32) == pytest.approx(4 * 2**24, rel=0.05)
    assert peak_of(lambda: before.add_(1), FLOAT32) < 2**21


def test_a_process_that_the_system_ends():
    assert in_own_process(os._exit, 9) is None


# ---- studies ----


def test_scaling(run, monkeypatch):
    monkeypatch.setattr(studies, 'race', lambda steps, *_: {name: [step()[0][0, 0].numel()] for name, step in
                                                            steps.items()})
    results = run('--peers', '--scaling', '0.004', '0.017', '0.065')
    assert results['cases'] == []
    assert results['scaling']['sizes'] == [[64, 64], [128, 128], [256, 256]]
    assert results['scaling']['seconds'] == dict(SwinRPE=[256, 1024, 4096])
    assert results['scaling']['power']['SwinRPE'] == pytest.approx(1)


def test_fresh_sizes(run, capsys):
    found = run('--peers', '--fresh-sizes', '3', '--sizes', '64x96')['fresh_sizes']['SwinRPE']
    assert all(len(found[kind]) == 3 and min(found[kind]) > 0 for kind in ('fresh', 'seen', 'taken', 'kept'))
    assert found['ratio'] == median(new / again for new, again in zip(found['fresh'], found['seen']))
    assert found['kept'] == sorted(found['kept'])
    assert '3 sizes never seen before' in capsys.readouterr().out
    cases = studies.fresh_cases(999, (64, 96))
    assert len({case.extents for case in cases}) == len(cases) == 9 * 13 - 1  # not that of the warm-up
    assert all(32 <= h <= 64 and 48 <= w <= 96 for case in cases for h, w in case.extents)


def test_kept_is_what_stays(monkeypatch):
    """A model that keeps a tensor for every size, beside its weights and what it only looks at."""
    class Keeps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.kept = torch.nn.Parameter(torch.ones(100)), []

        def forward(self, images):
            if len(self.kept) < 1 or self.kept[-1].shape != images.shape[2:]:
                self.kept.append(torch.ones(images.shape[2:]))
            return (self.kept[-1][:3], images + 1)

    monkeypatch.setattr(Contestant, 'build', lambda self, case, numbers: Keeps())
    cases = [Case.of_size((32, 32)), Case.of_size((64, 32))]
    found = studies.run_fresh(OURS, cases, FLOAT32)
    assert found['kept'] == [4 * 32 * 32, 4 * 32 * 32 * 3]


# ---- arguments ----


def test_config_and_preset(run, tool, monkeypatch, make_config):
    """A config's backbone, with options on top; options override a preset."""
    config = make_config('segmentation', "model['backbone'].update(window_size=4, depths=(1, 1, 1, 1))")
    results = tool([config, '--options', 'rpe.type=LogCPB', '--peers', '--sizes', '64x64', '--repeats', '1'])
    assert list(results['cases'][0]['rows']) == ['SwinRPE', PRODUCTS, READY]
    with pytest.raises(InputError, match='--preset gpu needs a GPU, and PyTorch finds none here'):
        monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
        run('--preset', 'gpu')
    case, = run('--preset', 'gpu', '--device', 'cpu', '--sizes', '64x64', '--batch', '1', '--peers', '--mode',
                'training')['cases']
    assert case['title'] == 'nano, bfloat16 autocast' and list(case['rows']) == ['SwinRPE']
    gradients = 4 * sum(parameter.numel() for parameter in OURS.build(SMALL, FLOAT32).parameters())
    assert case['rows']['SwinRPE']['peak_bytes'] > gradients


@pytest.mark.parametrize(('args', 'sentence'), [
    ('--sizes 800', '--sizes must be heights and widths such as 800x1344, from 32 pixels on in multiples of 4; got'),
    ('--sizes 64x66', '--sizes must be .*; got 64x66'),
    ('--batch-of 64x66 16x64', '--batch-of must be .*; got 16x64'),
    ('--options foo=1', "SwinRPE: .*'foo'"),
    ('--options rpe.type=LogCBP', 'rpe type must be'),
    ('--options strides=[4,2,2,1]', r'strides must be \(4, 2, 2, 2\) to be compared with other Swins, got'),
    ('--options depths=[1] num_heads=[1] strides=[4] out_indices=[0]', 'must be .* to be compared with other Swins'),
    ('--variant mmdet halo=1', '--variant must have a name that no other contestant has, got mmdet'),
    ('--peers keras', '--peers must be of mmdet, .*; got keras'),
    ('--out b.txt', '--out must end in .json or .md, got b.txt'),
    ('--autocast', '--autocast needs --dtype bfloat16 or float16, got float32'),
    ('--repeats 0', '--repeats must be at least 1, got 0'),
    ('--threads 0', '--threads must be at least 1, got 0'),
    ('--fresh-sizes 0', '--fresh-sizes must be at least 1, got 0'),
    ('--fresh-sizes 99999 --sizes 64x64', '--fresh-sizes must be at most 80, .* got 99999'),
    ('--scaling 1', '--scaling must be at least two different positive sizes'),
    ('--scaling 1 -1', '--scaling must be at least two different positive sizes'),
    ('absent.py', 'CONFIG and --arch cannot both be given, got absent.py and nano'),
])
def test_bad_arguments(run, args, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=sentence) as caught:
        run('--mode', 'both', *args.split())
    assert '\n' not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(('args', 'sentence'), [
    ('--variant x', '--variant x needs KEY=VALUE, got nothing'),
    ('--variant halo=1', '--variant needs a name first, then KEY=VALUE, got halo=1'),
    ('--options halo', '--options needs KEY=VALUE, got halo'),
])
def test_bad_options(run, args, sentence, capsys):
    with pytest.raises(SystemExit):
        run(*args.split())
    assert capsys.readouterr().err.endswith(f'error: {sentence}\n')


def test_no_memory_of_a_process_without_linux(run, monkeypatch, tmp_path):
    monkeypatch.setattr('tools.lib.benchmark.memory._RESET', tmp_path / 'absent/clear_refs')
    with pytest.raises(InputError, match='measuring memory on the CPU needs Linux'):
        run('--memory')
