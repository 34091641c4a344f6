# iRPE's piecewise buckets as a bias
backbone = dict(rpe=dict(type='LogBucketRPE', form='piecewise', join='product'))
