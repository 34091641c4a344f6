"""Extents travel on the batch tensor; wrong ones are refused."""
import pytest
import torch

from swin_rpe_mm import InputError, attach_extents, get_extents


def test_what_was_attached_is_read():
    batch = torch.zeros(2, 3, 8, 9)
    attached = attach_extents(batch, [(8, 1), (5, 9)])
    assert attached.shape == batch.shape
    assert get_extents(attached) == ((8, 1), (5, 9))
    assert torch.equal(attached, batch)


def test_a_plain_tensor_has_none():
    assert get_extents(torch.zeros(1, 3, 8, 9)) is None


def test_lists_and_tensors_of_numbers_are_read_as_ints():
    batch = attach_extents(torch.zeros(2, 3, 8, 9), torch.tensor([[8, 1], [5, 9]]))
    assert get_extents(batch) == ((8, 1), (5, 9))
    assert all(type(side) is int for extent in get_extents(batch) for side in extent)


def test_attaching_again_replaces():
    batch = attach_extents(torch.zeros(1, 3, 8, 9), [(8, 9)])
    assert get_extents(attach_extents(batch, [(2, 3)])) == ((2, 3), )


@pytest.mark.parametrize('extents', [[(9, 9)], [(8, 10)], [(0, 9)], [(8, 0)], [(-1, 9)], [], [(8, 9), (8, 9)]])
def test_impossible_extents_are_refused_in_one_sentence(extents):
    with pytest.raises(InputError) as error:
        attach_extents(torch.zeros(1, 3, 8, 9), extents)
    assert '\n' not in str(error.value)


def test_message_names_the_image_and_both_sizes():
    with pytest.raises(InputError, match=r'(?=.*\b1\b)(?=.*12)(?=.*8)'):
        attach_extents(torch.zeros(2, 3, 8, 9), [(8, 9), (12, 9)])


@pytest.mark.parametrize('extent', [(8.5, 9), (8, 9, 3), (8, ), 8])
def test_what_is_no_pair_of_whole_numbers_is_an_input_error(extent):
    with pytest.raises(InputError, match='image 0 must be a pair of whole numbers'):
        attach_extents(torch.zeros(1, 3, 16, 16), [extent])
