"""Extents travel on the batch tensor; wrong ones are refused."""
import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F

from swin_rpe_mm import InputError, attach_extents, get_extents

EXTENTS = ((8, 1), (5, 9), (2, 2))


def saved_and_loaded(x: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


KEEP = dict(
    itself=lambda x: x,
    dtype=lambda x: x.to(torch.float64),
    device=lambda x: x.to('cpu', non_blocking=True),
    layout=lambda x: x.to(memory_format=torch.channels_last),
    half=lambda x: x.half().bfloat16().float().double(),
    contiguous=lambda x: x.contiguous(memory_format=torch.channels_last),
    clone=lambda x: x.clone(),
    detach=lambda x: x.requires_grad_().detach(),
    views=lambda x: x.view_as(x),
    in_place=lambda x: x.mul_(2),
    deepcopy=copy.deepcopy,
    copy=copy.copy,
    pickle=lambda x: pickle.loads(pickle.dumps(x)),
    saved=saved_and_loaded)

DROP = dict(
    product=lambda x: x * 2,
    product_of_another=lambda x: torch.ones(3, 3, 8, 9) * x,
    flipped=lambda x: x.flip(3),
    cut=lambda x: x[:, :, :4],
    image=lambda x: x[0],
    picked=lambda x: x[torch.tensor([1])],
    stacked=lambda x: torch.stack([x, x]),
    joined=lambda x: torch.cat(tensors=[x, x]),
    by_keyword=lambda x: torch.clamp(input=x, min=0),
    convolved=lambda x: F.conv2d(input=x, weight=torch.ones(1, 3, 1, 1)),
    resized=lambda x: F.interpolate(input=x, size=(4, 4)),
    like=torch.zeros_like)


def test_what_was_attached_is_read():
    batch = torch.zeros(2, 3, 8, 9)
    attached = attach_extents(batch, [(8, 1), (5, 9)])
    assert attached.shape == batch.shape
    assert get_extents(attached) == ((8, 1), (5, 9))
    assert torch.equal(attached, batch)


@pytest.mark.parametrize('operation', KEEP.values(), ids=KEEP)
def test_what_leaves_the_maps_where_they_are_keeps_extents(operation):
    found = operation(attach_extents(torch.ones(3, 3, 8, 9), EXTENTS))
    assert get_extents(found) == EXTENTS and found.shape == (3, 3, 8, 9)


@pytest.mark.parametrize('operation', DROP.values(), ids=DROP)
def test_all_else_gives_plain_tensors(operation):
    batch = torch.ones(3, 3, 8, 9)
    expected = operation(batch.clone())
    found = operation(attach_extents(batch, EXTENTS))
    assert type(found) is torch.Tensor and get_extents(found) is None
    assert torch.equal(found, expected)


@pytest.mark.parametrize('part', [slice(1, None), slice(0, 2), slice(None, None, 2), slice(2, 3)])
def test_a_slice_of_images_takes_theirs_along(part):
    found = attach_extents(torch.ones(3, 3, 8, 9), EXTENTS)[part]
    assert get_extents(found) == EXTENTS[part] and len(found) == len(EXTENTS[part])


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
