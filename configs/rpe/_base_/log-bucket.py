# 4 buckets per sign up to offset 8: a window of 7 meets all of them
backbone = dict(rpe=dict(type='LogBucketRPE', form='sign_log', num_buckets=4, max_distance=8))
