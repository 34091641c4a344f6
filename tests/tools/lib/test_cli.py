"""What a user can mend becomes one sentence; everything else keeps its traceback."""
import pytest
from torch.utils.data import DataLoader

from swin_rpe_mm.errors import InputError
from tools.lib.cli import run_tool, sentence_of


def raise_(error: Exception):
    raise error


def test_error_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as ended:
        run_tool(lambda: raise_(InputError('checkpoint a.pth does not exist')))
    assert ended.value.code == 2
    assert capsys.readouterr().err == 'error: checkpoint a.pth does not exist\n'


def test_unexpected_exceptions_pass():
    with pytest.raises(ZeroDivisionError):
        run_tool(lambda: 1 / 0)
    with pytest.raises(KeyError):
        run_tool(lambda: {}['absent'])


def test_sentence_survives_a_registry():
    """Upstream's ``build_from_cfg`` raises the exception again with a prefix."""
    with pytest.raises(InputError) as caught:  # noqa: PT012
        try:
            raise InputError('window_size is 0: allowed are 1 and more')
        except InputError as error:
            raise type(error)(f'class `SwinRPE` in a/b.py: {error}')  # noqa: B904
    assert sentence_of(caught.value) == 'window_size is 0: allowed are 1 and more'


class _BadItem:

    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise InputError('image 3.jpg is empty')


def test_sentence_survives_a_worker():
    with pytest.raises(InputError) as caught:
        next(iter(DataLoader(_BadItem(), num_workers=1)))
    assert '\n' in str(caught.value)
    assert sentence_of(caught.value) == 'image 3.jpg is empty'


def test_unknown_type_is_a_sentence():
    from mmengine.registry import MODELS
    with pytest.raises(KeyError) as caught:
        MODELS.build(dict(type='NoSuchBackbone'))
    assert "'NoSuchBackbone'" in sentence_of(caught.value)
    assert '\n' not in sentence_of(caught.value)
