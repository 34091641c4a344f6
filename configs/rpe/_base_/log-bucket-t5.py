# 6 buckets per sign, the first three of one offset each: a window of 7 meets all of them
backbone = dict(rpe=dict(type='LogBucketRPE', form='t5', num_buckets=12, max_distance=6))
