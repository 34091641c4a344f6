"""What training scripts wrap around the weights of a backbone."""
from collections import OrderedDict
from typing import Dict, Optional

from torch import Tensor


def unwrap(checkpoint: dict, prefix: Optional[str] = None) -> Dict[str, Tensor]:
    """The backbone's state dict in a checkpoint.

    Takes off what training scripts wrap around it: a ``state_dict`` or ``model`` entry, ``module.`` before every key,
    and the ``backbone.`` of a whole detector or segmentor, whose other parts are left out.

    Args:
        checkpoint (dict): As read from the file.
        prefix (str, optional): Take the keys under this prefix instead of ``backbone.``.

    Returns:
        dict[str, Tensor]: Weights by name.
    """
    for wrapper in ('state_dict', 'model'):
        if isinstance(checkpoint.get(wrapper), dict):
            checkpoint = checkpoint[wrapper]
            break
    prefix = (prefix or 'backbone').rstrip('.') + '.'
    weights = {key: value for key, value in checkpoint.items() if isinstance(value, Tensor)}
    weights = OrderedDict(_strip(_strip(weights, 'module.'), prefix))
    # what modules noted beside their weights, under their own names; torch's load_state_dict looks for it here
    weights._metadata = _strip(_strip(getattr(checkpoint, '_metadata', {}), 'module.'), prefix)
    return weights


def _strip(entries: dict, prefix: str) -> dict:
    """The entries under ``prefix``, without it; all of them if there are none."""
    inner = {key[len(prefix):]: value for key, value in entries.items() if key.startswith(prefix)}
    return inner or entries
