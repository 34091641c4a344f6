"""A file is whole or absent."""
import os

import pytest
from mmengine.fileio import get_file_backend

from swin_rpe_mm.whole_files import WholeFileBackend


def test_the_storage_is_registered():
    assert isinstance(get_file_backend('x.pth', backend_args=dict(backend='swin_rpe_mm.whole_files')), WholeFileBackend)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / 'a.pth'
    WholeFileBackend().put(b'old', path)

    def fail(descriptor):
        raise OSError('disk full')

    monkeypatch.setattr(os, 'fsync', fail)
    with pytest.raises(OSError, match='disk full'):
        WholeFileBackend().put(b'new', path)
    assert [file.name for file in tmp_path.iterdir()] == ['a.pth']
    assert path.read_bytes() == b'old'


def test_removed_files_stay_until_the_next_one_is_there(tmp_path):
    backend, old, again = WholeFileBackend(), tmp_path / 'old.pth', tmp_path / 'again.pth'
    for path in (old, again):
        path.write_bytes(b'old')
        backend.remove(path)
        assert path.exists()
    backend.put(b'written anew', again)
    backend.remove_outdated()
    assert not old.exists()
    assert again.read_bytes() == b'written anew'
