"""Checkpoints of any project to our layout and to others', from files and whole models."""
import pytest
import torch
from oracles.cases import SMALL, pixels, randomise
from oracles.compare import assert_forward
from oracles.official import official_state, offset_index
from tiny import load_tool

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.checkpoints import to_mm_names

OFFICIAL = {name: SMALL[name] for name in ('embed_dims', 'depths', 'num_heads')}


@pytest.fixture(scope='module')
def convert():
    return load_tool('model_converters/convert_checkpoint')


def model_of(window=7, **kwargs) -> SwinRPE:
    return randomise(SwinRPE(**SMALL, window_size=window, mask_padding=False, **kwargs), 0).eval()


def saved(content, path) -> str:
    torch.save(content, path)
    return str(path)


def read(path) -> dict:
    return torch.load(path, weights_only=True)


def test_official_file_to_ours(convert, tmp_path, capsys):
    state = official_state(**OFFICIAL, window=2, map_side=16)
    source = saved(dict(model=state, epoch=3), tmp_path / 'official.pth')
    convert([source, str(tmp_path / 'made/ours.pth')])
    line, = capsys.readouterr().out.splitlines()
    assert source in line and 'layout of official' in line and 'layout of ours' in line
    ours = SwinRPE(**SMALL, window_size=2)
    ours.load_state_dict(state, strict=False)
    weights = read(tmp_path / 'made/ours.pth')
    for key, value in ours.state_dict().items():
        assert key.startswith(('norm0', 'norm1', 'norm2')) or torch.equal(weights.pop(key), value)
    assert not weights
    assert f'{len(read(tmp_path / "made/ours.pth"))} tensors' in line


def test_rectangular_window_of_an_official_file(convert, tmp_path):
    """Its index buffers tell it; the converted file notes it, and loads into another window as the original does."""
    state = model_of((3, 5)).state_dict()
    bare = to_mm_names(state, state._metadata)
    bare |= {key.replace('bias_table', 'index'): offset_index((3, 5)) for key in bare if 'table' in key}
    convert([saved(bare, tmp_path / 'bare.pth'), str(tmp_path / 'ours.pth')])
    models = [SwinRPE(**SMALL, window_size=4) for _ in range(2)]
    models[0].load_state_dict(state)
    models[1].load_state_dict(read(tmp_path / 'ours.pth'))
    for a, b in zip(*(model.state_dict().values() for model in models)):
        assert torch.equal(a, b)


@pytest.mark.parametrize('target', ['mmdet', 'mmpretrain', 'timm'])
def test_round_trip(convert, target, tmp_path):
    state = model_of(out_indices=(3, )).state_dict()
    there, back = str(tmp_path / 'there.pth'), str(tmp_path / 'back.pth')
    convert([saved(state, tmp_path / 'ours.pth'), there, '--to', target])
    assert read(there).keys() != state.keys()
    convert([there, back])
    result = read(back)
    assert result.keys() == state.keys()
    assert all(torch.equal(result[key], value) for key, value in state.items())


def test_our_metadata_stays(convert, tmp_path):
    model = SwinRPE(**(SMALL | dict(arch='v2-nano')), window_size=(4, 6), use_abs_pos_embed='window',
                    rpe=dict(type='LogCPB', pretrained_window_size=(3, 5)))
    source = saved(dict(state_dict=model.state_dict(), meta={}), tmp_path / 'a.pth')
    convert([source, str(tmp_path / 'b.pth')])
    assert dict(read(tmp_path / 'b.pth')._metadata) == dict(model.state_dict()._metadata)


def test_converting_twice_changes_nothing(convert, tmp_path):
    source = saved(official_state(**OFFICIAL, window=2, map_side=16), tmp_path / 'a.pth')
    convert([source, str(tmp_path / 'b.pth')])
    convert([str(tmp_path / 'b.pth'), str(tmp_path / 'c.pth')])
    once, twice = read(tmp_path / 'b.pth'), read(tmp_path / 'c.pth')
    assert list(once) == list(twice) and all(torch.equal(once[key], twice[key]) for key in once)


def test_notes_are_printed(convert, tmp_path, capsys):
    convert([saved(model_of().state_dict(), tmp_path / 'a.pth'), str(tmp_path / 'b.pth'), '--to', 'timm'])
    assert capsys.readouterr().out.splitlines()[1:] == ['note: left out, as timm has one output norm: norm0, norm1, '
                                                        'norm2']


@pytest.mark.needs_ops
def test_backbone_of_a_detector_into_mmdet(convert, tmp_path):
    from mmdet.models.backbones import SwinTransformer
    whole = torch.nn.Module()
    whole.backbone, whole.neck = model_of(), torch.nn.Linear(2, 2)
    source = saved(dict(state_dict=whole.state_dict(), optimizer={}), tmp_path / 'detector.pth')
    convert([source, str(tmp_path / 'mmdet.pth'), '--to', 'mmdet'])
    theirs = SwinTransformer(**SMALL, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'mmdet.pth')))
    theirs.load_state_dict(read(tmp_path / 'mmdet.pth'), strict=True)
    theirs.eval()
    images = pixels(1, 3, 60, 90)
    for a, b in zip(theirs(images), whole.backbone(images)):
        assert_forward(a, b, 'exported to mmdet')


def test_prefix(convert, tmp_path):
    state = model_of().state_dict()
    both = {f'teacher.{key}': value + 1 for key, value in state.items()}
    both |= {f'a.very.long.student.{key}': value for key, value in state.items()}
    source = saved(both, tmp_path / 'a.pth')
    convert([source, str(tmp_path / 'b.pth'), '--prefix', 'a.very.long.student'])
    written = read(tmp_path / 'b.pth')
    assert all(torch.equal(written[key], value) for key, value in state.items())
    with pytest.raises(InputError, match='--prefix'):
        convert([source, str(tmp_path / 'c.pth'), '--prefix', 'nowhere'])


def test_written_tensors_have_storages_of_their_own(convert, tmp_path):
    """A view would be written with all that it is a view of."""
    state = model_of().state_dict()
    large = torch.zeros(1000, 1000)
    state['norm0.weight'] = large[0, :8]
    source = saved(state, tmp_path / 'a.pth')
    convert([source, str(tmp_path / 'b.pth')])
    assert (tmp_path / 'b.pth').stat().st_size < (tmp_path / 'a.pth').stat().st_size / 2


def test_nothing_is_overwritten(convert, tmp_path):
    source = saved(model_of().state_dict(), tmp_path / 'a.pth')
    (tmp_path / 'b.pth').write_bytes(b'precious')
    with pytest.raises(InputError, match=r'b\.pth exists already; --force overwrites it'):
        convert([source, str(tmp_path / 'b.pth')])
    assert (tmp_path / 'b.pth').read_bytes() == b'precious'
    convert([source, str(tmp_path / 'b.pth'), '--force'])
    convert([source, source, '--to', 'timm', '--force'])
    assert 'layers.0.blocks.0.attn.qkv.weight' in read(source)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.pth', 'b.pth']


def test_a_failed_write_leaves_the_old_file(convert, tmp_path, monkeypatch):
    source = saved(model_of().state_dict(), tmp_path / 'a.pth')
    before = (tmp_path / 'a.pth').read_bytes()

    def fail(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('os.fsync', fail)
    with pytest.raises(InputError, match=r'a\.pth cannot be written: No space left'):
        convert([source, source, '--force'])
    assert [path.name for path in tmp_path.iterdir()] == ['a.pth']
    assert (tmp_path / 'a.pth').read_bytes() == before


@pytest.mark.parametrize('content, words', [
    (dict(state_dict={'layer1.0.conv1.weight': torch.zeros(1)}), 'holds no Swin that is known'),
    ({}, 'holds no Swin that is known')])
def test_no_swin(convert, content, words, tmp_path):
    source = saved(content, tmp_path / 'a.pth')
    with pytest.raises(InputError, match=words) as error:
        convert([source, str(tmp_path / 'b.pth')])
    assert source in str(error.value) and '\n' not in str(error.value)
    assert not (tmp_path / 'b.pth').exists()


def test_what_has_no_place(convert, tmp_path):
    state = SwinRPE(**SMALL, rpe=dict(type='BlockRPE')).state_dict()
    source = saved(state, tmp_path / 'a.pth')
    with pytest.raises(InputError, match=r'a\.pth cannot be converted: .*timm: it comes from the argument rpe$'):
        convert([source, str(tmp_path / 'b.pth'), '--to', 'timm'])
    convert([source, str(tmp_path / 'b.pth')])  # into our own layout it goes as it is
    assert read(tmp_path / 'b.pth').keys() == state.keys()


class Marker:
    """Writes a file when it is unpickled in full."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, 'w')


def test_code_in_the_file(convert, tmp_path):
    source = saved(dict(state_dict=model_of().state_dict(), meta=Marker(tmp_path / 'ran')), tmp_path / 'a.pth')
    with pytest.raises(InputError, match='--trust-checkpoint'):
        convert([source, str(tmp_path / 'b.pth')])
    assert not (tmp_path / 'ran').exists() and not (tmp_path / 'b.pth').exists()
    convert([source, str(tmp_path / 'b.pth'), '--trust-checkpoint'])
    assert (tmp_path / 'ran').exists() and (tmp_path / 'b.pth').exists()


def test_program_prints_one_line(command):
    ended = command('model_converters/convert_checkpoint.py', 'absent.pth', 'b.pth')
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == 'error: the checkpoint absent.pth does not exist'
