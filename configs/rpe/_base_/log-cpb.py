# SwinV2's network on log-spaced offsets
backbone = dict(rpe=dict(type='LogCPB'))
