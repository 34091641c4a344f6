"""Checkpoint files are checked before they are read, and a crash leaves one to resume from."""
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader

from swin_rpe_mm.errors import InputError
from swin_rpe_mm.mm.checkpoint_files import check_checkpoint, find_resumable, read_safely


def save(path: Path, seconds: int = 0) -> Path:
    torch.save(dict(state_dict=dict(weight=torch.ones(1000))), path)
    os.utime(path, (seconds, seconds))
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def test_resume_takes_what_last_checkpoint_names(tmp_path):
    named = save(tmp_path / 'epoch_1.pth', 10)
    save(tmp_path / 'epoch_2.pth', 20)
    (tmp_path / 'last_checkpoint').write_text(str(named))
    assert find_resumable(str(tmp_path)) == str(named)


@pytest.mark.parametrize('note', ['', 'gone.pth', None])
def test_resume_falls_back_to_the_newest_whole_one(tmp_path, note):
    whole = save(tmp_path / 'iter_20.pth', 20)
    save(tmp_path / 'iter_10.pth', 10)
    cut(save(tmp_path / 'iter_30.pth', 30))
    if note is not None:
        (tmp_path / 'last_checkpoint').write_text(note)
    assert find_resumable(str(tmp_path)) == str(whole)


def test_a_half_written_file_is_never_resumed(tmp_path):
    half = save(tmp_path / 'epoch_1.pth')
    cut(half)
    (tmp_path / 'last_checkpoint').write_text(str(half))
    assert find_resumable(str(tmp_path)) is None


@pytest.mark.parametrize(('content', 'fault'), [(None, 'does not exist'), (b'', 'is empty'),
                                                (b'<html>', 'is not a PyTorch checkpoint'), ('cut', 'is cut short')])
def test_bad_checkpoints(tmp_path, content, fault):
    path = tmp_path / 'a.pth'
    if content == 'cut':
        cut(save(path))
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f'checkpoint .*a.pth {fault}'):
        check_checkpoint(str(path))


def test_good_checkpoints_pass(tmp_path):
    check_checkpoint(str(save(tmp_path / 'zip.pth')))
    torch.save({}, tmp_path / 'legacy.pth', _use_new_zipfile_serialization=False)
    check_checkpoint(str(tmp_path / 'legacy.pth'))
    check_checkpoint('https://example.org/a.pth')


def test_checkpoints_of_mmengine_are_read(tmp_path):
    """Its log history and NumPy's numbers, by whichever release of mmengine."""
    path = tmp_path / 'a.pth'
    history = HistoryBuffer([np.float64(1.5), np.float32(2)], [1, 2])
    torch.save(dict(state_dict={}, message_hub=dict(log_scalars=dict(loss=history)), meta=dict(n=np.int64(3))), path)
    read_safely()
    scalars = CheckpointLoader.load_checkpoint(str(path))['message_hub']['log_scalars']
    assert scalars['loss'].data[0].tolist() == [1.5, 2]
