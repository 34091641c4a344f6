"""The example of long sequences: its table is there, and keys from neighbouring blocks solve what one cannot."""
import re

import pytest
from tiny import load_tool

from swin_rpe_mm import InputError

ROW = re.compile(r'(\d+)\W+the (own block|block before)\W+([\d.]+)\W+([\d.]+)\W+0\.125')


def rows(text: str) -> dict:
    """``{(length, place): (accuracy without neighbours, with them)}``."""
    return {(int(length), place): (float(alone), float(joined)) for length, place, alone, joined in ROW.findall(text)}


def run(capsys, *argv: str) -> dict:
    load_tool('long_sequences')(list(argv))
    return rows(capsys.readouterr().out)


def test_few_iterations_print_the_whole_table(capsys):
    found = run(capsys, '--iters', '2', '--block-size', '6', '--length', '20')
    assert found.keys() == {(length, place) for length in (20, 80) for place in ('own block', 'block before')}
    assert all(0 <= accuracy <= 1 for pair in found.values() for accuracy in pair)


def test_only_neighbours_carry_symbols_across_the_border(capsys):
    found = run(capsys, '--iters', '120', '--block-size', '8', '--length', '32')
    for length in (32, 128):
        alone, joined = found[length, 'own block']
        assert alone > 0.9 and joined > 0.9
        alone, joined = found[length, 'block before']
        assert alone < 0.25, 'a block alone cannot know the symbols of the one before'
        assert joined > 0.9


@pytest.mark.parametrize('argv', [['--iters', '0'], ['--block-size', '1'], ['--length', '31']])
def test_bad_option_is_named(argv):
    with pytest.raises(InputError, match=argv[0]):
        load_tool('long_sequences')(argv)
