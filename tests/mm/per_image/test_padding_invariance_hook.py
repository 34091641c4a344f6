"""The switch in a config: on before anything runs, in training, validation and testing, also for a copy by EMA."""
import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import EMAHook
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from torch import nn

from swin_rpe_mm.registry import HOOKS

SIZES = [(9, 20), (32, 7), (15, 15), (1, 30)]


class Model(BaseModel):
    """Says the mean of a convolution that padding reaches, and learns to say 1."""

    def __init__(self):
        super().__init__(data_preprocessor=ImgDataPreprocessor(mean=[128.], std=[64.], pad_value=9))
        torch.manual_seed(0)
        self.backbone = nn.Conv2d(1, 1, 3, padding=1)

    def extract_feat(self, inputs):
        return self.backbone(inputs).mean((1, 2, 3))

    def predict(self, inputs, data_samples):
        for sample, value in zip(data_samples, self.extract_feat(inputs)):
            sample.value = value
        return data_samples

    def loss(self, inputs, data_samples):
        return dict(loss=(self.extract_feat(inputs) - 1).square().mean())

    def forward(self, inputs, data_samples, mode):
        return getattr(self, mode)(inputs, data_samples)


class Values(BaseMetric):
    """What the model says about each image."""

    def process(self, data_batch, data_samples):
        self.results.extend(float(sample['value']) for sample in data_samples)

    def compute_metrics(self, results):
        return {str(index): value for index, value in enumerate(results)}


class Learnt(EMAHook):
    """EMA's copy, kept to be looked at."""
    copies = []

    def after_run(self, runner):
        self.copies.append(self.ema_model.module)


@pytest.fixture
def run(tmp_path):
    """``run(what, batch_size, hooks)``: the runner, and what its ``train``, ``val`` or ``test`` returned."""
    count = iter(range(100))

    def run(what: str, batch_size: int, hooks: list) -> tuple[Runner, dict]:
        generator = torch.Generator().manual_seed(1)
        data = [dict(inputs=torch.randint(256, (1, *size), generator=generator),
                     data_samples=BaseDataElement(metainfo=dict(img_shape=size))) for size in SIZES]
        loader = dict(dataset=data, batch_size=batch_size, num_workers=0, collate_fn=dict(type='pseudo_collate'),
                      sampler=dict(type='DefaultSampler', shuffle=False))
        arguments = {f'{what}_dataloader': loader, f'{what}_cfg': dict()}
        if what == 'train':
            arguments['train_cfg'] = dict(by_epoch=True, max_epochs=1)
            arguments['optim_wrapper'] = dict(optimizer=dict(type='SGD', lr=0.1))
        else:
            arguments[f'{what}_evaluator'] = [Values()]
        name = f'{tmp_path.name}{next(count)}'
        runner = Runner(Model(), str(tmp_path / name), custom_hooks=hooks, experiment_name=name,
                        default_hooks=dict(checkpoint=None), log_level='ERROR', **arguments)
        return runner, getattr(runner, what)()

    return run


SWITCH = dict(type='swin_rpe_mm.PaddingInvarianceHook')


def test_registered():
    assert type(HOOKS.build(dict(SWITCH))).__name__ == 'PaddingInvarianceHook'


@pytest.mark.parametrize('what, on', [('test', True), ('val', True), ('test', False)])
def test_results_by_batch_size(run, what, on):
    alone, together = (run(what, size, [SWITCH] if on else [])[1] for size in (1, 4))
    assert (together == alone) == on
    assert together.keys() == alone.keys() and len(alone) == len(SIZES)


def test_training_ends_as_with_the_mean_of_single_losses(run):
    runner, _ = run('train', 4, [SWITCH])
    model = Model()
    generator = torch.Generator().manual_seed(1)
    images = [(torch.randint(256, (1, 1, *size), generator=generator) - 128.) / 64 for size in SIZES]
    loss = sum((model.extract_feat(image) - 1).square() for image in images) / len(images)
    loss.sum().backward()
    for one, other in zip(runner.model.parameters(), model.parameters()):
        torch.testing.assert_close(one, other - 0.1 * other.grad)


def test_the_copy_of_ema_is_invariant_too(run):
    """In whichever order the config names the hooks."""
    Learnt.copies.clear()
    runner, _ = run('train', 4, [Learnt(), SWITCH])
    (copy, ) = Learnt.copies
    assert copy is not runner.model
    assert type(copy) is type(runner.model) is not Model
