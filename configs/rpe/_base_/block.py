# 4 buckets of inner offsets per sign up to 8, and the blocks next to a block, for windows with a halo
backbone = dict(rpe=dict(type='BlockRPE', max_blocks=1, num_buckets=4, max_distance=8))
