# SwinV2: cosine attention, norms after the branches, LogCPB, windows of 8
backbone = dict(arch='v2-nano')
