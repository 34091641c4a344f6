# the query times one vector per row offset and one per column offset, as in MViTv2 and ViTDet
backbone = dict(rpe=dict(type='DecomposedRPE'))
