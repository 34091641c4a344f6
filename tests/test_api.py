"""What is public, and how configs reach it."""
import ast
import subprocess
import sys
import textwrap
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


PACKAGE = Path(swin_rpe_mm.__file__).parent
# whom each room knows, and which packages; what is not in a room, everyone may know
ROOMS = {
    'windows': (set(), {'torch'}),
    'rpe': ({'windows'}, {'torch', 'mmengine'}),
    'models': ({'windows', 'rpe'}, {'torch', 'mmengine', 'mmcv'}),  # mmcv builds norms and activations from configs
    'executors': ({'windows', 'rpe', 'models'}, {'torch', 'mmengine'}),
    'checkpoints': ({'windows', 'rpe', 'models'}, {'torch', 'mmengine', 'numpy', 'rich', 'safetensors'}),
    'visualization': ({'windows', 'rpe', 'models'}, {'torch', 'numpy', 'matplotlib'}),
    'mm': ({'windows', 'rpe', 'models', 'executors', 'checkpoints', 'visualization'}, None),
}


def imports(file: Path) -> tuple[set[str], set[str]]:
    """The rooms that a file imports from, or files beside them, and the packages."""
    package, rooms, others = ('swin_rpe_mm', *file.relative_to(PACKAGE).parts[:-1]), set(), set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            others |= {alias.name.split('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            others.add(node.module.split('.')[0])
        elif isinstance(node, ast.ImportFrom):
            base = [*package[:len(package) - node.level + 1], *(node.module or '').split('.')]
            base = [part for part in base if part]
            rooms |= {base[1]} if len(base) > 1 else {alias.name for alias in node.names}
    return rooms, others - set(sys.stdlib_module_names)


def test_there_are_no_other_rooms():
    assert {folder.name for folder in PACKAGE.iterdir() if (folder / '__init__.py').is_file()} == set(ROOMS)


@pytest.mark.parametrize('room', ROOMS)
def test_arrows_run_one_way(room):
    known, packages = ROOMS[room]
    beside = {file.stem for file in PACKAGE.glob('*.py')}
    for file in (PACKAGE / room).rglob('*.py'):
        rooms, others = imports(file)
        assert rooms <= known | beside | {room}, f'{file} knows too much'
        assert packages is None or others <= packages, f'{file} knows {others}'
        assert 'tools' not in others and 'tests' not in others


def test_files_beside_the_rooms_know_none_of_them():
    for file in PACKAGE.glob('*.py'):
        rooms, others = imports(file)
        if file.name != '__init__.py':
            assert not rooms & set(ROOMS) and others <= {'mmengine'}


def test_the_model_does_not_ask_what_it_runs_on():
    words = ('device.type', 'is_grad_enabled', 'is_compiling', 'compiler.disable', 'is_cuda')
    for file in [*(PACKAGE / 'models').rglob('*.py'), *(PACKAGE / 'windows').rglob('*.py')]:
        assert not [word for word in words if word in file.read_text()], file


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
    assert names == "{'swin_rpe_mm.mm.backbone'}"


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
