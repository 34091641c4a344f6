"""Models that have no backbone to swap, each with the reason."""
from ...errors import InputError


class SwapRefused(InputError):
    """The model cannot be put on another backbone; the message says why."""


# backbones whose parts, paths or losses the rest of the model is made for
BACKBONES = {
    'BiSeNetV1': 'it is the whole network: a spatial path beside the context path, and heads for the parts of both',
    'BiSeNetV2': 'it is the whole network: a detail and a semantic branch, whose every stage has a head of its own',
    'CGNet': 'it is the whole network: the head is one convolution on its last map',
    'DDRNet': 'it is the whole network: two branches of two resolutions that exchange features, and a loss on each',
    'ERFNet': 'it is encoder and decoder in one: the head is one convolution on a map of half the size of the image',
    'FastSCNN': 'it is the whole network: a branch of high resolution joined with the global features inside of it',
    'HourglassNet': 'its stacks of encoder and decoder give the same map twice, and the head has one branch per stack',
    'ICNet': 'it runs on the image at three resolutions, and its neck joins these',
    'MAE': 'it is a plain ViT, whose maps of one size are made into a pyramid by feature adapters',
    'BEiT': 'it is a plain ViT, whose maps of one size are made into a pyramid by feature adapters',
    'PIDNet': 'it is the whole network: three branches, and a loss on each',
    'STDCContextPathNet': 'it is the whole network: a context path with heads for its parts, one of them for edges',
    'TridentResNet': 'its last stage triples the batch, one branch per scale, and the heads are made for that',
    'UNet': 'it is encoder and decoder in one: the heads read its decoder, at the resolution of the image',
    'VPD': 'it is a diffusion model, whose denoising network and text encoder give the features',
}
# what a model holds beside the backbone
NECKS = {
    'RFP': 'it runs a second backbone that takes in what the first round of the pyramid gave',
    'ICNeck': 'it joins the three resolutions of ICNet',
    'SimpleFPN': 'it makes a pyramid from the one map of a plain ViT',
    'Feature2Pyramid': 'it makes a pyramid from the maps of a plain ViT, which all have one size',
}
HEADS = {
    'LRASPPHead': 'it averages over 49x49 cells of a map of stride 8, which are more than a map of Swin has',
}
MODELS = {
    'BaseReID': 'it tells objects apart from one vector per picture, with neither boxes nor a label map',
    'Detectron2Wrapper': "its model is built by Detectron2, from Detectron2's own settings",
    'MultimodalEncoderDecoder': 'it works with an image encoder and a text encoder that were trained together as CLIP',
}


_SENTENCES = {
    'backbone': 'the backbone {} cannot be swapped: {}',
    'head': 'the head {} works with no other backbone: {}',
    'neck': 'the neck {} works with no other backbone: {}',
    'model': '{} has no backbone that could be swapped: {}',
}


def refuse(part: str, name: str, reason: str) -> SwapRefused:
    """The exception for a part of a model: ``'backbone'``, ``'neck'``, ``'head'`` or ``'model'``."""
    return SwapRefused(_SENTENCES[part].format(name, reason))
