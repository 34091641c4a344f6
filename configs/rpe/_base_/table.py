# Swin's own table, which every recipe has: here to be compared with
backbone = dict(rpe=dict(type='TableRPE'))
