"""The switch on a small model: strided convolution, global pooling, batch norms, and a loss of every image."""
from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import distributed, nn
from torch.multiprocessing import start_processes

from swin_rpe_mm import InputError, SwinRPE, attach_extents, make_padding_invariant
from swin_rpe_mm.mm.extents import plain
from swin_rpe_mm.mm.per_image.crop import cut_sample
from swin_rpe_mm.mm.per_image.invariance import mean_losses

SIZES = [(37, 52), (64, 33), (20, 64)]
TINY = dict(arch='nano', embed_dims=8, depths=[1, 1], num_heads=[1, 2], strides=[4, 2], out_indices=(0, 1),
            window_size=3, drop_path_rate=0.)


class Segmentor(BaseModel):
    """Reads two maps of a backbone, and everything that padding usually reaches."""

    def __init__(self, norm: bool = False, mask_padding: bool = True):
        super().__init__()
        self.backbone = SwinRPE(**TINY, mask_padding=mask_padding)
        self.neck = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16) if norm else nn.GroupNorm(2, 16)
        self.decode_head = nn.Conv2d(16, 3, 3, padding=1)
        self.calls = []

    def extract_feat(self, inputs):
        fine, coarse = self.backbone(inputs)
        maps = self.norm(self.neck(fine) + coarse)
        return maps + maps.mean((2, 3), keepdim=True)

    def predict(self, inputs, data_samples=None, scale=1.):
        self.calls.append(None if data_samples is None else data_samples[0].metainfo)
        logits = nn.functional.interpolate(self.decode_head(self.extract_feat(inputs)), size=inputs.shape[-2:]) * scale
        results = data_samples or [BaseDataElement() for _ in inputs]
        for result, values in zip(results, logits):
            result.logits = values
        return results

    def loss(self, inputs, data_samples):
        logits = nn.functional.interpolate(self.decode_head(self.extract_feat(inputs)), size=inputs.shape[-2:])
        labels = torch.stack([sample.gt_sem_seg.data[0] for sample in data_samples])
        losses = nn.functional.cross_entropy(logits, labels, ignore_index=255, reduction='none')
        return dict(loss=losses.sum() / (labels != 255).sum(), levels=[logits.abs().mean(), logits.square().mean()])

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return self.extract_feat(inputs) if mode == 'tensor' else getattr(self, mode)(inputs, data_samples)


@pytest.fixture
def build():
    def build(**arguments) -> Segmentor:
        torch.manual_seed(0)
        model = Segmentor(**arguments)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        return model.eval()

    return build


def batch_of(sizes=SIZES, padding: float = 7., side: int = 64) -> tuple[torch.Tensor, list]:
    """Images whose content depends on their size alone, padded with ``padding``."""
    inputs = torch.full((len(sizes), 3, side, side), padding)
    samples = []
    for image, (h, w) in zip(inputs, sizes):
        generator = torch.Generator().manual_seed(h)
        image[:, :h, :w] = torch.randn(3, h, w, generator=generator)
        labels = torch.full((1, side, side), 255)
        labels[:, :h, :w] = torch.randint(3, (1, h, w), generator=generator)
        samples.append(BaseDataElement(
            metainfo=dict(img_shape=(h, w), ori_shape=(h, w), batch_input_shape=(side, side), pad_shape=(side, side)),
            gt_sem_seg=PixelData(data=labels)))
    return attach_extents(inputs, sizes), samples


def alone(size) -> tuple[torch.Tensor, list]:
    return batch_of([size], side=max(size))


def test_results_are_those_of_the_image_alone(build):
    model = make_padding_invariant(build())
    inputs, samples = batch_of()
    results = model.predict(inputs, samples)
    assert all(result is sample for result, sample in zip(results, samples))
    for size, result in zip(SIZES, results):
        image = batch_of([size])[0][:, :, :size[0], :size[1]]
        (expected, ) = build().predict(image.contiguous())
        assert result.logits.shape == (3, *size)
        assert torch.equal(result.logits, expected.logits)
        assert result.metainfo == dict(img_shape=size, ori_shape=size, batch_input_shape=(64, 64), pad_shape=(64, 64))
        assert result.gt_sem_seg.shape == (64, 64)


def test_without_the_switch_they_are_not(build):
    inputs, samples = batch_of()
    results = build().predict(inputs, samples)
    (expected, ) = build().predict(inputs[:1, :, :37, :52].contiguous())
    assert not torch.allclose(results[0].logits[:, :37, :52], expected.logits, atol=1e-2)


def test_metainfo_is_that_of_the_cut_image(build):
    model = make_padding_invariant(build())
    model.predict(*batch_of())
    assert model.calls == [dict(img_shape=size, ori_shape=size, batch_input_shape=size, pad_shape=size)
                           for size in SIZES]


@pytest.mark.parametrize('extents', ['tensor', 'samples'])
def test_extents_are_read_from_the_batch_or_the_samples(build, extents):
    model = make_padding_invariant(build())
    inputs, samples = batch_of()
    if extents == 'samples':
        inputs = plain(inputs)
    results = model.predict(inputs, samples if extents == 'samples' else None)
    assert [tuple(result.logits.shape[1:]) for result in results] == SIZES


def test_without_either_the_whole_tensor_is_an_image(build):
    results = make_padding_invariant(build()).predict(plain(batch_of()[0]))
    assert [tuple(result.logits.shape[1:]) for result in results] == [(64, 64)] * 3


def test_further_arguments_are_handed_on(build):
    model = make_padding_invariant(build())
    once, twice = model.predict(*batch_of()), model.predict(*batch_of(), scale=2.)
    assert torch.equal(twice[1].logits, 2 * once[1].logits)


@pytest.mark.parametrize('mask_padding', [True, False])
def test_loss_is_the_mean_of_the_losses_alone(build, mask_padding):
    """With gradients; with a backbone whose features depend on the batch, too."""
    model, plain = make_padding_invariant(build(mask_padding=mask_padding)), build(mask_padding=mask_padding)
    losses = model.loss(*batch_of())
    expected = []
    for size in SIZES:
        inputs, samples = batch_of([size])
        samples[0].gt_sem_seg = PixelData(data=samples[0].gt_sem_seg.data[:, :size[0], :size[1]])
        expected.append(plain.loss(inputs[:, :, :size[0], :size[1]].contiguous(), samples))
    (losses['loss'] + sum(losses['levels'])).backward()
    (sum(each['loss'] + sum(each['levels']) for each in expected) / 3).backward()
    torch.testing.assert_close(losses['loss'], sum(each['loss'] for each in expected) / 3, rtol=0, atol=1e-5)
    for level in range(2):
        torch.testing.assert_close(losses['levels'][level], sum(each['levels'][level] for each in expected) / 3)
    for (name, one), other in zip(model.named_parameters(), plain.parameters()):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_samples_stay_as_they_are_in_training(build):
    inputs, samples = batch_of()
    before = [dict(sample.metainfo) for sample in samples]
    make_padding_invariant(build()).loss(inputs, samples)
    assert [sample.metainfo for sample in samples] == before
    assert all(sample.gt_sem_seg.shape == (64, 64) for sample in samples)


def test_features_of_a_batch_are_computed_in_one_call(build):
    model = make_padding_invariant(build())
    sizes = []
    model.backbone.patch_embed.register_forward_hook(lambda module, args, output: sizes.append(len(args[0])))
    model.loss(*batch_of())
    assert sizes == [3]


def test_batch_norms_see_all_real_pixels(build):
    """Whatever the padding holds, and as one norm over the pixels of all images."""
    statistics = []
    for padding in (0., 1e4):
        model = make_padding_invariant(build(norm=True)).train()
        model.loss(*batch_of(padding=padding))['loss'].backward()
        statistics.append((model.norm.running_mean.clone(), model.neck.weight.grad.clone()))
        assert model.norm.num_batches_tracked == 1
    assert all(torch.equal(one, other) for one, other in zip(*statistics))
    model, pixels = build(norm=True), []
    for size in SIZES:
        fine, coarse = model.backbone(batch_of([size])[0][:, :, :size[0], :size[1]].contiguous())
        pixels.append((model.neck(fine) + coarse).flatten(2))
    torch.testing.assert_close(statistics[0][0], 0.1 * torch.cat(pixels, 2).mean((0, 2)), rtol=0, atol=1e-5)


def test_batch_norms_that_are_recomputed_are_refused(build):
    model = make_padding_invariant(build(norm=True)).train()
    model.neck = nn.Sequential(model.neck, nn.BatchNorm2d(16))
    model.neck.with_cp = True
    with pytest.raises(InputError, match='with_cp of Sequential must be False'):
        model.loss(*batch_of())


def test_state_dict_and_class_name_stay(build):
    plain, model = build(), build()
    assert make_padding_invariant(model) is model
    assert list(plain.state_dict()) == list(model.state_dict())
    assert isinstance(model, Segmentor)
    assert type(model).__name__ == 'Segmentor'
    model.load_state_dict(plain.state_dict())


def test_twice_is_once(build):
    model = make_padding_invariant(build())
    once = type(model)
    assert type(make_padding_invariant(model)) is once
    assert type(make_padding_invariant(build())) is once


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_invariant_with_its_own_layers(build, copied):
    model = make_padding_invariant(build())
    other = copied(model)
    assert type(other) is type(model)
    nn.init.zeros_(other.decode_head.weight)
    (before, ), (after, ) = model.predict(*batch_of(SIZES[:1])), other.predict(*batch_of(SIZES[:1]))
    assert before.logits.abs().max() > after.logits.abs().max()


def test_models_inside_others_are_found(build):
    outer = nn.Sequential(nn.Identity(), build())
    make_padding_invariant(outer)
    assert [tuple(result.logits.shape[1:]) for result in outer[1].predict(batch_of()[0])] == SIZES


def test_what_holds_no_model_is_refused():
    with pytest.raises(InputError, match='got Conv2d'):
        make_padding_invariant(nn.Conv2d(1, 1, 1))


def test_models_whose_loss_compares_images_stay_as_they_are(build):
    """As the classifier that re-identifies objects in a tracker."""
    tracker = nn.ModuleDict(dict(detector=build(), reid=build()))
    tracker.reid.head = nn.Identity()
    make_padding_invariant(tracker)
    assert type(tracker.detector) is not Segmentor
    assert type(tracker.reid) is Segmentor


@pytest.mark.parametrize('inputs', [dict(img=torch.zeros(1, 3, 8, 8)), torch.zeros(1, 2, 3, 8, 8)])
def test_videos_are_refused(build, inputs):
    with pytest.raises(InputError, match='one tensor of images'):
        make_padding_invariant(build()).predict(inputs)


def test_layers_that_need_multiples_of_32_say_so(build):
    model = make_padding_invariant(build())
    model.neck = nn.Conv2d(8, 16, 1)  # a map that does not fit the next
    with pytest.raises(InputError, match='of an image of 37x52 pixels'):
        model.predict(*batch_of(SIZES[:1]))


class SOLOHead(nn.Conv2d):
    """Named as a layer that needs multiples of 32."""


def test_models_that_need_multiples_are_filled_up_to_the_next_whatever_the_batch(build):
    def filled() -> Segmentor:
        model = make_padding_invariant(build())
        model.decode_head.__class__ = SOLOHead
        return model

    results = filled().predict(*batch_of(side=96))
    for size, rounded, result in zip(SIZES, [(64, 64), (64, 64), (32, 64)], results):
        assert result.logits.shape == (3, *rounded)
        inputs, samples = batch_of([size])
        (expected, ) = filled().predict(attach_extents(inputs[:, :, :rounded[0], :rounded[1]].contiguous(), [size]))
        assert torch.equal(result.logits, expected.logits)
    model = filled()
    torch.testing.assert_close(model.loss(*batch_of(side=96))['loss'], model.loss(*batch_of())['loss'])


def test_the_caller_decides_what_mode_tensor_gives(build):
    inputs, _ = batch_of()
    assert torch.equal(make_padding_invariant(build())(inputs), build()(inputs))


def test_autocast_reaches_every_image(build):
    model = make_padding_invariant(build(norm=True)).train()
    dtypes = []
    model.neck.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    with torch.autocast('cpu', torch.bfloat16):
        model.loss(*batch_of())
    assert dtypes == [torch.bfloat16] * 3


def test_means_of_losses():
    one = dict(a=torch.tensor(2.), levels=[torch.tensor(1.), torch.tensor(3.)], alone=torch.tensor(6.))
    two = dict(a=torch.tensor([3., 5.]), levels=[torch.tensor(2.)])
    means = mean_losses([one, two])
    assert list(means) == ['a', 'levels', 'alone']
    assert (means['a'], means['levels'], means['alone']) == (3., [1.5, 1.5], 3.)


class NormOverProcesses(nn.BatchNorm2d):
    """Counts on every process to talk to it once in a step, as ``SyncBatchNorm`` does, which needs a GPU."""

    def forward(self, maps):
        moments = torch.stack([maps.mean((0, 2, 3)), maps.square().mean((0, 2, 3))]).detach()
        distributed.all_reduce(moments)
        self.seen = moments / distributed.get_world_size()
        return super().forward(maps)


BY_RANK = [SIZES[:2], [SIZES[2], (50, 50)]]


def train_on_rank(rank: int, build, folder) -> None:
    """Gradients over two processes, those of this one's batch alone, and what its batch norm heard of both."""
    torch.set_num_threads(1)
    distributed.init_process_group('gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=2)
    alone = make_padding_invariant(build(norm=True)).train()
    alone.norm.__class__ = NormOverProcesses
    model = nn.parallel.DistributedDataParallel(copy.deepcopy(alone))
    gradients = []
    for each in (alone, model):
        losses = each(*batch_of(BY_RANK[rank]), mode='loss')
        (losses['loss'] + sum(losses['levels'])).backward()
        gradients.append([parameter.grad for parameter in each.parameters()])
    torch.save((*gradients, model.module.norm.seen), folder / f'{rank}.pt')
    distributed.destroy_process_group()


def test_over_two_processes(build, tmp_path):
    """The mean of the processes' gradients, with one call of each batch norm in each process."""
    start_processes(partial(train_on_rank, build=build, folder=tmp_path), nprocs=2, start_method='fork')
    (one, first, heard), (other, second, heard_too) = (torch.load(tmp_path / f'{rank}.pt') for rank in range(2))
    assert torch.equal(heard, heard_too)
    for mine, theirs, found, found_too in zip(one, other, first, second):
        assert torch.equal(found, found_too)
        torch.testing.assert_close(found, (mine + theirs) / 2)


class TestSamples:
    """What a sample says about the image that was cut from (8, 9) to (5, 6)."""

    def cut(self, metainfo: dict | None = None, **data) -> BaseDataElement:
        return cut_sample(BaseDataElement(metainfo=metainfo or {}, **data), (8, 9), (5, 6))

    def test_sizes_that_are_not_there_are_not_added(self):
        assert self.cut(dict(img_shape=(5, 6))).metainfo == dict(img_shape=(5, 6))

    def test_what_mmseg_cuts_off_is_gone(self):
        told = self.cut(dict(img_shape=(5, 6), img_padding_size=(0, 3, 0, 3), pad_shape=(8, 9))).metainfo
        assert told == dict(img_shape=(5, 6))

    def test_what_the_pipeline_added_is_still_cut_off(self):
        assert self.cut(dict(padding_size=(0, 4, 0, 3))).padding_size == (0, 1, 0, 0)
        told = self.cut(dict(img_padding_size=(0, 4, 0, 3), pad_shape=(8, 9))).metainfo
        assert told == dict(img_padding_size=(0, 1, 0, 0), pad_shape=(5, 6))

    @pytest.mark.parametrize('name', ['gt_sem_seg', 'gt_edge_map', 'gt_depth_map'])
    def test_padded_maps_are_cut_and_others_are_not(self, name):
        assert self.cut(**{name: PixelData(data=torch.zeros(1, 8, 9))}).get(name).shape == (5, 6)
        assert self.cut(**{name: PixelData(data=torch.zeros(1, 7, 7))}).get(name).shape == (7, 7)

    def test_tensors_of_masks_are_cut(self):
        objects = InstanceData(masks=torch.zeros(2, 8, 9), labels=torch.zeros(2))
        assert self.cut(gt_instances=objects).gt_instances.masks.shape == (2, 5, 6)
        assert objects.masks.shape == (2, 8, 9)

    def test_pairwise_masks_of_boxinst_are_cut(self):
        objects = InstanceData(masks=torch.zeros(2, 8, 9), pairwise_masks=torch.zeros(2, 8, 4, 4))
        assert self.cut(gt_instances=objects).gt_instances.pairwise_masks.shape == (2, 8, 2, 3)

    @pytest.mark.needs_ops
    def test_masks_of_mmdet_are_cut(self):
        from mmdet.structures.mask import BitmapMasks, PolygonMasks
        pixels = torch.rand(2, 8, 9).round().byte().numpy()
        masks = self.cut(gt_instances=InstanceData(masks=BitmapMasks(pixels, 8, 9))).gt_instances.masks
        assert (masks.height, masks.width) == (5, 6)
        assert (masks.masks == pixels[:, :5, :6]).all()
        polygon = [torch.tensor([1., 1, 4, 1, 4, 3]).numpy()]
        masks = self.cut(gt_instances=InstanceData(masks=PolygonMasks([polygon], 8, 9))).gt_instances.masks
        assert (masks.height, masks.width) == (5, 6)
        assert masks.masks[0][0] is polygon[0]


@pytest.mark.parametrize('test_cfg', [dict(mode='whole'), dict(mode='slide', crop_size=(32, 40), stride=(20, 24))])
def test_segmentors_of_mmseg_take_images_of_different_sizes(test_cfg):
    """With auxiliary heads in training, and in testing with the logits that each image has alone, bit for bit."""
    from mmengine.config import ConfigDict
    from mmseg.registry import MODELS
    from mmseg.structures import SegDataSample
    from mmseg.utils import register_all_modules
    register_all_modules(init_default_scope=True)
    head = dict(type='FCNHead', channels=8, num_convs=1, num_classes=3, norm_cfg=dict(type='BN'))
    model = make_padding_invariant(MODELS.build(ConfigDict(
        type='EncoderDecoder', backbone=dict(type='swin_rpe_mm.SwinRPE', **TINY),
        data_preprocessor=dict(type='swin_rpe_mm.SegDataPreprocessor', mean=[0.], std=[1.], size=(64, 64)),
        decode_head=dict(head, in_channels=[8, 16], in_index=[0, 1], input_transform='resize_concat'),
        auxiliary_head=[dict(head, in_channels=8, in_index=0), dict(head, in_channels=16, in_index=1)],
        train_cfg=dict(), test_cfg=test_cfg)))

    def batch(sizes) -> dict:
        inputs = [torch.randn(3, *size, generator=torch.Generator().manual_seed(size[0])) for size in sizes]
        return dict(inputs=inputs, data_samples=[
            SegDataSample(metainfo=dict(img_shape=size, ori_shape=size),
                          gt_sem_seg=PixelData(data=torch.ones(1, *size, dtype=torch.long))) for size in sizes])

    losses = model.train()(**model.data_preprocessor(batch(SIZES), True), mode='loss')
    assert {'decode.loss_ce', 'aux_0.loss_ce', 'aux_1.loss_ce'} < losses.keys()
    model.eval()
    with torch.no_grad():
        for sizes in (SIZES, SIZES[::-1]):
            for size, result in zip(sizes, model.test_step(batch(sizes)), strict=True):
                (expected, ) = model.test_step(batch([size]))
                assert result.seg_logits.shape == size
                assert torch.equal(result.seg_logits.data, expected.seg_logits.data)
