"""Fewer numbers for far offsets: offsets to buckets.

Each form takes offsets, query minus key, of any shape and gives long buckets from 0. Computed on the CPU whatever the
device of the encoding: a logarithm that rounds differently would move an offset to another bucket.
"""
import math
from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..errors import InputError
from ..windows.geometry import WindowGeometry
from .offsets import Device, joint_index, offsets

FORMS = ('sign_log', 't5', 'piecewise')
JOINS = ('product', 'cross', 'euclidean')


def sign_log(offset: Tensor, num_buckets: int, max_distance: float) -> Tensor:
    """``round(sign(d) * K * log(1 + |d|) / log(1 + D))``, clipped to +-K, plus K.

    Args:
        offset (Tensor): Offsets d, integers or floats.
        num_buckets (int): K, the buckets of each sign; with that of 0 there are ``2 * K + 1``.
        max_distance (float): D, which falls in the last bucket, as all offsets beyond it do.

    Returns:
        Tensor: Buckets, long.
    """
    logarithm = num_buckets * torch.log(1 + offset.abs().double()) / math.log(1 + max_distance)
    signed = (offset.sign() * logarithm).round().clamp(-num_buckets, num_buckets)
    return signed.long() + num_buckets


def t5(offset: Tensor, num_buckets: int, max_distance: float) -> Tensor:
    """T5's bidirectional buckets, arXiv 1910.10683: one per offset when near, logarithmic further away.

    Args:
        offset (Tensor): Offsets; T5 counts key minus query, so that keys ahead, with negative offsets here, have the
            upper half of the buckets.
        num_buckets (int): All buckets, of both signs.
        max_distance (float): From here on, offsets fall in the last bucket of their sign.

    Returns:
        Tensor: Buckets, long.
    """
    half = num_buckets // 2
    return t5_distance(offset.abs(), half, max_distance) + half * (offset < 0)


def t5_distance(distance: Tensor, num_buckets: int, max_distance: float) -> Tensor:
    """T5's unidirectional buckets of distances, which are not negative; see :func:`t5`."""
    exact = num_buckets // 2
    # in float32 and in this order, as T5's code does: the logarithm of some distances is nearly a whole number
    ratio = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).long()
    return torch.where(distance < exact, distance.long(), far.clamp(max=num_buckets - 1))


def piecewise(offset: Tensor, ratio: float) -> Tensor:
    """iRPE's piecewise index, arXiv 2107.14222, equation 18, shifted to start at 0.

    With ``alpha, beta, gamma = ratio, 2 * ratio, 8 * ratio`` an offset x has the index ``round(x)`` if
    ``|x| <= alpha``, else ``sign(x) * min(beta, round(alpha + log(|x| / alpha) / log(gamma / alpha) *
    (beta - alpha)))``. As in iRPE's code, a beta that is no whole number is cut to one.

    Args:
        offset (Tensor): Offsets x, integers or floats.
        ratio (float): What alpha, beta and gamma are multiples of.

    Returns:
        Tensor: Buckets, long, ``2 * int(beta) + 1`` of them.
    """
    alpha, beta, gamma = ratio, 2 * ratio, 8 * ratio
    distance = offset.abs().double()
    far = alpha + torch.log(distance.clamp(min=alpha) / alpha) / math.log(gamma / alpha) * (beta - alpha)
    index = torch.where(distance <= alpha, distance.round(), far.round().clamp(max=beta))
    return (offset.sign() * index).long() + int(beta)


class Bucketing(NamedTuple):
    """How the offsets along all axes become rows of tables; see :func:`bucketing` for the fields.

    Those that the form does not use are 0.
    """
    form: str
    join: str
    num_buckets: int
    max_distance: float
    ratio: float

    def table_rows(self, axes: int) -> Tuple[int, ...]:
        """Rows of each table: one table, or one per axis where the join is ``cross``."""
        if self.join == 'euclidean':
            return (self._distances, )
        return (self._per_axis**axes, ) if self.join == 'product' else (self._per_axis, ) * axes

    def rows(self, offset: Tensor) -> Tuple[Tensor, ...]:
        """Row in each table, ``(...)`` long, of offsets ``(axes, ...)``."""
        if self.join == 'euclidean':
            return (self._of_distance(offset.double().norm(dim=0).round()), )
        parts = self._of_offset(offset)
        return (joint_index(parts, (self._per_axis, ) * len(parts)), ) if self.join == 'product' else tuple(parts)

    @property
    def _per_axis(self) -> int:
        if self.form == 't5':
            return self.num_buckets
        return 2 * self._zero + 1

    @property
    def _distances(self) -> int:
        return self.num_buckets if self.form == 't5' else self._zero + 1

    @property
    def _zero(self) -> int:
        """The bucket of offset 0, in the middle, of the forms that have one."""
        return self.num_buckets if self.form == 'sign_log' else int(2 * self.ratio)

    def _of_offset(self, offset: Tensor) -> Tensor:
        if self.form == 'piecewise':
            return piecewise(offset, self.ratio)
        return (sign_log if self.form == 'sign_log' else t5)(offset, self.num_buckets, self.max_distance)

    def _of_distance(self, distance: Tensor) -> Tensor:
        if self.form == 't5':
            return t5_distance(distance, self.num_buckets, self.max_distance)
        return self._of_offset(distance) - self._zero


def bucketing(form: str,
              join: str,
              num_buckets: Optional[int] = None,
              max_distance: Optional[float] = None,
              ratio: Optional[float] = None) -> Bucketing:
    """Check the options of a bucketing and fill in those that were not given.

    Args:
        form (str): ``sign_log``, ``t5`` or ``piecewise``, the functions of this file.
        join (str): ``product`` has a row for every combination of the buckets along the axes, the last axis fastest;
            ``cross`` has a table per axis, whose values are added; ``euclidean`` takes the bucket of the rounded
            length of the offset, which has no direction: the buckets of negative offsets are left out, and T5's form is
            the unidirectional one.
        num_buckets (int, optional): For ``sign_log``, 6 by default, which leaves no bucket empty, and ``t5``, 32.
        max_distance (float, optional): For ``sign_log``, 32 by default, and ``t5``, 128.
        ratio (float, optional): For ``piecewise``, 1.9 by default.

    Raises:
        InputError: If a value is not allowed, or an option is given that the form does not use.
    """
    if form not in FORMS:
        raise InputError(f'form must be one of {", ".join(FORMS)}, got {form!r}')
    if join not in JOINS:
        raise InputError(f'join must be one of {", ".join(JOINS)}, got {join!r}')
    if form == 'piecewise':
        for name, value in (('num_buckets', num_buckets), ('max_distance', max_distance)):
            if value is not None:
                raise InputError(f'{name} is for the forms sign_log and t5, got {value!r} with piecewise')
        ratio = 1.9 if ratio is None else ratio
        if not _is_number(ratio) or ratio < 0.5:
            raise InputError(f'ratio must be a number from 0.5, got {ratio!r}')
        return Bucketing(form, join, 0, 0., float(ratio))

    if ratio is not None:
        raise InputError(f'ratio is for the form piecewise, got {ratio!r} with {form}')
    num_buckets = (6 if form == 'sign_log' else 32) if num_buckets is None else num_buckets
    max_distance = (32 if form == 'sign_log' else 128) if max_distance is None else max_distance
    # half of a direction's buckets of T5 hold single offsets; there are two directions, distances have one
    fewest = 1 if form == 'sign_log' else 2 if join == 'euclidean' else 4
    if isinstance(num_buckets, bool) or not isinstance(num_buckets, int) or num_buckets < fewest:
        raise InputError(f'num_buckets must be a whole number from {fewest} with the form {form}, got {num_buckets!r}')
    if fewest == 4 and num_buckets % 2:
        raise InputError(f'num_buckets of the form t5 must be even, as both directions have as many, got {num_buckets}')
    exact = num_buckets // fewest if form == 't5' else 0
    if not _is_number(max_distance) or max_distance <= exact:
        raise InputError(f'max_distance must be a number above {exact} with {num_buckets} buckets of the form {form}, '
                         f'got {max_distance!r}')
    return Bucketing(form, join, num_buckets, float(max_distance), 0.)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def bucket_rows(geometry: WindowGeometry, buckets: Bucketing, device: Device = 'cpu') -> Tuple[Tensor, ...]:
    """Row of each pair's offset in each table of ``buckets``, ``(Nq, Nk)`` long."""
    return tuple(rows.to(device) for rows in buckets.rows(offsets(geometry)))
