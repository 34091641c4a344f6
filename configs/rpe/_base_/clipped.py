# offsets from 4 on share a row, so that every row is trained with a window of 7
backbone = dict(rpe=dict(type='ClippedRPE', max_distance=4))
