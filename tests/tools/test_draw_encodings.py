"""The page about encodings: its pictures, its table, its examples."""
import re

import matplotlib.image
import pytest
from mmengine.optim import build_optim_wrapper
from tiny import REPO, load_tool

from swin_rpe_mm import InputError, SwinRPE
from swin_rpe_mm.registry import MODELS
from swin_rpe_mm.rpe import RelativePositionEncoding

PAGE = REPO / 'docs/encodings.md'
TEXT = PAGE.read_text()
LINKS = sorted(set(re.findall(r'\]\(([^)]+)\)', TEXT)))
PICTURES = sorted(link for link in LINKS if link.endswith('.png'))


@pytest.fixture(scope='module')
def examples() -> dict:
    """What the Python blocks of the page define, run one after the other in a namespace."""
    names = {}
    for block in re.findall(r'```python\n(.*?)```', TEXT, re.DOTALL):
        exec(compile(block, str(PAGE), 'exec'), names)
    yield names
    MODELS.module_dict.pop('SlopeRPE', None)


def anchors() -> set:
    """Where links inside the page may lead, named as GitHub does."""
    titles = re.findall(r'^#+ (.+)$', re.sub(r'```.*?```', '', TEXT, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


@pytest.mark.slow
def test_draws_every_picture_of_the_page(tmp_path):
    load_tool('analysis_tools/draw_encodings')(['--out', str(tmp_path / 'made')])
    made = sorted(path.name for path in (tmp_path / 'made').iterdir())
    assert made == [link.split('/')[-1] for link in PICTURES]
    for name in made:
        assert matplotlib.image.imread(tmp_path / 'made' / name)[..., :3].std() > 0.05, name
        assert (tmp_path / 'made' / name).stat().st_size < 60_000, name


def test_same_seed_same_picture(tmp_path):
    draw = load_tool('analysis_tools/draw_encodings')
    pictures = []
    for run, seed in enumerate('112'):
        draw(['--out', str(tmp_path / str(run)), '--seed', seed, '--only', 'log_bucket'])
        pictures.append((tmp_path / str(run) / 'log_bucket.png').read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_unknown_picture():
    with pytest.raises(InputError, match='--only must name pictures out of window, .*, got nothing'):
        load_tool('analysis_tools/draw_encodings')(['--only', 'nothing'])


@pytest.mark.parametrize('link', LINKS)
def test_links_lead_somewhere(link):
    if link.startswith('#'):
        assert link[1:] in anchors()
    else:
        assert (PAGE.parent / link).exists()


def test_table_of_costs_is_what_the_tool_counts(capsys):
    load_tool('analysis_tools/draw_encodings')(['--table'])
    assert f'<!-- costs -->\n{capsys.readouterr().out}<!-- /costs -->' in TEXT


def test_every_encoding_has_its_place():
    encodings = {name for name, cls in MODELS.module_dict.items()
                 if isinstance(cls, type) and issubclass(cls, RelativePositionEncoding)
                 and cls.__module__.startswith('swin_rpe_mm.')}
    assert encodings and encodings == set(re.findall(r'^## (\w+(?:RPE|CPB))$', TEXT, re.MULTILINE))


def test_own_encoding_falls_with_the_distance(examples):
    assert [tuple(features.shape) for features in examples['features']] == [
        (1, 32 * 2**stage, 16 // 2**stage, 24 // 2**stage) for stage in range(4)]
    rpe = examples['backbone'].stages[0].blocks[0].attn.w_msa.rpe
    bias = rpe.bias(rpe.geometry).detach()
    assert bias.shape == (1, 49, 13 * 13)
    corner = bias[0, 0].view(13, 13)  # keys around the window, the query at its first slot, 3 tokens in
    assert corner[3, 3] == 0
    assert corner[3, 7] == pytest.approx(-0.2 * 4)
    assert corner[0, 7] == pytest.approx(-0.2 * 5)


@pytest.mark.parametrize('arch', ['nano', 'v2-nano'])
@pytest.mark.parametrize('rpe', ['TableRPE', 'LogCPB', 'ContextualRPE', 'RotaryRPE', 'DynamicRPE'])
def test_no_encoding_decays(examples, arch, rpe):
    backbone = SwinRPE(arch=arch, rpe=dict(type=rpe), use_abs_pos_embed='window',
                       pooled_neighbours=int(rpe != 'RotaryRPE'))
    optimizer = build_optim_wrapper(backbone, examples['optim_wrapper']).optimizer
    decays = {id(parameter): group['weight_decay'] > 0 for group in optimizer.param_groups
              for parameter in group['params']}
    for name, parameter in backbone.named_parameters():
        exempt = any(kind in name for kind in ('rpe', 'logit_scale', 'pos_embed', 'norm'))
        assert decays[id(parameter)] is not exempt, name
