"""The page of pictures."""
from html.parser import HTMLParser

from swin_rpe_mm.visualization.page import Section, page, write_page


class Reader(HTMLParser):
    """Text, and what tags point to; fails on tags that are not closed in their order."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.links, self.ids, self.text = [], [], [], ''
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ('src', 'href') if name in attributes]
        self.ids += [attributes['id']] if 'id' in attributes else []
        if tag not in ('meta', 'img'):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_shows_everything_and_needs_no_network(tmp_path):
    sections = [Section('bias', 'Bias & more', ['a < b.', 'Second.'], 'bias.png', 'bias.svg'),
                Section('windows', 'Windows', ['Third.'], 'windows.png', 'windows.svg')]
    write_page(tmp_path / 'made/index.html', 'A <title>', {'Config': 'my & config.py'}, sections)
    text = (tmp_path / 'made/index.html').read_text()
    assert text == page('A <title>', {'Config': 'my & config.py'}, sections) and '://' not in text
    read = Reader(text)
    for words in ('A <title>', 'my & config.py', 'Bias & more', 'a < b. Second.', 'Third.'):
        assert words in read.text
    assert {'bias.png', 'bias.svg', 'windows.png', 'windows.svg'} == {link for link in read.links if link[0] != '#'}
    assert {link[1:] for link in read.links if link[0] == '#'} == {'bias', 'windows'} == set(read.ids)
