"""A load that matches nothing is an error with one sentence; a partial one says what it did."""
import logging

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.model import PretrainedInit
from oracles.cases import SMALL, pixels, randomise

from swin_rpe_mm import InputError, SwinRPE


def loaded(path, **kwargs) -> SwinRPE:
    model = SwinRPE(**SMALL, window_size=3, init_cfg=dict(type='Pretrained', checkpoint=str(path)), **kwargs)
    model.init_weights()
    return model


@pytest.fixture
def source() -> SwinRPE:
    return randomise(SwinRPE(**SMALL, window_size=3), 0)


@pytest.mark.parametrize('content', [
    {'conv1.weight': torch.zeros(3)}, {}, dict(state_dict={'encoder.conv1.weight': torch.zeros(3)}),
    dict(model={'blocks.0.attn.qkv.weight': torch.zeros(3)})])
def test_nothing_matches(content, tmp_path):
    torch.save(content, tmp_path / 'other.pth')
    with pytest.raises(InputError, match=r'other\.pth') as error:
        loaded(tmp_path / 'other.pth')
    assert '\n' not in str(error.value)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match=r'absent\.pth') as error:
        loaded(tmp_path / 'absent.pth')
    assert '\n' not in str(error.value)


def test_file_that_is_no_checkpoint(tmp_path):
    (tmp_path / 'broken.pth').write_bytes(b'not a checkpoint')
    with pytest.raises(InputError, match=r'broken\.pth') as error:
        loaded(tmp_path / 'broken.pth')
    assert '\n' not in str(error.value)


def test_weights_of_another_width(source, tmp_path):
    torch.save(source.state_dict(), tmp_path / 'narrow.pth')
    model = SwinRPE(**(SMALL | dict(embed_dims=16)), init_cfg=dict(type='Pretrained',
                                                                   checkpoint=str(tmp_path / 'narrow.pth')))
    with pytest.raises((InputError, RuntimeError), match='size|shape|channels'):
        model.init_weights()


def test_nothing_matches_in_load_state_dict():
    with pytest.raises(InputError):
        SwinRPE(**SMALL).load_state_dict({'conv1.weight': torch.zeros(3)}, strict=False)


def test_prefix_of_init_cfg(source, tmp_path):
    torch.save({f'student.{name}': value for name, value in source.state_dict().items()}, tmp_path / 'student.pth')
    model = SwinRPE(**SMALL, window_size=3, init_cfg=dict(type='Pretrained', prefix='student.',
                                                          checkpoint=str(tmp_path / 'student.pth')))
    model.init_weights()
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_report_counts_the_keys(source, tmp_path):
    state = source.state_dict()
    del state['norm3.weight']
    state['extra.weight'] = torch.zeros(1)
    torch.save(state, tmp_path / 'partial.pth')
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logger = MMLogger.get_current_instance()
    logger.addHandler(handler)
    try:
        loaded(tmp_path / 'partial.pth')
    finally:
        logger.removeHandler(handler)
    report = next(message for message in messages if 'matched' in message)
    assert str(len(state) - 1) in report
    assert '1 missing' in report and 'norm3.weight' in report
    assert '1 unexpected' in report and 'extra.weight' in report


def test_init_cfg_of_a_plain_dict_and_of_a_config(source, tmp_path):
    from mmengine.config import ConfigDict
    torch.save(source.state_dict(), tmp_path / 'saved.pth')
    images = pixels(1, 3, 30, 40)
    path = str(tmp_path / 'saved.pth')
    for kind in (dict, ConfigDict):
        model = SwinRPE(**SMALL, window_size=3, init_cfg=kind(type='Pretrained', checkpoint=path))
        model.init_weights()
        for a, b in zip(model(images), source(images)):
            assert torch.equal(a, b)


def test_init_cfg_takes_a_map_location(source, tmp_path):
    """As mm's configs have it."""
    path = str(tmp_path / 'saved.pth')
    torch.save(source.state_dict(), path)
    model = SwinRPE(**SMALL, window_size=3, init_cfg=dict(type='Pretrained', checkpoint=path, map_location='meta'))
    with pytest.raises(RuntimeError, match='meta tensor'):  # it is handed on
        model.init_weights()
    model.init_cfg['map_location'] = 'cpu'
    model.init_weights()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), source.parameters()))


@pytest.mark.parametrize('init_cfg, words', [
    (dict(type='Pretraind', checkpoint='a.pth'), ['type of init_cfg', "'Pretraind'", "did you mean 'Pretrained'"]),
    (dict(checkpoint='a.pth'), ['type of init_cfg', 'Pretrained']),
    (dict(type='Pretrained', checkpoint='a.pth', prefx='backbone'), ['option of init_cfg', "did you mean 'prefix'"]),
    (dict(type='Kaimin', layer='Conv2d'), ['type of init_cfg', "did you mean 'Kaiming'"]),
    (dict(layer='Conv2d'), ['type of init_cfg', 'Kaiming']),
    ([dict(type='Normal', layer='Linear'), dict(type='Pretrain', checkpoint='a.pth')], ["did you mean 'Pretrained'"]),
    ('a.pth', ['init_cfg', "'a.pth'"])])
def test_mistyped_init_cfg(init_cfg, words):
    with pytest.raises(InputError) as error:
        SwinRPE(**SMALL, init_cfg=init_cfg).init_weights()
    assert '\n' not in str(error.value) and all(word in str(error.value) for word in words)


@pytest.mark.parametrize('type_', ['Pretrained', PretrainedInit])
def test_a_checkpoint_among_other_initialisation(type_, source, tmp_path):
    """What the file does not have is drawn; the file comes last wherever it stands, and is read as ours are."""
    state = source.state_dict()
    del state['norm3.weight'], state['norm3.bias']
    torch.save(dict(model={f'a.b.{name}': value for name, value in state.items()}), tmp_path / 'saved.pth')
    pretrained = dict(type=type_, checkpoint=str(tmp_path / 'saved.pth'), prefix='a.b')
    model = SwinRPE(**SMALL, window_size=3, init_cfg=[pretrained, dict(type='Constant', layer='LayerNorm', val=0.25)])
    model.init_weights()
    assert (model.norm3.weight == 0.25).all()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


@pytest.mark.parametrize('kwargs', [
    dict(arch='v2-nano'), dict(rpe=dict(type='DynamicRPE', rpe=dict(type='LogCPB'))),
    dict(rpe=[dict(type='LogCPB'), dict(type='TableRPE')], use_abs_pos_embed='window')])
def test_other_initialisation_comes_last(kwargs):
    """What it does not name is drawn as ever; what it names, wherever it is, keeps its values."""
    model = SwinRPE(**SMALL, **kwargs, init_cfg=[dict(type='Constant', layer='Linear', val=0.25),
                                                 dict(type='Kaiming', layer='Conv2d')])
    plain = SwinRPE(**SMALL, **kwargs)
    for each in (model, plain):
        torch.manual_seed(1)
        for parameter in each.parameters():
            parameter.data.fill_(7.)
        each.init_weights()
    linear = {f'{path}.weight' for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, value in model.named_parameters():
        if name in linear:
            assert (value == 0.25).all(), name
        elif not name.startswith('patch_embed.projection') and not name.endswith('bias'):
            assert torch.equal(value, plain.get_parameter(name)), name
    assert not torch.equal(model.patch_embed.projection.weight, plain.patch_embed.projection.weight)


def test_init_weights_of_a_parent_loads_the_backbone(source, tmp_path):
    from mmengine.model import BaseModule
    torch.save(source.state_dict(), tmp_path / 'saved.pth')
    parent = BaseModule()
    parent.backbone = SwinRPE(**SMALL, window_size=3, init_cfg=dict(type='Pretrained',
                                                                    checkpoint=str(tmp_path / 'saved.pth')))
    parent.init_weights()
    for name, value in source.state_dict().items():
        assert torch.equal(parent.backbone.state_dict()[name], value)
