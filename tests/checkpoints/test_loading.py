"""A load that matches nothing is an error with one sentence; a partial one says what it did."""
import logging

import pytest
import torch
from mmengine.logging import MMLogger
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


def test_init_weights_of_a_parent_loads_the_backbone(source, tmp_path):
    from mmengine.model import BaseModule
    torch.save(source.state_dict(), tmp_path / 'saved.pth')
    parent = BaseModule()
    parent.backbone = SwinRPE(**SMALL, window_size=3, init_cfg=dict(type='Pretrained',
                                                                    checkpoint=str(tmp_path / 'saved.pth')))
    parent.init_weights()
    for name, value in source.state_dict().items():
        assert torch.equal(parent.backbone.state_dict()[name], value)
