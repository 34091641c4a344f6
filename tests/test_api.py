"""What is public, and how configs reach it."""
import ast
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest

import swin_rpe_mm

REGISTRIES = [pytest.param('mmdet', marks=pytest.mark.needs_ops), 'mmseg', 'mmengine']


def run(code: str) -> str:
    """Run Python code in a fresh process; its output."""
    done = subprocess.run([sys.executable, '-W', 'ignore', '-c', textwrap.dedent(code)], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ''


@pytest.mark.parametrize('name', [
    'SwinRPE', 'attach_extents', 'get_extents', 'InputError', 'PaddingInvarianceHook', 'RPEMonitorHook',
    'SegDataPreprocessor', 'SwapRefused', 'make_padding_invariant', 'swap_backbone', '__version__',
    pytest.param('DetDataPreprocessor', marks=pytest.mark.needs_ops)])
def test_public_names(name):
    assert name in swin_rpe_mm.__all__
    assert getattr(swin_rpe_mm, name) is not None


def test_input_error_is_a_value_error():
    assert issubclass(swin_rpe_mm.InputError, ValueError)


def test_name_that_does_not_exist():
    with pytest.raises(AttributeError, match='no_such_name'):
        _ = swin_rpe_mm.no_such_name


def test_import_needs_neither_mmdet_nor_mmseg():
    loaded = run('import sys, swin_rpe_mm; swin_rpe_mm.SwinRPE(arch="nano");'
                 'print([name for name in ("mmdet", "mmseg") if name in sys.modules])')
    assert loaded == '[]'


def imported_by(module: str) -> set[str]:
    """What a module of ours imports from elsewhere, also through other modules of ours."""
    names = set()
    for node in ast.walk(ast.parse(Path(import_module(module).__file__).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split('.')[0])
        elif isinstance(node, ast.ImportFrom):
            names |= imported_by('.'.join([*module.split('.')[:-node.level], node.module]))
    return names


@pytest.mark.parametrize('module', ['swin_rpe_mm.windows.layout', 'swin_rpe_mm.windows.gather',
                                    'swin_rpe_mm.mm.extents', 'swin_rpe_mm.rpe.offsets'])
def test_lowest_rooms_import_only_torch(module):
    assert imported_by(module) - set(sys.stdlib_module_names) == {'torch'}


@pytest.mark.parametrize('registry', REGISTRIES)
def test_with_custom_imports(registry):
    """As configs do it: both names, also under the other project's default scope, whose own names stay its own."""
    names = run(f"""
        import swin_rpe_mm
        from {registry}.registry import MODELS
        models = [MODELS.build(dict(type=name, arch='nano')) for name in ('SwinRPE', 'swin_rpe_mm.SwinRPE')]
        if '{registry}' != 'mmengine':
            from {registry}.utils import register_all_modules
            register_all_modules(init_default_scope=True)
            models.append(MODELS.build(dict(type='swin_rpe_mm.SwinRPE', arch='nano', rpe=dict(type='TableRPE'))))
            name = dict(mmdet='DetDataPreprocessor', mmseg='SegDataPreProcessor')['{registry}']
            assert MODELS.get(name).__module__.startswith('{registry}.')
            ours = MODELS.build(dict(type='swin_rpe_mm.' + name.replace('Processor', 'processor')))
            assert type(ours).__module__.startswith('swin_rpe_mm.') and isinstance(ours, MODELS.get(name))
        print({{type(model).__module__ for model in models}})
    """)
    assert names == "{'swin_rpe_mm.models.swin_rpe'}"


@pytest.mark.parametrize('registry', REGISTRIES)
def test_with_its_scope_alone(registry):
    """Without ``custom_imports`` the scope in the name is enough."""
    assert run(f"""
        from {registry}.registry import MODELS
        if '{registry}' != 'mmengine':
            name = dict(mmdet='DetDataPreprocessor', mmseg='SegDataPreprocessor')['{registry}']
            assert type(MODELS.build(dict(type='swin_rpe_mm.' + name))).__module__.startswith('swin_rpe_mm.')
        print(type(MODELS.build(dict(type='swin_rpe_mm.SwinRPE', arch='nano'))).__name__)
    """) == 'SwinRPE'
