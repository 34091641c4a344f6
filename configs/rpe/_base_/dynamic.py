# Swin's table, scaled per window and head by what is in the window
backbone = dict(rpe=dict(type='DynamicRPE'))
