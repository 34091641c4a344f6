"""Models that stay as they are, each with its reason."""
import pytest
from shipped import shipped

from swin_rpe_mm import SwapRefused, swap_backbone

REFUSED = [
    ('mmdet', 'centripetalnet/centripetalnet_hourglass104_16xb6-crop511-210e-mstest_coco.py', 'one branch per stack'),
    ('mmdet', 'detectors/detectors_htc-r50_1x_coco.py', 'RFP .* second backbone'),
    ('mmdet', 'faster_rcnn/faster-rcnn_r50-caffe-c4_ms-1x_coco.py', 'share ResLayer, the last stage of ResNet'),
    ('mmdet', 'misc/d2_mask-rcnn_r50-caffe_fpn_ms-90k_coco.py', 'built by Detectron2'),
    ('mmdet', 'reid/reid_r50_8xb32-6e_mot17train80_test-mot17val20.py', 'one vector per picture'),
    ('mmdet', 'tridentnet/tridentnet_r50-caffe_1x_coco.py', 'triples the batch'),
    ('mmseg', 'beit/beit-base_upernet_8xb2-160k_ade20k-640x640.py', 'plain ViT'),
    ('mmseg', 'bisenetv1/bisenetv1_r18-d32_4xb4-160k_cityscapes-1024x1024.py', 'the whole network'),
    ('mmseg', 'dpt/dpt_vit-b16_8xb2-160k_ade20k-512x512.py', 'its 4 maps have one size'),
    ('mmseg', 'icnet/icnet_r50-d8_4xb2-80k_cityscapes-832x832.py', 'three resolutions'),
    ('mmseg', 'mobilenet_v3/mobilenet-v3-d8-s_lraspp_4xb4-320k_cityscapes-512x1024.py', 'LRASPPHead .* 49x49 cells'),
    ('mmseg', 'san/san-vit-b16_coco-stuff164k-640x640.py', 'CLIP'),
    ('mmseg', 'setr/setr_vit-l_pup_8xb1-80k_cityscapes-768x768.py', 'its 4 maps have one size'),
    ('mmseg', 'unet/unet-s5-d16_fcn_4xb4-40k_drive-64x64.py', 'encoder and decoder in one'),
    ('mmseg', 'vit/vit_deit-s16_upernet_8xb2-80k_ade20k-512x512.py', 'its 4 maps have one size'),
]


@pytest.mark.parametrize(
    ('package', 'path', 'reason'),
    [pytest.param(*case, marks=pytest.mark.needs_ops if case[0] == 'mmdet' else ()) for case in REFUSED])
def test_reasons(package, path, reason):
    with pytest.raises(SwapRefused, match=reason) as error:
        swap_backbone(shipped(package, path))
    assert '\n' not in str(error.value)


@pytest.mark.needs_ops
def test_strides_that_no_stage_has():
    source = shipped('mmdet', 'retinanet/retinanet_r50_fpn_1x_coco.py')
    source.model.backbone.update(strides=(1, 2, 2, 1), dilations=(1, 1, 1, 2))
    with pytest.raises(SwapRefused, match='ResNet gives maps at strides 8, 16, 16, and stages of Swin have 4, 8'):
        swap_backbone(source)
