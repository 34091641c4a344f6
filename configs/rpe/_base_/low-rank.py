# a table of rank 2
backbone = dict(rpe=dict(type='LowRankRPE', rank=2))
