# the same network on plain offsets
backbone = dict(rpe=dict(type='LogCPB', log=False))
