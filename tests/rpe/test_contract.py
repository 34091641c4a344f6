"""What every encoding keeps to: it says what it gives, gives it in one way, and keeps nothing of a tracer's."""
import copy
import pickle

import pytest
import torch
from oracles import encodings
from oracles.cases import SMALL, pixels
from oracles.compare import record
from oracles.swin_v2 import randomise_v2
from rpe_cases import ENCODINGS, HEAD_DIM, HEADS, OWN_WINDOWS, TWO_AXES, Made, built, regions, tokens
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.ao.quantization import quantize_dynamic

from swin_rpe_mm import SwinRPE
from swin_rpe_mm.rpe import DynamicRPE, RelativePositionEncoding, SumRPE, TableRPE, build_rpe, offsets
from swin_rpe_mm.rpe.base import _keep, kept

MADE = OWN_WINDOWS['halo']
NAMES = sorted(ENCODINGS)


def attended(made: Made) -> torch.Tensor:
    """Weights of attention ``(T, heads, Nq, Nk)``."""
    q, k = tokens(made.called())
    return (q @ k.mT).softmax(-1)


def same(a, b) -> bool:
    return a is b is None or torch.equal(a, b)


# ---- what it says, and what it gives ----


@pytest.mark.parametrize('name', NAMES)
def test_it_gives_what_it_says(name):
    rpe, geometry = built(name, MADE), MADE.called()
    q, k = tokens(geometry)
    q_out, k_out, added = rpe(q, k, geometry, regions(geometry))
    bias, values = rpe.bias(geometry), rpe.values(attended(MADE), geometry)
    assert rpe.gives('bias') == (bias is not None) and rpe.gives('values') == (values is not None)
    assert bias is None or bias.shape == (HEADS, q.shape[2], k.shape[2])
    assert values is None or values.shape == q.shape
    assert rpe.gives('rotate') == (not torch.equal(q_out, q))
    assert rpe.gives('rotate') or (q_out is q and k_out is k)
    assert (added is None) == (not rpe.gives('bias') and not rpe.gives('scores'))
    assert rpe.gives('scores') == (added is not None and added.ndim == 4)
    assert rpe.gives_bias_alone == (bias is not None and same(added, bias) and q_out is q and values is None)


def composed(rpe, q, k, geometry, region) -> tuple:
    """An encoding's parts put together, what it holds inside by what it is documented to do with it."""
    if isinstance(rpe, SumRPE):
        terms = []
        for part in rpe.encodings:
            q, k, added = composed(part, q, k, geometry, region)
            terms += [] if added is None else [added]
        return q, k, sum(terms) if terms else None
    if isinstance(rpe, DynamicRPE):
        scale = encodings.window_scale(q, region, *rpe.scale_mlp.parameters())
        q, k, added = composed(rpe.inner, q, k, geometry, region)
        return q, k, scale[..., None] * added
    if rpe.gives('rotate'):
        q, k = rpe.rotate(q, k, geometry)
    terms = [rpe.bias(geometry)] if rpe.gives('bias') else []
    terms += [rpe.scores(q, k, geometry, region)] if rpe.gives('scores') else []
    return q, k, sum(terms) if terms else None


@pytest.mark.parametrize('name', NAMES)
def test_a_call_is_its_parts_put_together(name):
    rpe, geometry = built(name, MADE, torch.float64), MADE.called()
    q, k = tokens(geometry, torch.float64)
    region = regions(geometry)
    for actual, expected in zip(rpe(q, k, geometry, region), composed(rpe, q, k, geometry, region)):
        assert actual is expected is None or torch.allclose(actual, expected, atol=1e-10)


class OwnBias(RelativePositionEncoding):
    """As a user writes it."""

    def __init__(self, **window):
        super().__init__(**window)
        self.slope = nn.Parameter(torch.ones(self.num_heads))

    def bias(self, geometry):
        return -self.slope[:, None, None] * offsets(geometry, self.slope.device).abs().sum(0)


class OwnTable(TableRPE):
    """A table whose own row is left out, and scores beside it."""

    def bias(self, geometry):
        return super().bias(geometry) - self.relative_position_bias_table.mean(0)[:, None, None]

    def scores(self, q, k, geometry, region):
        return 0.1 * q @ k.mT


def test_ones_own_with_a_bias_gives_a_bias_alone():
    window = dict(num_heads=HEADS, window_size=MADE.window, key_size=MADE.key_size)
    own, scored = OwnBias(**window), OwnTable(**window)
    assert own.gives_bias_alone and own.gives('bias') and not own.gives('scores')
    assert not scored.gives_bias_alone and scored.gives('bias') and scored.gives('scores')
    assert own.kinds == ('OwnBias', ) and scored.kinds == ('OwnTable', 'TableRPE')
    both = SumRPE([own, scored], **window)
    assert SumRPE([own], **window).gives_bias_alone and not both.gives_bias_alone
    q, k = tokens(MADE.called())
    added = both(q, k, MADE.called())[2]
    expected = own.bias(MADE.called()) + scored.bias(MADE.called()) + 0.1 * q @ k.mT
    assert torch.allclose(added, expected, atol=1e-5)


# ---- index tensors ----


@pytest.fixture
def empty_cache():
    _keep.cache_clear()


def outputs(rpe) -> list:
    geometry = MADE.called()
    outs = [*rpe(*tokens(geometry), geometry, regions(geometry)), rpe.values(attended(MADE), geometry)]
    return [out for out in outs if out is not None]


class Called(nn.Module):
    """An encoding in its window: all that it gives."""

    def __init__(self, rpe):
        super().__init__()
        self.rpe = rpe

    def forward(self, q, k, weights):
        geometry = MADE.called()
        outs = (*self.rpe(q, k, geometry), self.rpe.values(weights, geometry))
        return tuple(out for out in outs if out is not None)


def fake(rpe) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(x.shape) for x in (*tokens(MADE.called()), attended(MADE))]
        assert not any(type(out) is torch.Tensor for out in Called(rpe)(*inputs))


def export(rpe) -> None:
    torch.export.export(Called(rpe), (*tokens(MADE.called()), attended(MADE)), strict=False)


def func_grad(rpe) -> None:

    def loss(params, *inputs):
        return sum(out.sum() for out in torch.func.functional_call(Called(rpe), params, inputs))

    params = {f'rpe.{name}': value.detach() for name, value in rpe.named_parameters()}
    torch.func.grad(loss)(params, *tokens(MADE.called()), attended(MADE))
    torch.func.vmap(lambda *inputs: loss(params, *(x[None] for x in inputs)))(*tokens(MADE.called()), attended(MADE))


def inference(rpe) -> None:
    with torch.inference_mode():
        outputs(rpe)


@pytest.mark.parametrize('first', [fake, export, func_grad, inference])
@pytest.mark.parametrize('name', NAMES)
def test_nothing_is_kept_of_a_tracer(name, first, empty_cache):
    """Where one comes first, eager calls give afterwards what they would have given before, and train."""
    rpe = built(name, MADE)
    first(rpe)
    after = outputs(rpe)
    assert all(type(out) is torch.Tensor for out in after)
    if any(out.requires_grad for out in after):
        sum(out.sum() for out in after).backward()
    _keep.cache_clear()
    assert all(torch.equal(a, b) for a, b in zip(after, outputs(rpe), strict=True))


@pytest.mark.parametrize('name', NAMES)
def test_what_eager_calls_kept_does_not_bother_a_tracer(name, empty_cache):
    rpe = built(name, MADE)
    before = outputs(rpe)
    for first in (fake, func_grad, inference):
        first(rpe)
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(rpe), strict=True))


def test_index_tensors_are_made_once(empty_cache):
    made = []

    def make(size):
        made.append(size)
        return torch.arange(size)

    first = kept(make, 3)
    assert kept(make, 3) is first and kept(make, 4) is not first and made == [3, 4]
    with torch.inference_mode():
        assert not kept(make, 5).is_inference()
    with FakeTensorMode():
        assert kept(make, 3) is not first and made == [3, 4, 5, 3]


# ---- copies, devices, quantisation ----


@pytest.mark.parametrize('copied', [copy.deepcopy, lambda rpe: pickle.loads(pickle.dumps(rpe))])
@pytest.mark.parametrize('name', NAMES)
def test_copies_give_the_same_and_share_nothing(name, copied):
    rpe = built(name, MADE)
    before = outputs(rpe)
    twin = copied(rpe)
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(twin), strict=True))
    for parameter in twin.parameters():
        parameter.data.zero_()
    twin.resample((5, 5))
    assert rpe.window_size == MADE.window
    assert all(torch.equal(a, b) for a, b in zip(before, outputs(rpe), strict=True))


@pytest.mark.parametrize('name', NAMES)
def test_built_on_no_device(name):
    """As for models too large to be drawn before they are loaded."""
    with torch.device('meta'):
        empty = build_rpe(ENCODINGS[name], num_heads=HEADS, window_size=MADE.window, key_size=MADE.key_size,
                          head_dim=HEAD_DIM)
    assert all(parameter.is_meta for parameter in empty.parameters())
    rpe = built(name, MADE)
    empty.to_empty(device='cpu').load_state_dict(rpe.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(outputs(empty), outputs(rpe), strict=True))


@pytest.mark.parametrize('name', [name for name in NAMES if name not in TWO_AXES])
def test_backbone_built_on_no_device(name):
    sizes = SMALL | dict(num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1), window_size=3, rpe=ENCODINGS[name])
    with torch.device('meta'):
        model = SwinRPE(**sizes)
    assert all(parameter.is_meta for parameter in model.parameters())
    model = model.to_empty(device='cpu')
    model.load_state_dict(SwinRPE(**sizes).state_dict())
    assert all(out.isfinite().all() for out in model(pixels(1, 3, 40, 50)))


@pytest.mark.filterwarnings('ignore:torch.ao.quantization is deprecated:DeprecationWarning')
@pytest.mark.parametrize('kwargs', [
    dict(arch='v2-nano'), dict(arch='nano', rpe=dict(type='LogCPB')), dict(arch='nano', rpe=dict(type='DynamicRPE')),
    dict(arch='nano', rpe=dict(type='DynamicRPE', rpe=dict(type='LogCPB'))), dict(arch='nano'),
    dict(arch='nano', mask_padding=False), dict(arch='v2-nano', mask_padding=False)])
def test_quantised_linear_layers(kwargs):
    model = randomise_v2(SwinRPE(**kwargs)).eval()
    images = pixels(2, 3, 70, 90)
    with torch.no_grad():
        expected = model(images)
        outs = quantize_dynamic(model, {nn.Linear})(images)
    for out, reference in zip(outs, expected):
        error = ((out - reference).norm() / reference.norm()).item()
        record('quantised linear layers, relative', error)
        assert error < 0.1  # eight bits
